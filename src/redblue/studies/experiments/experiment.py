"""The record that defines an experiment: its points, its measurement, its figure and its tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import altair as alt

Point = dict[str, Any]  # plain data: the input of one measurement
Row = dict[str, Any]  # plain data: one result of a measurement

Figure = alt.Chart | alt.LayerChart | alt.FacetChart | alt.HConcatChart | alt.VConcatChart | alt.ConcatChart


class Table(NamedTuple):
    """A table of texts. The first `left` columns hold names, aligned left; the others hold figures, aligned right."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1


@dataclass(frozen=True)
class Experiment:
    """One experiment.

    name: its name on the command line and in its files' names. title: the heading of its page. question: the question
    that it answers, in a line.
    points(quick): the points to measure; with `quick`, few points that take seconds.
    measure(point): measures one point and returns its rows. It runs in another process, so it must be importable.
    figure(rows): the chart without colours and fonts, which `charts.write` adds.
    tables(rows), findings(rows): the tables, and sentences, that the page, the terminal and the report show.
    method: how the figures were obtained, and the reasons for the results, in Markdown.
    missing(): what this machine lacks to run the experiment, with the remedy; "" if it lacks nothing.
    tools(): the versions of the measuring programs, by name.
    parts: names of parts that can be run alone; every point then holds the name of its part as "part".
    alone: every measurement needs all cores, so that they run one after the other.
    checkpointed: measure(point, folder) also takes a folder for checkpoints, from which an interrupted measurement
    continues. Such measurements use all cores, so they run one after the other, and the checkpoints of a measurement
    are deleted as soon as the journal holds its rows.
    """

    name: str
    title: str
    question: str
    points: Callable[[bool], list[Point]]
    measure: Callable[..., list[Row]]
    figure: Callable[[list[Row]], Figure]
    tables: Callable[[list[Row]], list[Table]]
    findings: Callable[[list[Row]], list[str]]
    method: str
    missing: Callable[[], str] = lambda: ""
    tools: Callable[[], Mapping[str, str]] = dict
    parts: Sequence[str] = ()
    checkpointed: bool = False
    alone: bool = False
