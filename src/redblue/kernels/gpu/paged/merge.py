"""Merge the partial results of queries whose keys lie in several pieces or nodes, in a fixed order."""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from redblue.kernels.gpu.arrays import wide
from redblue.kernels.gpu.flash.decode import MAX_OUTPUT
from redblue.kernels.gpu.scores import LN2, LOG2E, constant, exp2_below, initial_max_and_sum

MAX_ROWS, MAX_PARTS = 16, 16
MAX_LOADED = 8192  # numbers of partial results that a program loads at once


class Merged(NamedTuple):
    """A program's work."""

    width: int  # padded length of a row of the output
    rows: int  # heads of one query
    parts: int  # partial results that are loaded at once, because a loop over single ones waits for each load


def merged(d_v: int, group: int) -> Merged:
    """The work of a program. group: query heads that share a key head."""
    width = triton.next_power_of_2(d_v)
    rows = max(1, min(triton.next_power_of_2(group), MAX_ROWS, MAX_OUTPUT // width))
    return Merged(width, rows, max(1, min(MAX_PARTS, MAX_LOADED // (rows * width))))


@triton.jit
def paged_merge(
    part_out,  # (key heads, partial_rows, D_V)
    part_lse,
    out,  # (queries, heads, D_V)
    lse,
    scores,
    queries,
    starts,
    parts,
    kv_heads,
    partial_rows,
    GROUP: tl.constexpr,
    D_V: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
):
    """The result of some heads of one query, which share a key head, from its partial results."""
    SUMS: tl.constexpr = lse.dtype.element_ty
    i_query, head = tl.program_id(0), tl.program_id(1)
    i_head = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    i_col = tl.arange(0, WIDTH)
    m_head = i_head < GROUP
    m_out = m_head[:, None] & (i_col < D_V)[None, :]
    row_max, row_sum = initial_max_and_sum(scores, head, i_head, GROUP, SUMS)
    acc = tl.zeros((ROWS, WIDTH), SUMS)
    end = tl.load(starts + i_query + 1)
    for first in range(tl.load(starts + i_query), end, PARTS):
        i_part = first + tl.arange(0, PARTS)
        m_part = i_part < end
        m_rows = m_part[:, None] & m_head[None, :]
        b_first = tl.load(parts + i_part, mask=m_part, other=0)
        rows = wide(head) * partial_rows + b_first[:, None] + i_head[None, :]
        share = tl.load(part_lse + rows, mask=m_rows, other=float("-inf")) * constant(LOG2E, SUMS)
        p_part = part_out + (rows * D_V)[:, :, None] + i_col[None, None, :]
        b_part = tl.load(p_part, mask=m_part[:, None, None] & m_out[None, :, :], other=0.0)
        new_max = tl.maximum(row_max, tl.max(share, 0))
        shrink, share = tl.exp2(row_max - new_max), exp2_below(share, new_max[None, :], False)
        row_sum = row_sum * shrink + tl.sum(share, 0)
        acc = acc * shrink[:, None] + tl.sum(share[:, :, None] * b_part, 0)
        row_max = new_max

    attends = row_sum != 0  # or is NaN
    acc *= tl.where(attends, 1.0 / tl.where(attends, row_sum, 1.0), 0.0)[:, None]
    rows = (wide(tl.load(queries + i_query)) * kv_heads + head) * GROUP + i_head
    tl.store(out + (rows * D_V)[:, None] + i_col[None, :], acc.to(out.dtype.element_ty), mask=m_out)
    b_lse = tl.where(attends, row_max * constant(LN2, SUMS) + tl.log(tl.where(attends, row_sum, 1.0)), float("-inf"))
    tl.store(lse + rows, b_lse, mask=m_head)
