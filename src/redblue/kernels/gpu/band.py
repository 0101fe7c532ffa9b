"""Triton helpers for masks: the keys that a block of rows attends, and the rows that attend a block of keys.

A mask is a band (query i attends keys i + first .. i + end - 1) or lists of tiles (mask_lists.py).
"""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from redblue.kernels.gpu.arrays import and_masks, tile_mask, wide


class Tiles(NamedTuple):
    """The tiles that a loop visits: keys (or rows) begin .. stop - 1, or entries begin .. stop - 1 of lists."""

    begin: Any
    stop: Any


class Span(NamedTuple):
    """Like Tiles, where only keys (or rows) low .. high - 1 belong to the band."""

    begin: Any
    stop: Any
    low: Any
    high: Any


# Bands ------------------------------------------------------------------------------------------------------------


@triton.jit
def in_band(scores, i_query, i_key):
    """Whether the band lets the query attend the key."""
    m = (i_query >= 0) & (i_key >= 0)
    if scores.first is not None:
        m &= i_key >= i_query + scores.first
    if scores.end is not None:
        m &= i_key < i_query + scores.end
    return m


@triton.jit
def key_range(scores, first_row, last_row, n_k, GROUP: tl.constexpr, COLS: tl.constexpr):
    """The keys of the band of some rows, as four borders: low, high, full_low, full_high.

    Some of the rows attend keys low .. high - 1. Every row attends all keys of the whole tiles from full_low to
    full_high.
    """
    low, high, inner_low, inner_high = first_row * 0, n_k, first_row * 0, n_k
    if scores.first is not None:
        low = tl.maximum(0, first_row // GROUP + scores.first)
        inner_low = tl.maximum(0, last_row // GROUP + scores.first)
    if scores.end is not None:
        high = tl.minimum(n_k, last_row // GROUP + scores.end)
        inner_high = tl.minimum(n_k, first_row // GROUP + scores.end)
    return low, high, tl.cdiv(inner_low, COLS) * COLS, tl.maximum(inner_high, 0) // COLS * COLS


@triton.jit
def row_range(scores, first_key, last_key, n_q, GROUP: tl.constexpr, ROWS: tl.constexpr):
    """The rows that attend some of the keys, as four borders: key_range with rows and keys exchanged."""
    low, high, inner_low, inner_high = first_key * 0, n_q, first_key * 0, n_q
    if scores.end is not None:
        low = tl.maximum(0, first_key - scores.end + 1)
        inner_low = tl.maximum(0, last_key - scores.end + 1)
    if scores.first is not None:
        high = tl.minimum(n_q, last_key - scores.first + 1)
        inner_high = tl.minimum(n_q, first_key - scores.first + 1)
    full_high = tl.maximum(inner_high, 0) * GROUP // ROWS * ROWS
    return low * GROUP, high * GROUP, tl.cdiv(inner_low * GROUP, ROWS) * ROWS, full_high


@triton.jit
def keys_of(scores, first, stop, n_k, GROUP: tl.constexpr):
    """The range of keys that some of rows first .. stop - 1 attend; 0 .. 0 if there are none."""
    low, high = first * 0, n_k
    if scores.first is not None:
        low = tl.maximum(0, first // GROUP + scores.first)
    if scores.end is not None:
        high = tl.minimum(n_k, (stop - 1) // GROUP + scores.end)
    return tl.where(low < high, low, 0), tl.where(low < high, high, 0)


@triton.jit
def band_tiles(scores, lists, block, n_k, span, GROUP: tl.constexpr, KEYS: tl.constexpr):
    """The tiles of KEYS keys, in the program's span, that some rows of the block attend; none if there are lists.

    span: keys of a span, which tl.program_id(1) counts; None: one span holds all keys.
    """
    begin, stop = block.first * 0, block.first * 0
    if lists is None:
        begin, stop = keys_of(scores, block.first, block.stop, n_k, GROUP)
        if span is not None:
            begin = tl.maximum(begin, tl.program_id(1) * span)
            stop = tl.minimum(stop, tl.program_id(1) * span + span)
        begin = begin // KEYS * KEYS
    return Tiles(begin, stop)


@triton.jit
def rows_of(scores, first, stop, n_rows, GROUP: tl.constexpr):
    """The range of rows that attend some of keys first .. stop - 1; 0 .. 0 if there are none."""
    low, high = first * 0, n_rows
    if scores.end is not None:
        low = tl.maximum(0, first - scores.end + 1) * GROUP
    if scores.first is not None:
        high = tl.minimum(n_rows, (stop - scores.first) * GROUP)
    return tl.where(low < high, low, 0), tl.where(low < high, high, 0)


@triton.jit
def attending_rows(scores, i_query, first, stop):
    """Mask of the queries that attend some of keys first .. stop - 1; None: all."""
    if scores.first is not None and scores.end is not None:
        return (i_query + scores.first < stop) & (i_query + scores.end > first)
    elif scores.first is not None:
        return i_query + scores.first < stop
    elif scores.end is not None:
        return i_query + scores.end > first


@triton.jit
def attended_keys(scores, i_key, first, stop, GROUP: tl.constexpr):
    """Mask of the keys that some of rows first .. stop - 1 attend; None: all."""
    if scores.first is not None and scores.end is not None:
        return (i_key >= first // GROUP + scores.first) & (i_key < (stop - 1) // GROUP + scores.end)
    elif scores.first is not None:
        return i_key >= first // GROUP + scores.first
    elif scores.end is not None:
        return i_key < (stop - 1) // GROUP + scores.end


@triton.jit
def attended_blocks(scores, i_key, first, stop, n_k, KEYS: tl.constexpr, GROUP: tl.constexpr):
    """Mask of the keys in blocks of KEYS keys that contain some attended key: attended_keys rounded outwards."""
    first_key = i_key // KEYS * KEYS
    last_key = tl.minimum(first_key + KEYS, n_k) - 1
    if scores.first is not None and scores.end is not None:
        return (last_key >= first // GROUP + scores.first) & (first_key < (stop - 1) // GROUP + scores.end)
    elif scores.first is not None:
        return last_key >= first // GROUP + scores.first
    elif scores.end is not None:
        return first_key < (stop - 1) // GROUP + scores.end


# Lists of tiles -----------------------------------------------------------------------------------------------------


@triton.jit
def plane_at(lists, batch, head):
    """Pointer to the number of the mask plane of a stream."""
    return lists.planes + wide(batch) * lists.plane_batch + wide(head) * lists.plane_head


@triton.jit
def list_of(lists, batch, head, block, blocks):
    """The index of the block's list among the lists of all planes."""
    return tl.load(plane_at(lists, batch, head)) * blocks + block


@triton.jit
def entries(p_starts, share, shares):
    """The range of entries of share `share`, if the list at p_starts is divided into `shares` equal shares."""
    begin, stop = tl.load(p_starts), tl.load(p_starts + 1)
    count = stop - begin
    return begin + count * share // shares, begin + count * (share + 1) // shares


@triton.jit
def first_at_least(tiles, begin, stop, least):
    """The first of entries begin .. stop - 1 whose tile is at least `least`, by bisection, since tiles ascend."""
    while begin < stop:
        middle = (begin + stop) // 2
        later = tl.load(tiles + middle) < least
        begin = tl.where(later, middle + 1, begin)
        stop = tl.where(later, stop, middle)
    return begin


@triton.jit
def bit_set(p_words, i, SIZE: tl.constexpr):
    """Whether bits i (0 .. SIZE - 1) of words are set. p_words and i: a scalar and (SIZE,), or (n, 1) and (1, SIZE)."""
    words = tl.load(p_words)
    for w in tl.static_range(1, SIZE // 64):
        words = tl.where(i < 64 * w, words, tl.load(p_words + w))
    return ((words >> (i % 64).to(tl.int64)) & 1) != 0


@triton.jit
def pair_mask(scores, lists, t, TILES: tl.constexpr, i_row, i_key, m_key, COLS: tl.constexpr, GROUP: tl.constexpr):
    """Mask of a tile's pairs that attend; None: all. t: the entry of a "partial" tile. COLS: keys of a listed tile."""
    ROWS: tl.constexpr = i_row.shape[0]
    if TILES == "partial":
        line = t * ROWS + i_row % ROWS
        return bit_set((lists.bits + line * ((COLS + 63) // 64))[:, None], (i_key % COLS)[None, :], COLS)
    elif TILES == "band" and (scores.first is not None or scores.end is not None):
        return and_masks(in_band(scores, (i_row // GROUP)[:, None], i_key[None, :]), tile_mask(None, m_key))
    elif TILES == "band":
        return tile_mask(None, m_key)


@triton.jit
def first_of(lists, t, TILES: tl.constexpr, LENGTH: tl.constexpr):
    """The first key (or row) of a tile. t: this key itself; for lists, the entry that names a tile of LENGTH keys."""
    if TILES == "full":
        return tl.load(lists.full + t) * LENGTH
    elif TILES == "partial":
        return tl.load(lists.partial + t) * LENGTH
    else:
        return t


@triton.jit
def first_of_slice(lists, t, TILES: tl.constexpr, LENGTH: tl.constexpr, DEPTH: tl.constexpr):
    """first_of for loops that visit a listed tile in LENGTH // DEPTH slices of DEPTH. t counts slices."""
    PER: tl.constexpr = LENGTH // DEPTH
    if TILES == "full":
        return tl.load(lists.full + t // PER) * LENGTH + t % PER * DEPTH
    elif TILES == "partial":
        return tl.load(lists.partial + t // PER) * LENGTH + t % PER * DEPTH
    else:
        return t
