"""The kernels before and after the backward kernel on Hopper: statistics of the rows, and the sums of dQ.

Blocks of keys add their parts of dQ to float32 sums in global memory, in any order, so dQ may differ in its last bits
from call to call. `prepare` clears the sums, and `finish_dq` converts them to dQ.
"""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from redblue.base.integers import ceil_div
from redblue.kernels.gpu.arrays import head_of, load, read, store, wide
from redblue.kernels.gpu.launch import Run, Task, array
from redblue.kernels.gpu.scores import load_lse, number


class Workspace(NamedTuple):
    """Arrays that the kernels share, in float32, with n_q padded to whole tiles of `rows` queries.

    stats: (batch, heads, tiles, 2 * rows): the log-sum-exp in units of log 2, +inf for rows without scores; then delta.
    sums: the sums of dQ, (batch, heads, tiles, rows * d); each tile in the order of `tile_of_sums`.
    """

    stats: Tensor
    sums: Tensor
    rows: int

    @property
    def padded(self) -> int:
        """Rows of a head, with padding."""
        return self.stats.shape[2] * self.rows


def workspace(task: Task, rows: int) -> Workspace:
    """Allocate the arrays, not filled."""
    batch, heads, n_q, d = task.q.shape
    tiles = batch, heads, ceil_div(n_q, rows)
    stats, sums = (task.q.new_empty((*tiles, size), dtype=torch.float32) for size in (2 * rows, rows * d))
    return Workspace(stats, sums, rows)


def prepare_run(task: Task, work: Workspace) -> Run:
    """The launch that writes task.delta and the stats, and clears the sums."""
    batch, heads, n_q, d = task.q.shape
    arguments = {
        "out": array(task.out),
        "dout": array(task.dout),
        "lse": task.lse,
        "dlse": task.dlse,
        "delta": task.delta,
        "stats": work.stats,
        "sums": work.sums,
        "heads": heads,
        "n_q": n_q,
        "D": d,
        "D_V": task.v.shape[-1],
        "ROWS": work.rows,
    }
    return Run(prepare, (ceil_div(n_q, work.rows) * batch * heads,), arguments, 4, 1)


def finish_run(task: Task, work: Workspace) -> Run:
    """The launch that writes task.dq."""
    batch, heads, n_q, d = task.q.shape
    arguments = {
        "sums": work.sums,
        "dq": array(task.dq),
        "scores": task.scores,
        "heads": heads,
        "n_q": n_q,
        "D": d,
        "ROWS": work.rows,
    }
    return Run(finish_dq, (ceil_div(n_q, work.rows) * batch * heads,), arguments, 4, 1)


@triton.jit
def prepare(
    out, dout, lse, dlse, delta, stats, sums, heads, n_q, D: tl.constexpr, D_V: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """Write delta and the stats of a tile of rows, and zeros to its sums.

    Delta is the row sum of dout * out, minus dlse.
    """
    program = tl.program_id(0)
    tiles = tl.cdiv(n_q, ROWS)
    stream, tile = program // tiles, program % tiles
    i_line = tl.arange(0, ROWS)
    i = tile * ROWS + i_line
    m_row = i < n_q
    out, dout = head_of(out, stream // heads, stream % heads), head_of(dout, stream // heads, stream % heads)
    b_out = load(out, i.to(tl.int64) * out.row, m_row, 0, D_V, D_V).to(tl.float32)
    b_dout = load(dout, i.to(tl.int64) * dout.row, m_row, 0, D_V, D_V).to(tl.float32)
    b_delta = tl.sum(b_out * b_dout, 1)
    numbers = wide(stream) * n_q + i
    if dlse is not None:
        b_delta -= read(dlse + numbers, m_row)
    tl.store(delta + numbers, b_delta, mask=m_row)
    stats += wide(program) * (2 * ROWS)
    tl.store(stats + i_line, load_lse(lse + numbers, m_row))
    tl.store(stats + ROWS + i_line, b_delta)
    tl.store(sums + wide(program) * (ROWS * D) + tl.arange(0, ROWS * D), tl.zeros((ROWS * D,), tl.float32))


@triton.jit
def finish_dq(sums, dq, scores, heads, n_q, D: tl.constexpr, ROWS: tl.constexpr):
    """Write a tile of dQ: its sums times the scale, in the type of dq."""
    program = tl.program_id(0)
    tiles = tl.cdiv(n_q, ROWS)
    stream, tile = program // tiles, program % tiles
    i = tile * ROWS + tl.arange(0, ROWS)
    b_sums = tl.load(sums + wide(program) * (ROWS * D) + tl.arange(0, ROWS * D))
    b_sums = tile_of_sums(b_sums, ROWS, D) * number(scores.scale, tl.float32)
    dq = head_of(dq, stream // heads, stream % heads)
    store(dq, i.to(tl.int64) * dq.row, b_sums, i < n_q, 0, D, D)


@triton.jit
def tile_of_sums(b_sums, ROWS: tl.constexpr, D: tl.constexpr):
    """A tile (ROWS, D) from its sums, which lie in memory as the threads of a product hold them (key_blocks.py).

    In each 16 x 8 part of the product, a thread holds columns 2 t and 2 t + 1 of rows g and g + 8.
    """
    parts = tl.reshape(b_sums, (ROWS // 16, D // 8, 8, 4, 2, 2))  # sixteen rows, eight columns, g, t, half, column
    return tl.reshape(tl.permute(parts, (0, 4, 2, 1, 3, 5)), (ROWS, D))
