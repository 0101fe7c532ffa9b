"""Compression: run the protocol behind the bound for any arithmetic, and count the words of fast multiplications."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np

from redblue import schedules
from redblue.base.style import COLOURS
from redblue.bounds import lower_bounds
from redblue.bounds.closed import determined
from redblue.lab.compression import Compression
from redblue.problem import Problem
from redblue.schedules import strassen
from redblue.studies.experiments.experiment import Experiment, Point, Row, Table

N, D, CAPACITIES = 48, 8, (64, 128, 256)  # n, d and M of the runs on words of a field; d^2 = 64
DECODED = 12  # phases of a run that are encoded and decoded, spread evenly
# The best schedule of each regime and, forward, the baseline
FORWARD, BACKWARD = ("flash", "hybrid", "small_cache", "standard"), ("flash", "hybrid", "small_cache")
SIDE = 31  # side of the stationary tile of the output in large fast multiplications; with two slices it fills M = 1023
LARGE_M, LEVELS = SIDE * (SIDE + 2), (0, 1, 2, 3)
SHARES = (8, 16, 32, 48, 64, 96, 128, 256, 512)  # d over 31, about d / sqrt(M)
HUES = ("#8fb9d9", "#0068a8", "#b0508a", "#cf5a00")


def points(quick: bool) -> list[Point]:
    if quick:
        return [_run("flash", 128, 0), _run("strassen", 128, 1), {"share": 8}, {"share": 256}]
    runs = [_run(name, words, 0) for name in FORWARD for words in CAPACITIES]
    runs += [_run(name, words, 0, "backward") for name in BACKWARD for words in (128, 256)]
    runs += [_run("strassen", words, levels) for levels in (1, 2) for words in (64, 128)]
    return runs + [{"share": share} for share in SHARES]


def _run(schedule: str, words: int, levels: int, direction: str = "forward") -> Point:
    return {"schedule": schedule, "M": words, "levels": levels, "direction": direction}


def measure(point: Point) -> list[Row]:
    return [_large(point["share"])] if "share" in point else [point | _protocol(**point)]


def _protocol(schedule: str, M: int, levels: int, direction: str) -> Row:
    """Cut a run into phases, count the products of each, and encode and decode some of them."""
    problem = Problem(N, N, D, direction=direction)
    if schedule == "strassen":
        algorithm, side = strassen.schedule, int((M + 1) ** 0.5) - 1
        tiles: Any = strassen.Tiles(side, side, M // 4, levels)
    else:
        algorithm = schedules.get(schedule)
        tiles = algorithm.tiles(problem, M)
    run = Compression(algorithm, problem, tiles, M)
    arrays = run.draw(3)
    truth = run.products(arrays).reshape(-1)
    chosen = run.phases[:: -(-len(run.phases) // DECODED)]
    messages = [run.encode(arrays, phase) for phase in chosen]
    exact = [
        np.array_equal(run.decode(message, phase), truth[phase.pairs])
        for message, phase in zip(messages, chosen, strict=True)
    ]
    return {
        "n": N,
        "d": D,
        "loads": run.phases[-1].end,
        "phases": len(run.phases),
        "decoded": len(chosen),
        "exact": sum(exact),
        "message_words": max(map(len, messages)),
        "most_products": max(len(phase.pairs) for phase in run.phases),
        "limit": determined(2 * M, D),
        "determined_share": max(
            run.determined(phase) / len(message) for phase, message in zip(chosen, messages, strict=True)
        ),
        "bound_loads": next(x.words for x in lower_bounds(problem, M) if x.name == "any arithmetic"),
    }


def _large(share: int) -> Row:
    """Count Strassen's attention for d = 31 share, n = 4 d, from its closed form, beside the bounds."""
    d = SIDE * share // 8 * 8
    problem = Problem(4 * d, 4 * d, d)
    proved = {x.name: x.words for x in lower_bounds(problem, LARGE_M) if x.proved}
    words = [strassen.cost(problem, strassen.Tiles(SIDE, SIDE, LARGE_M // 4, levels)).words for levels in LEVELS]
    return {
        "share": share,
        "M": LARGE_M,
        "d": d,
        "n": 4 * d,
        "words": words,
        "small_cache": schedules.get("small_cache")
        .cost(problem, schedules.get("small_cache").tiles(problem, LARGE_M))
        .words,
        "standard_bound": max(words for name, words in proved.items() if name != "any arithmetic"),
        "any_bound": proved["any arithmetic"],
    }


def split(rows: list[Row]) -> tuple[list[Row], list[Row]]:
    """The rows of the protocol, and those of the large multiplications."""
    return [row for row in rows if "phases" in row], [row for row in rows if "share" in row]


def figure(rows: list[Row]) -> alt.LayerChart:
    """Words over the bound for standard products: small_cache, and Strassen's attention by levels of recursion."""
    large = split(rows)[1]
    names = ["small_cache", *(f"Strassen, {levels} level{'s' * (levels > 1)}" for levels in LEVELS[1:])]
    values = [
        {"x": row["d"] / row["M"] ** 0.5, "y": words / row["standard_bound"], "name": name}
        for row in large
        for name, words in zip(names, (row["small_cache"], *row["words"][1:]), strict=True)
    ]
    x = alt.X(
        "x:Q",
        title="d / √M",
        scale=alt.Scale(type="log", base=2, domain=[7, 560], nice=False),
        axis=alt.Axis(grid=False, format="~f"),
    )
    y = alt.Y(
        "y:Q",
        title="words over the bound for standard products",
        scale=alt.Scale(type="log", domain=[0.68, 2.5], nice=False),
        axis=alt.Axis(values=[0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 2.5], format="~f", domain=False, ticks=False),
    )
    colour = alt.Color("name:N", scale=alt.Scale(domain=names, range=list(HUES)), legend=alt.Legend(title=None))
    base = alt.Chart(alt.Data(values=values)).encode(x=x, y=y, color=colour)
    rule = alt.Chart(alt.Data(values=[{"y": 1}])).mark_rule(color=COLOURS["light"]["ink"], strokeDash=[4, 3])
    return alt.LayerChart(
        layer=[rule.encode(y="y:Q"), base.mark_line(strokeWidth=2), base.mark_point(filled=True, size=50, opacity=1)]
    ).properties(width=560, height=330)


def tables(rows: list[Row]) -> list[Table]:
    runs, large = split(rows)
    columns = (
        *("schedule", "direction", "M", "loads", "phases", "decoded exactly", "longest message, words"),
        *("most scores of a phase", "limit", "determined", "loads / bound"),
    )
    lines = [
        (
            f"`{row['schedule']}`" + f", {row['levels']} level{'s' * (row['levels'] > 1)}" * bool(row["levels"]),
            row["direction"],
            str(row["M"]),
            f"{row['loads']:,}",
            str(row["phases"]),
            f"{row['exact']} of {row['decoded']}",
            f"{row['message_words']} of {2 * row['M']}",
            f"{row['most_products']:,}",
            f"{row['limit']:,}",
            f"{row['determined_share']:.0%}",
            f"{row['loads'] / row['bound_loads']:.0f}" if row["bound_loads"] else "-",
        )
        for row in runs
    ]
    fast = [
        (
            f"{row['d'] / row['M'] ** 0.5:.0f}",
            f"{row['d']:,}",
            f"{row['small_cache'] / row['standard_bound']:.3f}",
            *(f"{words / row['standard_bound']:.3f}" for words in row["words"][1:]),
            f"{row['any_bound'] / row['standard_bound']:.5f}",
        )
        for row in large
    ]
    names = (f"`strassen`, {levels} level{'s' * (levels > 1)}" for levels in LEVELS[1:])
    over = ("d / √M", "d", "`small_cache`", *names)
    over += ("bound for any arithmetic",)
    return [
        Table("The phases of each run", columns, lines, 2),
        Table("Words, divided by the bound for standard products", over, fast, 0),
    ]


def findings(rows: list[Row]) -> list[str]:
    runs, large = split(rows)
    exact, decoded = (sum(row[key] for row in runs) for key in ("exact", "decoded"))
    nearest = min((row for row in runs if row["bound_loads"]), key=lambda row: row["loads"] / row["bound_loads"])
    tightest = max(runs, key=lambda row: row["determined_share"])
    fullest = max(runs, key=lambda row: row["most_products"] / row["limit"])
    below = [row for row in large if min(row["words"]) < row["standard_bound"]]
    lowest = min(large, key=lambda row: min(row["words"]) / row["standard_bound"])
    within = sum(row["most_products"] <= row["limit"] and row["loads"] >= row["bound_loads"] for row in runs)
    above = sum(min(row["words"]) > row["any_bound"] for row in large)
    return [
        f"In {exact} of {decoded} phases, every score was decoded exactly from a message of at most 2M words. "
        f"In {within} of {len(runs)} runs, no phase has more scores than Theorem 4 allows, and the run loads at least "
        f"the words of the theorem's bound. The run nearest to the limit of scores is `{fullest['schedule']}` at "
        f"M = {fullest['M']}: one of its phases has {fullest['most_products'] / fullest['limit']:.0%} of the allowed "
        f"scores.",
        f"In one phase of `{tightest['schedule']}`, any message that determines the scores needs at least "
        f"{tightest['determined_share']:.0%} of the words of the decoded message. For the other runs, a smaller share "
        f"is proved.",
        f"The run nearest to the bound for any arithmetic is `{nearest['schedule']}` at M = {nearest['M']}. This run "
        f"loads {nearest['loads'] / nearest['bound_loads']:.0f} times the words of the bound.",
        f"The bounds of Theorems 1 to 3 hold for standard products only. With n = 4 d and d of at least "
        f"{min(row['d'] / row['M'] ** 0.5 for row in below):.0f} √M, Strassen's attention moves fewer words than these "
        f"bounds. At d = {lowest['d'] / lowest['M'] ** 0.5:.0f} √M, Strassen's attention moves "
        f"{min(lowest['words']) / lowest['standard_bound']:.0%} of the words of these bounds.",
        f"The bound for any arithmetic holds for Strassen's attention, with the best number of levels, at {above} of "
        f"{len(large)} head dimensions. At d = {lowest['d'] / lowest['M'] ** 0.5:.0f} √M, Strassen's attention moves "
        f"{min(lowest['words']) / lowest['any_bound']:,.0f} times the words of this bound.",
    ]


EXPERIMENT = Experiment(
    name="compression",
    title="Compressing a phase: the bound for any arithmetic",
    question=(
        "A phase is a part of a run that loads M words. Do 2M words determine all scores that a phase computes, and "
        "does the bound hold for Strassen's multiplication?"
    ),
    points=points,
    measure=measure,
    figure=figure,
    tables=tables,
    findings=findings,
    method=f"""
**Protocol.** The bound for any arithmetic ([theory](../lab/theory.md), Theorem 4) rests on a protocol between a sender,
Alice, and a receiver, Bob. This experiment runs the protocol. A schedule works on random words of the finite field F_q,
q = 2³¹ - 1, with n = {N} and d = {D}. Its run is cut into phases of M loads; the first phase has 2M loads. Alice sends
the words that the cache holds when a phase begins, and the words that the phase loads. Bob knows the schedule but no
input. He runs the same schedule, on zeros until the phase begins, and then on the words of the message. So he obtains
every score that the phase computes (in the backward pass, every dP_ij). The positions of the scores among the computed
words do not depend on the data, as two runs on random inputs confirm. The columns:

- *Decoded exactly*: the number of decoded phases in which every score equals that of Q Kᵀ computed directly (in the
  backward pass, every dP_ij equals that of dO Vᵀ). At most {DECODED} phases of a run are decoded, spread evenly. Scores
  are counted in all phases.
- *Limit*: W = 2M words determine at most (W + d²)²/4d² scores, or W scores if W < d² (Theorem 4).
- *Determined*: any message that determines the scores of a phase has at least D words. The column shows the largest
  ratio of D to the words of a phase's message, over the decoded phases of the run. Let s_1 ≥ s_2 ≥ ... be the numbers
  of the phase's scores for each key. Then D = s_1 + ... + s_d + Σ min(s_j, d) over all j > d. The numbers of scores for
  each query give a second value in the same way. The larger of the two values is used.
- *Loads / bound*: the bound is that of Theorem 4 for phases of the length that gives the largest bound.

**Strassen's attention** computes Q Kᵀ and P V with Winograd's form of Strassen's multiplication (7 products and 15 sums
for each level of recursion), over output-stationary tiles. Between the two products, the softmax reads S twice and
writes P. The second table has M = {LARGE_M:,} and n = 4 d. Its words are those of the closed form. The tests check that
the closed form equals the count of a run. The bounds for standard products do not cover this algorithm.
Each level of recursion saves an eighth of the products' words and adds sums, which cost a fixed number of words per
pair. So a level saves words only if d is many times √M, far beyond any head dimension in use.
""",
)
