"""Saha & Ye's Algorithm 1, the small-cache algorithm as printed: square tiles of side B = floor(sqrt(M / 4)).

Phase 1 computes A = exp(Q K^T) tile by tile, over blocks of d, and writes A and its row sums l. Phase 2 computes
O = diag(l)^-1 A V tile by tile, over blocks of n. If B divides n and d, the phases move 4 n^2 d / B + n^2 + n d + 2 n
words (the printed 8 n^2 d / sqrt(M) + n^2 + n d + 2 n for M = 4 B^2). `small_cache` follows the same idea with tiles of
side sqrt(M) and thin slices; it moves half the words and is safe.

Algorithm 1 subtracts no row maximum. A overflows if a score (scaled by 1 / sqrt(d)) exceeds 709.78 in float64, 88.7 in
float32 or 11.09 in float16, and the row becomes NaN; a row sum may overflow slightly earlier. A row becomes NaN too if
all its scores are so low that exp returns 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from redblue.base.integers import ceil_div, larger, smaller
from redblue.machine import Machine, Slow, exp
from redblue.problem import Problem
from redblue.schedules.products import score_tile
from redblue.schedules.schedule import Cost, Pass, Schedule, Scores, blocks


class Tiles(NamedTuple):
    side: Any  # B, the side of every tile

    # The names of the tile's edges in other schedules
    @property
    def rows(self) -> Any:
        return self.side

    cols = depth = rows


def forward(m: Machine, problem: Problem, t: Tiles, q: Slow, k: Slow, v: Slow, out: Slow) -> None:
    scale = problem.d**-0.5
    a, row_sum = m.scratch("a", (problem.n_q, problem.n_k)), m.scratch("row_sum", (problem.n_q,))
    for i in blocks(problem.n_q, t.side):
        sum_i = m.zeros("sum_i", len(i))
        for j in blocks(problem.n_k, t.side):
            a_ij = score_tile(m, "a_ij", q, k, i, j, t.side)
            a_ij[...] = exp(a_ij * scale)
            sum_i += a_ij.sum(axis=1)
            m.store(a[i, j], a_ij)
            m.free(a_ij)
        m.store(row_sum[i], sum_i)
        m.free(sum_i)
    for i in blocks(problem.n_q, t.side):
        sum_i = m.load(row_sum[i])
        for f in blocks(problem.d_v, t.side):
            out_if = m.zeros("out_if", len(i), len(f))
            for j in blocks(problem.n_k, t.side):
                a_ij, v_jf = m.load(a[i, j]), m.load(v[j, f])
                a_ij /= sum_i[:, None]
                out_if += a_ij @ v_jf
                m.free(a_ij, v_jf)
            m.store(out[i, f], out_if)
            m.free(out_if)
        m.free(sum_i)


def forward_cost(p: Problem, t: Tiles) -> Cost:
    n_q, n_k, d, d_v, pairs = p.n_q, p.n_k, p.d, p.d_v, p.n_q * p.n_k
    row_blocks = ceil_div(n_q, t.side)
    scores = n_q * d * ceil_div(n_k, t.side) + n_k * d * row_blocks
    outputs = pairs * ceil_div(d_v, t.side) + n_k * d_v * row_blocks
    r, c, f, f_v = (smaller(t.side, length) for length in (n_q, n_k, d, d_v))
    peak = r + larger(r * c + f * (r + c), r * f_v + c * (r + f_v))
    return Cost(scores + outputs + n_q, pairs + n_q + n_q * d_v, peak, 2 * (d + d_v) * pairs)


def forward_tiles(p: Problem, words: int, multiple: Mapping[str, int]) -> Tiles | None:
    step = multiple["side"]
    printed = max(math.isqrt(words // 4) // step, 1) * step
    tiles = Tiles(min(printed, max(p.n_q, p.n_k, p.d, p.d_v)))
    return tiles if forward_cost(p, tiles).peak <= words else None


schedule = Schedule(
    name="saha_ye",
    title="Saha and Ye's small-cache algorithm as printed: tiles of side sqrt(M / 4), not safe",
    source="Saha & Ye, ICML 2024 (arXiv 2402.07443), Algorithm 1",
    passes={
        "forward": Pass(
            forward,
            Tiles,
            forward_cost,
            forward_tiles,
            scores=lambda p, t: Scores(t.side, t.side, ceil_div(p.d, t.side)),
        )
    },
    drop_in=False,
    spills=True,
    safe=False,
    full_only=True,
)
