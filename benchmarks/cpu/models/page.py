"""The grid as a heat map and as a table in Markdown."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import altair as alt

from benchmarks.common.machine import described
from benchmarks.common.results import Row
from benchmarks.cpu.calls import SHORT
from benchmarks.cpu.models.measure import STATES
from benchmarks.cpu.models.shapes import COLUMNS, SHAPES
from redblue.base import charts


def draw(about: dict[str, Any], rows: list[Row], path: Path) -> None:
    """Draw the grid as a heat map: a row per shape; a column per number type, direction and state of the threads."""
    cells = [
        {"shape": row.case, "column": f"{row.measure}, {when}", "ratio": figure.value.median}
        for row in rows
        for when, figure in zip(STATES, row.figures, strict=False)  # none without a peer
    ]
    columns = [f"{SHORT[dtype]} {direction}, {when}" for dtype, direction in COLUMNS for when in STATES]
    base = alt.Chart(alt.Data(values=cells)).encode(
        x=alt.X("column:N", sort=columns, title=None, axis=alt.Axis(labelAngle=-35, labelLimit=200)),
        y=alt.Y("shape:N", sort=list(SHAPES), title=None, axis=alt.Axis(labelLimit=300)),
    )
    scale = alt.Scale(type="log", domain=[0.5, 1, 4], range=["#c0392b", "#f7f7f7", "#2c7fb8"], clamp=True)
    heat = base.mark_rect().encode(color=alt.Color("ratio:Q", scale=scale, legend=None))
    text = base.mark_text(fontSize=9).encode(text=alt.Text("ratio:Q", format=".2f"))
    title = f"redblue over the best peer; {described(about)}"
    chart = (heat + text).properties(width=560, height=18 * len(SHAPES), title=title)
    charts.write(chart.to_dict(), path, force=True)


def summary(rows: list[Row]) -> str:
    """For each column: geometric mean, number of cells below the required ratio, and the worst cells."""
    lines = ["| | cells | geometric mean | below the required ratio | worst |", "|---|---|---|---|---|"]
    rows = [row for row in rows if row.figures]
    for measured in dict.fromkeys(row.measure for row in rows):
        for place, when in enumerate(STATES):
            cells = [(row.case, row.figures[place]) for row in rows if row.measure == measured]
            mean = statistics.geometric_mean(figure.value.median for _, figure in cells)
            below = sum(figure.met == "no" for _, figure in cells)
            cells.sort(key=lambda cell: cell[1].value.median)
            worst = "; ".join(f"{figure.value.median:.2f} {case}" for case, figure in cells[:3])
            lines.append(f"| {measured}, {when} | {len(cells)} | {mean:.2f} | {below} | {worst} |")
    return "\n".join(lines)
