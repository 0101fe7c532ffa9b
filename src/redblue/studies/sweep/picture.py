"""The picture of a sweep, as Vega-Lite through Altair: one line per schedule over one axis, facets over another."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import altair as alt

from redblue import schedules
from redblue.base.charts import SUFFIXES, write
from redblue.base.errors import RedblueError
from redblue.base.files import check_target
from redblue.base.style import COLOURS, LOOKS
from redblue.lab.text import STANDARD_REMARK
from redblue.studies.sweep.grid import Cache, Sweep
from redblue.studies.sweep.points import Row

HEIGHTS = {
    "words_per_pair": "words per attended pair",
    "gap": "gap: words over the best proved bound",
    "words": "words moved",
    "bytes": "bytes moved",
    "seconds": "seconds at the boundary's bandwidth",
}
BOUND = "best proved bound"
FLOORS = {"words_per_pair": "bound_per_pair", "words": "bound_words"}  # height -> the bound in the same unit
MOST_MARKED = 24  # values of x up to which each point has its mark
MOST_FACETS = 12


def dimensions(sweep: Sweep) -> dict[str, Sequence[Any]]:
    """What a picture can have on its x axis and in its facets, with the values of each: whatever takes several."""
    found: dict[str, Sequence[Any]] = {
        axis.name: axis.labels for axis in sweep.varying if axis.name not in ("schedule", "words", "memory")
    }
    if "words" in sweep.axes and "memory" in sweep.axes:
        raise RedblueError("a picture shows words or memories, not both: leave one out, or the picture")
    places = _places(sweep)
    if len(places) > 1 and "words" in sweep.axes:
        found["words"] = sweep.axes["words"].labels
    elif len(places) > 1:
        found["memory"] = [_place(sweep, each.memory, each.boundary.name) for each in places if each.boundary]
    return found


def _place(sweep: Sweep, memory: str | None, boundary: str | None) -> str:
    return f"{memory}: {boundary}" if len(sweep.axes["memory"].values) > 1 else str(boundary)


def choose(sweep: Sweep, x: str | None, y: str) -> tuple[str, str | None]:
    """The x axis and the facets of a sweep's picture; RedblueError where it cannot be drawn, before any work."""
    found = dimensions(sweep)
    if y not in HEIGHTS:
        raise RedblueError(f"y must be one of {', '.join(HEIGHTS)}, got {y!r}")
    if y == "seconds" and "memory" not in sweep.axes:
        raise RedblueError("y cannot be seconds without a memory, whose bandwidth it needs: give one")
    if not found:
        raise RedblueError("a picture needs an axis of several values: give one, or leave the picture out")
    if x is not None and x not in found:
        raise RedblueError(f"x must be an axis of several values, which are {', '.join(found)}; got {x!r}")
    numbers = {name: values for name, values in found.items() if all(isinstance(value, int) for value in values)}
    chosen = x or max(numbers or found, key=lambda name: len(found[name]))
    rest = [name for name in found if name != chosen]
    if len(rest) > 1:
        raise RedblueError(
            f"a picture shows two axes, one of them as facets, and {', '.join(found)} have several values: fix some, "
            f"or leave the picture out"
        )
    if rest and len(found[rest[0]]) > MOST_FACETS:
        raise RedblueError(
            f"{rest[0]} has {len(found[rest[0]])} values, a picture at most {MOST_FACETS} facets: give fewer"
        )
    if y == "seconds" and len(left_out(sweep, y)) == len(_places(sweep)):
        raise RedblueError(
            f"nothing to draw: the bandwidth is not known at any boundary of {', '.join(sweep.axes['memory'].labels)}; "
            f"draw another y, or give a memory whose bandwidth is known"
        )
    _check_some_covered(sweep)
    return chosen, rest[0] if rest else None


def _places(sweep: Sweep) -> list[Cache]:
    return [cache for caches in sweep.caches for cache in caches]


def left_out(sweep: Sweep, y: str) -> list[str]:
    """The boundaries that a picture of seconds has no points for, as their bandwidth is not known."""
    places = [(each.memory, each.boundary) for each in _places(sweep) if y == "seconds" and each.boundary]
    return [_place(sweep, memory, at.name) for memory, at in places if not at.bandwidth_bytes_per_second]


def _check_some_covered(sweep: Sweep) -> None:
    """RedblueError where no schedule has a pass for any point: that needs no counting."""
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


