"""Hybrid schedule for the regime between the papers' two: rows stay in some products, outputs stay in the others.

Words are in units of n^2 at leading order, with x = d / sqrt(M).
An output-stationary product moves 2 x words if x is a whole number, and up to 6.1 % more for other x >= 1
(docs/lab/theory.md).
Forward moves (1 + x)^2 for whole x: queries stay while scores are computed (x^2), P is written (1), and outputs stay
while P V is summed (2 x). It is best for d^2 / 4 <= M <= d^2.
Backward moves 5 x^2 + 5 for x <= 1, and 3 x^2 + 4 x + 3 for whole x. Queries stay while P is computed and written
(x^2 + 1). V_j and dV_j stay while P is read, dV is accumulated and dS is written (2 x^2 + 2). dQ and dK are
output-stationary products of dS (each 1 + x^2 for x <= 1, 2 x for whole x). It is best for d^2 / 4 <= M <= 4/3 d^2.
P and dS are processed in chunks of `chunk` queries and take chunk x n_k words of slow memory each. With several chunks,
each chunk reads V again, and reads and writes dK and dV.
Derived in this project (docs/lab/theory.md), by trying every combination of recomputed, spilled and resident arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from redblue.base.integers import ceil_div, smaller
from redblue.machine import Machine, Slow
from redblue.problem import Problem
from redblue.schedules.column_stationary import resident_edge, row_deltas, row_deltas_cost
from redblue.schedules.products import pair_product, pair_product_cost, pair_product_tiles, part_in_chunk, resume_cost
from redblue.schedules.schedule import (
    Cost,
    Pass,
    Schedule,
    Sweep,
    blocks,
    grid,
    overlap,
    rows_walked,
    walks,
    whole_blocks,
    within,
)
from redblue.schedules.softmax import probabilities
from redblue.schedules.spilled import forward_pass


class BackwardTiles(NamedTuple):
    rows: Any  # P: queries that stay
    cols: Any  # dS, dV: keys that stay
    depth: Any  # keys or queries that stream by together
    dq_rows: Any  # tile of dQ: queries, features
    dq_cols: Any
    dk_rows: Any  # tile of dK: keys, features
    dk_cols: Any
    chunk: Any  # queries whose P and dS are in slow memory at the same time
    span: Any  # keys per walk of a block of queries, while P is written


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
) -> None:
    pairs, shape = problem.mask.on(problem.n_q, problem.n_k), (problem.n_q, problem.n_k)
    p, ds = m.scratch("p", shape), m.scratch("ds", shape)
    delta = row_deltas(m, problem, t.depth, out, dout)
    for chunk in blocks(problem.n_q, t.chunk):
        _write_p(m, problem, t, chunk, q, k, lse, p)
        _write_ds(m, problem, t, chunk, v, dout, delta, p, ds, dv)
        pair_product(m, dq, ds, k, pairs, t.dq_rows, t.dq_cols, t.depth, of=chunk)
        pair_product(m, dk, ds.T, q, pairs.T, t.dk_rows, t.dk_cols, t.depth, over=chunk)


def _write_p(
    m: Machine, problem: Problem, t: BackwardTiles, chunk: range, q: Slow, k: Slow, lse: Slow, p: Slow
) -> None:
    scale, pairs = problem.d**-0.5, problem.mask.on(problem.n_q, problem.n_k)
    for i in blocks(chunk, t.rows):
        live = m.cols_of(pairs, i)
        for walk in walks(live, t.span, problem.n_k):
            q_i, lse_i = m.load(q[i]), m.load(lse[i])
            for j in grid(overlap(walk, live), t.depth, problem.n_k):
                k_j = m.load(k[j])
                p_ij = m.new("p_ij", probabilities(q_i @ k_j.T * scale, lse_i))
                if not m.holds(pairs, i, j):
                    p_ij[...] = m.where(pairs, i, j, p_ij, 0.0)
                m.store(p[i, j], p_ij)
                m.free(k_j, p_ij)
            m.free(q_i, lse_i)


def _write_ds(
    m: Machine,
    problem: Problem,
    t: BackwardTiles,
    chunk: range,
    v: Slow,
    dout: Slow,
    delta: Slow,
    p: Slow,
    ds: Slow,
    dv: Slow,
) -> None:
    """Compute dS from P, and add the chunk's contribution to dV."""
    scale, pairs = problem.d**-0.5, problem.mask.on(problem.n_q, problem.n_k)
    for j in blocks(problem.n_k, t.cols):
        summed, begun = part_in_chunk(chunk, m.cols_of(pairs.T, j))
        if summed is None:
            continue
        v_j, dv_j = m.load(v[j]), m.load(dv[j]) if begun else m.zeros("dv_j", len(j), problem.d_v)
        for i in grid(summed, t.depth, problem.n_q):
            dout_i, delta_i = m.load(dout[i]), m.load(delta[i])
            for part in whole_blocks(overlap(j, pairs.cols_of(i)), t.depth, problem.n_k):
                p_ij, keys = m.load(p[i, part]), within(part, j)
                dv_part, v_part = dv_j[keys], v_j[keys]
                dv_part += p_ij.T @ dout_i
                p_ij *= scale * (dout_i @ v_part.T - delta_i[:, None])  # now dS
                m.store(ds[i, part], p_ij)
                m.free(p_ij)
            m.free(dout_i, delta_i)
        m.store(dv[j], dv_j)
        m.free(v_j, dv_j)


