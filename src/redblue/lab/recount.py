"""Recount the figures that the FlashAttention papers print: `redblue recount`.

There are two kinds: the words of the papers' algorithms, line by line, at a size small enough to run (n = 32, d = 4);
and the traffic in Figure 2 of the first paper, in gigabytes: one attention layer of GPT-2 medium, forward and backward.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from redblue.lab.counts import count, run
from redblue.problem import Problem

PAPER = "Dao et al., NeurIPS 2022 (arXiv 2205.14135)"
SECOND_PAPER = "Dao, 2023 (arXiv 2307.08691): FlashAttention-2's order"
SMALL = Problem(n_q=32, n_k=32, d=4)
GPT2_MEDIUM = Problem(n_q=1024, n_k=1024, d=64, heads=16, batch=64, dtype="float16")  # one layer
PASSES = "mask and dropout as separate passes"
LARGE_CACHE = 1 << 20  # words; in such a cache standard attention reads every operand once


@dataclass(frozen=True)
class Recount:
    """One recounted figure.

    case: the problem and the pass. expected: the sum over the lines of the paper's algorithm, or the figure that the
    paper prints. counted: from a run of the algorithm, or from its closed form (which equals a run) if the run would
    take long. unit: "words" or "GB". parts: the summands of `counted` if it is the sum over several passes.
    """

    case: str
    schedule: str
    tiles: Mapping[str, int]
    formula: str
    expected: float
    counted: float
    unit: str
    source: str
    parts: Mapping[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """Ratio of counted to expected."""
        return self.counted / self.expected


def _lines(schedule: str, tiles: Mapping[str, int], formula: str, words: int, source: str = PAPER) -> Recount:
    """Recount the words of an algorithm by running it at the small size. words: the value of `formula`."""
    result = run(schedule, SMALL, words=None if tiles else LARGE_CACHE, tiles=tiles or None)
    label = "forward, n = 32, d = 4"
    return Recount(label, schedule, tiles, formula, words, result.words, "words", source)


def _traffic(
    schedule: str, tiles: Mapping[str, int], formula: str, printed: float, version: str = "", passes: int = 0
) -> Recount:
    """Recount gigabytes of Figure 2 from the closed form.

    passes: additional reads and writes of n x n matrices per head, summed over both directions.
    """
    layer = GPT2_MEDIUM
    parts = {}
    for direction in ("forward", "backward"):
        problem = replace(layer, direction=direction)
        counted = count(schedule, problem, words=None if tiles else 1 << 30, tiles=tiles or None)
        parts[direction] = counted.words * problem.bytes_per_word / 1e9
    if passes:
        parts[PASSES] = passes * layer.streams * layer.n_q * layer.n_k * layer.bytes_per_word / 1e9
    label, source = "GPT-2 medium, one layer, forward + backward", f"{PAPER}, Figure 2{version}"
    return Recount(label, schedule, tiles, formula, printed, sum(parts.values()), "GB", source, parts)


def recount() -> list[Recount]:
    """Return every figure with its recount."""
    n, d = SMALL.n_q, SMALL.d
    figures = [_lines("standard", {}, "4 n d + 4 n^2", 4 * n * d + 4 * n * n)]
    for b in (4, 8, 16):
        blocks = -(-n // b)
        words = 3 * n * d + 2 * n + blocks * (3 * n * d + 4 * n)
        figures.append(_lines("flash1", {"rows": 4, "cols": b}, "3 n d + 2 n + T_c (3 n d + 4 n)", words))
    for b in (4, 8, 16):
        words = 2 * n * d + n + 2 * n * d * -(-n // b)
        figures.append(_lines("flash", {"rows": b, "cols": 4}, "2 n d + n + 2 n d T_r", words, SECOND_PAPER))
    standard = "12 n d + 11 n^2 per head"
    flash = "10 n d + 2 n + T_c (8 n d + 6 n) per head"
    figures.append(_traffic("standard", {}, standard, 40.3))
    figures.append(_traffic("standard", {}, standard, 35.3, " in another version of the paper"))
    # Mask and dropout as separate passes, each reading and writing a matrix forward and backward, would explain the
    # printed figure. The paper does not mention such passes.
    figures.append(
        _traffic("standard", {}, standard + " + 8 n^2, if mask and dropout are separate passes", 40.3, passes=8)
    )
    figures.append(_traffic("flash1", {"rows": 64, "cols": 384}, flash, 4.4))
    return figures
