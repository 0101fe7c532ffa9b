"""The gradient of a bias, in a separate kernel that all schedules share.

A program owns a tile of the bias and visits all tiles of scores that the bias was added to. So the gradient is the
only array of n_q n_k elements, and no result depends on the order of programs. The gradient of a bias that all rows (or
keys) share is summed over them in up to SHARES parts, which are then added up.
"""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from redblue.base.dtypes import dtype_name
from redblue.base.integers import ceil_div
from redblue.kernels.gpu.arrays import (
    head_of,
    index,
    load_from,
    product,
    read,
    row_numbers,
    start,
    wide,
)
from redblue.kernels.gpu.band import bit_set, in_band, plane_at
from redblue.kernels.gpu.launch import Run, Task, array
from redblue.kernels.gpu.mask_lists import Lists
from redblue.kernels.gpu.planning.card import card_of
from redblue.kernels.gpu.planning.resources import without_tensor_cores
from redblue.kernels.gpu.scores import exp2_below, finish, keep_factors, load_lse, row_terms

SHARES = 16
EDGE = 64  # rows and keys of a tile
# Features of a slice, and warps. Without tensor cores, each thread holds a slice of both factors in registers: with
# slices of 64 features and 4 warps, sm_75 spilled 9,552 bytes per thread
TENSOR_CORES, SCALAR = (64, 4), (32, 8)


class Constants(NamedTuple):
    """Numbers known at compile time that _tile needs. Construct it in the call of _tile, like flash's Constants."""

    GROUP: Any
    D: Any
    D_V: Any
    D_SLICE: Any
    V_SLICE: Any
    WIDE: Any
    PRECISION: Any


def add_bias_gradient(task: Task, precision: str = "ieee") -> None:
    """Add the gradient to task.dbias, which has strides of 0 where the bias is broadcast."""
    dbias, edge = task.dbias, EDGE
    assert dbias is not None
    own, strides = _own(dbias), dbias.stride()
    n_q, n_k = dbias.shape[-2:]
    if not dbias.numel():
        return
    row_tiles, col_tiles = ceil_div(n_q, edge), ceil_div(n_k, edge)
    row_shared, col_shared = strides[-2] == 0, strides[-1] == 0
    row_parts = min(row_tiles, SHARES) if row_shared else row_tiles
    col_parts = min(col_tiles, SHARES) if col_shared else col_tiles
    target = own
    if row_shared or col_shared:
        shape = *own.shape[:2], row_parts if row_shared else n_q, col_parts if col_shared else n_k
        target = own.new_zeros(shape)
    gradient_run(task, target, (row_parts, col_parts), (row_shared, col_shared), precision)()
    if target is not own:
        shared = [dim for dim, is_shared in ((2, row_shared), (3, col_shared)) if is_shared]
        own += target.sum(shared, keepdim=True)


def _own(x: Tensor) -> Tensor:
    """The tensor without its broadcast dimensions: index 0 of dimensions with stride 0."""
    return x[tuple(slice(None, 1) if stride == 0 else slice(None) for stride in x.stride())]


def gradient_run(task: Task, target: Tensor, parts: tuple[int, int], shared: tuple[bool, bool], precision: str) -> Run:
    """The launch that adds the gradient to target: (batch or 1, heads or 1, n_q or parts, n_k or parts).

    parts: the numbers of parts of rows and of keys. shared: whether the bias is broadcast over rows, and over keys.
    """
    sizes, group, edge = task.sizes, task.sizes.group, EDGE
    batch, heads = sizes.lead[0], sizes.kv_heads * group
    single = replace(task, sizes=sizes._replace(kv_heads=heads, group=1))  # each block has rows of one head
    lists = single.lists(edge, edge, "rows")
    dtype = dtype_name(task.q.dtype)
    width, warps = SCALAR if without_tensor_cores(dtype, card_of(task.q.device)) else TENSOR_CORES
    arguments: dict[str, Any] = {
        "q": array(task.q),
        "k": array(task.k),
        "v": array(task.v),
        "dout": array(task.dout),
        "lse": task.lse,
        "delta": task.delta,
        "dbias": array(target),
        "scores": task.scores,
        "lists": lists,
        "cells": None if lists is None else tile_grid(lists, ceil_div(sizes.n_q, edge), ceil_div(sizes.n_k, edge)),
        "n_q": sizes.n_q,
        "n_k": sizes.n_k,
        "batches": batch,
        "heads": heads,
        "row_parts": parts[0],
        "col_parts": parts[1],
        "GROUP": group,
        "D": sizes.d,
        "D_V": sizes.d_v,
        "EDGE": edge,
        "D_SLICE": min(width, max(16, triton.next_power_of_2(sizes.d))),
        "V_SLICE": min(width, max(16, triton.next_power_of_2(sizes.d_v))),
        "BATCH_SHARED": target.shape[0] == 1,
        "HEAD_SHARED": target.shape[1] == 1,
        "ROW_SHARED": shared[0],
        "COL_SHARED": shared[1],
        "WIDE": task.wide,
        "PRECISION": precision,
    }
    programs = target.shape[0] * target.shape[1] * parts[0] * parts[1]
    return Run(bias_gradient, (programs,), arguments, warps, 2)


