"""Triton helpers that visit all tiles of scores of a block, and call a function for each run of tiles.

The function has the parameters (tiles, TILES, state, operands, block, m_block, scores, lists, c) and returns the new
state. TILES is the kind of the tiles:

- "whole" and "masked" tiles are runs of keys (or rows) tiles.begin .. tiles.stop - 1. In "masked" tiles, only the keys
  (or rows) tiles.low .. tiles.high - 1 that are in the band attend.
- "band" tiles are a run that mixes whole and masked tiles.
- "full" and "partial" tiles are entries tiles.begin .. tiles.stop - 1 of lists. If a loop cuts each listed tile into
  slices, tiles.begin and tiles.stop count slices.

state: the accumulators. operands: a tuple of further arguments of the function. block, m_block: the block that
stays, and the mask of its rows or keys (None: all exist). c: a tuple of numbers known at compile time.
"""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
from __future__ import annotations

import triton
import triton.language as tl

from redblue.kernels.gpu.band import Span, Tiles, entries, list_of


@triton.jit
def visit(
    ADD: tl.constexpr, borders, i_list, LEADING: tl.constexpr, TRAILING: tl.constexpr,
    state, operands, block, m_block, scores, lists, c
):  # fmt: skip
    """The state after all tiles of c.LENGTH keys (or rows): "whole" and "masked" tiles of a band, or list `i_list`.

    borders: low, high, full_low, full_high, from key_range or row_range. LEADING, TRAILING: whether the band may have
    masked tiles before, and after, the whole tiles.
    """
    if lists is None:
        low, high, full_low, full_high = borders
        if LEADING:
            tiles = Span(low // c.LENGTH * c.LENGTH, tl.minimum(full_low, high), low, high)
            state = ADD(tiles, "masked", state, operands, block, m_block, scores, lists, c)
        state = ADD(Span(full_low, full_high, low, high), "whole", state, operands, block, m_block, scores, lists, c)
        if TRAILING:
            tiles = Span(tl.maximum(full_low, full_high), high, low, high)
            state = ADD(tiles, "masked", state, operands, block, m_block, scores, lists, c)
    else:
        state = visit_list(ADD, i_list, (0, 1), 1, state, operands, block, m_block, scores, lists, c)
    return state


@triton.jit
def visit_band_or_list(
    ADD: tl.constexpr, band, share, SLICES: tl.constexpr, state, operands, block, m_block, scores, lists, c
):
    """The state after the "band" tiles `band`, or, if there are lists, after a share of the block's list.

    share: (index of the share, number of shares). SLICES: slices of a listed tile.
    """
    if lists is None:
        state = ADD(band, "band", state, operands, block, m_block, scores, lists, c)
    else:
        i_list = list_of(lists, block.batch, block.head, block.index, block.blocks)
        state = visit_list(ADD, i_list, share, SLICES, state, operands, block, m_block, scores, lists, c)
    return state


@triton.jit
def visit_list(
    ADD: tl.constexpr, i_list, share, SLICES: tl.constexpr, state, operands, block, m_block, scores, lists, c
):
    """The state after a share (index, number of shares) of list `i_list`; each tile is cut into SLICES slices."""
    i_share, shares = share
    begin, stop = entries(lists.full_starts + i_list, i_share, shares)
    tiles = Tiles(begin * SLICES, stop * SLICES)
    state = ADD(tiles, "full", state, operands, block, m_block, scores, lists, c)
    begin, stop = entries(lists.partial_starts + i_list, i_share, shares)
    tiles = Tiles(begin * SLICES, stop * SLICES)
    return ADD(tiles, "partial", state, operands, block, m_block, scores, lists, c)
