"""The figure of measurements over M: counts as lines, measured words as marks, the lower bound as the floor."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from redblue.base.style import LOOKS
from redblue.studies.experiments.experiment import Row
from redblue.studies.experiments.metered import COUNTED, FULL, GRID, MEASURED, Change, of, per_pair
from redblue.studies.ticks import log_ticks

SET_ASSOCIATIVE = "L1d of a CPU"
LEGEND = (
    "Lines: words counted with the best tiles. Black line: lower bound.",
    "Filled marks: measured, fully associative cache. Hollow marks: measured, L1d of a CPU.",
    "Dashed lines: M at which the best schedule changes, to leading order.",
)


def figure(rows: Sequence[Row], names: Sequence[str], changes: Sequence[Change]) -> alt.FacetChart:
    """Words per pair over M, a facet for each d. names: the schedules; changes: the capacities to mark."""
    sizes = sorted({row["d"] for row in rows})
    facet = {d: f"d = {d}, n = {next(row['n'] for row in rows if row['d'] == d)}" for d in sizes}
    values = [
        {
            "facet": facet[row["d"]],
            "M": row["M"],
            "schedule": row["schedule"],
            "y": per_pair(row, "counted_words"),
        }
        for row in of(rows, COUNTED)
    ]
    dots = [
        {
            "facet": facet[row["d"]],
            "M": row["M"],
            "at": per_pair(row, "measured_words"),
            "schedule": row["schedule"],
            "cache": SET_ASSOCIATIVE if row["ways"] else FULL,
            "over": f"{row['measured_words'] / row['counted_words']:.2f}",
            "tiles": str(row["tiles"]),
        }
        for row in of(rows, MEASURED)
    ]
    floors = {(row["d"], row["M"]): per_pair(row, "bound_words") for row in rows if row["kind"] == COUNTED}
    least = {d: min(floor for (of_d, _), floor in floors.items() if of_d == d) / 1.3 for d in sizes}
    bound = [{"facet": facet[d], "M": words, "floor": floor, "low": least[d]} for (d, words), floor in floors.items()]
    heights = [*floors.values(), *(row["y"] for row in values), *(row["at"] for row in dots)]
    lines = [
        {"facet": facet[d], "M": change.over_d2 * d * d, "label": change.label}
        for d in sizes
        for change in changes
        if GRID[0] <= change.over_d2 * d * d <= GRID[-1]
    ]
    x = alt.X(
        "M:Q",
        title="M: words that the cache holds",
        scale=alt.Scale(type="log", base=2, domain=[GRID[0], GRID[-1]], nice=False, padding=8),
        axis=alt.Axis(values=[1024 * 4**i for i in range(4)], labelExpr="datum.value / 1024 + 'k'", grid=False),
    )
    y = alt.Y(
        "y:Q",
        title="words per pair",
        scale=alt.Scale(type="log", nice=False, zero=False),
        axis=alt.Axis(values=log_ticks(min(heights) / 10, max(heights)), format="~g", domain=False, ticks=False),
    )
    hues = alt.Scale(domain=list(names), range=[LOOKS[name].light for name in names])
    marks = alt.Scale(domain=list(names), range=[LOOKS[name].shape for name in names])
    legend = alt.Legend(title=list(LEGEND), titleLimit=620, columns=4)
    colour = alt.Color("schedule:N", scale=hues, legend=legend)
    shape = alt.Shape("schedule:N", scale=marks, legend=legend)
    shown = [alt.Tooltip(f"{name}:N") for name in ("schedule", "cache", "tiles")]
    shown += [alt.Tooltip("M:Q", format=","), alt.Tooltip("over:N", title="measured over counted")]
    base = alt.Chart()
    floor = base.transform_filter("isValid(datum.floor)")
    rules = base.transform_filter("isValid(datum.label)").encode(x=x)
    layers = [
        floor.mark_area(style="ink", opacity=0.08, clip=True).encode(x=x, y="floor:Q", y2="low:Q"),
        floor.mark_line(style="ink", strokeWidth=2, clip=True).encode(x=x, y="floor:Q"),
        rules.mark_rule(style="faint", strokeDash=[3, 3]),
        # Above the plot, where no curve can cross it
        rules.mark_text(style="words", baseline="bottom", dy=-4).encode(y=alt.value(0), text="label:N"),
        base.transform_filter("isValid(datum.y)").mark_line(strokeWidth=1.8, clip=True).encode(x=x, y=y, color=colour),
    ]
    for filled, cache in ((True, FULL), (False, SET_ASSOCIATIVE)):
        in_cache = base.transform_filter(alt.datum.cache == cache)
        mark = in_cache.mark_point(filled=filled, size=60, opacity=1, strokeWidth=1.6)
        layers.append(mark.encode(x=x, y="at:Q", color=colour, shape=shape, tooltip=shown))
    chart = alt.LayerChart(layer=layers, data=alt.Data(values=[*bound, *lines, *values, *dots]))
    sized = chart.properties(width=300, height=250)
    columns = 3 if len(sizes) > 4 else 2
    faceted = sized.facet(
        facet=alt.Facet("facet:N", sort=[facet[d] for d in sizes], title=None, header=alt.Header(labelPadding=22)),
        columns=columns,
    )
    return faceted.resolve_axis(x="independent").resolve_scale(y="independent")
