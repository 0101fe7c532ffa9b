"""A user's schedule for tests, FlashAttention without its running maximum, which tests break in many ways."""

from typing import Any, NamedTuple

import numpy as np

from redblue.machine import exp, log, maximum
from redblue.schedules import Cost, Pass, Schedule, Sweep, blocks


class Tiles(NamedTuple):
    rows: Any
    cols: Any


def forward(m, problem, t, q, k, v, out, lse):
    """Whole rows of scores stay in the cache."""
    pairs, keys = problem.mask.on(problem.n_q, problem.n_k), range(problem.n_k)
    for i in blocks(problem.n_q, t.rows):
        m.cols_of(pairs, i)
        q_i, s = m.load(q[i]), m.zeros("s", len(i), problem.n_k)
        for j in blocks(problem.n_k, t.cols):
            k_j = m.load(k[j])
            s[:, j.start : j.stop] = q_i @ k_j.T * problem.d**-0.5
            m.free(k_j)
        m.free(q_i)
        s[...] = m.where(pairs, i, keys, s, -np.inf)
        row_max = m.new("row_max", maximum(s.max(axis=1), -1e300))
        s[...] = exp(s - row_max[:, None])
        row_sum = m.new("row_sum", s.sum(axis=1))
        s /= maximum(row_sum, 1)[:, None]
        row_max += log(row_sum)
        m.store(lse[i], row_max)
        m.free(row_max, row_sum)
        out_i = m.zeros("out_i", len(i), problem.d_v)
        for j in blocks(problem.n_k, t.cols):
            v_j = m.load(v[j])
            out_i += s[:, j.start : j.stop] @ v_j
            m.free(v_j)
        m.store(out[i], out_i)
        m.free(out_i, s)


def cost(p, t):
    rows, cols = np.minimum(t.rows, p.n_q), np.minimum(t.cols, p.n_k)
    reads = p.n_q * p.d + -(-p.n_q // rows) * p.n_k * (p.d + p.d_v)
    held = np.maximum(np.maximum(rows * p.d + cols * p.d, 2 * rows), rows * p.d_v + cols * p.d_v)
    return Cost(reads, p.n_q * (p.d_v + 1), rows * p.n_k + held, 2 * p.n_q * p.n_k * (p.d + p.d_v))


def sweeps(p, t):
    return (Sweep("rows", t.rows),)


def own(name="own_rows", *, run=forward, closed=cost, search=None, lookups=sweeps, tile_type=Tiles, **fields):
    """Return the schedule, with some parts replaced by broken ones."""
    one_pass = Pass(run, tile_type, closed, search, lookups)
    return Schedule(
        **{"name": name, "title": "whole rows", "source": "a test", "passes": {"forward": one_pass}} | fields
    )
