"""FlashAttention that keeps the last of the streaming tiles for the next block, for problems of few blocks and windows.

Forward is row-stationary as in `flash`. The last `keep` keys that a block of queries attends stay in the cache for the
next block of queries. If all keys stay, each word of Q, K, V and O moves once, whatever the number of queries.
Backward is the one pass of `flash_onepass`: K_j, V_j, dK_j and dV_j stay. The last `keep` queries that attend the block
of keys stay for the next block of keys, with their dO, dQ, lse and delta; the others write dQ and read it again.
delta is computed when a query is loaded for the first time. If all keys stay together, P is computed from the scores,
and neither O nor the lse is read: then each word of Q, K, V, dO, dQ, dK and dV moves once.
With `keep` small, forward has the leading constant of `flash` (4 x^2 words per pair, with x = d / sqrt(M)), and
backward that of `flash_onepass` (16 x^2).
Derived in this project (docs/lab/theory.md, "Few blocks").
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from redblue.base.integers import larger
from redblue.machine import Machine, Slow, Tile
from redblue.masks import Pairs
from redblue.problem import Problem
from redblue.schedules.column_stationary import store_zeros
from redblue.schedules.kept import Kept, kept_peak, loaded_cols, search_kept
from redblue.schedules.schedule import Cost, Pass, Schedule, Sweep, blocks, grid
from redblue.schedules.softmax import LOWEST, online_softmax, probabilities, softmax_tile, store_rows


class ForwardTiles(NamedTuple):
    rows: Any  # queries that stay
    cols: Any  # keys and values that stream by together
    keep: Any  # keys and values that stay for the next block of queries


class BackwardTiles(NamedTuple):
    rows: Any  # queries that stream by together
    cols: Any  # keys that stay
    keep: Any  # queries that stay for the next block of keys


def forward(m: Machine, problem: Problem, t: ForwardTiles, q: Slow, k: Slow, v: Slow, out: Slow, lse: Slow) -> None:
    scale, pairs = problem.d**-0.5, problem.mask.on(problem.n_q, problem.n_k)
    kept = Kept[tuple[Tile, Tile]](problem.n_k, t.cols, t.keep, lambda _, tiles: m.free(*tiles))
    for i in blocks(problem.n_q, t.rows):
        q_i, out_i = m.load(q[i]), m.zeros("out_i", len(i), problem.d_v)
        row_max, row_sum = m.full("row_max", (len(i),), LOWEST), m.zeros("row_sum", len(i))
        attended = list(grid(m.cols_of(pairs, i), t.cols, problem.n_k))
        for j, (k_j, v_j) in kept.visit(attended, lambda j: (m.load(k[j]), m.load(v[j])), i.stop == problem.n_q):
            s = m.new("s", q_i @ k_j.T * scale)
            if not m.holds(pairs, i, j):
                s[...] = m.where(pairs, i, j, s, -np.inf)
            online_softmax(m, s, out_i, row_max, row_sum)
            out_i += s @ v_j
            m.free(s)
        store_rows(m, out_i, row_max, row_sum, out[i], lse[i])
        m.free(out_i, row_max, row_sum, q_i)
    kept.clear()


def forward_cost(p: Problem, t: ForwardTiles) -> Cost:
    pairs, words = p.mask.on(p.n_q, p.n_k), p.d + p.d_v
    reads = p.n_q * p.d + words * loaded_cols(pairs, *t)
    flops = 2 * words * pairs.sums(t.rows, t.cols).area
    return Cost(reads, p.n_q * (p.d_v + 1), _forward_peak(p, t), flops)


def _forward_peak(p: Problem, t: ForwardTiles) -> Any:
    words, pairs = p.d + p.d_v, p.mask.on(p.n_q, p.n_k)
    return kept_peak(pairs, t, lambda r: r * (words + 2), lambda r, c, first: c * words + r * c + r)


class _Rows(NamedTuple):
    """The tiles of a block of queries that streams by."""

    q: Tile
    dout: Tile
    dq: Tile
    lse: Tile
    delta: Tile


class _Arrays(NamedTuple):
    """The arrays from which the tiles of a block of queries are loaded, and to which they are stored.

    delta: row sums of dout * out.
    """

    q: Slow
    out: Slow
    lse: Slow
    dout: Slow
    dq: Slow
    delta: Slow

    def load(self, m: Machine, pairs: Pairs, j: range, i: range) -> _Rows:
        """Load rows for the keys j. The first time, delta is computed and dQ begins."""
        dout_i = m.load(self.dout[i])
        if pairs.cols_of(i)[0].start in j:
            out_i = m.load(self.out[i])
            delta_i = m.new("delta_i", (dout_i * out_i).sum(axis=1))
            m.free(out_i)
            m.store(self.delta[i], delta_i)
            dq_i = m.zeros("dq_i", len(i), self.dq.shape[1])
        else:
            delta_i, dq_i = m.load(self.delta[i]), m.load(self.dq[i])
        return _Rows(m.load(self.q[i]), dout_i, dq_i, m.load(self.lse[i]), delta_i)

    def release(self, m: Machine, i: range, rows: _Rows) -> None:
        """Store dQ, and free the rows."""
        m.store(self.dq[i], rows.dq)
        m.free(*rows)


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
    store_zeros(m, pairs, t.rows, dq)
    if t.cols >= problem.n_k:
        _backward_at_once(m, problem, t.rows, (q, k, v, dout), (dq, dk, dv))
        return
    arrays = _Arrays(q, out, lse, dout, dq, m.scratch("delta", (problem.n_q,)))
    kept = Kept[_Rows](problem.n_q, t.rows, t.keep, partial(arrays.release, m))
    for j in blocks(problem.n_k, t.cols):
        k_j, v_j = m.load(k[j]), m.load(v[j])
        dk_j, dv_j = m.zeros("dk_j", len(j), problem.d), m.zeros("dv_j", len(j), problem.d_v)
        attending = list(grid(m.cols_of(pairs.T, j), t.rows, problem.n_q))
        for i, rows in kept.visit(attending, partial(arrays.load, m, pairs, j), j.stop == problem.n_k):
            p = m.new("p", probabilities(rows.q @ k_j.T * scale, rows.lse))
            if not m.holds(pairs, i, j):
                p[...] = m.where(pairs, i, j, p, 0.0)
            dv_j += p.T @ rows.dout
            p *= rows.dout @ v_j.T - rows.delta[:, None]  # now dS
            _add_products(p, rows.q, k_j, rows.dq, dk_j, scale)
            m.free(p)
        m.store(dk[j], dk_j)
        m.store(dv[j], dv_j)
        m.free(k_j, v_j, dk_j, dv_j)
    kept.clear()


def _add_products(ds: Tile, q_i: Tile, k_j: Tile, dq_i: Tile, dk_j: Tile, scale: float) -> None:
    """Add the products of dS to dQ and dK."""
    dq_i += ds @ k_j * scale
    dk_j += ds.T @ q_i * scale


def _backward_at_once(
    m: Machine, problem: Problem, rows: int, inputs: tuple[Slow, Slow, Slow, Slow], outputs: tuple[Slow, Slow, Slow]
) -> None:
    """All keys stay: P and delta follow from a row's scores, without O and the lse."""
    scale, pairs = problem.d**-0.5, problem.mask.on(problem.n_q, problem.n_k)
    (q, k, v, dout), (dq, dk, dv), j = inputs, outputs, range(problem.n_k)
    k_j, v_j = m.load(k[j]), m.load(v[j])
    dk_j, dv_j = m.zeros("dk_j", len(j), problem.d), m.zeros("dv_j", len(j), problem.d_v)
    for i in grid(m.cols_of(pairs.T, j), rows, problem.n_q):
        q_i = m.load(q[i])
        p = m.new("p", q_i @ k_j.T * scale)
        if not m.holds(pairs, i, j):
            p[...] = m.where(pairs, i, j, p, -np.inf)
        softmax_tile(m, p)
        dout_i, out_i = m.load(dout[i]), m.new("out_i", p @ v_j)
        delta_i = m.new("delta_i", (dout_i * out_i).sum(axis=1))
        m.free(out_i)
        dv_j += p.T @ dout_i
        p *= dout_i @ v_j.T - delta_i[:, None]  # now dS
        dq_i = m.zeros("dq_i", len(i), problem.d)
        _add_products(p, q_i, k_j, dq_i, dk_j, scale)
        m.store(dq[i], dq_i)
        m.free(q_i, p, dout_i, delta_i, dq_i)
    m.store(dk[j], dk_j)
    m.store(dv[j], dv_j)
    m.free(k_j, v_j, dk_j, dv_j)


