"""FlashAttention as first printed: keys and values in the outer loop; O and dQ are read and written per key block.

Forward moves 3 n d + 2 n + T_c (3 n d + 4 n) words and backward 7 n d + T_c (5 n d + 2 n), with T_c = ceil(n / B_c).
For B_c = M / 4d these are 12 and 20 n^2 d^2 / M words. `flash` exchanges the loops; its forward moves a third of the
words. With a mask, tiles without attended pairs are skipped, as in Algorithm 5 (block-sparse FlashAttention).

The printed sizes, B_c = ceil(M / 4d) and B_r = min(B_c, d), fill M with Q_i, K_j, V_j and O_i. They leave no words for
the score tile, the statistics, or (backward) dO_i, dQ_i, dK_j and dV_j. The search therefore takes the printed sizes
for the largest M' <= M with which all tiles fit. In the forward pass, M' = M for M > 8 d^2. In the backward pass, B_c
is at most (M - 4 d^2) / 5d, so the words tend to 25 n^2 d^2 / M.

The forward pass stores row sums l and row maxima m, where later versions store one log-sum-exp.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from redblue.base.integers import ceil_div, smaller
from redblue.machine import Machine, Slow, exp, maximum
from redblue.problem import Problem
from redblue.schedules.schedule import Cost, Pass, Schedule, Sweep, blocks, grid
from redblue.schedules.softmax import LOWEST, divisor, probabilities


class Tiles(NamedTuple):
    rows: Any  # B_r: queries that stream by together
    cols: Any  # B_c: keys that stay


def forward(
    m: Machine, problem: Problem, t: Tiles, q: Slow, k: Slow, v: Slow, out: Slow, row_sum: Slow, row_max: Slow
) -> None:
    scale, pairs = problem.d**-0.5, problem.mask.on(problem.n_q, problem.n_k)
    for i in blocks(problem.n_q, t.rows):
        _store_full(m, out, i, 0.0)
        _store_full(m, row_sum, i, 0.0)
        _store_full(m, row_max, i, LOWEST)
    for j in blocks(problem.n_k, t.cols):
        k_j, v_j = m.load(k[j]), m.load(v[j])
        for i in grid(m.cols_of(pairs.T, j), t.rows, problem.n_q):
            q_i, out_i, sum_i, max_i = m.load(q[i]), m.load(out[i]), m.load(row_sum[i]), m.load(row_max[i])
            s = m.new("s", q_i @ k_j.T * scale)
            if not m.holds(pairs, i, j):
                s[...] = m.where(pairs, i, j, s, -np.inf)
            tile_max = m.new("tile_max", maximum(s.max(axis=1), LOWEST))
            s[...] = exp(s - tile_max[:, None])
            sum_i *= exp(max_i - maximum(max_i, tile_max))  # the running sum, rescaled to the new maximum
            out_i *= sum_i[:, None]
            out_i += (s @ v_j) * exp(tile_max - maximum(max_i, tile_max))[:, None]
            sum_i += s.sum(axis=1) * exp(tile_max - maximum(max_i, tile_max))
            out_i /= divisor(sum_i)[:, None]
            max_i[...] = maximum(max_i, tile_max)
            m.store(out[i], out_i)
            m.store(row_sum[i], sum_i)
            m.store(row_max[i], max_i)
            m.free(q_i, out_i, sum_i, max_i, s, tile_max)
        m.free(k_j, v_j)


def _store_full(m: Machine, array: Slow, rows: range, number: float) -> None:
    """Fill rows of an array in slow memory with a number."""
    tile = m.full(array.name, (len(rows), *array.shape[1:]), number)
    m.store(array[rows], tile)
    m.free(tile)


def forward_cost(p: Problem, t: Tiles) -> Cost:
    r, c, d, d_v = smaller(t.rows, p.n_q), smaller(t.cols, p.n_k), p.d, p.d_v
    sums = p.mask.on(p.n_q, p.n_k).sums(*t)
    reads = p.n_k * (d + d_v) + (d + d_v + 2) * sums.rows
    writes = (d_v + 2) * (p.n_q + sums.rows)
    peak = c * (d + d_v) + r * (d + d_v + 3) + r * c
    return Cost(reads, writes, peak, 2 * (d + d_v) * sums.area)


def backward(
    m: Machine,
    problem: Problem,
    t: Tiles,
    q: Slow,
    k: Slow,
    v: Slow,
    out: Slow,
    row_sum: Slow,
    row_max: Slow,
    dout: Slow,
    dq: Slow,
    dk: Slow,
    dv: Slow,
) -> None:
    scale, pairs = problem.d**-0.5, problem.mask.on(problem.n_q, problem.n_k)
    for i in blocks(problem.n_q, t.rows):
        _store_full(m, dq, i, 0.0)
    for j in blocks(problem.n_k, t.cols):
        _store_full(m, dk, j, 0.0)
        _store_full(m, dv, j, 0.0)
    for j in blocks(problem.n_k, t.cols):
        k_j, v_j = m.load(k[j]), m.load(v[j])
        dk_j, dv_j = m.zeros("dk_j", len(j), problem.d), m.zeros("dv_j", len(j), problem.d_v)
        for i in grid(m.cols_of(pairs.T, j), t.rows, problem.n_q):
            q_i, out_i, dout_i, dq_i = m.load(q[i]), m.load(out[i]), m.load(dout[i]), m.load(dq[i])
            sum_i, max_i = m.load(row_sum[i]), m.load(row_max[i])
            p = m.new("p", probabilities(q_i @ k_j.T * scale, max_i) / divisor(sum_i)[:, None])
            if not m.holds(pairs, i, j):
                p[...] = m.where(pairs, i, j, p, 0.0)
            dv_j += p.T @ dout_i
            delta_i = m.new("delta_i", (dout_i * out_i).sum(axis=1))
            p *= dout_i @ v_j.T - delta_i[:, None]  # now dS
            dq_i += p @ k_j * scale
            m.store(dq[i], dq_i)
            dk_j += p.T @ q_i * scale
            m.free(q_i, out_i, dout_i, dq_i, sum_i, max_i, p, delta_i)
        m.store(dk[j], dk_j)
        m.store(dv[j], dv_j)
        m.free(k_j, v_j, dk_j, dv_j)


def backward_cost(p: Problem, t: Tiles) -> Cost:
    r, c, d, d_v = smaller(t.rows, p.n_q), smaller(t.cols, p.n_k), p.d, p.d_v
    sums = p.mask.on(p.n_q, p.n_k).sums(*t)
    reads = p.n_k * (d + d_v) + (2 * d + 2 * d_v + 2) * sums.rows
    writes = p.n_q * d + 2 * p.n_k * (d + d_v) + d * sums.rows
    peak = 2 * c * (d + d_v) + r * (2 * d + 2 * d_v + 3) + r * c
    return Cost(reads, writes, peak, 2 * (3 * d + 2 * d_v) * sums.area)


def printed_tiles(p: Problem, words: int) -> Tiles:
    """Return B_c = ceil(M / 4d) and B_r = min(B_c, d) for M = words, without checking that they fit.

    For d_v != d, 2 (d + d_v) replaces 4d.
    """
    size = ceil_div(words, 2 * (p.d + p.d_v))
    return Tiles(min(size, p.d), size)


def _search(
    cost: Callable[[Problem, Tiles], Cost], p: Problem, words: int, multiple: Mapping[str, int]
) -> Tiles | None:
    """Return the printed tiles of the largest M' <= words with which all tiles fit; None if none do."""

    def tiles(size: int) -> Tiles:
        edges = {"rows": (min(size, p.d), p.n_q), "cols": (size, p.n_k)}
        return Tiles(*(min(max(x // multiple[e], 1) * multiple[e], length) for e, (x, length) in edges.items()))

    largest = min(printed_tiles(p, words).cols, max(p.n_q, p.n_k) + max(multiple.values()))
    sizes = range(1, largest + 1)
    fitting = bisect(sizes, words, key=lambda size: cost(p, tiles(size)).peak)
    return tiles(fitting) if fitting else None


def forward_tiles(p: Problem, words: int, multiple: Mapping[str, int]) -> Tiles | None:
    return _search(forward_cost, p, words, multiple)


def backward_tiles(p: Problem, words: int, multiple: Mapping[str, int]) -> Tiles | None:
    return _search(backward_cost, p, words, multiple)


schedule = Schedule(
    name="flash1",
    title="FlashAttention-1 as printed: keys and values in the outer loop",
    source="Dao et al., NeurIPS 2022 (arXiv 2205.14135), Algorithms 1, 4 and 5",
    passes={
        "forward": Pass(forward, Tiles, forward_cost, forward_tiles, lambda p, t: (Sweep("cols", t.cols),)),
        "backward": Pass(backward, Tiles, backward_cost, backward_tiles, lambda p, t: (Sweep("cols", t.cols),)),
    },
    drop_in=False,
)
