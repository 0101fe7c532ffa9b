"""Standard attention, the baseline: scores and probabilities are whole matrices in slow memory.

It computes every pair, attended or not. Its forward stores P (n_q n_k words) for its backward. If tiles are large
enough to read each operand once, forward moves 4 n d + 4 n^2 words and backward 8 n d + 7 n^2 (Dao et al., Algorithms 0
and 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from redblue.base.integers import ceil_div, smaller
from redblue.machine import Machine, Slow, Tile, exp, maximum
from redblue.masks import Pairs
from redblue.problem import Problem
from redblue.schedules.products import (
    every_pair,
    pair_product,
    pair_product_cost,
    pair_product_tiles,
    score_cost,
    score_peak,
    score_tile,
)
from redblue.schedules.schedule import Cost, Pass, Schedule, Scores, Sweep, blocks
from redblue.schedules.search import cheapest, edges, pair_edges
from redblue.schedules.softmax import LOWEST, divisor


class ForwardTiles(NamedTuple):
    rows: Any  # score tile: queries, keys
    cols: Any
    depth: Any  # features or keys per streamed slice
    softmax_rows: Any  # softmax: queries, keys (S is read once if softmax_cols is n_k, else twice)
    softmax_cols: Any
    out_rows: Any  # output tile: queries, features of V
    out_cols: Any


class BackwardTiles(NamedTuple):
    rows: Any  # dP tile: queries, keys
    cols: Any
    depth: Any  # features, keys or queries per streamed slice
    softmax_rows: Any  # dS from P and dP: queries, keys (both are read once if softmax_cols is n_k, else twice)
    softmax_cols: Any
    dq_rows: Any  # tile of dQ: queries, features
    dq_cols: Any
    dk_rows: Any  # tile of dK: keys, features
    dk_cols: Any
    dv_rows: Any  # tile of dV: keys, features
    dv_cols: Any


def _scores(m: Machine, result: Slow, left: Slow, right: Slow, t: Any, scale: float) -> None:
    for i in blocks(left.shape[0], t.rows):
        for j in blocks(right.shape[0], t.cols):
            s = score_tile(m, result.name, left, right, i, j, t.depth)
            s *= scale
            m.store(result[i, j], s)
            m.free(s)


def _load_masked(m: Machine, s: Slow, pairs: Pairs, i: range, j: range) -> Tile:
    s_ij = m.load(s[i, j])
    if not m.holds(pairs, i, j):
        s_ij[...] = m.where(pairs, i, j, s_ij, -np.inf)
    return s_ij


def forward(m: Machine, problem: Problem, t: ForwardTiles, q: Slow, k: Slow, v: Slow, out: Slow, p: Slow) -> None:
    pairs, s = problem.mask.on(problem.n_q, problem.n_k), m.scratch("s", (problem.n_q, problem.n_k))
    _scores(m, s, q, k, t, problem.d**-0.5)
    cols = list(blocks(problem.n_k, t.softmax_cols))
    for i in blocks(problem.n_q, t.softmax_rows):
        row_max, row_sum = m.full("row_max", (len(i),), LOWEST), m.zeros("row_sum", len(i))
        held = None
        m.cols_of(pairs, i)  # look up which scores to mask
        for j in cols:
            held = _load_masked(m, s, pairs, i, j)
            row_sum *= exp(row_max - maximum(row_max, held.max(axis=1)))
            row_max[...] = maximum(row_max, held.max(axis=1))
            row_sum += exp(held - row_max[:, None]).sum(axis=1)
            if len(cols) > 1:
                m.free(held)
        if len(cols) > 1:
            m.cols_of(pairs, i)
        for j in cols:
            s_ij = held if held and len(cols) == 1 else _load_masked(m, s, pairs, i, j)
            s_ij[...] = exp(s_ij - row_max[:, None]) / divisor(row_sum)[:, None]
            m.store(p[i, j], s_ij)
            m.free(s_ij)
        m.free(row_max, row_sum)
    pair_product(m, out, p, v, every_pair(problem.n_q, problem.n_k), t.out_rows, t.out_cols, t.depth)


def backward(
    m: Machine,
    problem: Problem,
    t: BackwardTiles,
    q: Slow,
    k: Slow,
    v: Slow,
    p: Slow,
    dout: Slow,
    dq: Slow,
    dk: Slow,
    dv: Slow,
) -> None:
    pairs, shape = every_pair(problem.n_q, problem.n_k), (problem.n_q, problem.n_k)
    dp, ds = m.scratch("dp", shape), m.scratch("ds", shape)
    pair_product(m, dv, p.T, dout, pairs.T, t.dv_rows, t.dv_cols, t.depth)
    _scores(m, dp, dout, v, t, problem.d**-0.5)
    cols = list(blocks(problem.n_k, t.softmax_cols))
    for i in blocks(problem.n_q, t.softmax_rows):
        delta, held = m.zeros("delta", len(i)), None
        for j in cols:
            held = m.load(p[i, j]), m.load(dp[i, j])
            delta += (held[0] * held[1]).sum(axis=1)
            if len(cols) > 1:
                m.free(*held)
        for j in cols:
            p_ij, dp_ij = held if held and len(cols) == 1 else (m.load(p[i, j]), m.load(dp[i, j]))
            dp_ij[...] = p_ij * (dp_ij - delta[:, None])
            m.store(ds[i, j], dp_ij)
            m.free(p_ij, dp_ij)
        m.free(delta)
    pair_product(m, dq, ds, k, pairs, t.dq_rows, t.dq_cols, t.depth)
    pair_product(m, dk, ds.T, q, pairs.T, t.dk_rows, t.dk_cols, t.depth)


def _softmax_cost(p: Problem, rows: Any, cols: Any, arrays: int, statistics: int) -> Cost:
    """Return the cost of a row-wise phase over pair matrices.

    arrays: matrices read, once or twice; one matrix is written. statistics: words in the cache per row.
    """
    pairs = p.n_q * p.n_k
    twice = cols < p.n_k
    r, c = smaller(rows, p.n_q), smaller(cols, p.n_k)
    return Cost(arrays * pairs * (1 + twice), pairs, r * (arrays * c + statistics), 0)


def _softmax_tiles(
    p: Problem, words: int, multiple: Mapping[str, int], arrays: int, statistics: int
) -> tuple[int, ...] | None:
    rows, cols = min(multiple["softmax_rows"], p.n_q), edges(p.n_k, multiple["softmax_cols"])
    fit = cols[rows * (arrays * cols + statistics) <= words]
    return (rows, int(fit[-1])) if len(fit) else None  # the longest edge: a row that fits whole is read once


def _score_tiles(p: Problem, features: int, words: int, multiple: Mapping[str, int]) -> tuple[int, ...] | None:
    pairs, depth = every_pair(p.n_q, p.n_k), multiple["depth"]
    rows, cols = edges(p.n_q, multiple["rows"]), edges(p.n_k, multiple["cols"])
    candidates = pair_edges(rows, cols, lambda r, c: score_peak(pairs, features, r, c, depth, False), words, pairs)
    return cheapest(score_cost(pairs, features, *candidates, depth, False), candidates, words)


def forward_cost(p: Problem, t: ForwardTiles) -> Cost:
    return (
        score_cost(every_pair(p.n_q, p.n_k), p.d, t.rows, t.cols, t.depth, False)
        + Cost(0, p.n_q * p.n_k, 0, 0)
        + _softmax_cost(p, t.softmax_rows, t.softmax_cols, 1, 2)
        + pair_product_cost(every_pair(p.n_q, p.n_k), p.d_v, t.out_rows, t.out_cols, t.depth)
    )


def forward_tiles(p: Problem, words: int, multiple: Mapping[str, int]) -> ForwardTiles | None:
    depth = multiple["depth"]
    scores = _score_tiles(p, p.d, words, multiple)
    softmax = _softmax_tiles(p, words, multiple, 1, 2)
    out = pair_product_tiles(every_pair(p.n_q, p.n_k), p.d_v, words, depth, multiple["out_rows"], multiple["out_cols"])
    return ForwardTiles._make((*scores, depth, *softmax, *out)) if scores and softmax and out else None


def backward_cost(p: Problem, t: BackwardTiles) -> Cost:
    pairs = every_pair(p.n_q, p.n_k)
    return (
        pair_product_cost(pairs.T, p.d_v, t.dv_rows, t.dv_cols, t.depth)
        + score_cost(pairs, p.d_v, t.rows, t.cols, t.depth, False)
        + Cost(0, p.n_q * p.n_k, 0, 0)
        + _softmax_cost(p, t.softmax_rows, t.softmax_cols, 2, 1)
        + pair_product_cost(pairs, p.d, t.dq_rows, t.dq_cols, t.depth)
        + pair_product_cost(pairs.T, p.d, t.dk_rows, t.dk_cols, t.depth)
    )


def backward_tiles(p: Problem, words: int, multiple: Mapping[str, int]) -> BackwardTiles | None:
    pairs, depth = every_pair(p.n_q, p.n_k), multiple["depth"]
    scores = _score_tiles(p, p.d_v, words, multiple)
    softmax = _softmax_tiles(p, words, multiple, 2, 1)
    gradients = [
        pair_product_tiles(mask, features, words, depth, multiple[f"{name}_rows"], multiple[f"{name}_cols"])
        for name, mask, features in (("dq", pairs, p.d), ("dk", pairs.T, p.d), ("dv", pairs.T, p.d_v))
    ]
    if scores is None or softmax is None or any(tile is None for tile in gradients):
        return None
    return BackwardTiles._make((*scores, depth, *softmax, *(edge for tile in gradients if tile for edge in tile)))


schedule = Schedule(
    name="standard",
    title="Standard attention: scores and probabilities in slow memory",
    source="Dao et al., NeurIPS 2022 (arXiv 2205.14135), Algorithms 0 and 3",
    passes={
        "forward": Pass(
            forward,
            ForwardTiles,
            forward_cost,
            forward_tiles,
            lambda p, t: (Sweep("rows", t.softmax_rows, 1 + (t.softmax_cols < p.n_k)),),
            lambda p, t: Scores(t.rows, t.cols, ceil_div(p.d, t.depth)),
        ),
        "backward": Pass(
            backward,
            BackwardTiles,
            backward_cost,
            backward_tiles,
            scores=lambda p, t: Scores(t.rows, t.cols, ceil_div(p.d_v, t.depth)),  # of dP
        ),
    },
    drop_in=False,
    spills=True,
)
