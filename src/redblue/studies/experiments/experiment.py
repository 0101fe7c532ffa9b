"""What an experiment is: its points, what is measured at each, and what is shown of the rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import altair as alt

Point = dict[str, Any]  # plain data: what one measurement needs
Row = dict[str, Any]  # plain data: what one measurement found

Figure = alt.Chart | alt.LayerChart | alt.FacetChart | alt.HConcatChart | alt.VConcatChart | alt.ConcatChart


class Table(NamedTuple):
    """Of texts. The first `left` columns are names, the others figures."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1


@dataclass(frozen=True)
class Experiment:
    """One experiment: data, and what is special to it.

    name: on the command line and of its files. title: of its page. question: what it answers, in a line.
    points(quick): what is measured, the quick ones in a few seconds. measure(point): the rows of one point; it runs in
    a process of its own, so it must be importable. figure(rows): the chart without its colours and type, which
    `charts.write` gives it. tables(rows), findings(rows): what the page, the terminal and the report say of them.
    method: how it is measured, and why what is found is so, in Markdown. missing(): what this machine lacks to run it,
    with the remedy; "" if nothing. tools(): versions of what measures, beside redblue's own.
    """

    name: str
    title: str
    question: str
    points: Callable[[bool], list[Point]]
    measure: Callable[[Point], list[Row]]
    figure: Callable[[list[Row]], Figure]
    tables: Callable[[list[Row]], list[Table]]
    findings: Callable[[list[Row]], list[str]]
    method: str
    missing: Callable[[], str] = lambda: ""
    tools: Callable[[], Mapping[str, str]] = dict