def backward_cost(p: Problem, t: BackwardTiles) -> Cost:
    pairs, d, d_v, words = p.mask.on(p.n_q, p.n_k), p.d, p.d_v, p.d + p.d_v
    several = 1 * (t.cols < p.n_k)  # else neither O, lse nor delta is read
    loaded, live = loaded_cols(pairs.T, t.cols, t.rows, t.keep), pairs.sums(t.rows, p.n_k).rows
    reads = p.n_k * words + loaded * words + (loaded - live) * d
    reads = reads + several * (loaded + live * d_v + (loaded - live))
    writes = p.n_k * words + loaded * d + (p.n_q - live) * d + several * live
    flops = 2 * (3 * d + (3 - several) * d_v) * pairs.sums(t.rows, t.cols).area  # if all keys stay, O is computed, too
    return Cost(reads, writes, _backward_peak(p, t), flops)


def _backward_peak(p: Problem, t: BackwardTiles) -> Any:
    d, d_v = p.d, p.d_v
    r, several = min(t.rows, p.n_q), 1 * (t.cols < p.n_k)

    def tile(cols: Any, rows: Any, first: bool) -> Any:
        held = rows * (2 * d + d_v + 2) + rows * cols
        return larger(held, rows * (2 * d_v + 1)) if first else held

    at_once = 2 * p.n_k * (d + d_v) + r * (d + d_v + max(d, d_v) + 1) + r * p.n_k
    kept = kept_peak(p.mask.on(p.n_q, p.n_k).T, (t.cols, t.rows, t.keep), lambda c: 2 * c * (d + d_v), tile)
    return several * kept + (1 - several) * at_once


