"""The picture of a sweep, in Vega-Lite through Altair: one line per schedule over one axis, facets over another."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import altair as alt

from redblue import schedules
from redblue.base.arguments import checked_arguments
from redblue.base.charts import STROKE, SUFFIXES, write
from redblue.base.dtypes import DEFAULT_DTYPE
from redblue.base.errors import RedblueError
from redblue.base.files import check_target
from redblue.base.style import COLOURS, LOOKS
from redblue.lab.text import STANDARD_REMARK
from redblue.studies.sweep.grid import Cache, Sweep
from redblue.studies.sweep.points import Row
from redblue.studies.ticks import log_ticks

HEIGHTS = {
    "words_per_pair": "words per attended pair",
    "gap": "gap: words over the best proved bound",
    "words": "words moved",
    "bytes": "bytes moved",
    "seconds": "seconds at the boundary's bandwidth",
}
BOUND = "best proved bound"
GIVEN = f"{BOUND} if P is given"  # for schedules that read P
DASHES = {BOUND: [1, 0], GIVEN: [8, 3]}
FLOORS = {"words_per_pair": "bound_per_pair", "words": "bound_words"}  # height -> the bound in the same unit
MAX_MARKS = 24  # per line; of more values of x, only some are marked
MAX_FACETS = 12


def dimensions(sweep: Sweep) -> dict[str, Sequence[Any]]:
    """The axes with several values, and their values: one can be the picture's x axis, and one its facets.

    Raises RedblueError if the sweep has both words and memories.
    """
    axes: dict[str, Sequence[Any]] = {
        axis.name: axis.labels for axis in sweep.varying if axis.name not in ("schedule", "words", "memory")
    }
    if "words" in sweep.axes and "memory" in sweep.axes:
        raise RedblueError("a picture shows words or memories, not both: leave one out, or the picture")
    places = _places(sweep)
    if len(places) > 1 and "words" in sweep.axes:
        axes["words"] = sweep.axes["words"].labels
    elif len(places) > 1:
        axes["memory"] = [_place(sweep, place.memory, place.boundary.name) for place in places if place.boundary]
    return axes


def _place(sweep: Sweep, memory: str | None, boundary: str | None) -> str:
    """A boundary as text, with its memory if the sweep has several."""
    return f"{memory}: {boundary}" if len(sweep.axes["memory"].values) > 1 else str(boundary)


def choose(sweep: Sweep, x: str | None, y: str) -> tuple[str, str | None]:
    """Choose the x axis and the facets of a sweep's picture. x: the requested x axis; y: one of HEIGHTS.

    Raises RedblueError, before any work, if the picture cannot be drawn.
    """
    several = dimensions(sweep)
    if y not in HEIGHTS:
        raise RedblueError(f"y must be one of {', '.join(HEIGHTS)}, got {y!r}")
    if y == "seconds" and "memory" not in sweep.axes:
        raise RedblueError("y cannot be seconds without a memory, whose bandwidth it needs: give one")
    if not several:
        raise RedblueError("a picture needs an axis of several values: give one, or leave the picture out")
    if x is not None and x not in several:
        raise RedblueError(f"x must be an axis of several values, which are {', '.join(several)}; got {x!r}")
    numbers = {name: values for name, values in several.items() if all(isinstance(value, int) for value in values)}
    chosen = x or max(numbers or several, key=lambda name: len(several[name]))
    rest = [name for name in several if name != chosen]
    if len(rest) > 1:
        raise RedblueError(
            f"a picture shows two axes, one of them as facets, and {', '.join(several)} have several values: fix some, "
            f"or leave the picture out"
        )
    if rest and len(several[rest[0]]) > MAX_FACETS:
        raise RedblueError(
            f"{rest[0]} has {len(several[rest[0]])} values, a picture at most {MAX_FACETS} facets: give fewer"
        )
    if y == "seconds" and len(left_out(sweep, y)) == len(_places(sweep)):
        raise RedblueError(
            f"nothing to draw: the bandwidth is not known at any boundary of {', '.join(sweep.axes['memory'].labels)}; "
            f"draw another y, or give a memory whose bandwidth is known"
        )
    _check_some_covered(sweep)
    return chosen, rest[0] if rest else None


def _places(sweep: Sweep) -> list[Cache]:
    """All caches of the sweep."""
    return [cache for caches in sweep.caches for cache in caches]


def left_out(sweep: Sweep, y: str) -> list[str]:
    """The boundaries without points in a picture of seconds, because their bandwidth is not known."""
    places = [(place.memory, place.boundary) for place in _places(sweep) if y == "seconds" and place.boundary]
    return [
        _place(sweep, memory, boundary.name) for memory, boundary in places if not boundary.bandwidth_bytes_per_second
    ]


def _check_some_covered(sweep: Sweep) -> None:
    """Raise RedblueError if no schedule covers any point. This check needs no counting."""
    for index in range(sweep.size):
        try:
            problem = sweep.point(index).problem()
        except RedblueError:
            continue
        if set(schedules.covering(problem)) & set(sweep.schedules):
            return
    raise RedblueError(
        f"nothing to draw: no point has a direction and a mask that {' or '.join(sweep.schedules)} covers; name other "
        f"schedules, or leave the picture out"
    )


@checked_arguments
def draw(
    sweep: Sweep,
    rows: Iterable[Row],
    path: str | os.PathLike[str],
    *,
    x: str | None = None,
    y: str = "words_per_pair",
    force: bool = False,
) -> Path:
    """Draw the rows of a sweep into a .svg, .png or .html file; the .html file needs no network.

    x: the x axis; None for the axis with the most values. y: one of HEIGHTS. Another axis of several values becomes
    facets. Raises RedblueError if more axes have several values, and if nothing fits.
    """
    check_target(path, SUFFIXES, force)
    return write(figure(sweep, rows, x, y).to_dict(), path, force)


@checked_arguments
def figure(
    sweep: Sweep, rows: Iterable[Row], x: str | None = None, y: str = "words_per_pair"
) -> alt.FacetChart | alt.LayerChart:
    """The chart without colours and fonts, which `draw` adds. Raises RedblueError as `draw` does."""
    across, facet = choose(sweep, x, y)
    rows = list(rows)
    points = [_point(sweep, row, across, facet, y) for row in rows if row[y] is not None]
    if not points:
        raise RedblueError(f"nothing to draw: there is no {y} at any point")
    floors = _floors(points) if y in FLOORS else []
    number = across in sweep.axes and sweep.axes[across].is_number
    values = sorted({point["x"] for point in points}) if number else dimensions(sweep)[across]
    heights = [drawn["y"] for drawn in (*points, *floors)]
    low, high = min(heights), max(heights)
    log = low > 0 and (high > 10 * low or (number and sweep.axes[across].geometric))
    low, high = (low / 1.25, high * 1.25) if log else (1.0 if y == "gap" else 0, high * 1.05)
    horizontal = _numbers(sweep, across, values) if number else _names(across, values)
    vertical = alt.Y(
        "y:Q",
        title=HEIGHTS[y],
        scale=alt.Scale(type="log" if log else "linear", domain=[low, high], nice=False),
        axis=alt.Axis(
            values=log_ticks(low, high) if log else alt.Undefined,
            format="~s" if y in ("words", "bytes", "seconds") else "~g",
            domain=False,
            ticks=False,
        ),
    )
    names = list(dict.fromkeys(point["schedule"] for point in points))
    line = number and len(values) > 1
    layers = [*_bound(floors, horizontal, vertical, low, line), *_lines(points, names, horizontal, vertical, values)]
    starts_from_p = any(
        row["direction"] == "backward" and row["schedule"] == "standard" and row[y] is not None for row in rows
    )
    remark = STANDARD_REMARK if starts_from_p else alt.Undefined
    title = alt.TitleParams(
        _fixed(sweep), subtitle=remark, fontSize=12, subtitleFontSize=11, fontWeight="normal", anchor="start", offset=12
    )
    chart = alt.LayerChart(layer=layers, data=alt.Data(values=[*floors, *points]))
    if facet is None:
        return chart.properties(width=600, height=380, title=title)
    labels = [_label(facet, value) for value in dimensions(sweep)[facet]]
    columns = 2 if len(labels) in (2, 4) else 3
    small = chart.properties(width=360 if columns == 2 else 250, height=260)
    faceted = small.facet(facet=alt.Facet("facet:N", sort=labels, title=None), columns=columns, title=title)
    return faceted.resolve_axis(x="independent")


def _point(sweep: Sweep, row: Row, across: str, facet: str | None, y: str) -> dict[str, Any]:
    """The data of the chart for a row."""
    per_pair = row["words_per_pair"] / row["words"] if row["words"] and row["words_per_pair"] else None
    bound = row["bound_words"]
    floor = {"bound_words": bound, "bound_per_pair": bound * per_pair if bound and per_pair else None}
    gap = f"{row['gap']:.3g}" if row["gap"] else "-"
    return {
        "x": _value(sweep, row, across),
        "y": row[y],
        "facet": _label(facet, _value(sweep, row, facet)) if facet else "",
        "schedule": row["schedule"],
        "floor": floor.get(FLOORS.get(y, "")),
        "bound_name": GIVEN if schedules.get(row["schedule"]).takes_p(row["direction"]) else BOUND,
        "tiles": row["tiles"],
        "words": f"{row['words']:,}",
        "gap": gap,
    }


def _value(sweep: Sweep, row: Row, name: str) -> Any:
    """The value of a row on an axis."""
    if name == "memory":
        return _place(sweep, row["memory"], row["boundary"])
    if name == "n":
        return row["n_k" if "n_q" in sweep.axes else "n_q"]
    return row["capacity_words" if name == "words" else name]


def _label(facet: str | None, value: Any) -> str:
    """The heading of a facet."""
    if facet == "memory":
        return str(value)
    return f"{'M' if facet == 'words' else facet} = {f'{value:,}' if isinstance(value, int) else value}"


def _fixed(sweep: Sweep) -> str:
    """The values that all points share, as the picture's title."""
    shared = {axis.name: axis.labels[0] for axis in sweep.axes.values() if len(axis.values) == 1}
    shared |= {} if {"mask", "window"} & set(sweep.axes) else {"mask": "full"}
    shared |= {} if "direction" in sweep.axes else {"direction": "forward"}
    shared |= {} if "dtype" in sweep.axes or "words" in sweep.axes else {"dtype": DEFAULT_DTYPE}
    return ", ".join(
        str(value) if name in ("direction", "dtype", "memory") else _label(name, value)
        for name, value in shared.items()
    )


