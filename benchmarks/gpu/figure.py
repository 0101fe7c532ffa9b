"""Draw the figure of the GPU benchmark: TFLOP/s over d and over n. Each plot ends at the measured matmul peak."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import altair as alt

from benchmarks.common.looks import legend
from benchmarks.gpu.calls import CUDNN, EFFICIENT, FFPA, FFPA_UNTUNED, FLASH, FLEX, MATH, PLANNED, TUNED, UNFUSED, Call
from redblue.base import charts
from redblue.base.style import LOOKS

CONTENDERS = {
    TUNED: LOOKS["flash"],
    PLANNED: LOOKS["flash_onepass"],
    FLASH: LOOKS["small_cache"],
    CUDNN: LOOKS["flash1"],
    EFFICIENT: LOOKS["hybrid"],
    MATH: LOOKS["standard"],
    FLEX: LOOKS["spilled_ds"],
    UNFUSED: LOOKS["gather"],
    FFPA: LOOKS["saha_ye"],
    FFPA_UNTUNED: LOOKS["saha_ye"]._replace(light=LOOKS["saha_ye"].dark),
}
PANELS = (("width", "n", 8192), ("n", "width", "128"), ("n", "width", "512"), ("n", "width", "576/512"))
NAMED = {"width": "d", "n": "n"}
WIDTH, HEIGHT = 300, 230


def draw(
    about: dict[str, Any], peaks: Mapping[str, float], times: Mapping[Call, Mapping[str, float]], path: Path
) -> None:
    """Write an SVG file; write nothing if there are no points."""
    panels = []
    names = [name for name in CONTENDERS if any(name in seconds_by_name for seconds_by_name in times.values())]
    for direction in ("forward", "backward"):
        for causal in (False, True):
            chosen = {
                c: seconds_by_name
                for c, seconds_by_name in times.items()
                if (c.direction, c.causal) == (direction, causal)
            }
            dense = {c: seconds_by_name for c, seconds_by_name in chosen.items() if c.density == 1 and not c.decodes}
            for varied, fixed, value in PANELS:
                some = {c: seconds_by_name for c, seconds_by_name in dense.items() if getattr(c, fixed) == value}
                if len({getattr(c, varied) for c in some}) > 1:
                    title = f"{direction}{', causal' * causal}, {NAMED[fixed]} {value}"
                    panels.append(panel(title, varied, some, peaks, names))
    if not panels:
        return
    title = alt.TitleParams(f"{about['device']}, {about['days']}; 1 batch, 32 heads", anchor="start", dy=-8)
    chart = alt.concat(*panels, columns=len(PANELS), spacing=36).properties(title=title)
    charts.write(chart.to_dict(), path, force=True)


def panel(
    title: str, varied: str, times: Mapping[Call, Mapping[str, float]], peaks: Mapping[str, float], names: list[str]
) -> alt.LayerChart | alt.FacetChart:
    """A plot of rates over one size; its upper edge is the peak. names: the entries of the legend."""
    roof = max(peaks[call.dtype] for call in times)
    points = [
        {varied: getattr(call, varied), "contender": name, "rate": call.flops / seconds / 1e12}
        for call, seconds_by_name in times.items()
        for name, seconds in seconds_by_name.items()
    ]
    colour, shape = legend("contender", {name: CONTENDERS[name] for name in names}, 4)
    order = list(dict.fromkeys(getattr(call, varied) for call in sorted(times, key=lambda call: (call.d, call.n))))
    x = alt.X(f"{varied}:O", title=NAMED[varied], sort=order, axis=alt.Axis(labelAngle=0))
    y = alt.Y("rate:Q", title="TFLOP/s", scale=alt.Scale(domain=[0, roof], nice=False), axis=alt.Axis(tickCount=6))
    base = alt.Chart(alt.Data(values=points))
    return alt.layer(
        alt.Chart(alt.Data(values=[{"rate": roof}])).mark_rule(style="ink", strokeWidth=1.5).encode(y=y),
        base.mark_line(strokeWidth=2).encode(x=x, y=y, color=colour),
        base.mark_point(filled=True, size=60, opacity=1).encode(x=x, y=y, color=colour, shape=shape),
    ).properties(
        width=WIDTH,
        height=HEIGHT,
        title=alt.TitleParams(f"{title}, peak {roof:.0f} TFLOP/s", anchor="start", fontWeight="normal"),
    )