def forward_tiles(p: Problem, words: int, multiple: Mapping[str, int]) -> ForwardTiles | None:
    best = search_kept(
        p.mask.on(p.n_q, p.n_k),
        words,
        (multiple["rows"], multiple["cols"], multiple["keep"]),
        lambda rows, cols, keep: _forward_peak(p, ForwardTiles(rows, cols, keep)),
        lambda rows, cols, keep: forward_cost(p, ForwardTiles(rows, cols, keep)),
    )
    return ForwardTiles(*best) if best else None


def backward_tiles(p: Problem, words: int, multiple: Mapping[str, int]) -> BackwardTiles | None:
    best = search_kept(
        p.mask.on(p.n_q, p.n_k).T,
        words,
        (multiple["cols"], multiple["rows"], multiple["keep"]),
        lambda cols, rows, keep: _backward_peak(p, BackwardTiles(rows, cols, keep)),
        lambda cols, rows, keep: backward_cost(p, BackwardTiles(rows, cols, keep)),
    )
    return BackwardTiles(best[1], best[0], best[2]) if best else None


schedule = Schedule(
    name="flash_kept",
    title="FlashAttention that keeps its last tiles for the next block",
    source="derived for redblue: docs/lab/theory.md, 'Few blocks'",
    passes={
        "forward": Pass(forward, ForwardTiles, forward_cost, forward_tiles, lambda p, t: (Sweep("rows", t.rows),)),
        "backward": Pass(
            backward,
            BackwardTiles,
            backward_cost,
            backward_tiles,
            lambda p, t: (Sweep("rows", t.rows), Sweep("cols", t.cols)),
        ),
    },
    variant=True,
)
