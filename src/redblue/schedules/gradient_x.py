"""Gradient with respect to X of arXiv 2410.09397, for a large cache: no array of size n^2 leaves the cache.

dL/dX = A1^T dS A2 / d, with the arrays that Problem defines. A2 takes the place of the keys. Two products with weights
come first, Q = A1 X and V = A3 Y (columns of the weights stay, rows stream by). Two row-stationary sweeps follow:
forward as in `flash` (4 n^2 d^2 / M words), then dS A2 (6 n^2 d^2 / M words), together 10 n^2 d^2 / M words at leading
order. Each row block i ends with dX += A1_i^T (dS A2)_i, which reads and writes every word of dX once. The products
with weights add 6 n d^3 / M words for M >= d^2, and 8 n d^3 / M for smaller M, where X and Y no longer fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from redblue.base.integers import ceil_div, larger, smaller
from redblue.machine import Machine, Slow
from redblue.problem import Problem
from redblue.schedules import flash
from redblue.schedules.schedule import Cost, Pass, Schedule, Sweep, blocks
from redblue.schedules.search import cheapest, edges, pair_edges
from redblue.schedules.softmax import probabilities


class Tiles(NamedTuple):
    q_cols: Any  # Q = A1 X: columns of X that stay
    v_cols: Any  # V = A3 Y: columns of Y that stay
    rows: Any  # forward: queries that stay
    cols: Any  # forward: keys and values that stream by together
    grad_rows: Any  # gradient: queries that stay
    grad_cols: Any  # gradient: keys and values that stream by together
    slices: Any  # rows of A1 or A3 that stream by together; in the final product, columns of A1 and rows of dX


def gradient(
    m: Machine, problem: Problem, t: Tiles, a1: Slow, a2: Slow, a3: Slow, e: Slow, x: Slow, y: Slow, dx: Slow
) -> None:
    q, v = m.scratch("q", (problem.n_q, problem.d)), m.scratch("v", (problem.n_k, problem.d_v))
    out, lse = m.scratch("out", (problem.n_q, problem.d_v)), m.scratch("lse", (problem.n_q,))
    project(m, q, a1, x, t.q_cols, t.slices, problem.d**-0.5)  # flash applies the other factor of 1/d = (d^-0.5)^2
    project(m, v, a3, y, t.v_cols, t.slices)
    flash.forward(m, problem, flash.ForwardTiles(t.rows, t.cols), q, a2, v, out, lse)
    _accumulate(m, problem, t, q, a2, v, out, lse, e, a1, dx)


def project(m: Machine, result: Slow, left: Slow, weights: Slow, cols: int, rows: int, scale: float = 1.0) -> None:
    """Compute result = left @ weights * scale; columns of the weights stay, rows of `left` stream by."""
    for f in blocks(weights.shape[1], cols):
        weights_f = m.load(weights[range(weights.shape[0]), f])
        for i in blocks(left.shape[0], rows):
            left_i = m.load(left[i])
            result_if = m.new(result.name, left_i @ weights_f * scale)
            m.store(result[i, f], result_if)
            m.free(left_i, result_if)
        m.free(weights_f)


def _accumulate(
    m: Machine,
    problem: Problem,
    t: Tiles,
    q: Slow,
    k: Slow,
    v: Slow,
    out: Slow,
    lse: Slow,
    e: Slow,
    a1: Slow,
    dx: Slow,
) -> None:
    """Accumulate dX over row blocks: g_i = dS_i K stays while keys stream by; then all rows of dX stream by g_i."""
    scale, pairs = problem.d**-0.5, problem.mask.on(problem.n_q, problem.n_k)
    for i in blocks(problem.n_q, t.grad_rows):
        out_i, c_i = m.load(out[i]), m.load(e[i])
        c_i[...] = out_i - c_i  # the gradient with respect to out
        delta_i = m.new("delta_i", (c_i * out_i).sum(axis=1))
        m.free(out_i)
        q_i, lse_i, g_i = m.load(q[i]), m.load(lse[i]), m.zeros("g_i", len(i), problem.d)
        for j in blocks(m.cols_of(pairs, i), t.grad_cols):
            k_j, v_j = m.load(k[j]), m.load(v[j])
            ds = m.new("ds", probabilities(q_i @ k_j.T * scale, lse_i))
            if not m.holds(pairs, i, j):
                ds[...] = m.where(pairs, i, j, ds, 0.0)
            ds *= c_i @ v_j.T - delta_i[:, None]
            g_i += ds @ k_j
            m.free(k_j, v_j, ds)
        m.free(c_i, delta_i, q_i, lse_i)
        g_i *= 1 / problem.d
        for f in blocks(problem.d, t.slices):
            a1_if = m.load(a1[i, f])
            dx_f = m.load(dx[f]) if i.start else m.zeros("dx_f", len(f), problem.d)
            dx_f += a1_if.T @ g_i
            m.store(dx[f], dx_f)
            m.free(a1_if, dx_f)
        m.free(g_i)


def project_cost(rows: int, features: int, result_features: int, cols: Any, slices: int) -> Cost:
    """Return the cost of result (rows x result_features) = left (rows x features) @ weights."""
    c, w = smaller(cols, result_features), min(slices, rows)
    reads = ceil_div(result_features, cols) * rows * features + features * result_features
    peak = features * c + w * (features + c)
    return Cost(reads, rows * result_features, peak, 2 * rows * features * result_features)


def _accumulate_peak(p: Problem, rows: Any, cols: Any, slices: int) -> Any:
    r, c, d, d_v, w = smaller(rows, p.n_q), smaller(cols, p.n_k), p.d, p.d_v, min(slices, p.d)
    stream = r * (2 * d + d_v + 2) + r * c + c * (d + d_v)
    return larger(larger(r * (2 * d_v + 1), stream), r * d + w * (d + r))


def _accumulate_cost(p: Problem, rows: Any, cols: Any, slices: int) -> Cost:
    streamed = p.mask.on(p.n_q, p.n_k).sums(rows, 1)
    times = ceil_div(p.n_q, rows)  # passes over dX; the first pass does not read it
    row_words = p.n_q * (2 * p.d + 2 * p.d_v + 1)  # A1, Q, O, E, lse
    reads = row_words + (p.d + p.d_v) * streamed.cols + (times - 1) * p.d**2
    flops = 2 * (2 * p.d + p.d_v) * streamed.area + 2 * p.n_q * p.d**2
    return Cost(reads, times * p.d**2, _accumulate_peak(p, rows, cols, slices), flops)


def gradient_cost(p: Problem, t: Tiles) -> Cost:
    return (
        project_cost(p.n_q, p.d, p.d, t.q_cols, t.slices)
        + project_cost(p.n_k, p.d, p.d_v, t.v_cols, t.slices)
        + flash.forward_cost(p, flash.ForwardTiles(t.rows, t.cols))
        + _accumulate_cost(p, t.grad_rows, t.grad_cols, t.slices)
    )


def gradient_tiles(p: Problem, words: int, multiple: Mapping[str, int]) -> Tiles | None:
    pairs, slices = p.mask.on(p.n_q, p.n_k), multiple["slices"]
    q = edges(p.d, multiple["q_cols"])
    v = edges(p.d_v, multiple["v_cols"])
    q_cols = cheapest(project_cost(p.n_q, p.d, p.d, q, slices), [q], words)
    v_cols = cheapest(project_cost(p.n_k, p.d, p.d_v, v, slices), [v], words)
    forward = flash.forward_tiles(p, words, multiple)
    # As in flash, the fewest streaming keys leave the most words for queries.
    candidates = pair_edges(
        edges(p.n_q, multiple["grad_rows"], not pairs.is_full),
        np.array([min(multiple["grad_cols"], p.n_k)]),
        lambda r, c: _accumulate_peak(p, r, c, slices),
        words,
        pairs,
    )
    accumulate = cheapest(_accumulate_cost(p, *candidates, slices), candidates, words)
    if q_cols is None or v_cols is None or forward is None or accumulate is None:
        return None
    return Tiles._make((*q_cols, *v_cols, forward.rows, forward.cols, *accumulate, slices))


schedule = Schedule(
    name="gradient_x",
    title="The gradient with respect to X, large cache: probabilities recomputed, dX accumulated",
    source="arXiv 2410.09397, Thm 4.1 (its large-cache upper bound), in the row-stationary order of FlashAttention-2",
    passes={
        "gradient_x": Pass(
            gradient,
            Tiles,
            gradient_cost,
            gradient_tiles,
            lambda p, t: (Sweep("rows", t.rows), Sweep("rows", t.grad_rows)),
        )
    },
)
