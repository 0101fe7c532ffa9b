"""Tables and the figure of the GPU benchmark's results."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from rich.console import Console

from benchmarks.common.places import can_draw
from benchmarks.gpu.calls import Call
from benchmarks.gpu.limits import Requirement, requirements
from benchmarks.gpu.points import Kept, Point
from redblue.base.terminal import table

MAX_SHOWN = 72  # characters of a reason in the table; the file has the whole text


def amount(point: Point, seconds: float, kept: Kept) -> tuple[str, str]:
    """The rate of a timed point, and its share of the card's peak."""
    call = point.call
    if call.decodes:
        rate = call.least_bytes / seconds
        return f"{rate / 1e12:.2f} TB/s", f"{rate / kept.copy:.0%}" if kept.copy else ""
    rate = call.flops / seconds / 1e12
    return f"{rate:.1f} TFLOP/s", f"{rate / kept.peaks[call.dtype]:.0%}" if call.dtype in kept.peaks else ""


def shown(value: float | None, required: Requirement) -> tuple[str, str]:
    """The value as text, and whether it meets the required."""
    if value is None:
        return "", "not measured"
    met = value >= required.must
    return (
        f"{value:.2f} {required.unit}" if required.unit == "x" else f"{value:.0f} {required.unit}",
        "pass" if met else "FAIL",
    )


def show(kept: Kept, console: Console) -> None:
    times = kept.times()
    title = f"{kept.about['device']}, {kept.days}"
    made = table(("must reach on an H100, B1 H32 n8192 bf16",), ("must", "measured", ""), title=title)
    for required in requirements():
        value, met = shown(required.value(times, kept.copy), required)
        must = f"{required.must:g} {required.unit}" if required.must else ""
        made.add_row(required.what, must, value, met if required.must else "", style="red" if met == "FAIL" else None)
    rates = table(("call", "contender"), ("rate", "of the peak", "largest error"))
    last: Call | None = None
    for point in sorted(kept.points, key=_order):
        name = "" if point.call == last else point.call.title
        last = point.call
        if point.refused:
            text = f"{point.contender}: {'WRONG: ' * point.wrong}{point.refused}"[:MAX_SHOWN]
            rates.add_row(name, text, style="red" if point.wrong else "dim")
            continue
        rate, share = amount(point, times[point.call][point.contender], kept)
        rates.add_row(name, point.contender, rate, share, f"{max(point.errors):.1e}")
    console.print(rates, made)


def _order(point: Point) -> tuple[object, ...]:
    call = point.call
    return call.decodes, call.direction, call.d, call.density, call.n, call.causal, call.page, call.batch


def say_left(todo: list[tuple[Call, list[str]]], console: Console) -> None:
    """Print how many points are missing or failed temporarily, by length and contender."""
    if not todo:
        return
    counts = Counter((call.n, name) for call, names in todo for name in names)
    made = table(("missing, or failed temporarily",), ("points",), title="the same command continues with these")
    for (n, name), count in counts.items():
        made.add_row(f"n {n}: {name}", str(count))
    console.print(made)


def draw(kept: Kept, path: Path) -> None:
    """Draw the figure if the drawing libraries are installed; a machine with a GPU may lack them."""
    if can_draw(path):
        from benchmarks.gpu import figure

        figure.draw(kept.about | {"days": kept.days}, kept.peaks, kept.times(), path)
