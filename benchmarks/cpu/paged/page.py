"""The results as Markdown, for docs/results/paged.md, and as a figure."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import altair as alt

from benchmarks.common.gate import REDBLUE
from benchmarks.common.looks import legend
from benchmarks.common.machine import described
from benchmarks.common.other_process import VLLM, ZENTORCH
from benchmarks.common.results import Figure, Row
from benchmarks.common.timing import spread
from benchmarks.cpu.paged.contenders import GATHERED, READS, TRANSFORMERS
from redblue.base import charts
from redblue.base.style import LOOKS

CONTENDERS = {
    REDBLUE: LOOKS["flash"],
    VLLM: LOOKS["small_cache"],
    ZENTORCH: LOOKS["flash1"],
    GATHERED: LOOKS["hybrid"],
    TRANSFORMERS: LOOKS["standard"],
}
WIDTH, STEP = 420, 9
TICKS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)


def tables(rows: Iterable[Row]) -> str:
    """One table per measure and one column per figure. A cell that misses its limit shows the limit."""
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        by_name.setdefault(row.measure.split(",")[0], []).append(row)
    return "\n\n".join(table(name, own) for name, own in by_name.items())


def table(name: str, rows: list[Row]) -> str:
    columns = list(dict.fromkeys(heading(figure.what) for row in rows for figure in row.figures))
    lines = [f"| {name} | {' | '.join([*columns, 'speed of ' + REDBLUE])} |", "|---" * (len(columns) + 2) + "|"]
    for row in rows:
        cells = {heading(figure.what): cell(figure) for figure in row.figures}
        dtype = row.measure.split(", ")[1]
        speed = f"{spread(ours).median:.3g} {row.unit}" if (ours := _ours(row)) else ""
        lines.append(
            " | ".join([f"| {dtype}, {row.case}", *(cells.get(column, "-") for column in columns), speed]) + " |"
        )
    return "\n".join(lines)


def heading(what: str) -> str:
    """The column heading of a figure. The memory level is shown in the cell instead."""
    return f"of {READS}" if what.startswith(f"of {READS}, ") else what


def cell(figure: Figure) -> str:
    middle = figure.value.median
    text = f"{middle:.0%}" if figure.unit == "%" else f"{middle:.2f}"
    level = figure.what.removeprefix(f"of {READS}, ")
    text += f" ({level})" if level != figure.what else ""
    return f"**{text}** (required {_limit(figure)})" if figure.met == "no" else text


def _limit(figure: Figure) -> str:
    must = figure.limit.must
    assert must is not None
    return f"{must:.0%}" if figure.unit == "%" else f"{must:g}"


def _ours(row: Row) -> list[float] | None:
    """The rates of redblue, or of the first contender if all contenders are redblue's."""
    return row.rates.get(REDBLUE) or next(iter(row.rates.values()), None)


def draw(facts: dict[str, Any], rows: list[Row], path: Path) -> None:
    """Draw decoding as a share of the measured read rate, one line per case.

    Write nothing if there are no such rows.
    """
    rows = [row for row in rows if row.measure.startswith("decoding")]
    points = [
        {"case": f"{row.measure.split(', ')[1]}, {row.case}", "library": name, "share": a / b, "low": low, "high": high}
        for row in rows
        for name, values in row.rates.items()
        if name in CONTENDERS
        for a, b in [(spread(values).median, spread(row.rates[READS]).median)]
        for _, low, high in [spread([x / y for x, y in zip(values, row.rates[READS], strict=True)])]
    ]
    if not points:
        return
    drawn = {point["library"] for point in points}
    looks = {name: look for name, look in CONTENDERS.items() if name in drawn}
    colour, shape = legend("library", looks, len(looks))
    lowest = max(tick for tick in TICKS if tick <= min(point["low"] for point in points) or tick == TICKS[0])
    x = alt.X(
        "share:Q",
        title="keys and values per second, over measured reads (1: memory or cache at full speed)",
        scale=alt.Scale(
            type="log", domain=[lowest, max(1, *(point["high"] for point in points))], nice=False, clamp=True
        ),
        axis=alt.Axis(values=[tick for tick in TICKS if tick >= lowest], format="~g"),
    )
    y = alt.Y("case:N", title=None, sort=None, axis=alt.Axis(labelLimit=460))
    base = alt.Chart(alt.Data(values=points)).encode(yOffset=alt.YOffset("library:N", sort=list(looks)))
    chart = alt.layer(
        alt.Chart(alt.Data(values=[{"share": 1}])).mark_rule(style="ink", strokeWidth=1.5).encode(x=x),
        base.mark_rule(strokeWidth=1.5).encode(x="low:Q", x2="high:Q", y=y, color=colour),
        base.mark_point(filled=True, size=60, opacity=1).encode(x=x, y=y, color=colour, shape=shape),
    ).properties(
        width=WIDTH,
        height=alt.Step(STEP, **{"for": "offset"}),
        title=alt.TitleParams(described(facts), anchor="start", dy=-8),
    )
    charts.write(chart.to_dict(), path, force=True)
