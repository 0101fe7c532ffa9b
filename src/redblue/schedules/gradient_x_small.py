"""Gradient with respect to X of arXiv 2410.09397, for a small cache: every product is output-stationary.

This is a reconstruction of the paper's Algorithm 6, made safe for any finite scores: P is written as
exp(score - row maximum of its tile), the maxima are written too, and dS overwrites P. Nothing is recomputed. With tiles
of side sqrt(M) <= d, four products over n^2 pairs (S, P V, dP, G = dS A2) read 2 n^2 d / sqrt(M) words each. P is
written, read for dS, and dS is written: 8 n^2 d / sqrt(M) + 3 n^2 words in total at leading order. Three products
without n^2 pairs (A1 X, A3 Y, A1^T G) add 6 n d^2 / sqrt(M).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from redblue.base.integers import ceil_div, larger, smaller
from redblue.machine import Machine, Slow, exp, maximum
from redblue.masks import Mask, Pairs
from redblue.problem import Problem
from redblue.schedules.products import (
    pair_product,
    pair_product_cost,
    pair_product_tiles,
    score_cost,
    score_peak,
    score_tile,
)
from redblue.schedules.schedule import Cost, Pass, Schedule, Sweep, blocks, grid, within
from redblue.schedules.softmax import LOWEST, spill_tile, spilled_output, spilled_output_cost
from redblue.schedules.spilled import spill_and_output_tiles


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


def _all(rows: int, cols: int) -> Pairs:
    """Return the full mask, for a product with a dense left factor."""
    return Mask.full().on(rows, cols)


def gradient(
    m: Machine, problem: Problem, t: Tiles, a1: Slow, a2: Slow, a3: Slow, e: Slow, x: Slow, y: Slow, dx: Slow
) -> None:
    n_q, n_k, d, d_v = problem.n_q, problem.n_k, problem.d, problem.d_v
    scale, pairs = 1 / d, problem.mask.on(n_q, n_k)
    q, v = m.scratch("q", (n_q, d)), m.scratch("v", (n_k, d_v))
    pair_product(m, q, a1, x, _all(n_q, d), t.q_rows, t.q_cols, t.depth)
    pair_product(m, v, a3, y, _all(n_k, d), t.v_rows, t.v_cols, t.depth)

    p, top = m.scratch("p", (n_q, n_k)), m.scratch("top", (n_q, ceil_div(n_k, t.cols)))
    row_maxima, row_sums = m.scratch("row_max", (n_q,)), m.scratch("row_sum", (n_q,))
    for i in blocks(n_q, t.rows):
        row_max, row_sum = m.full("row_max", (len(i),), LOWEST), m.zeros("row_sum", len(i))
        for j in grid(m.cols_of(pairs, i), t.cols, n_k):
            s = score_tile(m, "s", q, a2, i, j, t.depth)
            s *= scale
            spill_tile(m, s, pairs, i, j, (row_max, row_sum), p, top[i, _column(j, t.cols)])
        m.store(row_maxima[i], row_max)
        m.store(row_sums[i], row_sum)
        m.free(row_max, row_sum)
    # `out` holds the output times its row sums. The next phase divides it by the row sums, not by exp(lse): then each
    # row of dS sums to 0 for scores of any size, and rounding of the row sums does not matter.
    out = m.scratch("out", (n_q, d_v))
    spilled_output(m, out, p, top, v, row_maxima, pairs, t.cols, (t.out_rows, t.out_cols, t.depth))

    c = m.scratch("c", (n_q, d_v))  # O - E, the gradient with respect to O
    for i in blocks(n_q, t.rows):
        row_max, row_sum, delta_i = m.load(row_maxima[i]), m.load(row_sums[i]), m.zeros("delta_i", len(i))
        row_sum[...] = maximum(row_sum, 1)  # at least exp(0) = 1, unless the row attends no key: then O is 0
        for f in blocks(d_v, t.depth):
            out_if, c_if = m.load(out[i, f]), m.load(e[i, f])
            out_if /= row_sum[:, None]
            c_if[...] = out_if - c_if
            delta_i += (c_if * out_if).sum(axis=1)
            m.store(c[i, f], c_if)
            m.free(out_if, c_if)
        for j in grid(m.cols_of(pairs, i), t.cols, n_k):
            ds = score_tile(m, "ds", c, v, i, j, t.depth)
            factor = m.load(top[i, _column(j, t.cols)])
            factor[...] = exp(factor - row_max[:, None]) / row_sum[:, None] * scale
            for part in blocks(j, t.depth):
                p_slice, columns = m.load(p[i, part]), within(part, j)
                ds[:, columns] = p_slice * factor * (ds[:, columns] - delta_i[:, None])
                m.free(p_slice)
            m.store(p[i, j], ds)  # overwrites P, which is not needed again
            m.free(ds, factor)
        m.free(row_max, row_sum, delta_i)

    g = m.scratch("g", (n_q, d))
    pair_product(m, g, p, a2, pairs, t.g_rows, t.g_cols, t.depth)
    pair_product(m, dx, a1.T, g, _all(d, n_q), t.dx_rows, t.dx_cols, t.depth)


def _column(j: range, cols: int) -> range:
    """Return the column that holds the row maxima of the tile with keys j."""
    return range(j.start // cols, j.start // cols + 1)


def _pair_peak(p: Problem, rows: Any, cols: Any, depth: int) -> Any:
    """Return the peak of the phases that write P and dS: a tile with slices or factors, and 2 or 3 words per row."""
    pairs = p.mask.on(p.n_q, p.n_k)
    r, c, d_v = smaller(rows, p.n_q), smaller(cols, p.n_k), p.d_v
    multiply = r * c + r + r * smaller(depth, c)  # at least the peak of spilling a tile
    ds = larger(larger(score_peak(pairs, d_v, rows, cols, depth, False), multiply), 2 * r * min(depth, d_v))
    return larger(score_peak(pairs, p.d, rows, cols, depth, False) + 2 * r, ds + 3 * r)


def _pair_cost(p: Problem, rows: Any, cols: Any, depth: int) -> Cost:
    pairs = p.mask.on(p.n_q, p.n_k)
    s, ds = (score_cost(pairs, features, rows, cols, depth, False) for features in (p.d, p.d_v))
    sums = pairs.sums(rows, cols)
    # P, dS and the row maxima of tiles; then O, E, C, and the maxima and sums of rows
    reads = s.reads + ds.reads + sums.area + sums.rows + p.n_q * (2 * p.d_v + 2)
    writes = 2 * sums.area + sums.rows + p.n_q * (p.d_v + 2)
    return Cost(reads, writes, _pair_peak(p, rows, cols, depth), s.flops + ds.flops)


def _products(p: Problem) -> dict[str, tuple[Pairs, int]]:
    """Return, for each product besides S, P V and dP, its left factor's mask and its number of result columns."""
    return {
        "q": (_all(p.n_q, p.d), p.d),
        "v": (_all(p.n_k, p.d), p.d_v),
        "g": (p.mask.on(p.n_q, p.n_k), p.d),
        "dx": (_all(p.d, p.n_q), p.d),
    }


