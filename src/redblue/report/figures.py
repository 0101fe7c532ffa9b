"""The figures, as Vega-Lite through Altair: words per attended pair against the capacity M."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import altair as alt

from redblue.report.curves import BEST, Curve

# Distinguishable with every kind of colour vision; a regime has the colour of the schedule that it favours.
COLOURS = {
    "light": {
        "paper": "#ffffff",
        "ink": "#1d2329",
        "muted": "#5b6570",
        "grid": "#e4e7ea",
        "large-cache": "#0068a8",
        "between": "#b0508a",
        "small-cache": "#cf5a00",
        "other": "#757d86",
    },
    "dark": {
        "paper": "#14171a",
        "ink": "#e8eaed",
        "muted": "#a3abb4",
        "grid": "#2b3138",
        "large-cache": "#5bb0ea",
        "between": "#e08fc0",
        "small-cache": "#f0883e",
        "other": "#98a1ab",
    },
}
FAVOURS = {"flash": "large-cache", "hybrid": "between", "small_cache": "small-cache"}
SHAPES = {"standard": "diamond", "flash": "circle", "hybrid": "square", "small_cache": "triangle-up"}
DASHES = ([6, 3], [2, 2], [9, 3, 2, 3], [4, 6], [12, 4])
ORDER_ONLY_DASH = [1, 4]
LANE = 30  # pixels of height for each machine above the plot
MARKED_EVERY = 6  # of the points of a line, how many go by before one is marked


def config(scheme: str = "light", legend_columns: int = 4) -> dict[str, Any]:
    """Vega-Lite configuration: the colours of a scheme, "light" or "dark", and the type."""
    colour = COLOURS[scheme]
    text = {"labelColor": colour["muted"], "titleColor": colour["ink"], "titleFontWeight": "normal"}
    return {
        "background": "transparent",
        "font": "system-ui, sans-serif",
        "view": {"stroke": None},
        "range": {"category": [colour[FAVOURS.get(name, "other")] for name in SHAPES]},
        "axis": {
            **text,
            "gridColor": colour["grid"],
            "domainColor": colour["muted"],
            "tickColor": colour["muted"],
            "labelFontSize": 11,
            "titleFontSize": 12,
        },
        "legend": {
            **text,
            "orient": "bottom",
            "columns": legend_columns,
            "labelColor": colour["ink"],
            "labelFontSize": 12,
            "titleFontSize": 12,
            "labelLimit": 220,
            "symbolStrokeColor": colour["ink"],
            "symbolStrokeWidth": 1.5,
            "layout": {"bottom": {"direction": "vertical", "anchor": "start", "margin": 8}},
        },
        "style": {
            "ink": {"stroke": colour["ink"], "fill": colour["ink"]},
            "rule": {"stroke": colour["muted"]},
            "words": {"fill": colour["muted"], "fontSize": 11},
            "heading": {"fill": colour["ink"], "fontSize": 11, "fontWeight": 600},
            "dot": {"stroke": colour["paper"], "strokeWidth": 1},
            **{regime: {"fill": colour[regime]} for regime in FAVOURS.values()},
        },
    }


def words_figure(curve: Curve, width: int | str = "container", height: int = 380) -> alt.LayerChart:
    """Words per attended pair against M, log-log: schedules, bounds, regimes, and the machines' capacities.

    Above the plot, one line per machine shows what one instance of each of its levels holds. width: pixels, or
    "container"; height: pixels of the plot without these lines. Configure with `config`.
    """
    machines = list(dict.fromkeys(mark.machine for mark in curve.marks))
    top = LANE * len(machines) + 14
    values = [y for series in curve.series for y in series.words_per_pair if y]
    low, high = min(values) / 1.4, max(values) * 1.4
    x = alt.X(
        "M:Q",
        title="M: words that the cache holds",
        scale=alt.Scale(type="log", domain=[curve.capacities[0], curve.capacities[-1]], nice=False),
        axis=alt.Axis(values=_decades(curve.capacities[0], curve.capacities[-1]), format="~s", labelFlush=False),
    )
    y = alt.Y(
        "y:Q",
        title="words per attended pair",
        scale=alt.Scale(type="log", domain=[low, high], range=[height + top, top], nice=False),
        axis=alt.Axis(values=_decades(low, high), format="~g", domain=False, ticks=False, titleX=-38),
    )
    layers = [
        *_regimes(curve, x, y, low, high),
        *_machines(curve, machines, x, height + top),
        *_bounds(curve, x, y, low),
        *_schedules(curve, x, y),
        _hover(curve, x),
    ]
    return alt.layer(*layers).properties(width=width, height=height + top)


def _decades(low: float, high: float) -> list[float]:
    """Powers of ten within the range; with 2 and 5 between them where there would be few."""
    powers = [10.0**e for e in range(-12, 19)]
    steps = (1, 2, 5) if high / low < 300 else (1,)
    return [step * power for power in powers for step in steps if low <= step * power <= high]


def _data(rows: list[dict[str, Any]]) -> alt.Data:
    return alt.Data(values=rows)


def _rows(curve: Curve, kinds: tuple[str, ...]) -> list[dict[str, Any]]:
    return [
        {"M": words, "y": _figure(y), "name": series.name, "i": i}
        for series in curve.series
        if series.kind in kinds
        for i, (words, y) in enumerate(zip(curve.capacities, series.words_per_pair, strict=True))
        if y
    ]


def _figure(y: float) -> float:
    """Enough digits to draw and read."""
    return float(f"{y:.4g}")


def _regimes(curve: Curve, x: alt.X, y: alt.Y, low: float, high: float) -> Iterator[alt.Chart]:
    """Bands of colour, and the capacities that divide them."""
    for regime, start, stop in curve.regimes:
        band = alt.Chart(_data([{"M": start, "stop": stop, "y": low, "top": high}]))
        yield band.mark_rect(style=regime, opacity=0.08).encode(x=x, x2="stop:Q", y=y, y2="top:Q")
    labels = [
        ("small cache", "d²/4", "right", -5),
        ("large cache", "d²", "left", 5),
    ]
    for regime, point, align, dx in labels:
        at = alt.Chart(_data([{"M": curve.dividing_points[point], "y": high, "low": low}]))
        yield at.mark_rule(style="rule", strokeDash=[3, 3]).encode(x=x, y=y, y2="low:Q")
        for dy, text, style in (
            (12, regime, "heading"),
            (26, f"M {'<' if align == 'right' else '≥'} {point}", "words"),
        ):
            label = at.mark_text(style=style, align=align, baseline="middle", dx=dx, dy=dy, text=text)
            yield label.encode(x=x, y=y)


def _machines(curve: Curve, machines: list[str], x: alt.X, bottom: int) -> Iterator[alt.Chart]:
    """A lane per machine above the plot: its levels' names where their capacities lie, and lines down from there."""
    for lane, machine in enumerate(machines):
        y = LANE * lane
        rows = [{"M": mark.capacity_words, "level": mark.level} for mark in curve.marks if mark.machine == machine]
        at = alt.Chart(_data(rows))
        yield (
            alt.Chart(_data([{}]))
            .mark_text(style="heading", align="left", text=machine)
            .encode(x=alt.value(0), y=alt.value(y + 6))
        )
        yield at.mark_rule(style="rule", opacity=0.35, strokeWidth=0.8).encode(
            x=x, y=alt.value(y + 26), y2=alt.value(bottom)
        )
        yield at.mark_point(style="ink", filled=True, size=22, opacity=1).encode(x=x, y=alt.value(y + 26))
        yield at.mark_text(style="words", baseline="bottom", dy=-4).encode(x=x, y=alt.value(y + 26), text="level:N")


