"""Gradient with respect to X of arXiv 2410.09397, for a small cache: every product is output-stationary.

This is a reconstruction of the paper's Algorithm 6, made safe for any finite scores: P is written as
exp(score - row maximum of its tile), the maxima are written too, and dS overwrites P. Nothing is recomputed. With tiles
of side sqrt(M) <= d, four products over n^2 pairs (S, P V, dP, G = dS A2) read 2 n^2 d / sqrt(M) words each. P is
written, read for dS, and dS is written: 8 n^2 d / sqrt(M) + 3 n^2 words in total at leading order. Three products
without n^2 pairs (A1 X, A3 Y, A1^T G) add 6 n d^2 / sqrt(M).

`gradient_x_hybrid` is the same algorithm, with rows that stay in the cache while tiles of P and dS are computed
(`stays`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from redblue.base.integers import ceil_div, larger, smaller
from redblue.machine import Machine, Slow, Tile, exp
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
from redblue.schedules.schedule import Cost, Pass, Schedule, Scores, Sweep, blocks, grid, within
from redblue.schedules.softmax import LOWEST, divisor, spill_tile, spilled_output, spilled_output_cost, top_column
from redblue.schedules.spilled import spill_and_output_tiles, spill_cost, spill_peak


class Tiles(NamedTuple):
    rows: Any  # tiles of P and dS: queries
    cols: Any  # tiles of P and dS: keys
    depth: Any  # features, keys or queries per streamed slice
    out_rows: Any  # tile of O: queries, features
    out_cols: Any
    q_rows: Any  # tile of Q = A1 X: queries, features
    q_cols: Any
    v_rows: Any  # tile of V = A3 Y: keys, features
    v_cols: Any
    g_rows: Any  # tile of G = dS A2: queries, features
    g_cols: Any
    dx_rows: Any  # tile of dX = A1^T G
    dx_cols: Any


class Spilled(NamedTuple):
    """Arrays in slow memory that the steps before dS leave behind.

    p: exp(score - row maximum of its tile), in tiles of `cols` keys. top: row maxima of the tiles, one column per tile.
    row_max, row_sum: of whole rows. out: the output times its row sums. v: A3 Y.
    """

    p: Slow
    top: Slow
    row_max: Slow
    row_sum: Slow
    out: Slow
    v: Slow


def _spill(
    m: Machine, problem: Problem, t: Any, a1: Slow, a2: Slow, a3: Slow, x: Slow, y: Slow, stays: bool
) -> Spilled:
    """Compute Q, V, P and O. stays: rows of Q stay in the cache while their scores are computed."""
    n_q, n_k, d, d_v = problem.n_q, problem.n_k, problem.d, problem.d_v
    pairs, scale = problem.mask.on(n_q, n_k), 1 / d
    q, v = m.scratch("q", (n_q, d)), m.scratch("v", (n_k, d_v))
    pair_product(m, q, a1, x, every_pair(n_q, d), t.q_rows, t.q_cols, t.depth)
    pair_product(m, v, a3, y, every_pair(n_k, d), t.v_rows, t.v_cols, t.depth)

    p, top = m.scratch("p", (n_q, n_k)), m.scratch("top", (n_q, ceil_div(n_k, t.cols)))
    row_maxima, row_sums = m.scratch("row_max", (n_q,)), m.scratch("row_sum", (n_q,))
    for i in blocks(n_q, t.rows):
        q_i = m.load(q[i]) if stays else q
        row_max, row_sum = m.full("row_max", (len(i),), LOWEST), m.zeros("row_sum", len(i))
        for j in grid(m.cols_of(pairs, i), t.cols, n_k):
            s = score_tile(m, "s", q_i, a2, i, j, t.depth)
            s *= scale
            spill_tile(m, s, pairs, i, j, (row_max, row_sum), p, top[i, top_column(j, t.cols)])
        m.store(row_maxima[i], row_max)
        m.store(row_sums[i], row_sum)
        m.free(row_max, row_sum)
        if isinstance(q_i, Tile):
            m.free(q_i)
    # `out` holds the output times its row sums. The next phase divides it by the row sums, not by exp(lse): then each
    # row of dS sums to 0 for scores of any size, and rounding of the row sums does not matter.
    out = m.scratch("out", (n_q, d_v))
    spilled_output(m, out, p, top, v, row_maxima, pairs, t.cols, (t.out_rows, t.out_cols, t.depth))
    return Spilled(p, top, row_maxima, row_sums, out, v)


def resident_c(m: Machine, out: Slow, e: Slow, i: range, depth: int, row_sum: Tile | None = None) -> tuple[Tile, Tile]:
    """Return C = O - E (the gradient with respect to O) of rows i, and the row sums of C * O.

    O streams by in slices of `depth` features. row_sum: divides `out`, if `out` is O times its row sums.
    """
    c_i, delta_i = m.load(e[i]), m.zeros("delta_i", len(i))
    for f in blocks(e.shape[1], depth):
        out_if, columns = m.load(out[i, f]), slice(f.start, f.stop)
        if row_sum is not None:
            out_if /= row_sum[:, None]
        c_i[:, columns] = out_if - c_i[:, columns]
        delta_i += (c_i[:, columns] * out_if).sum(axis=1)
        m.free(out_if)
    return c_i, delta_i


def _streaming_c(
    m: Machine, spilled: Spilled, e: Slow, c: Slow, i: range, row_sum: Tile, depth: int
) -> tuple[Slow, Tile]:
    """Write C of rows i to slow memory, in slices of `depth` features; return it and the row sums of C * O."""
    delta_i = m.zeros("delta_i", len(i))
    for f in blocks(c.shape[1], depth):
        out_if, c_if = m.load(spilled.out[i, f]), m.load(e[i, f])
        out_if /= row_sum[:, None]
        c_if[...] = out_if - c_if
        delta_i += (c_if * out_if).sum(axis=1)
        m.store(c[i, f], c_if)
        m.free(out_if, c_if)
    return c, delta_i


def gradient(
    m: Machine,
    problem: Problem,
    t: Tiles,
    a1: Slow,
    a2: Slow,
    a3: Slow,
    e: Slow,
    x: Slow,
    y: Slow,
    dx: Slow,
    *,
    stays: bool,
) -> None:
    n_q, n_k, d = problem.n_q, problem.n_k, problem.d
    pairs, scale = problem.mask.on(n_q, n_k), 1 / d
    spilled = _spill(m, problem, t, a1, a2, a3, x, y, stays)
    c = None if stays else m.scratch("c", (n_q, problem.d_v))
    for i in blocks(n_q, t.rows):
        row_max, row_sum = m.load(spilled.row_max[i]), m.load(spilled.row_sum[i])
        row_sum[...] = divisor(row_sum)
        if c is None:
            c_i, delta_i = resident_c(m, spilled.out, e, i, t.depth, row_sum)
        else:
            c_i, delta_i = _streaming_c(m, spilled, e, c, i, row_sum, t.depth)
        for j in grid(m.cols_of(pairs, i), t.cols, n_k):
            ds = score_tile(m, "ds", c_i, spilled.v, i, j, t.depth)
            factor = m.load(spilled.top[i, top_column(j, t.cols)])
            factor[...] = exp(factor - row_max[:, None]) / row_sum[:, None] * scale
            for part in blocks(j, t.depth):
                p_slice, columns = m.load(spilled.p[i, part]), within(part, j)
                ds[:, columns] = p_slice * factor * (ds[:, columns] - delta_i[:, None])
                m.free(p_slice)
            m.store(spilled.p[i, j], ds)  # overwrites P, which is not needed again
            m.free(ds, factor)
        m.free(row_max, row_sum, delta_i)
        if isinstance(c_i, Tile):
            m.free(c_i)

    g = m.scratch("g", (n_q, d))
    pair_product(m, g, spilled.p, a2, pairs, t.g_rows, t.g_cols, t.depth)
    pair_product(m, dx, a1.T, g, every_pair(d, n_q), t.dx_rows, t.dx_cols, t.depth)


def _spill_cost(p: Problem, rows: Any, cols: Any, depth: int, stays: bool) -> Cost:
    return spill_cost(p, rows, cols, depth, p.n_k, stays) + Cost(0, p.n_q, 0, 0)  # maxima and sums of rows, not one lse


def _ds_peak(p: Problem, rows: Any, cols: Any, depth: int, stays: bool) -> Any:
    pairs = p.mask.on(p.n_q, p.n_k)
    r, c, d_v = smaller(rows, p.n_q), smaller(cols, p.n_k), p.d_v
    multiply = r * c + r + r * smaller(depth, c)  # dS, its factors, a slice of P
    ds = larger(score_peak(pairs, d_v, rows, cols, depth, stays), multiply)
    return larger(ds, r * min(depth, d_v) * (1 if stays else 2)) + r * (3 + d_v * stays)


def _ds_cost(p: Problem, rows: Any, cols: Any, depth: int, stays: bool) -> Cost:
    pairs = p.mask.on(p.n_q, p.n_k)
    ds, sums = score_cost(pairs, p.d_v, rows, cols, depth, stays), pairs.sums(rows, cols)
    reads = ds.reads + sums.area + sums.rows + p.n_q * (2 * p.d_v + 2)  # P, maxima of tiles, O, E, statistics of rows
    return Cost(reads, sums.area + p.n_q * p.d_v * (not stays), _ds_peak(p, rows, cols, depth, stays), ds.flops)


def _products(p: Problem) -> dict[str, tuple[Pairs, int]]:
    """Return, for each product besides S, P V and dP, its left factor's mask and its number of result columns."""
    return {
        "q": (every_pair(p.n_q, p.d), p.d),
        "v": (every_pair(p.n_k, p.d), p.d_v),
        "g": (p.mask.on(p.n_q, p.n_k), p.d),
        "dx": (every_pair(p.d, p.n_q), p.d),
    }


