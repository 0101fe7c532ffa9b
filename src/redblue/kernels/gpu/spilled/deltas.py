"""delta of each row, backward: the row sums of dout * out, minus dlse."""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
from __future__ import annotations

import triton
import triton.language as tl

from redblue.base.integers import ceil_div
from redblue.kernels.gpu.arrays import head_of, index, read, row_offsets, tile_mask, write
from redblue.kernels.gpu.blocks import row_block
from redblue.kernels.gpu.launch import Run, Task, array
from redblue.kernels.gpu.spilled.gradients import slice_width
from redblue.kernels.gpu.spilled.slices import Panel, pointers


def deltas_run(task: Task, rows: int, warps: int, stages: int) -> Run:
    """The launch that writes task.delta."""
    sizes = task.sizes
    arguments = {
        "out": array(task.out),
        "dout": array(task.dout),
        "dlse": task.dlse,
        "delta": task.delta,
        "n_q": sizes.n_q,
        "kv_heads": sizes.kv_heads,
        "d_v": sizes.d_v,
        "GROUP": sizes.group,
        "ROWS": rows,
        "DEPTH": slice_width(sizes.d_v),
        "WIDE": task.wide,
    }
    return Run(deltas, (ceil_div(task.rows, rows) * task.streams,), arguments, warps, stages)


@triton.jit
def deltas(
    out,
    dout,
    dlse,
    delta,
    n_q,
    kv_heads,
    d_v,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    WIDE: tl.constexpr,
):
    """delta: the row sums of dout * out, minus dlse."""
    SUMS: tl.constexpr = delta.dtype.element_ty
    block = row_block((0, 0, n_q * GROUP), n_q, kv_heads, tl.program_id(0), False, GROUP, ROWS)
    m_row = block.i < n_q * GROUP
    out, dout = head_of(out, block.batch, block.head * GROUP), head_of(dout, block.batch, block.head * GROUP)
    out = Panel(out, row_offsets(out, index(block.i, WIDE), GROUP))
    dout = Panel(dout, row_offsets(dout, index(block.i, WIDE), GROUP))
    b_delta = tl.zeros((ROWS,), SUMS)
    for f in range(0, d_v, DEPTH):
        i_f = f + tl.arange(0, DEPTH)
        m_x = tile_mask(m_row, i_f < d_v)
        b_out, b_dout = read(pointers(out, i_f, WIDE), m_x), read(pointers(dout, i_f, WIDE), m_x)
        b_delta += tl.sum(b_out.to(SUMS) * b_dout.to(SUMS), 1)
    if dlse is not None:
        b_delta -= tl.load(dlse + block.numbers, mask=m_row, other=0.0)
    write(delta + block.numbers, b_delta, m_row)
