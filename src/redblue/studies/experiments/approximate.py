"""Approximate attention by Taylor features: its error on scores, and the length from which it moves fewer words."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from statistics import median

import altair as alt
import numpy as np

from redblue import schedules
from redblue.catalogue.memories import list_memories, memory
from redblue.problem import Problem
from redblue.schedules.taylor import rank
from redblue.studies.experiments import small_transformer
from redblue.studies.experiments.experiment import Experiment, Point, Row, Table

N, D = 256, 64  # numbers of queries and keys (N), and of features (D), in the measurement of errors
DEGREES = tuple(range(2, 41, 2))  # degrees of the polynomials whose error is measured
PAID = (2, 4, 6)  # degrees whose words are compared with those of exact schedules
EXACT = ("flash", "hybrid", "small_cache")  # the best schedule of each regime, at leading order
HEAD_DIMENSIONS = (8, 64, 128)
STEPS = 300  # steps of training
LONGEST = 2**40  # tokens; beyond it the search for a length stops
TOLERANCES = (0.1, 2**-8)  # limits of the largest error over max |V|; 2^-8 is the rounding of bfloat16
SMALLEST = 1e-9  # the smallest error that the figure shows
HUES = ("#8fb9d9", "#5b9bc9", "#0068a8", "#b0508a", "#cf5a00")


def _uniform(bound: float) -> Callable[[], list[tuple[np.ndarray, ...]]]:
    return lambda: [
        tuple(np.random.default_rng(1).uniform(-1, 1, (3, N, D)) * np.array([bound, bound, 1])[:, None, None])
    ]


DISTRIBUTIONS = {  # name -> heads, each (Q, K, V); the masks of transformers are causal
    "uniform, entries up to 1/2": _uniform(0.5),
    "uniform, entries up to 1": _uniform(1),
    "Gaussian": lambda: [tuple(np.random.default_rng(1).standard_normal((3, N, D)))],
    "transformer, not trained": lambda: small_transformer.heads(0),
    "transformer, trained": lambda: small_transformer.heads(STEPS),
}


def points(quick: bool) -> list[Point]:
    if quick:
        return [{"scores": "Gaussian"}, {"machine": "t4"}]
    return [{"scores": name} for name in DISTRIBUTIONS] + [{"machine": name} for name in list_memories()]


def measure(point: Point) -> list[Row]:
    return _errors(point["scores"]) if "scores" in point else _lengths(point["machine"])


def _errors(name: str) -> list[Row]:
    """For each degree, the largest error over all heads, relative to max |V|."""
    heads = DISTRIBUTIONS[name]()
    attends = np.tril(np.ones((N, N), bool)) if name.startswith("transformer") else np.ones((N, N), bool)
    scores = [q @ k.T / math.sqrt(D) for q, k, _ in heads]
    largest = max(float(np.abs(s[attends]).max()) for s in scores)
    spread = max(float(s[attends].std()) for s in scores)
    rows = []
    for degree in DEGREES:
        errors = [error(s, v, attends, degree) for s, (_, _, v) in zip(scores, heads, strict=True)]
        rows.append(
            {"scores": name, "degree": degree, "largest_score": largest, "deviation": spread}
            | {"error": max(errors), "rank": rank(D, degree)}
        )
    return rows


def error(s: np.ndarray, v: np.ndarray, attends: np.ndarray, degree: int) -> float:
    """The largest error of the output over max |V| if exp is replaced by its Taylor polynomial."""
    polynomial = np.polynomial.Polynomial([1 / math.factorial(t) for t in range(degree + 1)])

    def output(weights: np.ndarray) -> np.ndarray:
        weights = np.where(attends, weights, 0)
        return weights @ v / weights.sum(axis=1, keepdims=True)

    return float(np.abs(output(polynomial(s)) - output(np.exp(s))).max() / np.abs(v).max())


def _lengths(name: str) -> list[Row]:
    """Return the least n at which features move fewer words than any exact schedule, for each boundary."""
    known = {
        boundary.name: boundary.capacity_bytes // 2 for boundary in memory(name).boundaries if boundary.capacity_bytes
    }
    return [
        {"machine": name, "boundary": boundary, "M": words, "d": d, "degree": degree}
        | {"rank": rank(d, degree), "length": length(words, d, degree)}
        for boundary, words in known.items()  # words of 16 bits
        for d in HEAD_DIMENSIONS
        for degree in PAID
    ]


@lru_cache(maxsize=1024)
def length(words: int, d: int, degree: int) -> int | None:
    """The least n, within 1 %, from which taylor_`degree` moves fewer words than every exact schedule; None if none."""

    def pays(n: int) -> bool:
        moved = [_words(name, n, d, words) for name in (f"taylor_{degree}", *EXACT)]
        return moved[0] < min(moved[1:])

    if _words(f"taylor_{degree}", 1, d, words) == math.inf:
        return None
    high = 16
    while not pays(high):
        high *= 2
        if high > LONGEST:
            return None
    low = high // 2
    while high - low > max(1, high // 100):
        middle = (low + high) // 2
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high


def _words(name: str, n: int, d: int, words: int) -> float:
    """The words of a schedule with its best tiles; infinity if none fit."""
    schedule, problem = schedules.get(name), Problem(n, n, d)
    try:
        return schedule.words(problem, schedule.tiles(problem, words))
    except schedules.TooFewWords:
        return math.inf


def split(rows: list[Row]) -> tuple[list[Row], list[Row]]:
    """The rows of errors, and those of lengths."""
    return [row for row in rows if "error" in row], [row for row in rows if "machine" in row]


def needed(rows: list[Row], tolerance: float) -> dict[str, Row | None]:
    """Return, for each distribution, the row of the least degree from which on all degrees meet the tolerance."""
    result: dict[str, Row | None] = {}
    for name in dict.fromkeys(row["scores"] for row in split(rows)[0]):
        series = [row for row in split(rows)[0] if row["scores"] == name]
        beyond = [number for number, row in enumerate(series) if row["error"] > tolerance]
        after = beyond[-1] + 1 if beyond else 0
        result[name] = series[after] if after < len(series) else None
    return result


def figure(rows: list[Row]) -> alt.LayerChart:
    """The error over the degree, one line for each distribution of scores."""
    errors = split(rows)[0]
    names = list(dict.fromkeys(row["scores"] for row in errors))
    shown = [row for row in errors if row["error"] > SMALLEST]
    values = [{"degree": row["degree"], "error": row["error"], "name": row["scores"]} for row in shown]
    x = alt.X("degree:Q", title="degree of the polynomial", axis=alt.Axis(grid=False))
    y = alt.Y(
        "error:Q",
        title="largest error, over max |V|",
        scale=alt.Scale(type="log", domain=[SMALLEST, 2], nice=False),
        axis=alt.Axis(values=[1e-8, 1e-6, 1e-4, 1e-2, 1], format=".0e", domain=False, ticks=False),
    )
    colour = alt.Color(
        "name:N", scale=alt.Scale(domain=names, range=list(HUES)), legend=alt.Legend(title=None, columns=3)
    )
    base = alt.Chart(alt.Data(values=values)).encode(x=x, y=y, color=colour)
    rule = alt.Chart(alt.Data(values=[{"y": TOLERANCES[1]}])).mark_rule(style="faint", strokeDash=[4, 3])
    return alt.LayerChart(layer=[rule.encode(y="y:Q"), base.mark_line(strokeWidth=2)]).properties(width=560, height=330)


def tables(rows: list[Row]) -> list[Table]:
    errors, lengths = split(rows)
    shown = (2, 4, 6, 10, 20)
    by_key = {(row["scores"], row["degree"]): row for row in errors}
    reached = [needed(rows, tolerance) for tolerance in TOLERANCES]
    first = [
        (
            name,
            f"{by_key[name, 2]['deviation']:.2f}",
            f"{by_key[name, 2]['largest_score']:.1f}",
            *(f"{by_key[name, degree]['error']:.1e}" for degree in shown),
            *(
                f"degree {row['degree']}, r = {row['rank']:.1e}" if row else "-"
                for row in (ranks[name] for ranks in reached)
            ),
        )
        for name in dict.fromkeys(row["scores"] for row in errors)
    ]
    columns = (
        "scores",
        "standard deviation",
        "largest absolute score",
        *(f"error, degree {degree}" for degree in shown),
    )
    columns += ("needed for an error of 0.1", "needed for an error of 2⁻⁸")
    second = [
        (
            str(d),
            str(degree),
            f"{rank(d, degree):,}",
            str(len(boundaries)),
            *(f"{value:,.0f}" for value in (min(boundaries), median(boundaries), max(boundaries))),
        )
        for d in HEAD_DIMENSIONS
        for degree in PAID
        if (
            boundaries := [
                row["length"] for row in lengths if (row["d"], row["degree"]) == (d, degree) and row["length"]
            ]
        )
    ]
    return [
        Table(f"The error of the output for d = {D}, relative to max |V|", columns, first),
        Table(
            "The shortest sequence, in tokens, for which Taylor features move fewer words than every exact schedule",
            ("d", "degree", "features r", "boundaries", "minimum", "median", "maximum"),
            second,
            0,
        ),
    ]


def findings(rows: list[Row]) -> list[str]:
    lengths, lines = split(rows)[1], []
    for d, degree in ((64, 2), (64, 4)):
        same = [row for row in lengths if (row["d"], row["degree"]) == (d, degree) and row["length"]]
        boundaries = [row["length"] / row["rank"] for row in same]
        lines.append(
            f"With d = {d} and degree {degree}, r = {rank(d, degree):,} features replace the keys. The features move "
            f"fewer words than exact attention if the sequence has at least {median(boundaries):.2f} r tokens. This is "
            f"the median over {len(boundaries)} memory boundaries of real machines; the range is "
            f"{min(boundaries):.2f} r to {max(boundaries):.2f} r."
        )
    reached = needed(rows, TOLERANCES[1])
    for name in ("uniform, entries up to 1/2", "Gaussian", "transformer, trained"):
        if name in reached:
            row = reached[name]
            needs = f"degree {row['degree']}, r = {row['rank']:.1e}" if row else f"more than degree {DEGREES[-1]}"
            lines.append(f"For the scores `{name}` and d = {D}, an error of at most 2⁻⁸ max |V| needs {needs}.")
    return lines


def missing() -> str:
    return "" if find_spec("torch") else "it trains a small transformer with PyTorch: pip install 'redblue[torch]'"


EXPERIMENT = Experiment(
    name="approximate",
    title="Approximate attention: error and words",
    question="How large is the error of Taylor features, and for which sequence lengths do they move fewer words than "
    "exact attention?",
    points=points,
    measure=measure,
    figure=figure,
    tables=tables,
    findings=findings,
    method=f"""
