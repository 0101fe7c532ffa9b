"""The list of experiments, and a result in short, for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from redblue.base.terminal import table
from redblue.studies.experiments.experiment import Experiment
from redblue.studies.experiments.result import Result


def experiments_table(experiments: Sequence[Experiment]) -> RenderableType:
    """A table of names and questions, with the software or hardware that this machine lacks for an experiment."""
    rows = table(("experiment", "question"))
    rows.columns[0].no_wrap = True
    for experiment in experiments:
        missing = experiment.missing()
        lacks = (f"\nnot here: {missing}", "dim") if missing else ""
        rows.add_row(experiment.name, Text.assemble(experiment.question, lacks))
    return rows


def result_text(result: Result) -> RenderableType:
    """The question and the findings of a result. Its tables, too wide for a terminal, are in its page."""
    lines = [f"- {plain(line)}" for line in result.findings]
    return Group(
        Text(result.about.question, style="bold"), Text("\n".join(lines)), Text(result.provenance, style="dim")
    )


def plain(text: str) -> str:
    """Remove Markdown's marks for code and bold type."""
    return text.replace("`", "").replace("**", "")