def _p_cost(p: Problem, rows: Any, depth: int, span: Any) -> Cost:
    pairs = p.mask.on(p.n_q, p.n_k)
    sums, walked = pairs.sums(rows, depth), rows_walked(pairs, rows, span)
    r, w = smaller(rows, p.n_q), min(depth, p.n_k)
    peak = r * (p.d + 1) + w * p.d + r * w
    return row_deltas_cost(p, depth) + Cost(walked * (p.d + 1) + p.d * sums.cols, sums.area, peak, 2 * p.d * sums.area)


def _ds_cost(p: Problem, cols: Any, depth: int, chunk: Any) -> Cost:
    pairs = p.mask.on(p.n_q, p.n_k)
    streamed, area = pairs.sums(depth, cols).rows, pairs.sums(depth, depth).area
    v_words, c, w = p.n_k * p.d_v, smaller(cols, p.n_k), min(depth, p.n_q)
    peak = 2 * c * p.d_v + w * (p.d_v + 1) + w * c
    resumed = resume_cost(pairs.T, p.d_v, cols, chunk)  # for dV; V is read again equally often
    reads = v_words + streamed * (p.d_v + 1) + area + 2 * resumed.reads
    return Cost(reads, v_words + area + resumed.writes, peak, 4 * p.d_v * area)


def backward_cost(p: Problem, t: BackwardTiles) -> Cost:
    pairs = p.mask.on(p.n_q, p.n_k)
    return (
        _p_cost(p, t.rows, t.depth, t.span)
        + _ds_cost(p, t.cols, t.depth, t.chunk)
        + pair_product_cost(pairs, p.d, t.dq_rows, t.dq_cols, t.depth)
        + pair_product_cost(pairs.T, p.d, t.dk_rows, t.dk_cols, t.depth)
        + resume_cost(pairs.T, p.d, t.dk_rows, t.chunk)
    )


def backward_tiles(p: Problem, words: int, multiple: Mapping[str, int]) -> BackwardTiles | None:
    pairs, depth = p.mask.on(p.n_q, p.n_k), multiple["depth"]
    rows = resident_edge(pairs, p.n_q, words, multiple["rows"], lambda rows: _p_cost(p, rows, depth, p.n_k))
    cols = resident_edge(pairs, p.n_k, words, multiple["cols"], lambda cols: _ds_cost(p, cols, depth, p.n_q))
    dq = pair_product_tiles(pairs, p.d, words, depth, multiple["dq_rows"], multiple["dq_cols"])
    dk = pair_product_tiles(pairs.T, p.d, words, depth, multiple["dk_rows"], multiple["dk_cols"])
    if not (rows and cols and dq and dk):
        return None
    return BackwardTiles._make((rows, cols, depth, *dq, *dk, p.n_q, p.n_k))


def _sweeps(p: Problem, t: BackwardTiles) -> tuple[Sweep, ...]:
    chunks = ceil_div(p.n_q, t.chunk)
    pair_sweeps = Sweep("rows", t.rows), Sweep("cols", t.cols, chunks)
    dq = Sweep("rows", t.dq_rows, ceil_div(p.d, t.dq_cols))
    return *pair_sweeps, dq, Sweep("cols", t.dk_rows, chunks * ceil_div(p.d, t.dk_cols))


schedule = Schedule(
    name="hybrid",
    title="Hybrid: P spilled, rows resident in some products, outputs in the others",
    source="derived for redblue: docs/lab/theory.md, 'The regimes'",
    passes={
        "forward": forward_pass(stays=True),
        "backward": Pass(backward, BackwardTiles, backward_cost, backward_tiles, _sweeps),
    },
    spills=True,
)
