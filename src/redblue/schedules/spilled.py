"""The programs of `hybrid` and `small_cache`: P is computed tile by tile, written once and read back.

The two differ in one thing: whether, while scores are computed, the block of queries stays in the cache whole
(`stays`, the hybrid) or streams by in slices like the keys (the papers' small-cache algorithm). All other products
are output-stationary.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from redblue.integers import ceil_div, larger, smaller
from redblue.machine import Machine, Slow, Tile, log
from redblue.problem import Problem
from redblue.schedules.products import consume, consume_cost, consume_tiles, score_cost, score_peak, score_tile
from redblue.schedules.schedule import Cost, Pass, blocks, grid, within
from redblue.schedules.search import cheapest, edges, pair_edges
from redblue.schedules.softmax import LOWEST, probabilities, spill, weigh, weigh_cost, weigh_peak


class ForwardTiles(NamedTuple):
    rows: Any  # score tile: queries
    cols: Any  # score tile: keys
    depth: Any  # features (of scores) or keys (of outputs) per streamed slice
    out_rows: Any  # output tile: queries
    out_cols: Any  # output tile: features of V


class BackwardTiles(NamedTuple):
    rows: Any  # tiles of P and dS: queries
    cols: Any  # tiles of P and dS: keys
    depth: Any  # features, keys or queries per streamed slice
    dq_rows: Any  # tile of dQ: queries, features
    dq_cols: Any
    dk_rows: Any  # tile of dK: keys, features
    dk_cols: Any
    dv_rows: Any  # tile of dV: keys, features
    dv_cols: Any


def forward(
    m: Machine, problem: Problem, t: ForwardTiles, q: Slow, k: Slow, v: Slow, out: Slow, lse: Slow, *, stays: bool
) -> None:
    scale, pairs = problem.d**-0.5, problem.mask.on(problem.n_q, problem.n_k)
    p = m.scratch("p", (problem.n_q, problem.n_k))
    top = m.scratch("top", (problem.n_q, ceil_div(problem.n_k, t.cols)))
    for i in blocks(problem.n_q, t.rows):
        q_i = m.load(q[i]) if stays else q
        row_max, row_sum = m.full("row_max", (len(i),), LOWEST), m.zeros("row_sum", len(i))
        for j in grid(pairs.cols_of(i), t.cols, problem.n_k):
            s = score_tile(m, "s", q_i, k, i, j, t.depth)
            s *= scale
            spill(m, s, pairs, i, j, (row_max, row_sum), p, top[i, range(j.start // t.cols, j.start // t.cols + 1)])
        row_max += log(row_sum)
        m.store(lse[i], row_max)
        m.free(row_max, row_sum)
        if isinstance(q_i, Tile):
            m.free(q_i)
    weigh(m, out, p, top, v, lse, pairs, t.cols, (t.out_rows, t.out_cols, t.depth))


def _forward_peak(p: Problem, rows: Any, cols: Any, depth: int, stays: bool) -> Any:
    """Of the first phase: a score tile, its slices or its maxima, the row statistics and perhaps the queries."""
    pairs = p.mask.on(p.n_q, p.n_k)
    r, c = smaller(rows, p.n_q), smaller(cols, p.n_k)
    return larger(score_peak(pairs, p.d, rows, cols, depth, stays), r * c + r) + r * (p.d * stays + 2)


def _spill_cost(p: Problem, rows: Any, cols: Any, depth: int, stays: bool) -> Cost:
    pairs = p.mask.on(p.n_q, p.n_k)
    scores, sums = score_cost(pairs, p.d, rows, cols, depth, stays), pairs.sums(rows, cols)
    return Cost(
        scores.reads + p.n_q * p.d * stays,
        sums.area + sums.rows + p.n_q,  # P, the tiles' row maxima, lse
        _forward_peak(p, rows, cols, depth, stays),
        scores.flops,
    )


def forward_cost(p: Problem, t: ForwardTiles, *, stays: bool) -> Cost:
    pairs = p.mask.on(p.n_q, p.n_k)
    return _spill_cost(p, t.rows, t.cols, t.depth, stays) + weigh_cost(
        pairs, p.value_dim, t.cols, t.out_rows, t.out_cols, t.depth
    )


def forward_tiles(p: Problem, words: int, multiple: Mapping[str, int], *, stays: bool) -> ForwardTiles | None:
    pairs, depth = p.mask.on(p.n_q, p.n_k), multiple["depth"]
    rows, cols = pair_edges(
        edges(p.n_q, multiple["rows"], not pairs.is_full),
        edges(p.n_k, multiple["cols"], not pairs.is_full),
        lambda r, c: _forward_peak(p, r, c, depth, stays),
        words,
        pairs,
    )
    out_rows, out_cols = pair_edges(
        edges(p.n_q, multiple["out_rows"], not pairs.is_full),
        edges(p.value_dim, multiple["out_cols"]),
        lambda r, c: weigh_peak(pairs, p.value_dim, r, c, depth),
        words,
        pairs,
    )
    if not len(rows) or not len(out_rows):
        return None
    # The phases share one term: a score tile's maxima are read once per column block of the output. So find the best
    # output tile for each number of those, and weigh each of them against every score tile.
    times = ceil_div(p.value_dim, out_cols)
    maxima = pairs.sums(1, cols).tiles
    spilling = _spill_cost(p, rows, cols, depth, stays).words
    weighing = (
        weigh_cost(pairs, p.value_dim, p.n_k, out_rows, out_cols, depth).words - times * pairs.sums(1, p.n_k).tiles
    )
    order = np.lexsort((weighing, times))
    kept = order[np.unique(times[order], return_index=True)[1]]
    total = spilling[None] + weighing[kept][:, None] + times[kept][:, None] * maxima[None]
    o, s = np.unravel_index(int(np.argmin(total)), total.shape)
    best = (rows[s], cols[s], depth, out_rows[kept[o]], out_cols[kept[o]])
    return ForwardTiles._make(int(edge) for edge in best)


def backward(
    m: Machine,
    problem: Problem,
    t: BackwardTiles,
    q: Slow,
    k: Slow,
    v: Slow,
    out: Slow,
    lse: Slow,
    dout: Slow,
    dq: Slow,
    dk: Slow,
    dv: Slow,
    *,
    stays: bool,
) -> None:
    scale, pairs = problem.d**-0.5, problem.mask.on(problem.n_q, problem.n_k)
    p, ds = m.scratch("p", (problem.n_q, problem.n_k)), m.scratch("ds", (problem.n_q, problem.n_k))

    for i in blocks(problem.n_q, t.rows):
        lse_i, q_i = m.load(lse[i]), m.load(q[i]) if stays else q
        for j in grid(pairs.cols_of(i), t.cols, problem.n_k):
            s = score_tile(m, "s", q_i, k, i, j, t.depth)
            s[...] = probabilities(s * scale, lse_i)
            if not pairs.holds(i, j):
                s[...] = m.where(pairs, i, j, s, 0.0)
            m.store(p[i, j], s)
            m.free(s)
        m.free(lse_i, *([q_i] if isinstance(q_i, Tile) else []))

    for i in blocks(problem.n_q, t.rows):
        delta_i, dout_i = m.zeros("delta_i", len(i)), m.load(dout[i]) if stays else dout
        for f in blocks(problem.value_dim, t.depth):
            out_f = m.load(out[i, f])
            dout_f = dout_i[:, f.start : f.stop] if isinstance(dout_i, Tile) else m.load(dout[i, f])
            delta_i += (out_f * dout_f).sum(axis=1)
            m.free(out_f, *([dout_f] if isinstance(dout_f, Tile) else []))
        for j in grid(pairs.cols_of(i), t.cols, problem.n_k):
            ds_ij = score_tile(m, "ds", dout_i, v, i, j, t.depth)
            for part in blocks(j, t.depth):
                p_slice = m.load(p[i, part])
                columns = within(part, j)
                ds_ij[:, columns] = scale * p_slice * (ds_ij[:, columns] - delta_i[:, None])
                m.free(p_slice)
            m.store(ds[i, j], ds_ij)
            m.free(ds_ij)
        m.free(delta_i, *([dout_i] if isinstance(dout_i, Tile) else []))

    consume(m, dq, ds, k, pairs, t.dq_rows, t.dq_cols, t.depth)
    consume(m, dk, ds.T, q, pairs.T, t.dk_rows, t.dk_cols, t.depth)
    consume(m, dv, p.T, dout, pairs.T, t.dv_rows, t.dv_cols, t.depth)


def _backward_peak(p: Problem, rows: Any, cols: Any, depth: int, stays: bool) -> Any:
    """Of the phases that write P and dS."""
    pairs = p.mask.on(p.n_q, p.n_k)
    r, c, d_v = smaller(rows, p.n_q), smaller(cols, p.n_k), p.value_dim
    write_p = score_peak(pairs, p.d, rows, cols, depth, stays) + r * p.d * stays
    multiply = larger(score_peak(pairs, d_v, rows, cols, depth, stays), r * c + r * smaller(depth, c))
    delta = r * min(depth, d_v) * (1 if stays else 2)
    return larger(write_p, larger(multiply, delta) + r * d_v * stays) + r


def _pair_cost(p: Problem, rows: Any, cols: Any, depth: int, stays: bool) -> Cost:
    pairs = p.mask.on(p.n_q, p.n_k)
    s = score_cost(pairs, p.d, rows, cols, depth, stays)
    ds = score_cost(pairs, p.value_dim, rows, cols, depth, stays)
    area = pairs.sums(rows, cols).area
    reads = s.reads + p.n_q * (1 + p.d * stays)  # lse, and the queries where they stay
    reads = reads + ds.reads + area + 2 * p.n_q * p.value_dim  # P; out and dout for delta (and dout stays)
    return Cost(reads, 2 * area, _backward_peak(p, rows, cols, depth, stays), s.flops + ds.flops)


def backward_cost(p: Problem, t: BackwardTiles, *, stays: bool) -> Cost:
    pairs = p.mask.on(p.n_q, p.n_k)
    return (
        _pair_cost(p, t.rows, t.cols, t.depth, stays)
        + consume_cost(pairs, p.d, t.dq_rows, t.dq_cols, t.depth)
        + consume_cost(pairs.T, p.d, t.dk_rows, t.dk_cols, t.depth)
        + consume_cost(pairs.T, p.value_dim, t.dv_rows, t.dv_cols, t.depth)
    )


def backward_tiles(p: Problem, words: int, multiple: Mapping[str, int], *, stays: bool) -> BackwardTiles | None:
    pairs, depth = p.mask.on(p.n_q, p.n_k), multiple["depth"]
    tried = pair_edges(
        edges(p.n_q, multiple["rows"], not pairs.is_full),
        edges(p.n_k, multiple["cols"], not pairs.is_full),
        lambda r, c: _backward_peak(p, r, c, depth, stays),
        words,
        pairs,
    )
    pair = cheapest(_pair_cost(p, *tried, depth, stays), tried, words)
    gradients = [
        consume_tiles(laid, features, words, depth, multiple[f"{name}_rows"], multiple[f"{name}_cols"])
        for name, laid, features in (("dq", pairs, p.d), ("dk", pairs.T, p.d), ("dv", pairs.T, p.value_dim))
    ]
    if pair is None or any(edges is None for edges in gradients):
        return None
    return BackwardTiles._make((*pair, depth, *(edge for tile in gradients if tile for edge in tile)))


def passes(stays: bool) -> dict[str, Pass]:
    """Forward and backward, with the queries (and dO) staying or streaming while scores are computed."""
    bind = partial(partial, stays=stays)
    return {
        "forward": Pass(bind(forward), ForwardTiles, bind(forward_cost), bind(forward_tiles)),
        "backward": Pass(bind(backward), BackwardTiles, bind(backward_cost), bind(backward_tiles)),
    }