def draw(
    sweep: Sweep,
    rows: Iterable[Row],
    path: str | os.PathLike[str],
    *,
    x: str | None = None,
    y: str = "words_per_pair",
    force: bool = False,
) -> Path:
    """Draw the rows of a sweep into a .svg, .png or .html file (which needs no network).

    x: the axis; the one of most values if left out. y: one of HEIGHTS. One more axis of several values becomes facets.
    Raises RedblueError for more axes than that, and where nothing fits.
    """
    check_target(path, SUFFIXES, force)
    return write(figure(sweep, rows, x, y).to_dict(), path, force)


def figure(
    sweep: Sweep, rows: Iterable[Row], x: str | None = None, y: str = "words_per_pair"
) -> alt.FacetChart | alt.LayerChart:
    """The chart without its colours and type, which `draw` gives it."""
    across, facet = choose(sweep, x, y)
    rows = list(rows)
    points = [_point(sweep, row, across, facet, y) for row in rows if row[y] is not None]
    if not points:
        raise RedblueError(f"nothing to draw: there is no {y} at any point")
    floors = _floors(points) if y in FLOORS else []
    number = across in sweep.axes and sweep.axes[across].is_number
    values = sorted({point["x"] for point in points}) if number else dimensions(sweep)[across]
    heights = [each["y"] for each in (*points, *floors)]
    low, high = min(heights), max(heights)
    log = low > 0 and (high > 10 * low or (number and sweep.axes[across].geometric))
    low, high = (low / 1.25, high * 1.25) if log else (1.0 if y == "gap" else 0, high * 1.05)
    horizontal = _numbers(sweep, across, values) if number else _names(across, values)
    vertical = alt.Y(
        "y:Q",
        title=HEIGHTS[y],
        scale=alt.Scale(type="log" if log else "linear", domain=[low, high], nice=False),
        axis=alt.Axis(
            values=_steps(low, high) if log else alt.Undefined,
            format="~s" if y in ("words", "bytes", "seconds") else "~g",
            domain=False,
            ticks=False,
        ),
    )
    names = list(dict.fromkeys(point["schedule"] for point in points))
    layers = [*_bound(floors, horizontal, vertical, low, number), *_lines(points, names, horizontal, vertical, values)]
    kept = any(row["direction"] == "backward" and row["schedule"] == "standard" and row[y] is not None for row in rows)
    remark = alt.Undefined if not kept else STANDARD_REMARK
    title = alt.TitleParams(
        _fixed(sweep), subtitle=remark, fontSize=12, subtitleFontSize=11, fontWeight="normal", anchor="start", offset=12
    )
    chart = alt.LayerChart(layer=layers, data=alt.Data(values=[*floors, *points]))
    if facet is None:
        return chart.properties(width=600, height=380, title=title)
    labels = [_label(facet, value) for value in dimensions(sweep)[facet]]
    columns = 2 if len(labels) in (2, 4) else 3
    many = chart.properties(width=360 if columns == 2 else 250, height=260)
    faceted = many.facet(facet=alt.Facet("facet:N", sort=labels, title=None), columns=columns, title=title)
    return faceted.resolve_axis(x="independent")


def _point(sweep: Sweep, row: Row, across: str, facet: str | None, y: str) -> dict[str, Any]:
    """What the chart needs of a row."""
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
        "tiles": row["tiles"],
        "words": f"{row['words']:,}",
        "gap": gap,
    }


def _value(sweep: Sweep, row: Row, name: str) -> Any:
    """A row's place on an axis."""
    if name == "memory":
        return _place(sweep, row["memory"], row["boundary"])
    if name == "n":
        return row["n_k" if "n_q" in sweep.axes else "n_q"]
    return row["capacity_words" if name == "words" else name]


def _label(facet: str | None, value: Any) -> str:
    if facet == "memory":
        return str(value)
    return f"{'M' if facet == 'words' else facet} = {f'{value:,}' if isinstance(value, int) else value}"


def _fixed(sweep: Sweep) -> str:
    """What all points share, as the picture's title."""
    shared = {axis.name: axis.labels[0] for axis in sweep.axes.values() if len(axis.values) == 1}
    shared |= {} if {"mask", "window"} & set(sweep.axes) else {"mask": "full"}
    shared |= {} if "direction" in sweep.axes else {"direction": "forward"}
    shared |= {} if "dtype" in sweep.axes or "words" in sweep.axes else {"dtype": "float16"}
    return ", ".join(
        str(value) if name in ("direction", "dtype", "memory") else _label(name, value)
        for name, value in shared.items()
    )


