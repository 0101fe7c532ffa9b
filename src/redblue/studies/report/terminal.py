"""A summary of the report for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from redblue.base.terminal import StackingTable, table
from redblue.base.text import amount, ratio, time
from redblue.lab.plans import LevelPlan
from redblue.studies.report.data import Report
from redblue.studies.report.measured import Run

STYLES = {"large-cache": "blue", "between": "magenta", "small-cache": "yellow"}


def summary(report: Report) -> RenderableType:
    """A table per machine (shapes down, boundaries across), the verdict of the checks, and the measurements."""
    legend = Text("Each cell: the schedule with the fewest words, the regime, and words over the best proved bound.")
    machines = (_machine(report, number) for number in range(len(report.memories)))
    return Group(*machines, legend, _verdict(report), *_measured(report))


def _machine(report: Report, number: int) -> StackingTable:
    memory = report.memories[number]
    boundaries = [level.boundary for level in report.shapes[0].plans[number].levels]
    network = [shape.plans[number].network for shape in report.shapes]
    last = ("network",) if any(network) else ()
    lines = table(("shape", *boundaries, *last), title=f"{memory.name}: {memory.title}")
    for shape in report.shapes:
        p = shape.problem
        cells = [_cell(level) for level in shape.plans[number].levels]
        plan = shape.plans[number].network
        cells += [Text(f"{plan.schedule}\n{plan.placement} {ratio(plan.gap)}")] if plan else []
        lines.add_row(Text.assemble(shape.label, (f"\nd {p.d}, heads {p.heads}/{p.kv_heads}", "dim")), *cells)
    return lines


def _cell(level: LevelPlan) -> Text:
    """The plan for one boundary."""
    gap = f" {ratio(level.gap)}" if level.gap else ""
    regime = level.regime.removesuffix("-cache")
    return Text.assemble(
        level.schedule or "none fits", " (your own)" * level.own, "\n", (regime, STYLES[level.regime]), gap
    )


def _verdict(report: Report) -> Text:
    """The verdict, with a line for each check that failed."""
    failed = "".join(f"\n  {check.schedule} for {check.chosen_for}: {check.failure}" for check in report.failed)
    return Text(verdict(report) + failed, style="green" if report.checks and not failed else "bold red")


def verdict(report: Report) -> str:
    """The result of the checks, in a sentence."""
    total, failed = len(report.checks), len(report.failed)
    if not total:
        return "Nothing was checked: no schedule fits at any boundary."
    if failed:
        return f"{failed} of {total} checks FAILED."
    passed = "The only check" if total == 1 else f"All {total} checks"
    return f"{passed} passed: words counted by the runs equal the closed forms, results equal float64."


def _measured(report: Report) -> Iterator[RenderableType]:
    """A table of the runs on this machine, and their verdict. The row of a shape without a run has a reason."""
    if not report.measured:
        return
    lines = table(("shape\nwhat was run",), ("time\nof peak", "plan", "PyTorch", "words\nbound"), title=MEASURED)
    for shape, measurement in zip(report.shapes, report.measured, strict=True):
        run = measurement.run
        if run is None or run.failure:
            style, text = ("bold red", f"FAILED: {run.failure}") if run else ("dim", f"not run: {measurement.why}")
            lines.add_row(Text.assemble(measurement.label, (f"\n{text}", style)), "-", "-", "-", "-")
            continue
        lines.add_row(
            Text.assemble(measurement.label, (f"\n{measurement.cut}, {shape.problem.dtype}", "dim")),
            f"{time(run.seconds)}\n{share(run.peak_share)}",
            time(run.plan_seconds),
            _pytorch(run),
            f"{amount(run.words)}\n{amount(run.bound_words)}",
        )
    yield lines
    yield Text(
        measured_verdict(report),
        style="bold red" if any(measurement.failed for measurement in report.measured) else "green",
    )


MEASURED = "Measured on this machine"


def share(part: float | None) -> str:
    """A fraction as a percentage; "-" if it is not known."""
    return "-" if part is None else f"{part:.0%}"


def times(factor: float) -> str:
    """A factor with a multiplication sign."""
    return f"{factor:,.0f}×" if factor >= 100 else f"{factor:.1f}×"


def _pytorch(run: Run) -> str:
    """PyTorch's time, and the kernel's speed-up over it; or why there is no time."""
    if run.over_pytorch is None:
        return run.pytorch_why.partition(":")[0]
    return f"{time(run.pytorch_seconds)}\n{times(run.over_pytorch)}"


def measured_verdict(report: Report) -> str:
    """The result of the measurements, in a sentence."""
    runs, failed = (
        [measurement for measurement in report.measured if measurement.run],
        sum(measurement.failed for measurement in report.measured),
    )
    if not runs:
        return "Nothing was run on this machine: no kernel supports these shapes."
    if failed:
        return f"{failed} of {len(runs)} runs on this machine FAILED: no time is given for them."
    cut = any(measurement.run.pieces > 1 for measurement in runs if measurement.run)
    exception = " (more where the keys are cut into pieces)" if cut else ""
    agree = "The only run on this machine agrees" if len(runs) == 1 else f"All {len(runs)} runs on this machine agree"
    return f"{agree} with float64; words equal their schedules' counts{exception}."
