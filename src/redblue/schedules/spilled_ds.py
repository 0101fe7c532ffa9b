"""Backward that writes dS once, while dK and dV are computed; for cache sizes between those of `flash` and `hybrid`.

dK and dV are column-stationary as in `flash` (8 n^2 d^2 / M words), and dS is written on the way (n^2). dQ = dS K is
output-stationary (n^2 + n^2 d^2 / M for M >= d^2, 2 n^2 d / sqrt(M) for smaller M). For x = d / sqrt(M) <= 1 the sum is
(9 x^2 + 2) n^2 words: fewer than `flash` (14 x^2) for M < 2.5 d^2, and fewer than `hybrid` (5 x^2 + 5) for
M > 4/3 d^2. Derived in this project; no paper has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from redblue.base.integers import ceil_div
from redblue.machine import Machine, Slow
from redblue.problem import Problem
from redblue.schedules.column_stationary import dkv_cost, dkv_tiles, resident_edge, row_deltas, row_deltas_cost
from redblue.schedules.products import pair_product, pair_product_cost, pair_product_tiles
from redblue.schedules.schedule import Cost, Pass, Schedule, Sweep, overlap, whole_blocks, within


class BackwardTiles(NamedTuple):
    rows: Any  # dK, dV: queries that stream by together
    cols: Any  # dK, dV: keys that stay
    depth: Any  # dQ: keys per streamed slice
    dq_rows: Any  # tile of dQ: queries, features
    dq_cols: Any


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
    delta, ds = row_deltas(m, problem, t.rows, out, dout), m.scratch("ds", (problem.n_q, problem.n_k))
    for i, j, _, ds_ij in dkv_tiles(m, problem, (t.rows, t.cols), q, k, v, lse, dout, delta, dk, dv):
        ds_ij *= scale
        for part in whole_blocks(overlap(j, pairs.cols_of(i)), t.depth, problem.n_k):  # dQ reads only these
            m.store(ds[i, part], ds_ij[:, within(part, j)])
    pair_product(m, dq, ds, k, pairs, t.dq_rows, t.dq_cols, t.depth)


def _dkv_cost(p: Problem, rows: Any, cols: Any, depth: int) -> Cost:
    spilled = Cost(0, p.mask.on(p.n_q, p.n_k).sums(rows, depth).area, 0, 0)
    return row_deltas_cost(p, rows) + dkv_cost(p, rows, cols) + spilled


def backward_cost(p: Problem, t: BackwardTiles) -> Cost:
    pairs = p.mask.on(p.n_q, p.n_k)
    return _dkv_cost(p, t.rows, t.cols, t.depth) + pair_product_cost(pairs, p.d, t.dq_rows, t.dq_cols, t.depth)


def backward_tiles(p: Problem, words: int, multiple: Mapping[str, int]) -> BackwardTiles | None:
    pairs, rows, depth = p.mask.on(p.n_q, p.n_k), min(multiple["rows"], p.n_q), multiple["depth"]
    cols = resident_edge(pairs, p.n_k, words, multiple["cols"], lambda cols: _dkv_cost(p, rows, cols, depth))
    dq = pair_product_tiles(pairs, p.d, words, depth, multiple["dq_rows"], multiple["dq_cols"])
    return BackwardTiles(rows, cols, depth, *dq) if cols and dq else None


schedule = Schedule(
    name="spilled_ds",
    title="Backward with dS spilled: dK and dV column-stationary, dQ output-stationary",
    source="derived for redblue: docs/lab/theory.md, 'The regimes'",
    passes={
        "backward": Pass(
            backward,
            BackwardTiles,
            backward_cost,
            backward_tiles,
            lambda p, t: (Sweep("cols", t.cols), Sweep("rows", t.dq_rows, ceil_div(p.d, t.dq_cols))),
        )
    },
    spills=True,
)
