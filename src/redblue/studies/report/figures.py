"""The figure of a curve, in Vega-Lite through Altair: words per attended pair over the capacity M."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, pairwise
from typing import Any

import altair as alt

from redblue.base.style import LOOKS
from redblue.studies.report.curves import BEST, GIVEN, Curve, Series
from redblue.studies.ticks import log_ticks

GIVEN_DASHES = [8, 3]
DASHES = ([6, 3], [2, 2], [9, 3, 2, 3], [4, 6], [12, 4])
ORDER_ONLY_DASHES = ([1, 3], [1, 6], [1, 9])
WIDE = 600  # pixels: at this width or more, the plot shows the names of the regimes
LANE = 36  # the height in pixels of each machine's line above the plot
MARKED_EVERY = 6  # every sixth point of a line is marked


def words_figure(curve: Curve, width: int | str = "container", height: int = 380) -> alt.LayerChart:
    """Draw words per attended pair over M, log-log: schedules, bounds, regimes, and the machines' capacities.

    Above the plot, one line per machine shows the capacity of one instance of each of its levels. width: pixels, or
    "container". height: pixels of the plot without these lines. The chart needs the configuration of `style.config`.
    """
    machines = list(dict.fromkeys(mark.machine for mark in curve.marks))
    top = LANE * len(machines) + 8
    bottom = top + height
    values = [y for series in curve.series if _spans(series) for y in series.words_per_pair if y]
    low, high = min(values) / 3, max(values) * 1.6
    x = alt.X(
        "M:Q",
        title="M: words that the cache holds",
        scale=alt.Scale(type="log", domain=[curve.capacities[0], curve.capacities[-1]], nice=False),
        axis=alt.Axis(values=log_ticks(curve.capacities[0], curve.capacities[-1]), format="~s", grid=False),
    )
    y = alt.Y(
        "y:Q",
        title="words per attended pair",
        scale=alt.Scale(type="log", domain=[low, high], range=[bottom, top], nice=False),
        axis=alt.Axis(
            values=log_ticks(low, high),
            format="~g",
            domain=False,
            ticks=False,
            titleY=(top + bottom) / 2,
            titleAlign="center",
        ),
    )
    lines = _schedules(curve, x, y)
    layers = [
        *_regimes(curve, x, y, low, high),
        *_machines(curve, machines, x, bottom),
        lines["marks"],  # before the bounds, so that the legend lists the schedules first
        *_bounds(curve, x, y, low, high),
        lines["lines"],
        *_hover(curve, x, bottom),
    ]
    return alt.LayerChart(layer=layers).properties(width=width, height=bottom)


def _spans(series: Series) -> bool:
    """Whether the y axis must show all values of the series."""
    return series.kind == "schedule" or series.name in (BEST, GIVEN)


def _title(series: Series) -> str:
    """The name of a series in the legend."""
    return f"{series.name} (order only)" if series.kind == "order only" else series.name


def _chart(rows: list[dict[str, Any]]) -> alt.Chart:
    return alt.Chart(alt.Data(values=rows))


def _rows(curve: Curve, kinds: tuple[str, ...]) -> list[dict[str, Any]]:
    """One row for each value of the series of these kinds, rounded to four digits, which are enough to draw."""
    return [
        {"M": words, "y": float(f"{y:.4g}"), "name": series.name, "i": i}
        for series in curve.series
        if series.kind in kinds
        for i, (words, y) in enumerate(zip(curve.capacities, series.words_per_pair, strict=True))
        if y
    ]


def _regimes(curve: Curve, x: alt.X, y: alt.Y, low: float, high: float) -> Iterator[alt.Chart]:
    """Bands of colour, and rules at the capacities that divide them; with names if there is room."""
    for regime, start, stop in curve.regimes:
        band = _chart([{"M": start, "stop": stop, "y": low, "top": high}])
        yield band.mark_rect(style=regime, opacity=0.09).encode(x=x, x2="stop:Q", y=y, y2="top:Q")
    for point, name, sign in (("d²/4", "small cache", "<"), ("d²", "large cache", "≥")):
        chart = _chart([{"M": curve.dividing_points[point], "y": high, "low": low}])
        yield chart.mark_rule(style="faint", strokeDash=[3, 3]).encode(x=x, y=y, y2="low:Q")
        text = alt.expr(f"width < {WIDE} ? '{point}' : '{name}, M {sign} {point}'")
        align, dx = ("right", -5) if sign == "<" else ("left", 5)
        yield chart.mark_text(style="heading", align=align, baseline="middle", dx=dx, dy=11, text=text).encode(x=x, y=y)


def _machines(curve: Curve, machines: list[str], x: alt.X, bottom: int) -> Iterator[alt.Chart]:
    """A line per machine above the plot: its levels' names at their capacities, and rules down from there."""
    for lane, machine in enumerate(machines):
        rows = [{"M": mark.capacity_words, "level": mark.level} for mark in curve.marks if mark.machine == machine]
        place = {"x": x, "y": alt.value(LANE * lane + 32)}
        yield _chart(rows).mark_rule(style="faint", opacity=0.4, strokeWidth=0.8).encode(**place, y2=alt.value(bottom))
        yield _chart(rows).mark_point(style="ink", filled=True, size=24, opacity=1).encode(**place)
    for lane, machine in enumerate(machines):
        rows = [{"M": mark.capacity_words, "level": mark.level} for mark in curve.marks if mark.machine == machine]
        place = {"x": x, "y": alt.value(LANE * lane + 32)}
        name = _chart([{}]).encode(x=alt.value(0), y=alt.value(LANE * lane + 7))
        for style in ("halo", "words"):
            yield _chart(rows).mark_text(style=style, baseline="bottom", dy=-4).encode(**place, text="level:N")
        yield name.mark_text(style="heading", align="left", text=machine)


