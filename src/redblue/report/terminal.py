"""The report in short, for the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from redblue.planner import LevelPlan
from redblue.report.data import Report
from redblue.tables import table
from redblue.text import ratio

STYLES = {"large-cache": "blue", "between": "magenta", "small-cache": "yellow"}


def summary(report: Report) -> RenderableType:
    """One table per machine: shapes down, boundaries across; best schedule, regime and gap; then the checks."""
    legend = Text("Each cell: the schedule of fewest words; its regime, and the gap: words over the best proved bound.")
    return Group(*(_machine(report, number) for number in range(len(report.memories))), legend, _verdict(report))


def _machine(report: Report, number: int) -> Table:
    memory = report.memories[number]
    boundaries = [level.boundary for level in report.shapes[0].plans[number].levels]
    made = table(("shape", *boundaries), title=f"{memory.name}: {memory.title}")
    for shape in report.shapes:
        p = shape.problem
        cells = [_cell(level) for level in shape.plans[number].levels]
        made.add_row(Text.assemble(shape.label, (f"\nd {p.d}, heads {p.heads}/{p.kv_heads}", "dim")), *cells)
    return made


def _cell(level: LevelPlan) -> Text:
    gap = f" {ratio(level.gap)}" if level.gap else ""
    regime = level.regime.removesuffix("-cache")
    return Text.assemble(level.schedule or "none fits", "\n", (regime, STYLES[level.regime]), gap)


def _verdict(report: Report) -> Text:
    failed = "".join(f"\n  {check.schedule} for {check.chosen_for}: {check.failure}" for check in report.failed)
    return Text(verdict(report) + failed, style="green" if report.checks and not failed else "bold red")


def verdict(report: Report) -> str:
    """The checks in a sentence."""
    total, failed = len(report.checks), len(report.failed)
    if not total:
        return "Nothing was checked: no schedule fits at any boundary."
    if failed:
        return f"{failed} of {total} checks FAILED."
    return f"All {total} checks passed: words counted by the runs equal the closed forms, results equal float64."
