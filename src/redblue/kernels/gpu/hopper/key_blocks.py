"""Helpers of the backward kernels on Hopper: the block of keys of a program, its tiles of rows, and the sums of dQ."""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
# pyright: reportCallIssue=false, reportAssignmentType=false
from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

LOG2E = gl.constexpr(1.4426950408889634)
SECTION = gl.constexpr(4)  # key heads whose rows and sums are used at the same time, so that they stay in L2
# The name from Triton 3.7 on, then the older name
load_tile = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
store_tile = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
meet = getattr(gl, "barrier", None) or gl.thread_barrier


class Band(NamedTuple):
    """Query i attends keys i + first .. i + end - 1 below `keys`; None: without limit."""

    first: Any
    end: Any
    keys: Any


class Place(NamedTuple):
    """The block of keys of a program, and the tiles of queries that it visits for each head of its group."""

    batch: Any
    head: Any  # the key head
    stream: Any  # batch * key heads + head
    key: Any  # the block's first key
    row: Any  # the first row of the first tile
    leading: Any  # tiles at the beginning that need a mask
    whole: Any  # tiles after the leading ones that need no mask
    tiles: Any  # all tiles: the tiles after the whole ones need a mask, too
    first_tile: Any  # the tile to begin with, if no tile needs a mask


@gluon.jit
def place_of(band, n_q, kv_heads, ROWS: gl.constexpr, COLS: gl.constexpr):
    """The block of keys of this program. Under a causal mask, the blocks that visit the most tiles come first."""
    blocks, streams = gl.num_programs(0), gl.num_programs(1)
    program = gl.program_id(1) * blocks + gl.program_id(0)
    section = program // (blocks * SECTION)
    within = gl.minimum(SECTION, streams - section * SECTION)
    rest = program - section * (blocks * SECTION)
    block, stream = rest // within, section * SECTION + rest % within
    key = block * COLS
    last = key + COLS - 1
    low, high, inner_low, inner_high = key * 0, key * 0 + n_q, key * 0, key * 0 + n_q
    if band.end is not None:
        low = gl.maximum(0, key - band.end + 1)
        inner_low = gl.maximum(0, last - band.end + 1)
    if band.first is not None:
        high = gl.maximum(0, gl.minimum(n_q, gl.minimum(last, band.keys - 1) - band.first + 1))
        inner_high = gl.maximum(0, gl.minimum(n_q, key - band.first + 1))
    inner_high = gl.where(inner_high == n_q, gl.cdiv(n_q, ROWS), inner_high // ROWS)  # rows beyond n_q need no mask
    row = low // ROWS
    tiles = gl.maximum(gl.cdiv(high, ROWS) - row, 0)
    leading = gl.minimum(gl.cdiv(inner_low, ROWS) - row, tiles)
    leading = gl.where(last >= band.keys, tiles, leading)
    whole = gl.maximum(gl.minimum(inner_high - row, tiles) - leading, 0)
    first_tile = block * 0
    if band.first is None and band.end is None:
        first_tile = block % gl.maximum(tiles, 1)
    return Place(stream // kv_heads, stream % kv_heads, stream, key, row * ROWS, leading, whole, tiles, first_tile)


@gluon.jit
def row_of(place, t, ROWS: gl.constexpr):
    """The first row of tile t."""
    tile = t + place.first_tile
    return place.row + gl.where(tile >= place.tiles, tile - place.tiles, tile) * ROWS


@gluon.jit
def masked(p, band, i_key, i_row):
    """Probabilities (keys, rows), 0 for pairs that do not attend."""
    attends = (i_key < band.keys)[:, None] & (i_row >= 0)[None, :]
    if band.first is not None:
        attends &= i_key[:, None] >= (i_row + band.first)[None, :]
    if band.end is not None:
        attends &= i_key[:, None] < (i_row + band.end)[None, :]
    return gl.where(attends, p, 0.0)


@gluon.jit
def add_to_sums(sums, place_of_tile, dq, ROWS: gl.constexpr, D: gl.constexpr):
    """Add a tile (ROWS, D) to its sums, whose memory order makes the writes of each thread and warp contiguous."""
    parts = gl.reshape(dq, [ROWS // 16, 2, 8, D // 8, 4, 2])
    parts = gl.reshape(gl.permute(parts, [0, 3, 2, 4, 1, 5]), [ROWS * D])
    p_sums = sums + place_of_tile.to(gl.int64) * D
    gl.atomic_add(p_sums + gl.arange(0, ROWS * D, layout=parts.type.layout), parts, sem="relaxed")