def _numbers(sweep: Sweep, across: str, values: Sequence[int]) -> alt.X:
    """An x axis of numbers."""
    log = sweep.axes[across].geometric
    ends = [values[0], values[-1]] if len(values) > 1 else alt.Undefined
    return alt.X(
        "x:Q",
        title="M: words that the cache holds" if across == "words" else across,
        scale=alt.Scale(type="log" if log else "linear", domain=ends, nice=False, zero=False, padding=10),
        axis=alt.Axis(values=list(values), format=",d", grid=False, labelOverlap="greedy", labelSeparation=8),
    )


def _names(across: str, values: Sequence[Any]) -> alt.X:
    """An x axis of names."""
    upright = max(len(str(value)) for value in values) > 12
    axis = alt.Axis(labelAngle=-90 if upright else 0, labelLimit=240)
    return alt.X("x:N", title=across, sort=list(values), axis=axis)


def _floors(points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The bounds in each facet at each x: all schedules that read P share a bound, and all other schedules do.

    shaded: no drawn schedule can enter the area below.
    """
    bounds = {(point["facet"], point["x"], point["bound_name"]): point["floor"] for point in points if point["floor"]}
    lowest = {place[:2]: place for place in sorted(bounds, key=bounds.__getitem__, reverse=True)}
    return [
        {"facet": facet, "x": x, "y": y, "bound": name, "shaded": lowest[facet, x] == (facet, x, name)}
        for (facet, x, name), y in bounds.items()
    ]


def _bound(floors: list[dict[str, Any]], x: alt.X, y: alt.Y, low: float, lines: bool) -> list[alt.Chart]:
    """The bounds as lines with the area below the lowest one shaded, or, without `lines`, as strokes at each x."""
    if not floors:
        return []
    legend = alt.Legend(
        title=None,
        symbolType="stroke",
        symbolSize=400,
        symbolStrokeColor=COLOURS["light"]["ink"],
        symbolStrokeWidth=2.2,
    )
    names = [name for name in DASHES if any(floor["bound"] == name for floor in floors)]
    scale = alt.Scale(domain=names, range=[DASHES[name] for name in names])
    dash = alt.StrokeDash("bound:N", scale=scale, legend=legend)
    base = alt.Chart().transform_filter("isValid(datum.bound)")
    if not lines:
        return [base.mark_point(**STROKE).encode(x=x, y=y, strokeDash=dash)]
    below = alt.Chart().transform_filter("datum.shaded").transform_calculate(low=str(low))
    area = below.mark_area(style="ink", opacity=0.08, clip=True).encode(x=x, y=y, y2="low:Q")
    return [area, base.mark_line(style="ink", strokeWidth=2.2, clip=True).encode(x=x, y=y, strokeDash=dash)]


def _lines(
    points: Sequence[dict[str, Any]], names: Sequence[str], x: alt.X, y: alt.Y, values: Sequence[Any]
) -> list[alt.Chart]:
    """A line for each schedule, if x is a number, with marks of a distinct shape."""
    looks = [LOOKS[name] for name in names]
    colours, marks = [look.light for look in looks], [look.shape for look in looks]
    legend = alt.Legend(title="schedules, each with its best tiles", columns=4)
    colour = alt.Color("schedule:N", scale=alt.Scale(domain=list(names), range=colours), legend=legend)
    shape = alt.Shape("schedule:N", scale=alt.Scale(domain=list(names), range=marks), legend=legend)
    base = alt.Chart().transform_filter("isValid(datum.schedule)")
    every = max(1, math.ceil(len(values) / MAX_MARKS))
    marked = base.transform_filter(alt.FieldOneOfPredicate("x", list(values)[::every])) if every > 1 else base
    shown = [alt.Tooltip(f"{name}:N") for name in ("schedule", "x", "facet", "words", "gap", "tiles")]
    dots = marked.mark_point(filled=True, size=55, opacity=1).encode(x=x, y=y, color=colour, shape=shape, tooltip=shown)
    lines = base.mark_line(strokeWidth=2).encode(x=x, y=y, color=colour)
    return [lines, dots] if isinstance(values[0], int) else [dots]