def _numbers(sweep: Sweep, across: str, values: Sequence[int]) -> alt.X:
    log = sweep.axes[across].geometric
    ends = [values[0], values[-1]] if len(values) > 1 else alt.Undefined
    return alt.X(
        "x:Q",
        title="M: words that the cache holds" if across == "words" else across,
        scale=alt.Scale(type="log" if log else "linear", domain=ends, nice=False, zero=False, padding=10),
        axis=alt.Axis(values=list(values), format=",d", grid=False, labelOverlap="greedy", labelSeparation=8),
    )


def _names(across: str, values: Sequence[Any]) -> alt.X:
    upright = max(len(str(value)) for value in values) > 12
    axis = alt.Axis(labelAngle=-90 if upright else 0, labelLimit=240)
    return alt.X("x:N", title=across, sort=list(values), axis=axis)


def _steps(low: float, high: float) -> list[float]:
    """Labels of a logarithmic axis: powers of ten, with 2 and 5 times these where they would be few."""
    factors = (1, 2, 5) if high / low < 200 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [n * 10.0**e for e in powers for n in factors if low <= n * 10.0**e <= high]


def _floors(points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The bound at each place, which is that of every schedule there."""
    found = {(point["facet"], point["x"]): point["floor"] for point in points if point["floor"]}
    return [{"facet": facet, "x": x, "y": y, "bound": BOUND} for (facet, x), y in found.items()]


def _bound(floors: list[dict[str, Any]], x: alt.X, y: alt.Y, low: float, lines: bool) -> list[alt.Chart]:
    """Below it no schedule can be: shaded."""
    if not floors:
        return []
    legend = alt.Legend(
        title=None,
        symbolType="stroke",
        symbolSize=400,
        symbolStrokeColor=COLOURS["light"]["ink"],
        symbolStrokeWidth=2.2,
    )
    dash = alt.StrokeDash("bound:N", scale=alt.Scale(domain=[BOUND], range=[[1, 0]]), legend=legend)
    drawn = alt.Chart().transform_filter(alt.datum.bound == BOUND).transform_calculate(low=str(low))
    if not lines:
        return [
            drawn.mark_point(style="ink", shape="stroke", filled=False, strokeWidth=2.2, size=1600, opacity=1).encode(
                x=x, y=y, strokeDash=dash
            )
        ]
    area = drawn.mark_area(style="ink", opacity=0.08, clip=True).encode(x=x, y=y, y2="low:Q")
    return [area, drawn.mark_line(style="ink", strokeWidth=2.2, clip=True).encode(x=x, y=y, strokeDash=dash)]


def _lines(
    points: Sequence[dict[str, Any]], names: Sequence[str], x: alt.X, y: alt.Y, values: Sequence[Any]
) -> list[alt.Chart]:
    """A line for each schedule where x is a number, and marks of its own shape."""
    looks = [LOOKS.get(name, LOOKS["standard"]) for name in names]
    colours, marks = [look.light for look in looks], [look.shape for look in looks]
    legend = alt.Legend(title="schedules, each with its best tiles", columns=4)
    colour = alt.Color("schedule:N", scale=alt.Scale(domain=list(names), range=colours), legend=legend)
    shape = alt.Shape("schedule:N", scale=alt.Scale(domain=list(names), range=marks), legend=legend)
    drawn = alt.Chart().transform_filter("isValid(datum.schedule)")
    every = max(1, math.ceil(len(values) / MOST_MARKED))
    marked = drawn.transform_filter(alt.FieldOneOfPredicate("x", list(values)[::every])) if every > 1 else drawn
    shown = [alt.Tooltip(f"{name}:N") for name in ("schedule", "x", "facet", "words", "gap", "tiles")]
    dots = marked.mark_point(filled=True, size=55, opacity=1).encode(x=x, y=y, color=colour, shape=shape, tooltip=shown)
    lines = drawn.mark_line(strokeWidth=2).encode(x=x, y=y, color=colour)
    return [lines, dots] if isinstance(values[0], int) else [dots]
