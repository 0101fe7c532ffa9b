"""Many heads at once: the words that heads move when they share one fast memory, counted."""

from __future__ import annotations

import math

import altair as alt

from redblue import schedules
from redblue.bounds import lower_bound
from redblue.lab.counts import count
from redblue.lab.planner import regime
from redblue.problem import Problem
from redblue.studies.experiments.experiment import Experiment, Point, Row, Table

M_WORDS, N = 227 * 2**10 // 2, 8192  # an H100 multiprocessor's shared memory, in words of 16 bits
DIMENSIONS, AT_ONCE = (64, 128, 256, 512, 1024), (1, 2, 4, 8, 16, 32)
HUES = ("#8fb9d9", "#0068a8", "#b0508a", "#f0a868", "#cf5a00")


def points(quick: bool) -> list[Point]:
    return [{"d": d, "heads": heads} for d in DIMENSIONS for heads in AT_ONCE if not quick or heads <= 4]


def measure(point: Point) -> list[Row]:
    """Count the best schedule for `heads` heads that run at once under one capacity."""
    d, heads = point["d"], point["heads"]
    problem = Problem(N, N, d, heads=heads)
    counts = []
    for name in schedules.BUILT_IN:  # a published figure does not depend on schedules that a user registers
        if not schedules.get(name).drop_in or "forward" not in schedules.get(name).passes:
            continue
        try:
            counts.append(count(name, problem, words=M_WORDS, at_once=heads))
        except schedules.TooFewWords:
            continue
    if not counts:
        return [point | {"schedule": None, "words_per_head": None}]
    best = min(counts, key=lambda candidate: candidate.words)
    share = M_WORDS // heads
    return [
        point
        | {
            "M": M_WORDS,
            "share_words": share,
            "x": d / math.sqrt(share),
            "regime": regime(d, share),
            "schedule": best.schedule,
            "words_per_head": best.words // heads,
            "bound_words": lower_bound(problem, M_WORDS).words // heads,
        }
    ]


def fitting(rows: list[Row]) -> list[Row]:
    """The rows at which a schedule fits."""
    return [row for row in rows if row["schedule"]]


def growth(rows: list[Row], d: int) -> dict[int, float]:
    """For each number of heads at once: words of one head, over the words of a head that runs alone."""
    words = {row["heads"]: row["words_per_head"] for row in fitting(rows) if row["d"] == d}
    return {heads: total / words[1] for heads, total in words.items()}


def figure(rows: list[Row]) -> alt.LayerChart:
    """Words of a head over the number of heads at once, one line for each d."""
    dimensions = list(dict.fromkeys(row["d"] for row in rows))
    values = [{"heads": heads, "y": y, "d": f"d = {d}"} for d in dimensions for heads, y in growth(rows, d).items()]
    most = max(row["heads"] for row in rows)
    guides = [
        {"heads": heads, "y": heads**power, "label": label}
        for power, label in ((1, "H-fold"), (0.5, "√H-fold"))
        for heads in (1, most)
    ]
    x = alt.X(
        "heads:Q",
        title="H: heads at once under one capacity",
        scale=alt.Scale(type="log", base=2, domain=[0.9, most * 1.5], nice=False),
        axis=alt.Axis(values=list(AT_ONCE), format="d", grid=False),
    )
    y = alt.Y(
        "y:Q",
        title="words of a head, over one head alone",
        scale=alt.Scale(type="log", base=2, domain=[0.9, most * 1.2], nice=False),
        axis=alt.Axis(values=list(AT_ONCE), format="d", domain=False, ticks=False),
    )
    names = [f"d = {d}" for d in dimensions]
    colour = alt.Color("d:N", scale=alt.Scale(domain=names, range=list(HUES)), legend=alt.Legend(title=None, columns=5))
    base, dashed = alt.Chart(alt.Data(values=values)), alt.Chart(alt.Data(values=guides))
    ends = alt.Chart(alt.Data(values=[row for row in guides if row["heads"] == most]))
    layers = [
        dashed.mark_line(style="faint", strokeDash=[4, 3]).encode(x=x, y=y, detail="label:N"),
        ends.mark_text(style="words", align="left", dx=6).encode(x=x, y=y, text="label:N"),
        base.mark_line(strokeWidth=2).encode(x=x, y=y, color=colour),
        base.mark_point(filled=True, size=50, opacity=1).encode(x=x, y=y, color=colour),
    ]
    return alt.LayerChart(layer=layers).properties(width=560, height=330)


def tables(rows: list[Row]) -> list[Table]:
    columns = (
        "d",
        "best schedule",
        "H",
        "M per head",
        "d/√M",
        "words of a head",
        "words / head alone",
        "words / bound",
    )
    lines = [
        (
            str(row["d"]),
            f"`{row['schedule']}`",
            str(row["heads"]),
            f"{row['share_words']:,}",
            f"{row['x']:.2f}",
            f"{row['words_per_head']:,}",
            f"{growth(rows, row['d'])[row['heads']]:.2f}",
            f"{row['words_per_head'] / row['bound_words']:.2f}",
        )
        for row in fitting(rows)
    ]
    numbers = sorted({row["heads"] for row in rows})
    regimes = {(row["d"], row["heads"]): row["regime"] for row in fitting(rows)}
    by_d = [
        (str(d), *(regimes.get((d, number), "-") for number in numbers)) for d in dict.fromkeys(d for d, _ in regimes)
    ]
    return [
        Table("Regimes", ("d", *(f"H = {number}" for number in numbers)), by_d, len(numbers) + 1),
        Table("Heads that share a memory", columns, lines, 2),
    ]


def findings(rows: list[Row]) -> list[str]:
    low, high = min(DIMENSIONS), max(DIMENSIONS)
    most = {d: max(growth(rows, d).items()) for d in (low, high)}
    regimes = {
        d: {row["regime"] for row in fitting(rows) if row["d"] == d} for d in dict.fromkeys(row["d"] for row in rows)
    }
    changes = [str(d) for d, of_d in regimes.items() if len(of_d) > 1]
    return [
        f"If {most[low][0]} heads run at once, a head of d = {low} moves {most[low][1]:.1f} times the words of a head "
        f"that runs alone. If {most[high][0]} heads run at once, a head of d = {high} moves {most[high][1]:.1f} times "
        f"the words. The factor is at most H in a large cache, and √H in a small cache.",
        f"Each of H heads has M / H words, so the regime can change with H. It changes for {len(changes)} of "
        f"{len(regimes)} head dimensions, as the table of regimes shows.",
        "The bound per head does not depend on H. Heads that run one after the other move no more words each than a "
        "head alone. Query heads that share K and V are one stream with more rows, so they should run together.",
    ]


EXPERIMENT = Experiment(
    name="heads",
    title="Many heads at once",
    question="How many more words move if H heads run at once in one fast memory, instead of one after the other?",
    points=points,
    measure=measure,
    figure=figure,
    tables=tables,
    findings=findings,
    method=f"""
Counted (`count(..., at_once=H)`), not measured: forward, full mask, n = {N:,}, M = {M_WORDS:,} words. M is the shared
memory of an H100 multiprocessor, 227 KiB, in words of 16 bits. H heads that share nothing run at once, and each head
has M / H words. Every schedule that the planner may choose is counted with its best tiles. With M / H words instead of
M, x = d / √M grows by the factor √H. So the 4 x² words per pair of `flash` become 4 H x², and the 4 x + 1 words per
pair of `small_cache` become 4 √H x + 1 ([theory](../lab/theory.md), "Several heads at once").
""",
)
