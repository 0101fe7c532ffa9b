"""The picture of `redblue sparse`: words per attended pair over M, a facet for each format, with two bounds."""

from __future__ import annotations

from typing import Any

import altair as alt

from redblue.base.charts import STROKE
from redblue.base.errors import RedblueError
from redblue.base.style import LOOKS
from redblue.lab.text import STANDARD_REMARK, shape_text
from redblue.studies.sparse.study import Comparison
from redblue.studies.ticks import log_ticks

PROVED, FAMILY = "best proved bound of this mask", "the family's form (order only)"
GIVEN = f"{PROVED} if P is given"
DASHES = {PROVED: [1, 0], GIVEN: [8, 3], FAMILY: [2, 3]}
TITLES = {
    "rule": "known by rule",
    "bits": "dense bits",
    "blocks": "list of blocks",
    "csr": "CSR",
    "coo": "COO",
}


def figure(comparison: Comparison) -> alt.FacetChart:
    """The chart without colours and fonts, which `charts.write` adds. Raises RedblueError if nothing fits."""
    pairs = max(1, comparison.family.z_qk) * comparison.problem.streams
    lines = [
        {"facet": _title(name), "M": point.words, "y": count.words / pairs, "schedule": schedule, **_figures(count)}
        for point in comparison.points
        for (schedule, name), count in point.counts.items()
    ]
    if not lines:
        raise RedblueError("nothing to draw, because no schedule fits any of the capacities: give larger --words")
    bounds = [
        {"facet": _title(name), "M": point.words, "y": value / pairs, "bound": kind}
        for name in comparison.formats
        for point in comparison.points
        for kind, value in (
            (PROVED, point.bound.words),
            (GIVEN, point.bound_given and point.bound_given.words),
            (FAMILY, point.family),
        )
        if value
    ]
    heights = [row["y"] for row in (*lines, *bounds)]
    low, high = min(heights) / 1.25, max(heights) * 1.25
    capacities = [point.words for point in comparison.points]
    x = alt.X(
        "M:Q",
        title="M: words that the cache holds",
        scale=alt.Scale(type="log", nice=False, padding=10),
        axis=alt.Axis(values=capacities, format=",d", grid=False, labelOverlap="greedy", labelSeparation=8),
    )
    y = alt.Y(
        "y:Q",
        title="words per attended pair",
        scale=alt.Scale(type="log", domain=[low, high], nice=False),
        axis=alt.Axis(values=log_ticks(low, high), format="~g", domain=False, ticks=False),
    )
    names = list(dict.fromkeys(row["schedule"] for row in lines))
    kinds = [kind for kind in DASHES if any(row["bound"] == kind for row in bounds)]
    layers = [*_bounds(kinds, x, y, low, len(capacities) > 1), *_schedules(names, x, y)]
    facets = [_title(name) for name in comparison.formats]
    columns = min(len(facets), 3)
    chart = alt.LayerChart(layer=layers, data=alt.Data(values=[*bounds, *lines]))
    sized = chart.properties(width=560 if columns == 1 else 290, height=260)
    title = alt.TitleParams(
        shape_text(comparison.problem),
        subtitle=STANDARD_REMARK if comparison.reads_p else alt.Undefined,
        fontSize=12,
        subtitleFontSize=11,
        fontWeight="normal",
        anchor="start",
        offset=12,
        limit=900,
    )
    faceted = sized.facet(facet=alt.Facet("facet:N", sort=facets, title=None), columns=columns, title=title)
    return faceted.resolve_axis(x="independent")


def _title(name: str) -> str:
    """The heading of a format's facet."""
    if name.startswith("tiles"):
        return f"bit tiles of {name.partition(':')[2] or 64}"
    return TITLES.get(name, f"{name}, positions stored")


def _figures(count: Any) -> dict[str, str]:
    """The figures of a count, for a tooltip."""
    return {"words": f"{count.words:,}", "index": f"{count.index_words:,}", "tiles": str(count.tiles)}


def _bounds(kinds: list[str], x: alt.X, y: alt.Y, low: float, lines: bool) -> list[alt.Chart]:
    """The bounds of these kinds as lines, with the area shaded that no drawn schedule can enter.

    Without `lines`, as strokes at each capacity.
    """
    legend = alt.Legend(
        title=None, symbolType="stroke", symbolSize=400, symbolStrokeWidth=2.2, columns=1, labelLimit=300
    )
    dash = alt.StrokeDash("bound:N", scale=alt.Scale(domain=kinds, range=[DASHES[k] for k in kinds]), legend=legend)
    base = alt.Chart().transform_filter("isValid(datum.bound)")
    if not lines:
        return [base.mark_point(**STROKE).encode(x=x, y=y, strokeDash=dash)]
    lowest = GIVEN if GIVEN in kinds else PROVED
    below = alt.Chart().transform_filter(alt.datum.bound == lowest).transform_calculate(low=str(low))
    area = below.mark_area(style="ink", opacity=0.08, clip=True).encode(x=x, y=y, y2="low:Q")
    return [area, base.mark_line(style="ink", strokeWidth=2, clip=True).encode(x=x, y=y, strokeDash=dash)]


def _schedules(names: list[str], x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """A line and marks for each schedule."""
    looks = [LOOKS[name] for name in names]
    legend = alt.Legend(title="schedules, each with its best tiles", columns=4)
    colour = alt.Color("schedule:N", scale=alt.Scale(domain=names, range=[look.light for look in looks]), legend=legend)
    shape = alt.Shape("schedule:N", scale=alt.Scale(domain=names, range=[look.shape for look in looks]), legend=legend)
    base = alt.Chart().transform_filter("isValid(datum.schedule)")
    shown = [alt.Tooltip(f"{name}:N") for name in ("schedule", "M", "words", "index", "tiles")]
    dots = base.mark_point(filled=True, size=50, opacity=1).encode(x=x, y=y, color=colour, shape=shape, tooltip=shown)
    return [base.mark_line(strokeWidth=1.8).encode(x=x, y=y, color=colour), dots]