def _bounds(curve: Curve, x: alt.X, y: alt.Y, low: float, high: float) -> Iterator[alt.Chart]:
    """Every bound as a line with its own dashes, and the area shaded that no drawn schedule can enter."""
    kinds = {series.name: series.kind for series in curve.series if series.kind != "schedule"}
    titles = {series.name: _title(series) for series in curve.series if series.kind != "schedule"}
    free = {"bound": cycle(DASHES), "order only": cycle(ORDER_ONLY_DASHES)}
    strong = {BEST: [1, 0], GIVEN: GIVEN_DASHES}
    dashes = [strong[name] if name in strong else next(free[kind]) for name, kind in kinds.items()]
    legend = alt.Legend(
        title="lower bounds", symbolType="stroke", symbolSize=400, columns=alt.expr(f"width < {WIDE} ? 1 : 3")
    )
    dash = alt.StrokeDash("name:N", scale=alt.Scale(domain=list(titles.values()), range=dashes), legend=legend)
    rows = [row | {"name": titles[row["name"]], "low": low} for row in _rows(curve, ("bound", "order only"))]
    best = _chart([row for row in rows if row["name"] in strong])
    others = _chart([row for row in rows if row["name"] not in strong and row["y"] <= high])
    lowest = _chart([row for row in rows if row["name"] == (GIVEN if GIVEN in kinds else BEST)])
    yield lowest.mark_area(style="ink", opacity=0.08).encode(x=x, y=y, y2="low:Q")
    yield others.mark_line(style="faint", strokeWidth=1.1, clip=True).encode(x=x, y=y, strokeDash=dash)
    yield best.mark_line(style="ink", strokeWidth=2.2).encode(x=x, y=y, strokeDash=dash)


def _schedules(curve: Curve, x: alt.X, y: alt.Y) -> dict[str, alt.Chart]:
    """A coloured line for each schedule, with marks of a distinct shape at some of its points."""
    rows = _rows(curve, ("schedule",))
    shown_names = [series.name for series in curve.series if series.kind == "schedule" and any(series.words_per_pair)]
    names = [*LOOKS, *(name for name in shown_names if name not in LOOKS)]
    legend = alt.Legend(
        title="schedules, each with its best tiles", values=shown_names, columns=alt.expr(f"width < {WIDE} ? 2 : 4")
    )
    colour = alt.Color("name:N", scale=alt.Scale(domain=names, range="category"), legend=legend)
    marks = alt.Scale(domain=names, range=[LOOKS[name].shape for name in names])
    marked = _chart([row for row in rows if row["i"] % MARKED_EVERY == MARKED_EVERY // 2])
    return {
        "lines": _chart(rows).mark_line(strokeWidth=2).encode(x=x, y=y, color=colour),
        "marks": marked.mark_point(filled=True, size=60, opacity=1).encode(
            x=x, y=y, color=colour, shape=alt.Shape("name:N", scale=marks, legend=legend)
        ),
    }


def _hover(curve: Curve, x: alt.X, bottom: int) -> Iterator[alt.Chart]:
    """An invisible strip around each capacity, whose tooltip shows every value; a rule at the strip last pointed at."""
    points = curve.capacities
    edges = [points[0], *((a * b) ** 0.5 for a, b in pairwise(points)), points[-1]]
    rows = []
    for i, words in enumerate(points):
        values = {_title(series): series.words_per_pair[i] for series in curve.series}
        shown = {name: f"{y:.3g}" if y else "-" for name, y in values.items()}
        place = {"M (words)": f"{words:,}", "d / sqrt(M)": f"{curve.stream.d / words**0.5:.3g}"}
        rows.append({"at": words, "M": edges[i], "stop": edges[i + 1]} | place | shown)
    pointed = alt.selection_point(on="pointerover", fields=["at"], empty=False, clear=False)
    tooltip = [alt.Tooltip(f"{name}:N") for name in rows[0] if name not in ("at", "M", "stop")]
    opacity = alt.when(pointed).then(alt.value(0.6)).otherwise(alt.value(0))
    line = _chart([{"M": words, "at": words} for words in points]).mark_rule(style="ink")
    yield line.encode(x=x, y=alt.value(0), y2=alt.value(bottom), opacity=opacity)
    strips = _chart(rows).mark_rect(opacity=0)
    yield strips.encode(x=x, x2="stop:Q", y=alt.value(0), y2=alt.value(bottom), tooltip=tooltip).add_params(pointed)
