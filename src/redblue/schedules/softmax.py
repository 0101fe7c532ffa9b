"""Softmax steps that are safe for any finite scores, and the spilling of its tiles to slow memory.

A row without any attended key has maximum LOWEST and sum 0. Its probabilities, output and gradients are therefore 0,
and its log-sum-exp is -inf.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from redblue.base.integers import ceil_div, smaller
from redblue.machine import Machine, Region, Slow, Tile, Value, exp, log, maximum, minimum
from redblue.masks import Pairs
from redblue.schedules.schedule import Cost, blocks, grid, overlap, within

LOWEST = float(np.finfo(np.float64).min)  # not -inf: -inf - -inf would be NaN


def finite(lse: Value) -> Value:
    """Replace -inf (the log-sum-exp of a row without attended keys) by a number that can be subtracted."""
    return maximum(lse, LOWEST)


def probabilities(s: Value, lse: Value) -> Value:
    """Return exp(s - lse) from recomputed scores, clipped to 1 because their rounding may differ from forward's."""
    return exp(minimum(s - finite(lse)[:, None], 0))


def divisor(row_sum: Value) -> Value:
    """Replace the sums of rows without attended keys, which are 0, by 1: all other sums are at least exp(0) = 1."""
    return maximum(row_sum, 1)


def softmax_tile(m: Machine, s: Tile) -> None:
    """Turn a tile with all scores of its rows into probabilities. One more word per row is held temporarily."""
    row = m.new("row_max", maximum(s.max(axis=1), LOWEST))
    s[...] = exp(s - row[:, None])
    row[...] = divisor(s.sum(axis=1))
    s /= row[:, None]
    m.free(row)


def online_softmax(m: Machine, s: Tile, out_i: Tile, row_max: Tile, row_sum: Tile) -> None:
    """Replace a tile of scores by exp(s - new row maxima), and rescale the running statistics and outputs of its rows.

    out_i: the running sums of weights times values, to which the caller adds this tile's sums.
    """
    new_max = m.new("new_max", maximum(row_max, s.max(axis=1)))
    row_max[...] = exp(row_max - new_max)  # factor that rescales the running sums
    s[...] = exp(s - new_max[:, None])
    row_sum *= row_max
    row_sum += s.sum(axis=1)
    out_i *= row_max[:, None]
    row_max[...] = new_max
    m.free(new_max)


def rescale(m: Machine, share: Tile, out_i: Tile, row_max: Tile, row_sum: Tile) -> None:
    """Rescale running statistics and outputs to the maxima that they have in common with a partial result.

    share: the row maxima of the partial result; they are replaced by the factors with which the caller scales it.
    """
    new_max = m.new("new_max", maximum(row_max, share))
    row_max[...] = exp(row_max - new_max)
    share[...] = exp(share - new_max)
    row_sum *= row_max
    out_i *= row_max[:, None]
    row_max[...] = new_max
    m.free(new_max)


def store_rows(m: Machine, out_i: Value, row_max: Value, row_sum: Value, out: Region, lse: Region) -> None:
    """Divide the outputs of rows by their sums, turn the maxima into log-sum-exps, and store both."""
    out_i /= divisor(row_sum)[:, None]
    row_max += log(row_sum)
    m.store(out, out_i)
    m.store(lse, row_max)


def spill_tile(
    m: Machine, s: Tile, pairs: Pairs, i: range, j: range, stats: tuple[Tile, Tile], p: Slow, top: Region
) -> None:
    """Write a finished score tile as exp(s - tile maxima), and its row maxima; update the rows' running statistics.

    The values written lie in [0, 1], so few bits suffice; `spilled_output` rescales them when it reads them back.
    stats: running row maxima and row sums. top: region of the tile's row maxima, of shape (len(i), 1).
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


def top_column(j: range, cols: int) -> range:
    """Return the column of `top` that holds the row maxima of the tile with keys j."""
    return range(j.start // cols, j.start // cols + 1)


def spilled_output(
    m: Machine, out: Slow, p: Slow, top: Slow, v: Slow, lse: Slow, pairs: Pairs, cols: int, tile: tuple[int, int, int]
) -> None:
    """Compute out = P V from P spilled in tiles of `cols` columns: the second phase of Saha & Ye's Algorithm 1.

    top: the tiles' row maxima. lse: the log-sum-exps of the rows. With the row maxima in place of `lse`, the result is
    the output times the row sums. tile: (rows, cols, depth), the edges of the output's tile and the keys per slice.
    """
    rows, out_cols, depth = tile
    for i in blocks(pairs.n_rows, rows):
        for f in blocks(v.shape[1], out_cols):
            lse_i = m.load(lse[i])
            out_if = m.zeros("out_if", len(i), len(f))
            for j in grid(m.cols_of(pairs, i), cols, pairs.n_cols):
                column = top_column(j, cols)
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


def spilled_output_peak(pairs: Pairs, features: int, rows: Any, cols: Any, depth: int) -> Any:
    r, c, w = smaller(rows, pairs.n_rows), smaller(cols, features), min(depth, pairs.n_cols)
    return r * c + 2 * r + w * (r + c)


def spilled_output_cost(pairs: Pairs, features: int, spilled_cols: Any, rows: Any, cols: Any, depth: int) -> Cost:
    times = ceil_div(features, cols)  # reads of P, of its tile maxima and of lse: one per column block
    slices = pairs.sums(1, depth).area
    reads = times * (pairs.n_rows + slices + pairs.sums(1, spilled_cols).tiles)
    reads = reads + features * pairs.sums(rows, depth).cols
    peak = spilled_output_peak(pairs, features, rows, cols, depth)
    return Cost(reads, pairs.n_rows * features, peak, 2 * features * slices)
