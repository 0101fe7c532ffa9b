"""Figure 2 of the FlashAttention paper, recounted: bytes between HBM and chip, GPT-2 medium, forward and backward."""

from __future__ import annotations

from dataclasses import replace

import altair as alt

from redblue.base.style import LOOKS
from redblue.bounds import lower_bound
from redblue.lab.counts import count
from redblue.lab.recount import GPT2_MEDIUM, PASSES, Recount, recount
from redblue.studies.experiments.experiment import Experiment, Point, Row, Table

DIRECTIONS = ("forward", "backward")
M_WORDS = 192 * 2**10 // 2  # of an A100's 192 KiB: B_c = M / 4d = 384 is the block that the paper's formula gives
PARTS = (*DIRECTIONS, PASSES)
COLOURED = ("flash", "hybrid", "standard")  # as these schedules are
STANDARD, WITH_PASSES = "standard, its lines", "standard, mask and dropout apart"
FLASH1, FLASH2 = "FlashAttention, its lines", "the same M, FlashAttention-2's order"
PRINTED = {STANDARD: 40.3, WITH_PASSES: 40.3, FLASH1: 4.4}
OTHER_PRINT = {STANDARD: 35.3, WITH_PASSES: 35.3}


def points(quick: bool) -> list[Point]:
    return [{}]


def measure(point: Point) -> list[Row]:
    """One row for each part of each bar, and the bound."""
    counted = {name: each.parts for name, each in zip((STANDARD, None, WITH_PASSES, FLASH1), _traffic(), strict=True)}
    counted[FLASH2] = {each: _gigabytes(each) for each in DIRECTIONS}
    rows = [
        {"bar": bar, "part": part, "gigabytes": value, "printed_gigabytes": PRINTED.get(bar)}
        for bar, parts in counted.items()
        if bar
        for part, value in parts.items()
    ]
    bound = sum(
        lower_bound(problem, M_WORDS).words * problem.bytes_per_word
        for problem in (replace(GPT2_MEDIUM, direction=each) for each in DIRECTIONS)
    )
    return [*rows, {"bar": "bound", "part": "both", "gigabytes": bound / 1e9, "printed_gigabytes": None}]


def _traffic() -> list[Recount]:
    return [each for each in recount() if each.unit == "GB"]


def _gigabytes(direction: str) -> float:
    problem = replace(GPT2_MEDIUM, direction=direction)
    return count("flash", problem, words=M_WORDS).words * problem.bytes_per_word / 1e9


def totals(rows: list[Row]) -> dict[str, float]:
    found: dict[str, float] = {}
    for row in rows:
        found[row["bar"]] = found.get(row["bar"], 0) + row["gigabytes"]
    return found


def figure(rows: list[Row]) -> alt.LayerChart:
    """Bars of what is counted, part by part; a mark where the paper's figure stands."""
    bars = [row for row in rows if row["bar"] != "bound"]
    total, names = totals(rows), list(dict.fromkeys(row["bar"] for row in bars))
    y = alt.Y(
        "bar:N", sort=names, title=None, axis=alt.Axis(domain=False, ticks=False, labelLimit=300, labelFontSize=12)
    )
    x = alt.X(
        "gigabytes:Q",
        title="GB between HBM and chip, one layer, forward + backward",
        axis=alt.Axis(values=[0, 10, 20, 30, 40]),
    )
    colour = alt.Color(
        "part:N",
        sort=list(PARTS),
        scale=alt.Scale(domain=list(PARTS), range=[LOOKS[name].light for name in COLOURED]),
        legend=alt.Legend(title="counted", orient="bottom", labelLimit=320, columns=3, symbolType="square"),
    )
    data = [row | {"order": PARTS.index(row["part"])} for row in bars]
    drawn = _marks(data).mark_bar(height=20).encode(x=x, y=y, color=colour, order="order:Q")
    said = [{"bar": name, "gigabytes": total[name], "text": f"{total[name]:.3g}"} for name in names]
    texts = _marks(said).mark_text(style="ink", align="left", baseline="middle", dx=8, fontSize=12)
    printed = [
        {"bar": name, "gigabytes": value, "text": text.format(value)}
        for text, values in (("printed {}", PRINTED), ("or {}", OTHER_PRINT))
        for name, value in values.items()
    ]
    ticks = _marks(printed).mark_tick(style="ink", thickness=2.5, height=32, opacity=1).encode(x=x, y=y)
    labels = _marks(printed).mark_text(style="faint", baseline="bottom", dy=-17, fontSize=11)
    layers = [drawn, ticks, *(each.encode(x=x, y=y, text="text:N") for each in (labels, texts))]
    return alt.LayerChart(layer=layers).properties(width=600, height=alt.Step(56))


def _marks(rows: list[Row]) -> alt.Chart:
    return alt.Chart(alt.Data(values=rows))


def tables(rows: list[Row]) -> list[Table]:
    total = totals(rows)
    found = [
        (bar, _cell(PRINTED.get(bar)), f"{value:.2f} GB", f"{value / PRINTED[bar]:.2f}" if bar in PRINTED else "-")
        for bar, value in total.items()
        if bar != "bound"
    ]
    found.append((f"proved bound, M = {M_WORDS:,} words", "-", f"{total['bound']:.2f} GB", "-"))
    return [Table("Printed and counted", ("what", "printed", "counted", "counted / printed"), found)]


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value} GB"


def findings(rows: list[Row]) -> list[str]:
    total = totals(rows)
    passes = sum(row["gigabytes"] for row in rows if row["part"] == PASSES)
    return [
        f"The printed 4.4 GB of FlashAttention are its own lines: these move {total[FLASH1]:.2f} GB with blocks of 384 "
        f"keys, which is M / 4d for an A100's 192 KiB.",
        f"The printed 40.3 GB of standard attention are not: its lines move {total[STANDARD]:.1f} GB. The mask and the "
        f"dropout as passes of their own, each reading and writing a matrix, forward and backward, are {passes:.1f} GB "
        f"more and make {total[WITH_PASSES]:.1f}. The paper does not say that this was measured so.",
        f"With the same M, FlashAttention-2's order and tiles that fill the cache move {total[FLASH2]:.2f} GB; no "
        f"schedule moves less than {total['bound']:.2f}.",
    ]


EXPERIMENT = Experiment(
    name="figure-2022",
    title="The figure of 2022, recounted",
    question="What do the 40.3 and 4.4 GB of the FlashAttention paper's Figure 2 consist of?",
    points=points,
    measure=measure,
    figure=figure,
    tables=tables,
    findings=findings,
    method="""
Counted, not measured: every algorithm is run, or its closed form evaluated, which equals a run (`redblue recount` has
each of its lines). One attention layer of GPT-2 medium as the paper's Figure 2 has it: n = 1024, d = 64, 16 heads,
batch 64, 16-bit, forward and backward (Dao et al., NeurIPS 2022, arXiv 2205.14135). Standard attention: 4 n d + 4 n²
words forward and 8 n d + 7 n² backward, per head; FlashAttention, its Algorithms 1 and 4: 3 n d + 2 n + T_c (3 n d +
4 n) and 7 n d + T_c (5 n d + 2 n) with T_c = n / B_c.

The measured figure may also hold what no algorithm's line says: cached lines that are read again, intermediate copies
of the framework, or types of 4 bytes for the softmax. Nothing here measures an A100.
""",
)
