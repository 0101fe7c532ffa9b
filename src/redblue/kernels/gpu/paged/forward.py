"""Attention on keys and values in pages: the schedule `flash`, in which a program attends one piece of a node's keys.

A node is a run of keys that several queries attend together (nodes.py). A program owns a block of stacked rows of one
node and key head, and walks one piece of the node's keys. The page table locates each key. If a query has results of
several pieces, merge.py merges them.
"""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from redblue.kernels.gpu.arrays import Array, head_of, index, load, product, store, wide
from redblue.kernels.gpu.paged.layout import ITEM, MEMBER, NODE
from redblue.kernels.gpu.scores import (
    LN2,
    constant,
    exp2_below,
    factor_left,
    finish_paged,
    initial_max_and_sum,
    lowest,
)
from redblue.kernels.gpu.visits import visit

NODE_FIELDS, MEMBER_FIELDS, ITEM_FIELDS = tl.constexpr(NODE), tl.constexpr(MEMBER), tl.constexpr(ITEM)
FAR = tl.constexpr(1 << 30)  # beyond every position


class Rows(NamedTuple):
    """The stacked rows of a block, (rows,) each."""

    query: Any  # index among the packed queries
    head: Any  # query head
    sequence: Any
    position: Any  # position of the query among its sequence's keys
    keys: Any  # number of keys of its sequence


class Pages(NamedTuple):
    """The pages of the keys that a block attends: the row of the page table, and the caches at the key head."""

    table: Any
    step: Any  # stride between entries of the table
    k: Any
    v: Any
    tree: Any  # PagedTask.tree
    newest: Any  # columns of the tree


class Constants(NamedTuple):
    """Numbers known at compile time, as in flash/constants.py."""

    LENGTH: Any  # keys of a tile
    D: Any
    D1: Any
    D_V: Any
    V1: Any
    PAGE: Any
    ALIASED: Any
    TREE: Any
    PLAIN: Any
    WIDE: Any
    PRECISION: Any


