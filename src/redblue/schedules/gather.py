"""Gathering: process one row at a time, and load only the keys that it attends. For scattered masks (graphs).

Forward: q_i and o_i stay while k_j and v_j of row i's nonzeros are loaded: d + d_v words per attended pair for every M.
Backward: two passes, which both recompute the probabilities: dQ row by row, then dK and dV column by column, together
2 d + 2 d_v + 2 words per pair. The program is `flash` with blocks of one row, so only attended pairs are computed and
no tile needs masking. The mask's index is CSR, read once per pass.
A tile of `flash` shares each k_j among its rows; gathered rows share no keys. Gathering is best if rows attend few
common keys, or if the cache holds hardly more than one row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from redblue.machine import Machine, Slow
from redblue.problem import Problem
from redblue.schedules import flash
from redblue.schedules.schedule import Cost, Pass, Schedule, Sweep


class ForwardTiles(NamedTuple):
    cols: Any  # nonzeros of a row that are gathered together, if they are adjacent

    @property
    def rows(self) -> int:
        return 1

    @property
    def by_flash(self) -> flash.ForwardTiles:
        """The same tiles in the form that `flash` takes."""
        return flash.ForwardTiles(1, self.cols)


class BackwardTiles(NamedTuple):
    cols: Any  # dQ: nonzeros of a row that are gathered together
    dkv_rows: Any  # dK, dV: nonzeros of a column that are gathered together

    @property
    def rows(self) -> int:
        return 1

    @property
    def by_flash(self) -> flash.BackwardTiles:
        """The same tiles in the form that `flash` takes."""
        return flash.BackwardTiles(1, self.cols, self.dkv_rows, 1)


def forward(m: Machine, problem: Problem, t: ForwardTiles, q: Slow, k: Slow, v: Slow, out: Slow, lse: Slow) -> None:
    flash.forward(m, problem, t.by_flash, q, k, v, out, lse)


def forward_cost(p: Problem, t: ForwardTiles) -> Cost:
    return flash.forward_cost(p, t.by_flash)


def forward_tiles(p: Problem, words: int, multiple: Mapping[str, int]) -> ForwardTiles | None:
    tiles = ForwardTiles(min(multiple["cols"], p.n_k))  # the words do not depend on this edge
    return tiles if forward_cost(p, tiles).peak <= words else None


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
    flash.backward(m, problem, t.by_flash, q, k, v, out, lse, dout, dq, dk, dv)


def backward_cost(p: Problem, t: BackwardTiles) -> Cost:
    return flash.backward_cost(p, t.by_flash)


def backward_tiles(p: Problem, words: int, multiple: Mapping[str, int]) -> BackwardTiles | None:
    tiles = BackwardTiles(min(multiple["cols"], p.n_k), min(multiple["dkv_rows"], p.n_q))
    return tiles if backward_cost(p, tiles).peak <= words else None


schedule = Schedule(
    name="gather",
    title="Gathering: row by row over the nonzeros, nothing shared between rows",
    source="derived for redblue, after sparse matrix products on CSR (row-wise SDDMM and SpMM, fused)",
    passes={
        "forward": Pass(forward, ForwardTiles, forward_cost, forward_tiles, lambda p, t: (Sweep("rows", 1),)),
        "backward": Pass(
            backward, BackwardTiles, backward_cost, backward_tiles, lambda p, t: (Sweep("rows", 1), Sweep("cols", 1))
        ),
    },
    scattered=True,
)
