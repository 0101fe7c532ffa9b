"""Gradient of an additive bias: a tile of the gradient stays while output-stationary products compute its dS.

The only array of size n_q n_k that it writes is the gradient itself. It runs after the pass that computes dQ, dK and
dV, so it is not in the catalogue of schedules. Derived in this project; no paper has it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from redblue.base.integers import larger, smaller
from redblue.machine import Machine, Slow
from redblue.problem import Problem
from redblue.schedules.products import score_cost, score_tile
from redblue.schedules.schedule import Cost, blocks, overlap
from redblue.schedules.softmax import probabilities


class Tiles(NamedTuple):
    rows: Any  # tile of dbias: queries
    cols: Any  # tile of dbias: keys
    depth: Any  # features per streamed slice


def gradient_bias(
    m: Machine,
    problem: Problem,
    t: Tiles,
    q: Slow,
    k: Slow,
    v: Slow,
    bias: Slow,
    lse: Slow,
    dout: Slow,
    delta: Slow,
    before: Slow,
    dbias: Slow,
) -> None:
    """Compute dbias = before + dS of one stream.

    bias, before, dbias: (n_q, n_k). delta: (n_q,), the row sums of dout * out.
    """
    scale, pairs = problem.d**-0.5, problem.mask.on(problem.n_q, problem.n_k)
    for i in blocks(problem.n_q, t.rows):
        live = m.cols_of(pairs, i)
        for j in blocks(problem.n_k, t.cols):
            dbias_ij = m.load(before[i, j])
            if overlap(j, live):
                ds = score_tile(m, "ds", q, k, i, j, t.depth)
                bias_ij = m.load(bias[i, j])
                ds[...] = ds * scale + bias_ij
                m.free(bias_ij)
                lse_i = m.load(lse[i])
                ds[...] = probabilities(ds, lse_i)
                m.free(lse_i)
                dp = score_tile(m, "dp", dout, v, i, j, t.depth)
                delta_i = m.load(delta[i])
                ds *= dp - delta_i[:, None]
                if not m.holds(pairs, i, j):
                    ds[...] = m.where(pairs, i, j, ds, 0.0)
                dbias_ij += ds
                m.free(dp, delta_i, ds)
            m.store(dbias[i, j], dbias_ij)
            m.free(dbias_ij)


def gradient_bias_cost(p: Problem, t: Tiles) -> Cost:
    """Return the closed-form cost of one stream."""
    pairs = p.mask.on(p.n_q, p.n_k)
    sums, bias_words = pairs.sums(t.rows, t.cols), p.n_q * p.n_k
    scores, dp = (score_cost(pairs, features, t.rows, t.cols, t.depth, False) for features in (p.d, p.d_v))
    r, tile = smaller(t.rows, p.n_q), smaller(t.rows, p.n_q) * smaller(t.cols, p.n_k)
    peak = larger(larger(tile + scores.peak, 3 * tile + r), 2 * tile + dp.peak)
    return Cost(
        scores.reads + dp.reads + sums.area + 2 * sums.rows + bias_words, bias_words, peak, scores.flops + dp.flops
    )
