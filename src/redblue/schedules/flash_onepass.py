"""FlashAttention's backward pass in one sweep: five products instead of the seven of two kernels.

K_j, V_j, dK_j and dV_j stay, so P and dS of a tile are computed only once. In exchange, every block of keys loads,
updates and stores dQ_i. The sweep moves 16 n^2 d^2 / M words, more than the 14 n^2 d^2 / M of the two kernels of
`flash`: recomputing is cheaper than moving. Its inputs are the outputs of `flash` forward.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from redblue.machine import Machine, Slow
from redblue.problem import Problem
from redblue.schedules.column_stationary import (
    dkv_cost,
    dkv_tiles,
    resident_edge,
    row_deltas,
    row_deltas_cost,
    store_zeros,
)
from redblue.schedules.schedule import Cost, Pass, Schedule, Sweep


class BackwardTiles(NamedTuple):
    rows: Any  # queries that stream by together
    cols: Any  # keys that stay


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
    delta = row_deltas(m, problem, t.rows, out, dout)
    store_zeros(m, pairs, t.rows, dq)
    for i, j, k_j, ds in dkv_tiles(m, problem, t, q, k, v, lse, dout, delta, dk, dv):
        first = pairs.cols_of(i)[0].start in j
        dq_i = m.zeros("dq_i", len(i), problem.d) if first else m.load(dq[i])
        dq_i += ds @ k_j * scale
        m.store(dq[i], dq_i)
        m.free(dq_i)


def backward_cost(p: Problem, t: BackwardTiles) -> Cost:
    pairs = p.mask.on(p.n_q, p.n_k)
    sums, started = pairs.sums(t.rows, t.cols), pairs.sums(t.rows, p.n_k).rows
    reads = p.d * (sums.rows - started)
    writes = p.d * (sums.rows + p.n_q - started)
    dq = Cost(reads, writes, 0, 2 * p.d * sums.area)  # peak 0: dQ_i takes the place of the freed Q_i
    return row_deltas_cost(p, t.rows) + dkv_cost(p, *t) + dq


def backward_tiles(p: Problem, words: int, multiple: Mapping[str, int]) -> BackwardTiles | None:
    pairs, rows = p.mask.on(p.n_q, p.n_k), min(multiple["rows"], p.n_q)
    cols = resident_edge(
        pairs, p.n_k, words, multiple["cols"], lambda cols: backward_cost(p, BackwardTiles(rows, cols))
    )
    return BackwardTiles(rows, cols) if cols else None


schedule = Schedule(
    name="flash_onepass",
    title="FlashAttention backward in one sweep",
    source="the order of FlashAttention, Algorithm 4 (arXiv 2205.14135), with the lse and delta of arXiv 2307.08691",
    passes={
        "backward": Pass(
            backward,
            BackwardTiles,
            backward_cost,
            backward_tiles,
            lambda p, t: (Sweep("rows", t.rows), Sweep("cols", t.cols)),
        )
    },
)
