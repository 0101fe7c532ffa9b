"""FlashAttention, for the large-cache regime M >= d^2: no array of size n^2 leaves the cache.

Forward is row-stationary, in the order of FlashAttention-2: a block of queries and its output stay, and keys and
values stream by, which moves 4 n^2 d^2 / M words. If queries are too few to occupy all processors, as in decoding, the
keys are cut into spans. Each walk of a block of queries through one span stores a partial output and log-sum-exp, which
are then merged.
Backward has two kernels, which both recompute the probabilities: dQ row-stationary (6 n^2 d^2 / M words), then dK and
dV column-stationary (8 n^2 d^2 / M words).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from redblue.base.integers import LARGEST, ceil_div, larger, smaller
from redblue.machine import Machine, Region, Slow
from redblue.masks import Pairs, Runs
from redblue.problem import Problem
from redblue.schedules.column_stationary import dkv_cost, dkv_tiles, resident_edge
from redblue.schedules.schedule import Cost, Pass, Schedule, Sweep, blocks, overlap, partial_rows, rows_walked, walks
from redblue.schedules.search import cheapest, edges, pair_edges
from redblue.schedules.softmax import LOWEST, online_softmax, probabilities, rescale, store_rows


class ForwardTiles(NamedTuple):
    rows: Any  # queries that stay
    cols: Any  # keys and values that stream by together
    span: Any = LARGEST  # keys per walk of a block of queries; with several walks, their results are merged


class BackwardTiles(NamedTuple):
    rows: Any  # dQ kernel: queries that stay
    cols: Any  # dQ kernel: keys that stream by
    dkv_rows: Any  # dK, dV kernel: queries that stream by
    dkv_cols: Any  # dK, dV kernel: keys that stay


def forward(m: Machine, problem: Problem, t: ForwardTiles, q: Slow, k: Slow, v: Slow, out: Slow, lse: Slow) -> None:
    pairs, cut, part_out, part_lse = problem.mask.on(problem.n_q, problem.n_k), t.span < problem.n_k, out, lse
    if cut:
        partials = ceil_div(problem.n_k, t.span) * problem.n_q
        part_out, part_lse = m.scratch("part_out", (partials, problem.d_v)), m.scratch("part_lse", (partials,))
    for i in blocks(problem.n_q, t.rows):
        parts, live = [], m.cols_of(pairs, i)
        for walk in walks(live, t.span, problem.n_k):
            parts.append(partial_rows(i, walk, t.span, problem.n_q) if cut else i)
            _walk(m, problem, pairs, i, overlap(walk, live), t.cols, q, k, v, part_out[parts[-1]], part_lse[parts[-1]])
        if cut:
            _merge(m, i, parts, part_out, part_lse, out, lse)


def _walk(
    m: Machine,
    problem: Problem,
    pairs: Pairs,
    i: range,
    keys: Runs,
    cols: int,
    q: Slow,
    k: Slow,
    v: Slow,
    out: Region,
    lse: Region,
) -> None:
    """Attend from rows i to `keys`, and store the output and log-sum-exp in the regions out and lse."""
    scale, q_i = problem.d**-0.5, m.load(q[i])
    out_i = m.zeros("out_i", len(i), problem.d_v)
    row_max, row_sum = m.full("row_max", (len(i),), LOWEST), m.zeros("row_sum", len(i))
    for j in blocks(keys, cols):
        k_j = m.load(k[j])
        s = m.new("s", q_i @ k_j.T * scale)
        m.free(k_j)
        if not m.holds(pairs, i, j):
            s[...] = m.where(pairs, i, j, s, -np.inf)
        online_softmax(m, s, out_i, row_max, row_sum)
        v_j = m.load(v[j])
        out_i += s @ v_j
        m.free(s, v_j)
    store_rows(m, out_i, row_max, row_sum, out, lse)
    m.free(out_i, row_max, row_sum, q_i)


def _merge(m: Machine, i: range, parts: Sequence[range], part_out: Slow, part_lse: Slow, out: Slow, lse: Slow) -> None:
    """Merge the partial results of rows i into their output and log-sum-exp. parts: rows of the partial arrays."""
    out_i = m.zeros("out_i", len(i), out.shape[1])
    row_max, row_sum = m.full("row_max", (len(i),), LOWEST), m.zeros("row_sum", len(i))
    for part in parts:
        share = m.load(part_lse[part])
        rescale(m, share, out_i, row_max, row_sum)
        row_sum += share
        partial = m.load(part_out[part])
        out_i += share[:, None] * partial
        m.free(share, partial)
    store_rows(m, out_i, row_max, row_sum, out[i], lse[i])
    m.free(out_i, row_max, row_sum)


def _forward_peak(p: Problem, rows: Any, cols: Any, cut: bool = False) -> Any:
    r, c = smaller(rows, p.n_q), smaller(cols, p.n_k)
    walk = r * (p.d + p.d_v + 2) + r * c + larger(c * max(p.d, p.d_v), r)
    return larger(walk, r * (2 * p.d_v + 3)) if cut else walk


def forward_cost(p: Problem, t: ForwardTiles) -> Cost:
    pairs, cut = p.mask.on(p.n_q, p.n_k), t.span < p.n_k
    streamed, walked = pairs.sums(t.rows, 1), rows_walked(pairs, t.rows, t.span)
    partial_words = walked * (p.d_v + 1) * cut
    reads = walked * p.d + (p.d + p.d_v) * streamed.cols + partial_words
    writes = p.n_q * (p.d_v + 1) + partial_words
    return Cost(reads, writes, _forward_peak(p, t.rows, t.cols, cut), 2 * (p.d + p.d_v) * streamed.area)


def forward_tiles(p: Problem, words: int, multiple: Mapping[str, int]) -> ForwardTiles | None:
    # The number of keys that stream by together does not change the words; the fewest keys leave the most words for
    # queries.
    cols = np.array([min(multiple["cols"], p.n_k)])
    pairs = p.mask.on(p.n_q, p.n_k)
    candidates = pair_edges(
        edges(p.n_q, multiple["rows"], not pairs.is_full), cols, lambda r, c: _forward_peak(p, r, c), words, pairs
    )
    best = cheapest(forward_cost(p, ForwardTiles(*candidates)), candidates, words)
    return ForwardTiles(*best, span=p.n_k) if best else None


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
    scale, pairs = problem.d**-0.5, problem.mask.on(problem.n_q, problem.n_k)
    delta = m.scratch("delta", (problem.n_q,))  # row sums of dout * out, which equal the row sums of p * dp

    for i in blocks(problem.n_q, t.rows):
        dout_i, out_i = m.load(dout[i]), m.load(out[i])
        delta_i = m.new("delta_i", (dout_i * out_i).sum(axis=1))
        m.free(out_i)
        m.store(delta[i], delta_i)
        q_i, lse_i, dq_i = m.load(q[i]), m.load(lse[i]), m.zeros("dq_i", len(i), problem.d)
        for j in blocks(m.cols_of(pairs, i), t.cols):
            k_j, v_j = m.load(k[j]), m.load(v[j])
            ds = m.new("ds", probabilities(q_i @ k_j.T * scale, lse_i))
            if not m.holds(pairs, i, j):
                ds[...] = m.where(pairs, i, j, ds, 0.0)
            ds *= dout_i @ v_j.T - delta_i[:, None]
            dq_i += ds @ k_j
            m.free(k_j, v_j, ds)
        dq_i *= scale
        m.store(dq[i], dq_i)
        m.free(dout_i, delta_i, q_i, lse_i, dq_i)

    tile = t.dkv_rows, t.dkv_cols
    for _ in dkv_tiles(m, problem, tile, q, k, v, lse, dout, delta, dk, dv, aligned=False):
        pass  # dkv_tiles computes dK and dV; its dS tiles are not needed, since dQ is complete


def _dq_peak(p: Problem, rows: Any, cols: Any) -> Any:
    r, c, d, d_v = smaller(rows, p.n_q), smaller(cols, p.n_k), p.d, p.d_v
    return larger(r * (2 * d_v + 1), r * (2 * d + d_v + 2) + r * c + c * (d + d_v))


def _dq_cost(p: Problem, rows: Any, cols: Any) -> Cost:
    streamed = p.mask.on(p.n_q, p.n_k).sums(rows, 1)
    reads = p.n_q * (p.d + 2 * p.d_v + 1) + (p.d + p.d_v) * streamed.cols
    flops = 2 * (2 * p.d + p.d_v) * streamed.area
    return Cost(reads, p.n_q * (p.d + 1), _dq_peak(p, rows, cols), flops)


def backward_cost(p: Problem, t: BackwardTiles) -> Cost:
    return _dq_cost(p, t.rows, t.cols) + dkv_cost(p, t.dkv_rows, t.dkv_cols, aligned=False)


def backward_tiles(p: Problem, words: int, multiple: Mapping[str, int]) -> BackwardTiles | None:
    pairs = p.mask.on(p.n_q, p.n_k)
    cols = np.array([min(multiple["cols"], p.n_k)])
    candidates = pair_edges(
        edges(p.n_q, multiple["rows"], not pairs.is_full), cols, lambda r, c: _dq_peak(p, r, c), words, pairs
    )
    dq = cheapest(_dq_cost(p, *candidates), candidates, words)
    dkv_rows = min(multiple["dkv_rows"], p.n_q)
    dkv_cols = resident_edge(
        pairs, p.n_k, words, multiple["dkv_cols"], lambda cols: dkv_cost(p, dkv_rows, cols, aligned=False)
    )
    return BackwardTiles._make((*dq, dkv_rows, dkv_cols)) if dq and dkv_cols else None


schedule = Schedule(
    name="flash",
    title="FlashAttention (FlashAttention-2 order; backward in two kernels)",
    source="Dao et al., NeurIPS 2022 (arXiv 2205.14135), Thm 2 and 5; the order of FlashAttention-2 (arXiv 2307.08691)",
    passes={
        "forward": Pass(forward, ForwardTiles, forward_cost, forward_tiles, lambda p, t: (Sweep("rows", t.rows),)),
        "backward": Pass(
            backward,
            BackwardTiles,
            backward_cost,
            backward_tiles,
            lambda p, t: (Sweep("rows", t.rows), Sweep("cols", t.dkv_cols)),
        ),
    },
)
