"""Gradient with respect to X for M just above d^2: dP is written once, and P is recomputed.

Words are in units of n^2 at leading order, with x = d / sqrt(M). The output is computed as in `flash` (4 x^2). Rows of
C = O - E stay while V streams and dP is written (x^2 + 1). Rows of Q and of G = dS A2 stay while A2 streams and dP is
read; P is recomputed from Q and A2 (2 x^2 + 1). The sum is 7 x^2 + 2, fewer than `gradient_x` (10 x^2) for
M < 3/2 d^2 and fewer than `gradient_x_hybrid` for M > d^2. Derived in this project (docs/lab/theory.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from redblue.base.integers import larger, smaller
from redblue.machine import Machine, Slow
from redblue.problem import Problem
from redblue.schedules import flash
from redblue.schedules.column_stationary import resident_edge
from redblue.schedules.gradient_x import project, project_cost
from redblue.schedules.gradient_x_small import resident_c
from redblue.schedules.products import every_pair, pair_product, pair_product_cost, pair_product_tiles
from redblue.schedules.schedule import Cost, Pass, Schedule, Sweep, blocks, grid, overlap, within
from redblue.schedules.search import cheapest, edges
from redblue.schedules.softmax import probabilities


class Tiles(NamedTuple):
    q_cols: Any  # Q = A1 X: columns of X that stay
    v_cols: Any  # V = A3 Y: columns of Y that stay
    rows: Any  # forward: queries that stay
    cols: Any  # forward: keys and values that stream by together
    dp_rows: Any  # dP: queries whose C stays
    g_rows: Any  # G = dS A2: queries whose Q and G stay
    dx_rows: Any  # tile of dX = A1^T G
    dx_cols: Any
    depth: Any  # features, keys or queries per streamed slice


def gradient(
    m: Machine, problem: Problem, t: Tiles, a1: Slow, a2: Slow, a3: Slow, e: Slow, x: Slow, y: Slow, dx: Slow
) -> None:
    n_q, n_k, d, d_v = problem.n_q, problem.n_k, problem.d, problem.d_v
    q, v = m.scratch("q", (n_q, d)), m.scratch("v", (n_k, d_v))
    out, lse = m.scratch("out", (n_q, d_v)), m.scratch("lse", (n_q,))
    project(m, q, a1, x, t.q_cols, t.depth, d**-0.5)  # flash applies the other factor of 1/d = (d^-0.5)^2
    project(m, v, a3, y, t.v_cols, t.depth)
    flash.forward(m, problem, flash.ForwardTiles(t.rows, t.cols), q, a2, v, out, lse)
    dp, g = m.scratch("dp", (n_q, n_k)), m.scratch("g", (n_q, d))
    _write_dp(m, problem, t, v, out, e, dp)
    _sum_g(m, problem, t, q, a2, lse, dp, g)
    pair_product(m, dx, a1.T, g, every_pair(problem.d, n_q), t.dx_rows, t.dx_cols, t.depth)


def _write_dp(m: Machine, problem: Problem, t: Tiles, v: Slow, out: Slow, e: Slow, dp: Slow) -> None:
    """Write dP = C V^T minus the row sums of C * O."""
    pairs = problem.mask.on(problem.n_q, problem.n_k)
    for i in blocks(problem.n_q, t.dp_rows):
        c_i, delta_i = resident_c(m, out, e, i, t.depth)
        for j in grid(m.cols_of(pairs, i), t.depth, problem.n_k):
            v_j = m.load(v[j])
            dp_ij = m.new("dp_ij", c_i @ v_j.T - delta_i[:, None])
            m.store(dp[i, j], dp_ij)
            m.free(v_j, dp_ij)
        m.free(c_i, delta_i)


def _sum_g(m: Machine, problem: Problem, t: Tiles, q: Slow, k: Slow, lse: Slow, dp: Slow, g: Slow) -> None:
    """Compute G = dS K; only the slices of dP that contain attended pairs are read."""
    scale, pairs = problem.d**-0.5, problem.mask.on(problem.n_q, problem.n_k)
    for i in blocks(problem.n_q, t.g_rows):
        q_i, lse_i, g_i = m.load(q[i]), m.load(lse[i]), m.zeros("g_i", len(i), problem.d)
        for j in grid(m.cols_of(pairs, i), t.depth, problem.n_k):
            k_j = m.load(k[j])
            for live in overlap(i, pairs.rows_of(j)):
                ds, rows = m.load(dp[live, j]), within(live, i)
                ds *= probabilities(q_i[rows] @ k_j.T * scale, lse_i[rows])
                if not m.holds(pairs, live, j):
                    ds[...] = m.where(pairs, live, j, ds, 0.0)
                g_rows = g_i[rows]
                g_rows += ds @ k_j
                m.free(ds)
            m.free(k_j)
        g_i *= 1 / problem.d
        m.store(g[i], g_i)
        m.free(q_i, lse_i, g_i)


def _dp_cost(p: Problem, rows: Any, depth: int) -> Cost:
    sums, r, w = p.mask.on(p.n_q, p.n_k).sums(rows, depth), smaller(rows, p.n_q), min(depth, p.n_k)
    peak = r * (p.d_v + 1) + larger(r * min(depth, p.d_v), w * p.d_v + r * w)
    return Cost(2 * p.n_q * p.d_v + p.d_v * sums.cols, sums.area, peak, 2 * p.d_v * sums.area)


def _g_cost(p: Problem, rows: Any, depth: int) -> Cost:
    pairs, r, w = p.mask.on(p.n_q, p.n_k), smaller(rows, p.n_q), min(depth, p.n_k)
    slices = pairs.sums(1, depth).area
    reads = p.n_q * (p.d + 1) + p.d * pairs.sums(rows, depth).cols + slices
    return Cost(reads, p.n_q * p.d, r * (2 * p.d + 1) + w * p.d + r * w, 4 * p.d * slices)


def gradient_cost(p: Problem, t: Tiles) -> Cost:
    return (
        project_cost(p.n_q, p.d, p.d, t.q_cols, t.depth)
        + project_cost(p.n_k, p.d, p.d_v, t.v_cols, t.depth)
        + flash.forward_cost(p, flash.ForwardTiles(t.rows, t.cols))
        + _dp_cost(p, t.dp_rows, t.depth)
        + _g_cost(p, t.g_rows, t.depth)
        + pair_product_cost(every_pair(p.d, p.n_q), p.d, t.dx_rows, t.dx_cols, t.depth)
    )


def gradient_tiles(p: Problem, words: int, multiple: Mapping[str, int]) -> Tiles | None:
    pairs, depth = p.mask.on(p.n_q, p.n_k), multiple["depth"]
    q, v = edges(p.d, multiple["q_cols"]), edges(p.d_v, multiple["v_cols"])
    q_cols = cheapest(project_cost(p.n_q, p.d, p.d, q, depth), [q], words)
    v_cols = cheapest(project_cost(p.n_k, p.d, p.d_v, v, depth), [v], words)
    forward = flash.forward_tiles(p, words, multiple)
    dp_rows = resident_edge(pairs, p.n_q, words, multiple["dp_rows"], lambda rows: _dp_cost(p, rows, depth))
    g_rows = resident_edge(pairs, p.n_q, words, multiple["g_rows"], lambda rows: _g_cost(p, rows, depth))
    dx = pair_product_tiles(every_pair(p.d, p.n_q), p.d, words, depth, multiple["dx_rows"], multiple["dx_cols"])
    if q_cols is None or v_cols is None or forward is None or not (dp_rows and g_rows and dx):
        return None
    return Tiles._make((*q_cols, *v_cols, forward.rows, forward.cols, dp_rows, g_rows, *dx, depth))


schedule = Schedule(
    name="gradient_x_dp",
    title="The gradient with respect to X: dP spilled, P recomputed, rows resident in every product",
    source="derived for redblue: docs/lab/theory.md, 'The regimes'",
    passes={
        "gradient_x": Pass(
            gradient,
            Tiles,
            gradient_cost,
            gradient_tiles,
            lambda p, t: (Sweep("rows", t.rows), Sweep("rows", t.dp_rows), Sweep("rows", t.g_rows)),
        )
    },
    spills=True,
)
