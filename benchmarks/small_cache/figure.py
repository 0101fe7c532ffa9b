"""Draw the small-cache experiment over d^2 / M: words per pair and, if measured, times and bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import altair as alt

from benchmarks.common.kept import days
from benchmarks.small_cache.crossing import SCHEDULES
from redblue.base import charts
from redblue.base.style import LOOKS

PREDICTED = {"M = d²": 1.0, "M = d²/4": 4.0}
READING = (
    "Filled marks: words with the best tiles. Dotted line: lower bound.",
    "Hollow marks: words with the best tiles whose edges are multiples of 16, as tensor cores need; "
    "shown if at least 5 % above the filled marks.",
    "Bars at the bottom: the d²/M from which on the schedule of this colour is the best one, "
    "with a bar for each size of shared memory.",
)
BYTES_READING = "Plots of bytes: the marks are measured, and a grey tick below each mark is the lower bound."
BOUNDARIES = (
    ("shared memory and L1 to L2", "l1_l2_bytes", "bound_bytes"),
    ("L2 to memory", "l2_dram_bytes", "l2_dram_bound_bytes"),
)
WIDTH, HEIGHT = 380, 320
DECADES = 4  # about as many ticks as an axis has powers of ten, so that Vega draws no others
APART = 1.05  # times the words of the best tiles: hollow points of less would lie on the filled ones


def draw(
    facts: dict[str, Any], rows: Iterable[dict[str, Any]], crossings: Iterable[dict[str, Any]], path: Path
) -> None:
    """Write an SVG file of words and, beside it, a file NAME_measured.svg of times and bytes, if there are any.

    rows: with direction, d2_over_M, schedule, n, word_bytes, words, tensor_core_words, bound_words, seconds, and bytes.
    crossings: with direction, what ("words" or "seconds"), schedule (the better one from there on) and d2_over_M.
    """
    rows, crossings = list(rows), list(crossings)

    def feet(way: str, quantity: str) -> list[dict[str, Any]]:
        return [crossing for crossing in crossings if (crossing["direction"], crossing["what"]) == (way, quantity)]

    def write(panels: list[Any], more: str, lines: Sequence[str], to: Path) -> None:
        shape = f"n = {facts['n']}, {facts['dtype']}; shared memory of {facts['kilobytes']} KB"
        title = alt.TitleParams(shape + more, subtitle=list(lines), anchor="start", dy=-8)
        chart = alt.concat(*panels, columns=2, spacing=36).properties(title=title)
        charts.write(chart.to_dict(), to, force=True)

    panels = [
        words(f"{way}: words, counted", [row for row in rows if row["direction"] == way], feet(way, "words"))
        for way in ways(rows)
    ]
    write(panels, "; words of one head", READING, path)
    timed, counted = [row for row in rows if row["seconds"]], [row for row in rows if row["l1_l2_bytes"]]
    panels = [
        times(f"{way}: time", [row for row in timed if row["direction"] == way], feet(way, "seconds"))
        for way in ways(timed)
    ]
    for name, key, bound in BOUNDARIES:
        panels += [
            moved(f"{way}: bytes, {name}", [row for row in counted if row["direction"] == way], key, bound)
            for way in ways(counted)
        ]
    if panels:
        more = f"; {facts['device']}, {days(row['date'] for row in rows if row['date'])}"
        write(panels, more, [BYTES_READING] if counted else [], path.with_stem(f"{path.stem}_measured"))


def ways(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["direction"] for row in rows))


def words(title: str, rows: list[dict[str, Any]], crossings: list[dict[str, Any]]) -> alt.LayerChart | alt.FacetChart:
    y = alt.Y("y:Q", title="words per pair", scale=alt.Scale(type="log"), axis=alt.Axis(format="~g", tickCount=DECADES))
    bound = alt.Chart(alt.Data(values=_per_pair(rows, "bound_words"))).mark_line(style="faint", strokeDash=[2, 2])
    best = alt.Chart(alt.Data(values=_per_pair(rows, "words"))).mark_point(size=40, filled=True, opacity=1)
    apart = [row for row in rows if row["tensor_core_words"] and row["tensor_core_words"] >= APART * row["words"]]
    some = alt.Chart(alt.Data(values=_per_pair(apart, "tensor_core_words"))).mark_point(
        size=40, strokeWidth=1, opacity=1
    )
    return alt.layer(
        *predicted(),
        measured(crossings),
        bound.encode(x=across(), y=alt.Y("min(y):Q")),
        best.encode(x=across(), y=y, color=coloured(), shape=shaped()),
        some.encode(x=across(), y=y, color=coloured(), shape=shaped()),
    ).properties(width=WIDTH, height=HEIGHT, title=alt.TitleParams(title, anchor="start", fontWeight="normal"))


def _per_pair(rows: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    return [
        {"d2_over_M": row["d2_over_M"], "schedule": row["schedule"], "y": row[key] / row["n"] ** 2}
        for row in rows
        if row[key]
    ]


def moved(title: str, rows: list[dict[str, Any]], key: str, bound: str) -> alt.LayerChart | alt.FacetChart:
    """A plot of bytes per pair of each launch, with the bound for its boundary (M: of shared memory or of L2)."""
    points = [
        {"d2_over_M": row["d2_over_M"], "schedule": row["schedule"], "y": row[key] / row["n"] ** 2}
        | {"bound": (row | {"bound_bytes": row["bound_words"] * row["word_bytes"]})[bound] / row["n"] ** 2}
        for row in rows
    ]
    base = alt.Chart(alt.Data(values=points))
    y = alt.Y("y:Q", title="bytes per pair", scale=alt.Scale(type="log"), axis=alt.Axis(format="~g", tickCount=DECADES))
    return alt.layer(
        *predicted(),
        base.mark_tick(style="faint", orient="horizontal", thickness=1.5).encode(x=across(), y=alt.Y("bound:Q")),
        base.mark_point(size=40, filled=True, opacity=0.8).encode(x=across(), y=y, color=coloured(), shape=shaped()),
    ).properties(width=WIDTH, height=HEIGHT, title=alt.TitleParams(title, anchor="start", fontWeight="normal"))


def times(title: str, rows: list[dict[str, Any]], crossings: list[dict[str, Any]]) -> alt.LayerChart | alt.FacetChart:
    """A plot of the time of each schedule over the time of flash with the same memory."""
    flash = {(row["d"], row["kilobytes"]): row["seconds"] for row in rows if row["schedule"] == "flash"}
    points = [
        {"d2_over_M": row["d2_over_M"], "schedule": row["schedule"], "y": row["seconds"] / flash[place]}
        for row in rows
        if (place := (row["d"], row["kilobytes"])) in flash
    ]
    y = alt.Y(
        "y:Q",
        title="time over that of flash",
        scale=alt.Scale(type="log"),
        axis=alt.Axis(format="~g", tickCount=DECADES),
    )
    marks = alt.Chart(alt.Data(values=points)).mark_point(size=40, strokeWidth=1.2, filled=True)
    return alt.layer(
        *predicted(), measured(crossings), marks.encode(x=across(), y=y, color=coloured(), shape=shaped())
    ).properties(width=WIDTH, height=HEIGHT, title=alt.TitleParams(title, anchor="start", fontWeight="normal"))


def measured(crossings: list[dict[str, Any]]) -> alt.Chart:
    """Ticks at the foot of a plot, in the colour of the schedule that is better from there on."""
    ticks = alt.Chart(alt.Data(values=crossings)).mark_tick(thickness=2, size=12)
    return ticks.encode(x=across(), y=alt.value(HEIGHT - 6), color=coloured())


def across() -> alt.X:
    return alt.X(
        "d2_over_M:Q",
        title="d² / M",
        scale=alt.Scale(type="log"),
        axis=alt.Axis(format="~g", grid=False, tickCount=DECADES),
    )


def coloured() -> alt.Color:
    return alt.Color("schedule:N", title=None, scale=by_schedule("light"))


def shaped() -> alt.Shape:
    return alt.Shape("schedule:N", title=None, scale=by_schedule("shape"))


def by_schedule(look: str) -> alt.Scale:
    return alt.Scale(domain=list(SCHEDULES), range=[getattr(LOOKS[name], look) for name in SCHEDULES])


def predicted() -> tuple[alt.Chart, alt.Chart]:
    """Marks where the leading terms of the forward pass predict a change of schedule."""
    base = alt.Chart(alt.Data(values=[{"d2_over_M": ratio, "name": name} for name, ratio in PREDICTED.items()]))
    text = base.mark_text(style="words", align="left", dx=4, dy=6, baseline="top").encode(
        x=across(), y=alt.value(0), text="name:N"
    )
    return base.mark_rule(style="faint").encode(x=across()), text
