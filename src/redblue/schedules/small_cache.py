"""Small-cache algorithm: every product is output-stationary, P is written once. Best for M <= d^2 / 4.

Forward follows Saha & Ye's Algorithm 1, made safe for any finite scores: 4 n^2 d / sqrt(M) + n^2 words at leading
order. (Algorithm 1 as printed, with tiles of side sqrt(M/4), moves 8 n^2 d / sqrt(M) + n^2.)
Backward is a reconstruction of Algorithm 6 of arXiv 2410.09397, for dQ, dK and dV instead of the gradient with respect
to X. It has five products, writes and reads P, and writes dS: 10 n^2 d / sqrt(M) + 3 n^2 words.
P and dS are processed in chunks of `chunk` queries and take chunk x n_k words of slow memory each. With several chunks,
each chunk reads and writes dK and dV.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from redblue.base.integers import ceil_div, larger, smaller
from redblue.machine import Machine, Slow
from redblue.problem import Problem
from redblue.schedules.products import (
    pair_product,
    pair_product_cost,
    pair_product_tiles,
    resume_cost,
    score_cost,
    score_peak,
    score_tile,
)
from redblue.schedules.schedule import (
    Cost,
    Pass,
    Schedule,
    Scores,
    Sweep,
    blocks,
    grid,
    overlap,
    rows_walked,
    walks,
    within,
)
from redblue.schedules.search import cheapest, edges, pair_edges
from redblue.schedules.softmax import probabilities
from redblue.schedules.spilled import forward_pass


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
    chunk: Any  # queries whose P and dS are in slow memory at the same time
    span: Any  # keys per walk of a block of queries, while P and dS are written


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
    delta = m.scratch("delta", (problem.n_q,))
    for i in blocks(problem.n_q, t.rows):
        delta_i = m.zeros("delta_i", len(i))
        for f in blocks(problem.d_v, t.depth):
            out_f, dout_f = m.load(out[i, f]), m.load(dout[i, f])
            delta_i += (out_f * dout_f).sum(axis=1)
            m.free(out_f, dout_f)
        m.store(delta[i], delta_i)
        m.free(delta_i)
    for chunk in blocks(problem.n_q, t.chunk):
        _write_p(m, problem, t, chunk, q, k, lse, p)
        pair_product(m, dv, p.T, dout, pairs.T, t.dv_rows, t.dv_cols, t.depth, over=chunk)
        _write_ds(m, problem, t, chunk, v, dout, delta, p, ds)  # dS may overwrite P, which is not needed again
        pair_product(m, dq, ds, k, pairs, t.dq_rows, t.dq_cols, t.depth, of=chunk)
        pair_product(m, dk, ds.T, q, pairs.T, t.dk_rows, t.dk_cols, t.depth, over=chunk)


def _write_p(
    m: Machine, problem: Problem, t: BackwardTiles, chunk: range, q: Slow, k: Slow, lse: Slow, p: Slow
) -> None:
    scale, pairs = problem.d**-0.5, problem.mask.on(problem.n_q, problem.n_k)
    for i in blocks(chunk, t.rows):
        live = m.cols_of(pairs, i)
        for walk in walks(live, t.span, problem.n_k):
            lse_i = m.load(lse[i])
            for j in grid(overlap(walk, live), t.cols, problem.n_k):
                s = score_tile(m, "s", q, k, i, j, t.depth)
                s[...] = probabilities(s * scale, lse_i)
                if not m.holds(pairs, i, j):
                    s[...] = m.where(pairs, i, j, s, 0.0)
                m.store(p[i, j], s)
                m.free(s)
            m.free(lse_i)


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
) -> None:
    scale, pairs = problem.d**-0.5, problem.mask.on(problem.n_q, problem.n_k)
    for i in blocks(chunk, t.rows):
        live = m.cols_of(pairs, i)
        for walk in walks(live, t.span, problem.n_k):
            delta_i = m.load(delta[i])
            for j in grid(overlap(walk, live), t.cols, problem.n_k):
                ds_ij = score_tile(m, "ds", dout, v, i, j, t.depth)
                for part in blocks(j, t.depth):
                    p_slice = m.load(p[i, part])
                    columns = within(part, j)
                    ds_ij[:, columns] = scale * p_slice * (ds_ij[:, columns] - delta_i[:, None])
                    m.free(p_slice)
                m.store(ds[i, j], ds_ij)
                m.free(ds_ij)
            m.free(delta_i)


def _backward_peak(p: Problem, rows: Any, cols: Any, depth: int) -> Any:
    """Return the peak of the phases that write P and dS."""
    pairs = p.mask.on(p.n_q, p.n_k)
    r, c, d_v = smaller(rows, p.n_q), smaller(cols, p.n_k), p.d_v
    write_p = score_peak(pairs, p.d, rows, cols, depth, False)
    multiply = larger(score_peak(pairs, d_v, rows, cols, depth, False), r * c + r * smaller(depth, c))
    return larger(write_p, larger(multiply, 2 * r * min(depth, d_v))) + r


def _pair_cost(p: Problem, rows: Any, cols: Any, depth: int, span: Any) -> Cost:
    pairs = p.mask.on(p.n_q, p.n_k)
    s = score_cost(pairs, p.d, rows, cols, depth, False)
    ds = score_cost(pairs, p.d_v, rows, cols, depth, False)
    area = pairs.sums(rows, cols).area
    reads = s.reads + ds.reads + area + 2 * p.n_q * p.d_v  # P; out and dout for delta
    reads = reads + 2 * rows_walked(pairs, rows, span)  # lse, delta
    return Cost(reads, 2 * area + p.n_q, _backward_peak(p, rows, cols, depth), s.flops + ds.flops)


def backward_cost(p: Problem, t: BackwardTiles) -> Cost:
    pairs = p.mask.on(p.n_q, p.n_k)
    return (
        _pair_cost(p, t.rows, t.cols, t.depth, t.span)
        + pair_product_cost(pairs, p.d, t.dq_rows, t.dq_cols, t.depth)
        + pair_product_cost(pairs.T, p.d, t.dk_rows, t.dk_cols, t.depth)
        + resume_cost(pairs.T, p.d, t.dk_rows, t.chunk)
        + pair_product_cost(pairs.T, p.d_v, t.dv_rows, t.dv_cols, t.depth)
        + resume_cost(pairs.T, p.d_v, t.dv_rows, t.chunk)
    )


def backward_tiles(p: Problem, words: int, multiple: Mapping[str, int]) -> BackwardTiles | None:
    pairs, depth = p.mask.on(p.n_q, p.n_k), multiple["depth"]
    candidates = pair_edges(
        edges(p.n_q, multiple["rows"], not pairs.is_full),
        edges(p.n_k, multiple["cols"], not pairs.is_full),
        lambda r, c: _backward_peak(p, r, c, depth),
        words,
        pairs,
    )
    pair = cheapest(_pair_cost(p, *candidates, depth, p.n_k), candidates, words)
    gradients = [
        pair_product_tiles(mask, features, words, depth, multiple[f"{name}_rows"], multiple[f"{name}_cols"])
        for name, mask, features in (("dq", pairs, p.d), ("dk", pairs.T, p.d), ("dv", pairs.T, p.d_v))
    ]
    if pair is None or any(edges is None for edges in gradients):
        return None
    return BackwardTiles._make((*pair, depth, *(edge for tile in gradients if tile for edge in tile), p.n_q, p.n_k))


def _sweeps(p: Problem, t: BackwardTiles) -> tuple[Sweep, ...]:
    """Return the sweeps that write P and dS, and the sweeps of the products dQ, dK and dV."""
    chunks, dq = ceil_div(p.n_q, t.chunk), Sweep("rows", t.dq_rows, ceil_div(p.d, t.dq_cols))
    dk = Sweep("cols", t.dk_rows, chunks * ceil_div(p.d, t.dk_cols))
    return Sweep("rows", t.rows, 2), dq, dk, Sweep("cols", t.dv_rows, chunks * ceil_div(p.d_v, t.dv_cols))


schedule = Schedule(
    "small_cache",
    "Small-cache attention: output-stationary products, P spilled",
    "Saha & Ye, ICML 2024 (arXiv 2402.07443), Algorithm 1, with row maxima; backward reconstructed after "
    "Algorithm 6 of arXiv 2410.09397",
    {
        "forward": forward_pass(stays=False),
        "backward": Pass(
            backward,
            BackwardTiles,
            backward_cost,
            backward_tiles,
            _sweeps,
            lambda p, t: Scores(t.rows, t.cols, ceil_div(p.d, t.depth)),
        ),
    },
    spills=True,
)
