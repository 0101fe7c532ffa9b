"""Experiments on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from redblue.base.terminal import table
from redblue.studies.experiments.experiment import Experiment
from redblue.studies.experiments.result import Result


def listed(found: Sequence[Experiment]) -> RenderableType:
    """Names and questions; what this machine lacks for each."""
    made = table(("experiment", "what it asks"))
    made.columns[0].no_wrap = True
    for each in found:
        missing = each.missing()
        lacks = (f"\nnot here: {missing}", "dim") if missing else ""
        made.add_row(each.name, Text.assemble(each.question, lacks))
    return made


def shown(result: Result) -> RenderableType:
    """What is found, in sentences; the tables are too wide for a terminal, and stand in the page."""
    lines = [f"- {plain(line)}" for line in result.findings]
    return Group(Text(result.about.question, style="bold"), Text("\n".join(lines)), Text(result.made, style="dim"))


def plain(text: str) -> str:
    """Without what Markdown sets apart."""
    return text.replace("`", "").replace("**", "")