The schedules `taylor_2`, `taylor_4` and `taylor_6` are a *reconstruction* of the polynomial method of Alman & Song
(arXiv 2302.13214). The [theory](../lab/theory.md#approximate-attention-a-reconstruction) describes them. They are not
the algorithms of Papp, Sobczyk & Zouzias (arXiv 2605.23751). Only the abstract of that paper was at hand; its
algorithms may need fewer features or move fewer words.

**Error.** A Taylor polynomial replaces exp, in float64, with n = {N} and d = {D}. The entries of Q and K come from one
of three sources: a uniform distribution within a bound, the standard normal distribution, or a causal transformer on
bytes ({small_transformer.LAYERS} layers, {small_transformer.HEADS} heads), before and after {STEPS} steps of training
on Python source. For the transformer, each number is the largest over its heads. The causal mask of the transformer
applies to the error only, because the Taylor schedules take no mask.

- *Error*: the largest error of an output word, divided by the largest |V|. The dashed line in the figure is 2⁻⁸.
- *Standard deviation*, *largest absolute score*: those of the scores q·k/√d.
- *Needed*: the lowest degree that suffices, with its number of features r. A degree suffices if the error is at most
  the given error for this degree and for every higher degree up to {DEGREES[-1]}. Only even degrees are tried.

**Words.** The words are counted for one head, a full mask, n queries and n keys. A word has 16 bits. The memory
boundaries are those of all machines of the catalogue, if their capacity is known. The second table leaves out a
boundary if no tiles of the Taylor schedule fit in its memory. The words of a Taylor schedule with its best tiles are
compared with the fewest words of `flash`, `hybrid` and `small_cache`. Lengths are accurate to 1 %.

A Taylor schedule keeps sums over all keys. If these sums fit in the cache, the schedule reads every input once. It then
moves fewer words as soon as exact attention reads any word twice. If the sums do not fit, r features cost as many words
as r keys. The schedule then moves fewer words from about n = r on. Arithmetic is not compared: exact attention takes
4 n² d operations. Taylor features take 4 n r d operations, and more to compute the features.
""",
    missing=missing,
)
