"""Column-stationary backward: K_j, V_j, dK_j and dV_j stay, queries stream by, P and dS are recomputed.

dK and dV cost 8 n^2 d^2 / M words. Three schedules share this loop and differ in their use of each dS tile: `flash`
discards it (a separate kernel computes dQ), `flash_onepass` adds its contribution to dQ, and `spilled_ds` writes it to
slow memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from redblue.base.integers import smaller
from redblue.machine import Machine, Slow, Tile
from redblue.masks import Pairs
from redblue.problem import Problem
from redblue.schedules.schedule import Cost, blocks, grid
from redblue.schedules.search import cheapest, edges, pair_edges
from redblue.schedules.softmax import probabilities


def row_deltas(m: Machine, problem: Problem, rows: int, out: Slow, dout: Slow) -> Slow:
    """Compute and store the row sums of dout * out, which equal the row sums of p * dp. Return the array."""
    delta = m.scratch("delta", (problem.n_q,))
    for i in blocks(problem.n_q, rows):
        dout_i, out_i = m.load(dout[i]), m.load(out[i])
        delta_i = m.new("delta_i", (dout_i * out_i).sum(axis=1))
        m.store(delta[i], delta_i)
        m.free(dout_i, out_i, delta_i)
    return delta


def row_deltas_cost(p: Problem, rows: Any) -> Cost:
    return Cost(2 * p.n_q * p.d_v, p.n_q, smaller(rows, p.n_q) * (2 * p.d_v + 1), 0)


def store_zeros(m: Machine, pairs: Pairs, rows: int, dq: Slow) -> None:
    """Store the dQ of blocks of rows that attend no key."""
    for i in blocks(pairs.n_rows, rows):
        if not m.cols_of(pairs, i):
            zero = m.zeros("dq_i", len(i), dq.shape[1])
            m.store(dq[i], zero)
            m.free(zero)


def dkv_tiles(
    m: Machine,
    problem: Problem,
    tile: tuple[int, int],
    q: Slow,
    k: Slow,
    v: Slow,
    lse: Slow,
    dout: Slow,
    delta: Slow,
    dk: Slow,
    dv: Slow,
    *,
    aligned: bool = True,
) -> Iterator[tuple[range, range, Tile, Tile]]:
    """Compute dK and dV, and yield (i, j, k_j, ds_ij) for every tile with attended pairs; ds_ij is not yet scaled.

    tile: (queries that stream by together, keys that stay). aligned: blocks of queries start at multiples of their
    length; otherwise they start at the first query that attends.
    """
    scale, pairs, (rows, cols) = problem.d**-0.5, problem.mask.on(problem.n_q, problem.n_k), tile
    for j in blocks(problem.n_k, cols):
        k_j, v_j = m.load(k[j]), m.load(v[j])
        dk_j, dv_j = m.zeros("dk_j", len(j), problem.d), m.zeros("dv_j", len(j), problem.d_v)
        live = m.cols_of(pairs.T, j)
        for i in grid(live, rows, problem.n_q) if aligned else blocks(live, rows):
            q_i, dout_i, lse_i, delta_i = m.load(q[i]), m.load(dout[i]), m.load(lse[i]), m.load(delta[i])
            p = m.new("p", probabilities(q_i @ k_j.T * scale, lse_i))
            if not m.holds(pairs, i, j):
                p[...] = m.where(pairs, i, j, p, 0.0)
            dv_j += p.T @ dout_i
            p *= dout_i @ v_j.T - delta_i[:, None]  # now dS
            dk_j += p.T @ q_i
            m.free(q_i, dout_i, lse_i, delta_i)
            yield i, j, k_j, p
            m.free(p)
        dk_j *= scale
        m.store(dk[j], dk_j)
        m.store(dv[j], dv_j)
        m.free(k_j, v_j, dk_j, dv_j)


def dkv_cost(p: Problem, rows: Any, cols: Any, *, aligned: bool = True) -> Cost:
    r, c, d, d_v = smaller(rows, p.n_q), smaller(cols, p.n_k), p.d, p.d_v
    sums = p.mask.on(p.n_q, p.n_k).sums(rows if aligned else 1, cols)
    kv_words = p.n_k * (d + d_v)
    peak = c * (2 * d + 2 * d_v) + r * c + r * (d + d_v + 2)
    return Cost(kv_words + (d + d_v + 2) * sums.rows, kv_words, peak, 4 * (d + d_v) * sums.area)


def resident_edge(pairs: Pairs, length: int, words: int, multiple: int, cost: Callable[[Any], Cost]) -> int | None:
    """Return the number of rows (or keys) that should stay in the cache to move the fewest words; None if none fit.

    length: length of the axis. multiple: the result is a multiple of this number. cost(stay): cost of the phase if
    `stay` rows stay, with the shortest possible blocks streaming by (they leave the most free words and do not change
    the words moved).
    """
    lengths = edges(length, multiple, not pairs.is_full)
    stay, _ = pair_edges(lengths, np.array([1]), lambda stay, _: cost(stay).peak, words, pairs)
    best = cheapest(cost(stay), (stay,), words)
    return best[0] if best else None