def tile_grid(lists: Lists, row_tiles: int, col_tiles: int) -> Tensor:
    """int32 (planes, row tiles, column tiles): the number of a partial tile, -1 for a full tile, -2 for no tile."""
    blocks = len(lists.full_starts) - 1
    grid = lists.full.new_full((blocks, col_tiles), -2)
    block = torch.arange(blocks, device=grid.device)
    for starts, tiles, numbers in (
        (lists.full_starts, lists.full, None),
        (lists.partial_starts, lists.partial, torch.arange(len(lists.partial), device=grid.device, dtype=grid.dtype)),
    ):
        block_of_tile = torch.repeat_interleave(
            block, starts.diff(), output_size=len(tiles)
        )  # without the size it waits for the device
        grid[block_of_tile, tiles] = grid.new_full((), -1) if numbers is None else numbers
    return grid.view(blocks // row_tiles, row_tiles, col_tiles)


@triton.jit
def bias_gradient(
    q,
    k,
    v,
    dout,
    lse,
    delta,
    dbias,
    scores,
    lists,
    cells,
    n_q,
    n_k,
    batches,
    heads,  # query heads
    row_parts,
    col_parts,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    D_V: tl.constexpr,
    EDGE: tl.constexpr,
    D_SLICE: tl.constexpr,
    V_SLICE: tl.constexpr,
    BATCH_SHARED: tl.constexpr,
    HEAD_SHARED: tl.constexpr,
    ROW_SHARED: tl.constexpr,
    COL_SHARED: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The gradient of a tile of the bias; one part of it if rows or keys share an element of the bias."""
    SUMS: tl.constexpr = lse.dtype.element_ty
    row_tiles, col_tiles = tl.cdiv(n_q, EDGE), tl.cdiv(n_k, EDGE)
    pid = tl.program_id(0)
    col_part, row_part = pid % col_parts, pid // col_parts % row_parts
    head = pid // (col_parts * row_parts)
    own_head = head * 0 if HEAD_SHARED else head % heads
    own_batch = head * 0 if BATCH_SHARED else (head if HEAD_SHARED else head // heads)
    last_batch = batches if BATCH_SHARED else own_batch + 1
    last_head = heads if HEAD_SHARED else own_head + 1
    # Without broadcast dimensions, each of these loops runs once
    ds = tl.zeros((EDGE, EDGE), SUMS)
    for batch in range(own_batch, last_batch):
        for query_head in range(own_head, last_head):
            for row_tile in range(row_part, row_tiles, row_parts):
                for col_tile in range(col_part, col_tiles, col_parts):
                    ds += _tile(
                        (batch, query_head), (row_tile, col_tile), (row_tiles, col_tiles, n_q, n_k, heads),
                        (q, k, v, dout), (lse, delta), scores, lists, cells, EDGE,
                        Constants(GROUP, D, D_V, D_SLICE, V_SLICE, WIDE, PRECISION)
                    )  # fmt: skip

    p_head = start(dbias, own_batch, own_head)
    i_row, i_key = row_part * EDGE + tl.arange(0, EDGE), col_part * EDGE + tl.arange(0, EDGE)
    m_row, m_key = i_row < n_q, i_key < n_k
    row_offsets, col_offsets = i_row.to(tl.int64) * dbias.row, i_key.to(tl.int64) * dbias.col
    row_at, col_at = wide(row_part) * dbias.row, wide(col_part) * dbias.col
    if ROW_SHARED and COL_SHARED:
        p_own = p_head + row_at + col_at
        tl.store(p_own, tl.load(p_own) + tl.sum(ds))
    elif ROW_SHARED:
        p_own = p_head + row_at + col_offsets
        tl.store(p_own, tl.load(p_own, mask=m_key, other=0.0) + tl.sum(ds, 0), mask=m_key)
    elif COL_SHARED:
        p_own = p_head + row_offsets + col_at
        tl.store(p_own, tl.load(p_own, mask=m_row, other=0.0) + tl.sum(ds, 1), mask=m_row)
    else:
        p_own = p_head + row_offsets[:, None] + col_offsets[None, :]
        m_own = m_row[:, None] & m_key[None, :]
        tl.store(p_own, tl.load(p_own, mask=m_own, other=0.0) + ds, mask=m_own)


@triton.jit
def _tile(stream, tile, sizes, arrays, row_arrays, scores, lists, cells, EDGE: tl.constexpr, c):
    """dS of one tile, 0 for pairs that do not attend.

    stream: batch entry and query head. tile: indices of its rows and its columns. sizes: tiles of rows and of columns,
    n_q, n_k and query heads. arrays: q, k, v, dout. row_arrays: lse, delta.
    """
    batch, query_head = stream
    row_tile, col_tile = tile
    row_tiles, col_tiles, n_q, n_k, heads = sizes
    q, k, v, dout = arrays
    lse, delta = row_arrays
    SUMS: tl.constexpr = lse.dtype.element_ty
    WORDS: tl.constexpr = (EDGE + 63) // 64
    i_row, i_key = row_tile * EDGE + tl.arange(0, EDGE), col_tile * EDGE + tl.arange(0, EDGE)
    m_row, m_key = i_row < n_q, i_key < n_k
    m_pair = m_row[:, None] & m_key[None, :] & in_band(scores, i_row[:, None], i_key[None, :])
    if lists is not None:
        plane = tl.load(plane_at(lists, batch, query_head // c.GROUP))
        cell = tl.load(cells + (wide(plane) * row_tiles + row_tile) * col_tiles + col_tile)
        m_pair &= cell > -2
        line = tl.maximum(cell, 0) * EDGE + tl.arange(0, EDGE)
        if cell >= 0:
            m_pair &= bit_set((lists.bits + line * WORDS)[:, None], tl.arange(0, EDGE)[None, :], EDGE)
    head = query_head // c.GROUP
    q, k = head_of(q, batch, query_head), head_of(k, batch, head)
    dout, v = head_of(dout, batch, query_head), head_of(v, batch, head)
    ds = tl.zeros((EDGE, EDGE), SUMS)
    if tl.sum(m_pair.to(tl.int32)) > 0:
        numbers = row_numbers(batch, query_head, heads, n_q, i_row, 1)
        q_offsets, dout_offsets = index(i_row, c.WIDE) * q.row, index(i_row, c.WIDE) * dout.row
        k_offsets, v_offsets = index(i_key, c.WIDE) * k.row, index(i_key, c.WIDE) * v.row
        s = tl.zeros((EDGE, EDGE), SUMS)
        for f in tl.range(0, c.D, c.D_SLICE):
            b_q = load_from(q, q_offsets, m_row, f, c.D_SLICE, c.D)
            b_k = load_from(k, k_offsets, m_key, f, c.D_SLICE, c.D)
            s = product(b_q, tl.trans(b_k), s, c.PRECISION)
        s, _ = finish(
            s, scores, batch, query_head, index(i_row, c.WIDE)[:, None], index(i_key, c.WIDE)[None, :],
            m_row[:, None], m_key[None, :], row_terms(scores, batch, query_head, i_row, 1, 1, SUMS), 1, False
        )  # fmt: skip
        p = exp2_below(s, load_lse(lse + numbers, m_row)[:, None], False)
        dp = tl.zeros((EDGE, EDGE), SUMS)
        for f in tl.range(0, c.D_V, c.V_SLICE):
            b_dout = load_from(dout, dout_offsets, m_row, f, c.V_SLICE, c.D_V)
            b_v = load_from(v, v_offsets, m_key, f, c.V_SLICE, c.D_V)
            dp = product(b_dout, tl.trans(b_v), dp, c.PRECISION)
        if scores.seed is not None:
            dp *= keep_factors(scores, numbers, col_tile * EDGE, EDGE, SUMS)
        ds = tl.where(m_pair, p * (dp - read(delta + numbers, m_row)[:, None]), 0.0)
    return ds