def gradient_cost(p: Problem, t: Tiles) -> Cost:
    pairs, edge = p.mask.on(p.n_q, p.n_k), t._asdict()
    cost = _pair_cost(p, t.rows, t.cols, t.depth)
    cost += spilled_output_cost(pairs, p.d_v, t.cols, t.out_rows, t.out_cols, t.depth)
    for name, (pairs_of, features) in _products(p).items():
        cost += pair_product_cost(pairs_of, features, edge[f"{name}_rows"], edge[f"{name}_cols"], t.depth)
    return cost


def gradient_tiles(p: Problem, words: int, multiple: Mapping[str, int]) -> Tiles | None:
    depth = multiple["depth"]
    pairs = spill_and_output_tiles(
        p,
        words,
        multiple,
        lambda rows, cols: _pair_peak(p, rows, cols, depth),
        lambda rows, cols: _pair_cost(p, rows, cols, depth),
    )
    products = [
        pair_product_tiles(pairs_of, features, words, depth, multiple[f"{name}_rows"], multiple[f"{name}_cols"])
        for name, (pairs_of, features) in _products(p).items()
    ]
    if pairs is None or any(tile is None for tile in products):
        return None
    return Tiles._make((*pairs, *(edge for tile in products if tile for edge in tile)))


def _sweeps(p: Problem, t: Tiles) -> tuple[Sweep, ...]:
    """Return the sweeps that write P and dS, and those of P V and dS A2."""
    out = Sweep("rows", t.out_rows, ceil_div(p.d_v, t.out_cols))
    return Sweep("rows", t.rows, 2), out, Sweep("rows", t.g_rows, ceil_div(p.d, t.g_cols))


schedule = Schedule(
    name="gradient_x_small",
    title="The gradient with respect to X, small cache: output-stationary products, P and dS spilled",
    source="reconstructed after arXiv 2410.09397, Algorithm 6 (Thm 4.3), with row maxima",
    passes={"gradient_x": Pass(gradient, Tiles, gradient_cost, gradient_tiles, _sweeps)},
    spills=True,
)