def _bounds(curve: Curve, x: alt.X, y: alt.Y, low: float) -> Iterator[alt.Chart]:
    """Below the best proved bound no schedule can be: shaded. Each bound is a line of its own dashes."""
    names = {series.name: series.kind for series in curve.series if series.kind != "schedule"}
    proved = [name for name, kind in names.items() if kind == "bound" and name != BEST]
    dashes = {BEST: [1, 0]} | {name: DASHES[i % len(DASHES)] for i, name in enumerate(proved)}
    dashes |= {name: ORDER_ONLY_DASH for name, kind in names.items() if kind == "order only"}
    titles = {name: f"{name} (order only)" if kind == "order only" else name for name, kind in names.items()}
    scale = alt.Scale(domain=[titles[name] for name in dashes], range=list(dashes.values()))
    dash = alt.StrokeDash("name:N", scale=scale, legend=alt.Legend(title="lower bounds", symbolType="stroke"))
    rows = [row | {"name": titles[row["name"]], "low": low} for row in _rows(curve, ("bound", "order only"))]
    best = [row for row in rows if row["name"] == BEST]
    others = [row for row in rows if row["name"] != BEST]
    yield alt.Chart(_data(best)).mark_area(style="ink", opacity=0.07, stroke=None).encode(x=x, y=y, y2="low:Q")
    yield (
        alt.Chart(_data(others))
        .mark_line(style="rule", fill=None, strokeWidth=1, clip=True)
        .encode(x=x, y=y, strokeDash=dash)
    )
    yield alt.Chart(_data(best)).mark_line(style="ink", fill=None, strokeWidth=2.2).encode(x=x, y=y, strokeDash=dash)


def _schedules(curve: Curve, x: alt.X, y: alt.Y) -> Iterator[alt.Chart]:
    rows = _rows(curve, ("schedule",))
    domain = [series.name for series in curve.series if series.kind == "schedule"]
    ordered = [*SHAPES, *(name for name in domain if name not in SHAPES)]
    legend = alt.Legend(title="schedules, each with its best tiles")
    colour = alt.Color("name:N", scale=alt.Scale(domain=ordered, range="category"), legend=legend)
    marks = [SHAPES.get(name, "cross") for name in ordered]
    shape = alt.Shape("name:N", scale=alt.Scale(domain=ordered, range=marks), legend=legend)
    yield alt.Chart(_data(rows)).mark_line(strokeWidth=2, opacity=0.9).encode(x=x, y=y, color=colour)
    marked = [row for row in rows if row["i"] % MARKED_EVERY == MARKED_EVERY // 2]
    yield (
        alt.Chart(_data(marked)).mark_point(filled=True, size=46, opacity=1).encode(x=x, y=y, color=colour, shape=shape)
    )


def _hover(curve: Curve, x: alt.X) -> alt.Chart:
    """A line at the capacity nearest to the pointer, and every value there."""
    rows = []
    for i, words in enumerate(curve.capacities):
        values = {series.name: series.words_per_pair[i] for series in curve.series}
        shown = {name: "does not fit" if y is None else f"{y:.3g}" for name, y in values.items()}
        rows.append({"M": words, "d / sqrt(M)": f"{curve.stream.d / words**0.5:.3g}"} | shown)
    hover = alt.selection_point(nearest=True, on="pointerover", encodings=["x"], empty=False, clear="pointerout")
    tooltip = [alt.Tooltip("M:Q", title="M (words)", format=",")]
    tooltip += [alt.Tooltip(f"{name}:N") for name in rows[0] if name != "M"]
    line = alt.Chart(_data(rows)).mark_rule(style="ink", strokeWidth=1)
    opacity = alt.when(hover).then(alt.value(0.7)).otherwise(alt.value(0))
    return line.encode(x=x, opacity=opacity, tooltip=tooltip).add_params(hover)