@triton.jit
def paged_forward(
    q,
    k,
    v,
    out,
    lse,
    part_out,  # (key heads, partial_rows, D_V)
    part_lse,
    table,
    table_row,
    table_col,
    items,
    nodes,
    members,
    tree,  # PagedTask.tree, which the kernel reads if TREE
    newest,
    scores,
    kv_heads,
    partial_rows,
    GROUP: tl.constexpr,
    D: tl.constexpr,  # features of q and k, held in two tiles of D0 and D1
    D0: tl.constexpr,
    D1: tl.constexpr,
    D_V: tl.constexpr,
    V0: tl.constexpr,
    V1: tl.constexpr,
    PAGE: tl.constexpr,  # keys of a page
    ALIASED: tl.constexpr,  # whether values are the first features of the keys
    TREE: tl.constexpr,
    UNALIGNED: tl.constexpr,  # whether the first key need not be a multiple of COLS
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    PLAIN: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Write the final or partial result of a block of rows over a piece of a node's keys."""
    SUMS: tl.constexpr = lse.dtype.element_ty
    item = items + wide(tl.program_id(0)) * ITEM_FIELDS
    node = nodes + wide(tl.load(item)) * NODE_FIELDS
    head, first_row, piece = tl.program_id(1), tl.load(item + 1), tl.load(item + 2)
    span, n_rows, base = tl.load(node + 3), tl.load(node + 6), tl.load(node + 7)
    i_row = first_row + tl.arange(0, ROWS)
    m_row = i_row < n_rows
    member = members + (tl.load(node + 5) + i_row // GROUP).to(tl.int64) * MEMBER_FIELDS
    b_query, b_head = tl.load(member, mask=m_row, other=0), head * GROUP + i_row % GROUP
    b_sequence, b_position = tl.load(member + 1, mask=m_row, other=0), tl.load(member + 2, mask=m_row, other=0)
    block = Rows(b_query, b_head, b_sequence, b_position, tl.load(member + 3, mask=m_row, other=0))

    low = (tl.load(node + 4) + piece) * span
    high = tl.minimum(tl.load(node + 2), low + span)
    low = tl.maximum(tl.load(node + 1), low)
    full_low, full_high = low, high
    first_position = tl.min(tl.where(m_row, b_position, FAR))
    last_position = tl.max(tl.where(m_row, b_position, -FAR))
    if scores.first is not None:
        low = tl.maximum(low, first_position + scores.first)
        full_low = tl.maximum(full_low, last_position + scores.first)
    if scores.end is not None:
        high = tl.minimum(high, last_position + scores.end)
        full_high = tl.minimum(full_high, first_position + scores.end)
    if TREE:
        full_high = tl.minimum(full_high, tl.min(tl.where(m_row, block.keys, FAR)) - newest)
    borders = low, high, tl.cdiv(full_low, COLS) * COLS, tl.maximum(full_high, 0) // COLS * COLS

    q = Array(q.pointer, q.batch, q.head, q.row, q.col)
    q_offsets = b_query.to(tl.int64) * q.row + b_head.to(tl.int64) * q.head
    q0 = load(q, q_offsets, m_row, 0, D0, D)
    b_q = q0, (load(q, q_offsets, m_row, D0, D1, D) if D1 else q0)
    acc0 = tl.zeros((ROWS, V0), SUMS)
    acc1 = tl.zeros((ROWS, V1), SUMS) if V1 else acc0
    row_max, row_sum = tl.full((ROWS,), lowest(SUMS), SUMS), tl.zeros((ROWS,), SUMS)
    if base < 0:
        row_max, row_sum = initial_max_and_sum(scores, head, i_row, GROUP, SUMS)
    p_table = table + wide(tl.load(node)) * table_row
    pages = Pages(p_table, table_col, head_of(k, 0, head), head_of(v, 0, head), tree, newest)
    state = visit(
        _keys, borders, 0, UNALIGNED, True, (acc0, acc1, row_max, row_sum), (b_q, pages), block, m_row,
        scores, None, Constants(COLS, D, D1, D_V, V1, PAGE, ALIASED, TREE, PLAIN, WIDE, PRECISION)
    )  # fmt: skip

    acc0, acc1, row_max, row_sum = state
    attends = row_sum != 0  # or is NaN
    factor = tl.where(attends, 1.0 / tl.where(attends, row_sum, 1.0), 0.0)
    b_lse = tl.where(attends, row_max * constant(LN2, SUMS) + tl.log(tl.where(attends, row_sum, 1.0)), float("-inf"))
    acc0 *= factor[:, None]
    if V1:
        acc1 *= factor[:, None]
    if base < 0:
        out_offsets = b_query.to(tl.int64) * out.row + b_head.to(tl.int64) * out.head
        store(out, out_offsets, acc0, m_row, 0, V0, D_V)
        if V1:
            store(out, out_offsets, acc1, m_row, V0, V1, D_V)
        tl.store(lse + b_query.to(tl.int64) * (kv_heads * GROUP) + b_head, b_lse, mask=m_row)
    else:
        b_part = wide(head) * partial_rows + base + wide(piece) * n_rows + i_row
        part = Array(part_out, 0, 0, D_V, 1)
        store(part, b_part * D_V, acc0, m_row, 0, V0, D_V)
        if V1:
            store(part, b_part * D_V, acc1, m_row, V0, V1, D_V)
        tl.store(part_lse + b_part, b_lse, mask=m_row)


@triton.jit
def _keys(tiles, TILES: tl.constexpr, state, operands, block, m_row, scores, lists, c):
    """Add tiles of keys to the rows' state: two parts of the unscaled output, the maximum and the sum (see visits.py).

    operands: two parts of the rows of q, and the pages.
    """
    acc0, acc1, row_max, row_sum = state
    b_q, pages = operands
    k, v = pages.k, pages.v
    ROWS: tl.constexpr = block.query.shape[0]
    COLS: tl.constexpr = c.LENGTH
    SUMS: tl.constexpr = row_max.dtype
    left = factor_left(scores, c.PLAIN, SUMS)
    # Without this test ptxas waits for every product, as in flash/forward.py
    if tiles.begin < tiles.stop:
        for j in tl.range(tiles.begin, tiles.stop, COLS):
            i_key = j + tl.arange(0, COLS)
            m_key = None
            if TILES == "masked":
                m_key = (i_key >= tiles.low) & (i_key < tiles.high)
            k_offsets, v_offsets = _places(pages, j, i_key, m_key, COLS, c.PAGE, c.WIDE)
            k0 = load(k, k_offsets, m_key, 0, b_q[0].shape[1], c.D)
            s = product(b_q[0], tl.trans(k0), tl.zeros((ROWS, COLS), SUMS), c.PRECISION)
            if c.D1:
                k1 = load(k, k_offsets, m_key, b_q[0].shape[1], c.D1, c.D)
                s = product(b_q[1], tl.trans(k1), s, c.PRECISION)
            if not c.PLAIN:
                s = finish_paged(s, scores, block, i_key[None, :], m_row, m_key, c.WIDE, SUMS)
            if TILES == "masked":
                m_pair = m_key[None, :] & _attends(scores, pages, block, i_key[None, :], m_row, c.TREE)
                s = tl.where(m_pair, s, float("-inf"))
            new_max = tl.maximum(row_max, tl.max(s, 1) * left)
            p = exp2_below(s * left, new_max[:, None], c.PLAIN)
            shrink = tl.exp2(row_max - new_max)
            row_sum = row_sum * shrink + tl.sum(p, 1)
            row_max = new_max
            p = p.to(v.pointer.dtype.element_ty)
            v0 = k0 if c.ALIASED else load(v, v_offsets, m_key, 0, acc0.shape[1], c.D_V)
            acc0 = product(p, v0, acc0 * shrink[:, None], c.PRECISION)
            if c.V1:
                v1 = k1 if c.ALIASED else load(v, v_offsets, m_key, acc0.shape[1], c.V1, c.D_V)
                acc1 = product(p, v1, acc1 * shrink[:, None], c.PRECISION)
    return acc0, acc1, row_max, row_sum


@triton.jit
def _places(pages, j, i_key, m_key, COLS: tl.constexpr, PAGE: tl.constexpr, WIDE: tl.constexpr):
    """Offsets of the keys from j on and of their values, relative to the key head's first row of page 0."""
    k, v = pages.k, pages.v
    if PAGE % COLS == 0:  # all keys lie in one page
        i_page = tl.load(pages.table + wide(j // PAGE) * pages.step)
        i_line = j % PAGE + tl.arange(0, COLS)
    else:
        p_page = pages.table + (i_key // PAGE).to(tl.int64) * pages.step
        i_page = tl.load(p_page) if m_key is None else tl.load(p_page, mask=m_key, other=0)
        i_line = i_key % PAGE
    i_page = i_page.to(tl.int64 if WIDE else tl.int32)
    i_line = index(i_line, WIDE)
    return i_page * k.batch + i_line * k.row, i_page * v.batch + i_line * v.row


@triton.jit
def _attends(scores, pages, block, i_key, m_row, TREE: tl.constexpr):
    """Whether rows attend keys that exist, by the band and by the tree."""
    m = m_row[:, None]
    if scores.first is not None:
        m &= i_key >= block.position[:, None] + scores.first
    if scores.end is not None:
        m &= i_key < block.position[:, None] + scores.end
    if TREE:
        i_new = i_key - (block.keys[:, None] - pages.newest)
        p_tree = pages.tree + (block.query.to(tl.int64) * pages.newest)[:, None] + i_new
        m &= tl.load(p_tree, mask=m & (i_new >= 0) & (i_new < pages.newest), other=1) != 0
    return m
