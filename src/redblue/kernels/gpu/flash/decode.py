"""Merge the outputs of spans of keys, for few queries and many keys (`_merge` of the schedule `flash`)."""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from redblue.base.integers import ceil_div
from redblue.kernels.gpu.arrays import index, row_offsets, start, wide
from redblue.kernels.gpu.band import key_range, list_of
from redblue.kernels.gpu.blocks import row_block
from redblue.kernels.gpu.launch import Run, Task, array
from redblue.kernels.gpu.mask_lists import Lists
from redblue.kernels.gpu.scores import LN2, LOG2E, constant, exp2_below, initial_max_and_sum

MAX_OUTPUT = 8192  # numbers of the output that a program holds


class PartialOutputs(NamedTuple):
    """Output and log-sum-exp of all rows over each span of keys, in the type of the sums."""

    out: Tensor  # (spans, batch, heads, n_q, d_v)
    lse: Tensor  # (spans, batch, heads, n_q)


def partial_outputs(task: Task, spans: int) -> PartialOutputs:
    """Memory for the outputs of `spans` spans."""
    shape = (spans, *task.lse.shape)
    out = torch.empty((*shape, task.sizes.d_v), dtype=task.lse.dtype, device=task.lse.device)
    return PartialOutputs(out, out.new_empty(shape))


def merge_run(task: Task, partial: PartialOutputs, lists: Lists | None, rows: int, cols: int, span: int) -> Run:
    """The launch that merges partial outputs. rows, cols, span: the tiles of the launch that wrote them."""
    sizes, width = task.sizes, triton.next_power_of_2(task.sizes.d_v)
    merged_rows = max(1, min(rows, 16, MAX_OUTPUT // width))
    arguments: dict[str, Any] = {
        "part_out": array(partial.out[0]),
        "part_lse": partial.lse,
        "out": array(task.out),
        "lse": task.lse,
        "scores": task.scores,
        "lists": lists,
        "n_q": sizes.n_q,
        "n_k": sizes.n_k,
        "kv_heads": sizes.kv_heads,
        "span": span,
        "out_step": partial.out.stride(0),
        "lse_step": partial.lse.stride(0),
        "GROUP": sizes.group,
        "D_V": sizes.d_v,
        "WIDTH": width,
        "ROWS": rows,
        "COLS": cols,
        "MERGED": merged_rows,
        "WIDE": task.wide,
    }
    return Run(merge, (ceil_div(task.rows, merged_rows) * task.streams,), arguments, 4, 1)


@triton.jit
def merge(
    part_out,
    part_lse,
    out,
    lse,
    scores,
    lists,
    n_q,
    n_k,
    kv_heads,
    span,
    out_step,
    lse_step,
    GROUP: tl.constexpr,
    D_V: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,  # rows of a block of the launch that wrote the parts
    COLS: tl.constexpr,
    MERGED: tl.constexpr,  # rows of this program, all of one block
    WIDE: tl.constexpr,
):
    """Merge the outputs and log-sum-exps of the spans of keys, for a few rows."""
    SUMS: tl.constexpr = lse.dtype.element_ty
    n_rows = n_q * GROUP
    rows = row_block((0, 0, n_rows), n_q, kv_heads, tl.program_id(0), False, GROUP, MERGED)
    batch, head, i_row, numbers = rows.batch, rows.head, rows.i, rows.numbers
    block, blocks, spans = rows.first // ROWS, tl.cdiv(n_rows, ROWS), tl.cdiv(n_k, span)
    i_col = tl.arange(0, WIDTH)
    m_row = i_row < n_rows
    m_out = m_row[:, None] & (i_col < D_V)[None, :]
    part_offsets = row_offsets(part_out, i_row.to(tl.int64), GROUP)
    p_part = start(part_out, batch, head * GROUP) + part_offsets[:, None] + i_col[None, :]

    first, end = block * 0, spans
    if lists is None:
        last_row = tl.minimum(block * ROWS + ROWS, n_rows) - 1
        low, high, _, _ = key_range(scores, block * ROWS, last_row, n_k, GROUP, COLS)
        first = low // span
        # If a block attends no key, no span wrote an output
        end = tl.where(low < high, tl.cdiv(high, span), first)
    row_max, row_sum = initial_max_and_sum(scores, head, i_row, GROUP, SUMS)
    acc = tl.zeros((MERGED, WIDTH), SUMS)
    for s in range(first, end):
        written = m_row
        if lists is not None:
            i_list = list_of(lists, batch, head, block, blocks) * spans + s
            written = m_row & (i_row * 0 + listed_tiles(lists, i_list) > 0)
        share = tl.load(part_lse + wide(s) * lse_step + numbers, mask=written, other=float("-inf"))
        share *= constant(LOG2E, SUMS)
        new_max = tl.maximum(row_max, share)
        shrink, share = tl.exp2(row_max - new_max), exp2_below(share, new_max, False)
        b_part = tl.load(p_part + wide(s) * out_step, mask=m_out & written[:, None], other=0.0)
        row_sum = row_sum * shrink + share
        acc = acc * shrink[:, None] + share[:, None] * b_part
        row_max = new_max

    attends = row_sum != 0  # or is NaN
    acc *= tl.where(attends, 1.0 / tl.where(attends, row_sum, 1.0), 0.0)[:, None]
    out_offsets = row_offsets(out, index(i_row, WIDE), GROUP)
    p_out = start(out, batch, head * GROUP) + out_offsets[:, None] + (index(i_col, WIDE) * out.col)[None, :]
    tl.store(p_out, acc.to(out.pointer.dtype.element_ty), mask=m_out)
    b_lse = tl.where(attends, row_max * constant(LN2, SUMS) + tl.log(tl.where(attends, row_sum, 1.0)), float("-inf"))
    tl.store(lse + numbers, b_lse, mask=m_row)


@triton.jit
def listed_tiles(lists, i_list):
    """Number of tiles in list `i_list`."""
    full = tl.load(lists.full_starts + i_list + 1) - tl.load(lists.full_starts + i_list)
    return full + tl.load(lists.partial_starts + i_list + 1) - tl.load(lists.partial_starts + i_list)
