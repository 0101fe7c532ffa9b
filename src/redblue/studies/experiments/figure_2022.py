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
M_WORDS = 192 * 2**10 // 2  # an A100's 192 KiB; the paper's formula then gives blocks of B_c = M / 4d = 384 keys
PARTS = (*DIRECTIONS, PASSES)
COLOURED = ("flash", "hybrid", "standard")  # the schedules whose colours the PARTS take
STANDARD, WITH_PASSES = "standard", "standard, with passes for mask and dropout"
FLASH1, FLASH = "FlashAttention", "redblue's flash, the same M"
PRINTED = {STANDARD: 40.3, WITH_PASSES: 40.3, FLASH1: 4.4}
OTHER_PRINT = {STANDARD: 35.3, WITH_PASSES: 35.3}


def points(quick: bool) -> list[Point]:
    return [{}]


def measure(point: Point) -> list[Row]:
    """Count every part of every bar; return a row for each, and one for the bound."""
    bars = (STANDARD, None, WITH_PASSES, FLASH1)  # the order of `recount`; its second total is not drawn
    counted = {bar: total.parts for bar, total in zip(bars, _recounted_totals(), strict=True)}
    counted[FLASH] = {direction: _gigabytes(direction) for direction in DIRECTIONS}
    rows = [
        {"bar": bar, "part": part, "gigabytes": value, "printed_gigabytes": PRINTED.get(bar)}
        for bar, parts in counted.items()
        if bar
        for part, value in parts.items()
    ]
    bound = sum(
        lower_bound(problem, M_WORDS).words * problem.bytes_per_word
        for problem in (replace(GPT2_MEDIUM, direction=way) for way in DIRECTIONS)
    )
    return [*rows, {"bar": "bound", "part": "both", "gigabytes": bound / 1e9, "printed_gigabytes": None}]


def _recounted_totals() -> list[Recount]:
    """The recounted figures that the paper prints in GB."""
    return [row for row in recount() if row.unit == "GB"]


def _gigabytes(direction: str) -> float:
    """GB that `flash` moves with its best tiles for M_WORDS."""
    problem = replace(GPT2_MEDIUM, direction=direction)
    return count("flash", problem, words=M_WORDS).words * problem.bytes_per_word / 1e9


def totals(rows: list[Row]) -> dict[str, float]:
    """GB of each bar, over its parts."""
    total: dict[str, float] = {}
    for row in rows:
        total[row["bar"]] = total.get(row["bar"], 0) + row["gigabytes"]
    return total


def figure(rows: list[Row]) -> alt.LayerChart:
    """Stacked bars of the counted GB, with a mark at the figure that the paper prints."""
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
    layer = _marks(data).mark_bar(height=20).encode(x=x, y=y, color=colour, order="order:Q")
    sums = [{"bar": name, "gigabytes": total[name], "text": f"{total[name]:.3g}"} for name in names]
    texts = _marks(sums).mark_text(style="ink", align="left", baseline="middle", dx=8, fontSize=12)
    printed = [
        {"bar": name, "gigabytes": value, "text": text.format(value)}
        for text, values in (("printed {}", PRINTED), ("or {}", OTHER_PRINT))
        for name, value in values.items()
    ]
    ticks = _marks(printed).mark_tick(style="ink", thickness=2.5, height=32, opacity=1).encode(x=x, y=y)
    labels = _marks(printed).mark_text(style="faint", baseline="bottom", dy=-17, fontSize=11)
    layers = [layer, ticks, *(text_layer.encode(x=x, y=y, text="text:N") for text_layer in (labels, texts))]
    return alt.LayerChart(layer=layers).properties(width=600, height=alt.Step(56))


def _marks(rows: list[Row]) -> alt.Chart:
    return alt.Chart(alt.Data(values=rows))


def tables(rows: list[Row]) -> list[Table]:
    total = totals(rows)
    lines = [
        (bar, _cell(PRINTED.get(bar)), f"{value:.2f} GB", f"{value / PRINTED[bar]:.2f}" if bar in PRINTED else "-")
        for bar, value in total.items()
        if bar != "bound"
    ]
    lines.append((f"proved bound, M = {M_WORDS:,} words", "-", f"{total['bound']:.2f} GB", "-"))
    return [Table("Printed and counted", ("algorithm", "printed", "counted", "counted / printed"), lines)]


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value} GB"


def findings(rows: list[Row]) -> list[str]:
    total = totals(rows)
    passes = sum(row["gigabytes"] for row in rows if row["part"] == PASSES)
    return [
        f"The printed 4.4 GB of FlashAttention follow from the paper's algorithms: their loads and stores move "
        f"{total[FLASH1]:.2f} GB with blocks of 384 keys, which is M / 4d for an A100's 192 KiB.",
        f"The printed 40.3 GB of standard attention do not follow from the paper's algorithm: its loads and stores "
        f"move {total[STANDARD]:.1f} GB. Mask and dropout add {passes:.1f} GB if both are separate passes, forward and "
        f"backward, that each read and write an n x n matrix. The total is then {total[WITH_PASSES]:.1f} GB. The paper "
        f"does not say whether they were separate passes.",
        f"With the same M and with tiles that fill the cache, redblue's schedule `flash` moves {total[FLASH]:.2f} GB. "
        f"No schedule moves less than {total['bound']:.2f} GB.",
    ]


EXPERIMENT = Experiment(
    name="figure-2022",
    title="The figure of 2022, recounted",
    question="Which traffic makes up the 40.3 and 4.4 GB in Figure 2 of the FlashAttention paper?",
    points=points,
    measure=measure,
    figure=figure,
    tables=tables,
    findings=findings,
    method="""
Counted, not measured: the words are those of each algorithm's closed form, which equals the count of a run (`redblue
recount` lists the figures). The problem is that of the paper's Figure 2 (Dao et al., NeurIPS 2022, arXiv 2205.14135):
one attention layer of GPT-2 medium, n = 1024, d = 64, 16 heads, batch 64, 16-bit, forward and backward. Words per head,
with T_c = n / B_c and B_c keys per block:

| | forward | backward |
| --- | --- | --- |
| standard attention | 4 n d + 4 n² | 8 n d + 7 n² |
| FlashAttention (Algorithms 1 and 4) | 3 n d + 2 n + T_c (3 n d + 4 n) | 7 n d + T_c (5 n d + 2 n) |

In the forward pass, redblue's `flash` has the loop order of FlashAttention-2 (arXiv 2307.08691). In the backward pass,
`flash` has two kernels: one for dQ, and one for dK and dV. FlashAttention-2 itself has one backward kernel, whose
blocks add to dQ with atomic additions. That kernel is not counted here.

Another version of the paper prints 35.3 GB for standard attention. The traffic that the paper measured may include
words that the algorithms do not show: cache lines that are read again, intermediate copies of the framework, or 4-byte
numbers in the softmax. Nothing here measures an A100.
""",
)
