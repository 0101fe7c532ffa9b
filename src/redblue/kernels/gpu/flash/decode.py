"""Few queries against many keys: what walks of spans of keys found, put together (`_merge` of the schedule `flash`)."""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from redblue.base.integers import ceil_div
from redblue.kernels.gpu.launch import Run, Task, array
from redblue.kernels.gpu.mask_lists import Lists
from redblue.kernels.gpu.scores import (
    LN2,
    LOG2E,
    block_of,
    constant,
    first_top,
    index,
    key_range,
    row_numbers,
    row_offsets,
    start,
    wide,
)

MOST = 8192  # numbers of an output that a program holds


class Parts(NamedTuple):
    """What walks leave behind: outputs and log-sum-exps of each span of keys, of all rows, in the type of the sums."""

    out: Tensor  # (spans, batch, heads, n_q, d_v)
    lse: Tensor  # (spans, batch, heads, n_q)


def parts_of(task: Task, spans: int) -> Parts:
    shape = (spans, *task.lse.shape)
    out = torch.empty((*shape, task.sizes.d_v), dtype=task.lse.dtype, device=task.lse.device)
    return Parts(out, out.new_empty(shape))


def merging(task: Task, parts: Parts, lists: Lists | None, rows: int, cols: int, span: int) -> Run:
    """rows, cols, span: of the walks."""
    sizes, width = task.sizes, triton.next_power_of_2(task.sizes.d_v)
    some = max(1, min(rows, 16, MOST // width))
    arguments: dict[str, Any] = {
        "part_out": array(parts.out[0]),
        "part_lse": parts.lse,
        "out": array(task.out),
        "lse": task.lse,
        "scores": task.scores,
        "lists": lists,
        "n_q": sizes.n_q,
        "n_k": sizes.n_k,
        "kv_heads": sizes.kv_heads,
        "span": span,
        "out_step": parts.out.stride(0),
        "lse_step": parts.lse.stride(0),
        "GROUP": sizes.group,
        "D_V": sizes.d_v,
        "WIDTH": width,
        "ROWS": rows,
        "COLS": cols,
        "SOME": some,
        "WIDE": task.wide,
    }
    return Run(merge, (ceil_div(task.rows, some) * task.streams,), arguments, 4, 1)


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
    ROWS: tl.constexpr,  # of a walk's block
    COLS: tl.constexpr,
    SOME: tl.constexpr,  # rows of this program's, all of one block
    WIDE: tl.constexpr,
):
    SUMS: tl.constexpr = lse.dtype.element_ty
    n_rows = n_q * GROUP
    pieces, blocks, spans = tl.cdiv(n_rows, SOME), tl.cdiv(n_rows, ROWS), tl.cdiv(n_k, span)
    piece, stream = tl.program_id(0) % pieces, tl.program_id(0) // pieces
    block = piece * SOME // ROWS
    batch, head = stream // kv_heads, stream % kv_heads
    i_row, i_col = piece * SOME + tl.arange(0, SOME), tl.arange(0, WIDTH)
    m_row = i_row < n_rows
    m_out = m_row[:, None] & (i_col < D_V)[None, :]
    numbers = row_numbers(batch, head, kv_heads, n_q, i_row, GROUP)
    part_offsets = row_offsets(part_out, i_row.to(tl.int64), GROUP)
    p_part = start(part_out, batch, head * GROUP) + part_offsets[:, None] + i_col[None, :]

    first, end = block * 0, spans
    if lists is None:
        last_row = tl.minimum(block * ROWS + ROWS, n_rows) - 1
        low, high, _, _ = key_range(scores, block * ROWS, last_row, n_k, GROUP, COLS)
        first = low // span  # and none where no key is attended: nothing was walked there
        end = tl.where(low < high, tl.cdiv(high, span), first)
    top, total = first_top(scores, head, i_row, GROUP, SUMS)
    acc = tl.zeros((SOME, WIDTH), SUMS)
    for s in range(first, end):
        walked = m_row
        if lists is not None:
            at = block_of(lists, batch, head, block, blocks) * spans + s
            walked = m_row & (i_row * 0 + listed_tiles(lists, at) > 0)
        share = tl.load(part_lse + wide(s) * lse_step + numbers, mask=walked, other=float("-inf"))
        share *= constant(LOG2E, SUMS)
        new_top = tl.maximum(top, share)
        shrink, share = tl.exp2(top - new_top), tl.exp2(share - new_top)
        found = tl.load(p_part + wide(s) * out_step, mask=m_out & walked[:, None], other=0.0)
        total = total * shrink + share
        acc = acc * shrink[:, None] + share[:, None] * found
        top = new_top

    some = total > 0
    acc *= tl.where(some, 1.0 / tl.where(some, total, 1.0), 0.0)[:, None]
    out_offsets = row_offsets(out, index(i_row, WIDE), GROUP)
    p_out = start(out, batch, head * GROUP) + out_offsets[:, None] + (index(i_col, WIDE) * out.col)[None, :]
    tl.store(p_out, acc.to(out.at.dtype.element_ty), mask=m_out)
    b_lse = tl.where(some, top * constant(LN2, SUMS) + tl.log(tl.where(some, total, 1.0)), float("-inf"))
    tl.store(lse + numbers, b_lse, mask=m_row)


@triton.jit
def listed_tiles(lists, at):
    """How many tiles entry `at` has."""
    full = tl.load(lists.full_starts + at + 1) - tl.load(lists.full_starts + at)
    return full + tl.load(lists.partial_starts + at + 1) - tl.load(lists.partial_starts + at)
