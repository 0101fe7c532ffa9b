"""The figures that the FlashAttention paper prints, counted again: `redblue recount`.

Two kinds: the words of its algorithms, line by line, at a size small enough to run (n = 32, d = 4), and the traffic of
its Figure 2, one attention layer of GPT-2 medium, forward and backward, in gigabytes.
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
PASSES = "mask and dropout as passes of their own"
ROOMY = 1 << 20  # words: standard attention reads every operand once


@dataclass(frozen=True)
class Recount:
    """One figure. expected: what the paper's lines add up to, or what it prints; counted: by running its algorithm, or,
    where that would take long, from the closed form that equals a run. unit: "words" or "GB". parts: what the count
    adds up from, where it is of several passes.
    """

    what: str
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
        """Counted over expected."""
        return self.counted / self.expected


def _lines(schedule: str, tiles: Mapping[str, int], formula: str, words: int, source: str = PAPER) -> Recount:
    ran = run(schedule, SMALL, words=None if tiles else ROOMY, tiles=tiles or None)
    what = "forward, n = 32, d = 4"
    return Recount(what, schedule, tiles, formula, words, ran.words, "words", source)


def _traffic(
    schedule: str, tiles: Mapping[str, int], formula: str, printed: float, version: str = "", passes: int = 0
) -> Recount:
    """passes: reads and writes of n^2 matrices beside the schedule's, per head, in both directions together."""
    layer = GPT2_MEDIUM
    parts = {}
    for direction in ("forward", "backward"):
        problem = replace(layer, direction=direction)
        counted = count(schedule, problem, words=None if tiles else 1 << 30, tiles=tiles or None)
        parts[direction] = counted.words * problem.bytes_per_word / 1e9
    if passes:
        parts[PASSES] = passes * layer.streams * layer.n_q * layer.n_k * layer.bytes_per_word / 1e9
    what, source = "GPT-2 medium, one layer, forward + backward", f"{PAPER}, Figure 2{version}"
    return Recount(what, schedule, tiles, formula, printed, sum(parts.values()), "GB", source, parts)


def recount() -> list[Recount]:
    """Every figure, beside what was printed."""
    n, d = SMALL.n_q, SMALL.d
    found = [_lines("standard", {}, "4 n d + 4 n^2", 4 * n * d + 4 * n * n)]
    for b in (4, 8, 16):
        blocks = -(-n // b)
        words = 3 * n * d + 2 * n + blocks * (3 * n * d + 4 * n)
        found.append(_lines("flash1", {"rows": 4, "cols": b}, "3 n d + 2 n + T_c (3 n d + 4 n)", words))
    for b in (4, 8, 16):
        words = 2 * n * d + n + 2 * n * d * -(-n // b)
        found.append(_lines("flash", {"rows": b, "cols": 4}, "2 n d + n + 2 n d T_r", words, SECOND_PAPER))
    standard = "12 n d + 11 n^2 per head"
    flash = "10 n d + 2 n + T_c (8 n d + 6 n) per head"
    found.append(_traffic("standard", {}, standard, 40.3))
    found.append(_traffic("standard", {}, standard, 35.3, ", as another version of it prints"))
    # What would explain the printed figure: mask and dropout as passes of their own, each reading and writing a matrix,
    # forward and backward. The paper does not say so.
    found.append(_traffic("standard", {}, standard + " + 8 n^2, if mask and dropout are passes apart", 40.3, passes=8))
    found.append(_traffic("flash1", {"rows": 64, "cols": 384}, flash, 4.4))
    return found