def gradient_cost(p: Problem, t: Tiles, *, stays: bool) -> Cost:
    pairs, edge, tile = p.mask.on(p.n_q, p.n_k), t._asdict(), (t.rows, t.cols, t.depth)
    cost = _spill_cost(p, *tile, stays) + _ds_cost(p, *tile, stays)
    cost += spilled_output_cost(pairs, p.d_v, t.cols, t.out_rows, t.out_cols, t.depth)
    for name, (pairs_of, features) in _products(p).items():
        cost += pair_product_cost(pairs_of, features, edge[f"{name}_rows"], edge[f"{name}_cols"], t.depth)
    return cost


def gradient_tiles(p: Problem, words: int, multiple: Mapping[str, int], *, stays: bool) -> Tiles | None:
    depth = multiple["depth"]
    pairs = spill_and_output_tiles(
        p,
        words,
        multiple,
        lambda r, c: larger(spill_peak(p, r, c, depth, stays), _ds_peak(p, r, c, depth, stays)),
        lambda r, c: _spill_cost(p, r, c, depth, stays) + _ds_cost(p, r, c, depth, stays),
    )
    others = [
        pair_product_tiles(pairs_of, features, words, depth, multiple[f"{name}_rows"], multiple[f"{name}_cols"])
        for name, (pairs_of, features) in _products(p).items()
    ]
    if pairs is None or any(tile is None for tile in others):
        return None
    return Tiles._make((*pairs, *(edge for tile in others if tile for edge in tile)))


def _sweeps(p: Problem, t: Tiles) -> tuple[Sweep, ...]:
    """Return the sweeps that write P and dS, and the sweeps of P V and dS A2."""
    out = Sweep("rows", t.out_rows, ceil_div(p.d_v, t.out_cols))
    return Sweep("rows", t.rows, 2), out, Sweep("rows", t.g_rows, ceil_div(p.d, t.g_cols))


def gradient_pass(stays: bool) -> Pass:
    """Return the pass in which rows of Q and C stay, or stream, while tiles of P and dS are computed."""
    return Pass(
        partial(gradient, stays=stays),
        Tiles,
        partial(gradient_cost, stays=stays),
        partial(gradient_tiles, stays=stays),
        _sweeps,
        lambda p, t: Scores(t.rows, t.cols, ceil_div(p.d, t.depth)),
    )


schedule = Schedule(
    name="gradient_x_small",
    title="The gradient with respect to X, small cache: output-stationary products, P and dS spilled",
    source="reconstructed after arXiv 2410.09397, Algorithm 6 (Thm 4.3), with row maxima",
    passes={"gradient_x": gradient_pass(stays=False)},
    spills=True,
)
