"""A softmax that is safe for any finite scores, and the spilling of its tiles to slow memory.

A row that attends nothing has maximum LOWEST and sum 0, so its probabilities, output and gradients are 0
and its log-sum-exp is -inf.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from redblue.base.integers import ceil_div, smaller
from redblue.machine import Machine, Region, Slow, Tile, Value, exp, maximum, minimum
from redblue.masks import Pairs
from redblue.schedules.schedule import Cost, blocks, grid, overlap, within

LOWEST = float(np.finfo(np.float64).min)  # not -inf: -inf - -inf would be NaN


def finite(lse: Value) -> Value:
    """The log-sum-exp with -inf (a row that attends nothing) replaced by a number that can be subtracted."""
    return maximum(lse, LOWEST)


def probabilities(s: Value, lse: Value) -> Value:
    """exp(s - lse), from recomputed scores. Their rounding may differ from the forward pass's: never above 1."""
    return exp(minimum(s - finite(lse)[:, None], 0))


def spill(
    m: Machine, s: Tile, pairs: Pairs, i: range, j: range, stats: tuple[Tile, Tile], p: Slow, top: Region
) -> None:
    """Turn a finished score tile into exp(s - its row maxima) and write both; update the rows' maximum and sum.

    What is written lies in [0, 1], so it may be kept in few bits; `weigh` scales it right when it reads it back.
    stats: row maximum and row sum so far. top: where the maxima go, (len(i), 1).
    """
    row_max, row_sum = stats
    if not m.holds(pairs, i, j):
        s[...] = m.where(pairs, i, j, s, -np.inf)
    tile_max = m.new("tile_max", maximum(s.max(axis=1), LOWEST))
    s[...] = exp(s - tile_max[:, None])
    row_sum *= exp(row_max - maximum(row_max, tile_max))
    row_sum += s.sum(axis=1) * exp(tile_max - maximum(row_max, tile_max))
    row_max[...] = maximum(row_max, tile_max)
    m.store(p[i, j], s)
    m.store(top, tile_max[:, None])
    m.free(s, tile_max)


def weigh(
    m: Machine, out: Slow, p: Slow, top: Slow, v: Slow, lse: Slow, pairs: Pairs, cols: int, tile: tuple[int, int, int]
) -> None:
    """out = P V, where P was spilled in tiles of `cols` columns: the second phase of Saha & Ye's Algorithm 1.

    tile: (rows, cols, depth): edges of the output's tile, and keys per slice.
    """
    rows, out_cols, depth = tile
    for i in blocks(pairs.n_rows, rows):
        for f in blocks(v.shape[1], out_cols):
            lse_i = m.load(lse[i])
            out_if = m.zeros("out_if", len(i), len(f))
            for j in grid(m.cols_of(pairs, i), cols, pairs.n_cols):
                column = range(j.start // cols, j.start // cols + 1)
                factors = [(live, m.load(top[live, column])) for live in overlap(i, pairs.rows_of(j))]
                for live, factor in factors:
                    factor[...] = exp(factor - finite(lse_i[within(live, i)])[:, None])
                for part in grid(overlap(j, pairs.cols_of(i)), depth, pairs.n_cols):
                    v_slice = m.load(v[part, f])
                    for live, factor in factors:
                        for touched in overlap(live, pairs.rows_of(part)):
                            p_slice = m.load(p[touched, part])
                            p_slice *= factor[within(touched, live)]
                            out_rows = out_if[within(touched, i)]
                            out_rows += p_slice @ v_slice
                            m.free(p_slice)
                    m.free(v_slice)
                m.free(*(factor for _, factor in factors))
            m.store(out[i, f], out_if)
            m.free(out_if, lse_i)


def weigh_peak(pairs: Pairs, features: int, rows: Any, cols: Any, depth: int) -> Any:
    r, c, w = smaller(rows, pairs.n_rows), smaller(cols, features), min(depth, pairs.n_cols)
    return r * c + 2 * r + w * (r + c)


def weigh_cost(pairs: Pairs, features: int, spilled_cols: Any, rows: Any, cols: Any, depth: int) -> Cost:
    times = ceil_div(features, cols)  # how often P, its tile maxima and lse are read
    slices = pairs.sums(1, depth).area
    reads = times * (pairs.n_rows + slices + pairs.sums(1, spilled_cols).tiles)
    reads = reads + features * pairs.sums(rows, depth).cols
    peak = weigh_peak(pairs, features, rows, cols, depth)
    return Cost(reads, pairs.n_rows * features, peak, 2 * features * slices)
