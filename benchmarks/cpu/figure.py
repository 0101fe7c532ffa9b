"""Draw the speed of the operator: GFLOP/s over d. Each plot ends at the peak measured in the same run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import altair as alt

from benchmarks.common.gate import REDBLUE
from benchmarks.common.looks import legend
from benchmarks.common.machine import described
from benchmarks.common.results import Row
from benchmarks.common.timing import spread
from benchmarks.cpu.measures import PEAK
from benchmarks.cpu.peers import ONNXRUNTIME, OPENVINO, PYTORCH
from redblue.base import charts
from redblue.base.style import LOOKS

CONTENDERS = {
    REDBLUE: LOOKS["flash"],
    ONNXRUNTIME: LOOKS["small_cache"],
    OPENVINO: LOOKS["flash1"],
    PYTORCH: LOOKS["hybrid"],
}
PANELS = ("fp32 forward", "fp32 backward", "bf16 forward", "bf16 backward")
WIDTH, HEIGHT = 300, 230


def draw(facts: dict[str, Any], rows: list[Row], path: Path) -> None:
    """Write an SVG file; write nothing if no panel was measured."""
    panels = [panel(title, [row for row in rows if row.measure == title]) for title in PANELS]
    panels = [chart for chart in panels if chart]
    if not panels:
        return
    title = f"{described(facts)}; 4 heads, n = 2048; plots end at the measured peak"
    chart = alt.concat(*panels, columns=2, spacing=36).properties(title=alt.TitleParams(title, anchor="start", dy=-8))
    charts.write(chart.to_dict(), path, force=True)


def panel(title: str, rows: list[Row]) -> alt.LayerChart | alt.FacetChart | None:
    """Medians with their quartiles; the plot's upper edge is the peak."""
    rows = [row for row in rows if PEAK in row.rates]
    if not rows:
        return None
    peak = max(spread(row.rates[PEAK]).median for row in rows)
    points = [
        {"d": row.parameters["d"], "library": name, "median": middle, "low": low, "high": high}
        for row in rows
        for name, values in row.rates.items()
        if name in CONTENDERS
        for middle, low, high in [spread(values)]
    ]
    colour, shape = legend("library", CONTENDERS, 4)
    x = alt.X("d:O", title="d", axis=alt.Axis(labelAngle=0))
    y = alt.Y("median:Q", title="GFLOP/s", scale=alt.Scale(domain=[0, peak], nice=False), axis=alt.Axis(tickCount=6))
    base = alt.Chart(alt.Data(values=points))
    return alt.layer(
        alt.Chart(alt.Data(values=[{"median": peak}])).mark_rule(style="ink", strokeWidth=1.5).encode(y=y),
        base.mark_line(strokeWidth=2).encode(x=x, y=y, color=colour),
        base.mark_rule(strokeWidth=1.5).encode(x=x, y="low:Q", y2="high:Q", color=colour),
        base.mark_point(filled=True, size=60, opacity=1).encode(x=x, y=y, color=colour, shape=shape),
    ).properties(
        width=WIDTH,
        height=HEIGHT,
        title=alt.TitleParams(f"{title}, peak {peak:.0f} GFLOP/s", anchor="start", fontWeight="normal"),
    )
