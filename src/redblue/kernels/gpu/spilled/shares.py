"""The part of dK and dV of a block of keys that comes from one chunk of rows, and the sum of such parts over chunks."""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from redblue.kernels.gpu.arrays import head_of, index, read, write
from redblue.kernels.gpu.band import Tiles, first_at_least, list_of, rows_of
from redblue.kernels.gpu.scores import number
from redblue.kernels.gpu.spilled.slices import Panel, pointers


class Share(NamedTuple):
    """The rows of a chunk that attend a block of keys: a range of rows, or one range of entries of each list."""

    begin: Any  # begin of the rows, or of the entries in the list of full tiles
    stop: Any
    partial: Any  # range of entries in the list of partial tiles
    partial_stop: Any
    begun: Any  # whether an earlier chunk has begun the block's sums
    ended: Any  # whether no later chunk will add to them
    any: Any  # whether there is work: rows attend the block, or the first chunk writes zeros because no row does


@triton.jit
def share_of(
    scores, lists, block, row, rows, n_rows, GROUP: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr
):  # fmt: skip
    """The share of a chunk's rows row .. row + rows - 1, of n_rows, in a block of keys.

    ROWS, DEPTH: rows of a listed tile and of a slice.
    """
    if lists is None:
        low, high = rows_of(scores, block.first, block.stop, n_rows, GROUP)
        begin, stop = tl.maximum(low, row) // DEPTH * DEPTH, tl.minimum(high, row + rows)
        begun, ended = (low < row) & (low < high), (high <= row + rows) | (low >= high)
        has_work = (tl.maximum(low, row) < stop) | ((low >= high) & (row == 0))
        return Share(begin, stop, begin, stop, begun, ended, has_work)
    else:
        i_list = list_of(lists, block.batch, block.head, block.index, block.blocks)
        full, full_end = tl.load(lists.full_starts + i_list), tl.load(lists.full_starts + i_list + 1)
        partial, partial_end = tl.load(lists.partial_starts + i_list), tl.load(lists.partial_starts + i_list + 1)
        first, last = row // ROWS, tl.cdiv(row + rows, ROWS)
        begin = first_at_least(lists.full, full, full_end, first)
        stop = first_at_least(lists.full, full, full_end, last)
        partial_begin = first_at_least(lists.partial, partial, partial_end, first)
        partial_stop = first_at_least(lists.partial, partial, partial_end, last)
        begun = (begin > full) | (partial_begin > partial)
        ended = (stop == full_end) & (partial_stop == partial_end)
        nothing = (full == full_end) & (partial == partial_end)
        has_work = (begin < stop) | (partial_begin < partial_stop) | (nothing & (row == 0))
        return Share(begin, stop, partial_begin, partial_stop, begun, ended, has_work)


@triton.jit
def visit_share(ADD: tl.constexpr, share, state, operands, block, m_block, scores, lists, c):
    """The state after the tiles of a chunk's share in a block of keys; like visit_band_or_list of visits.py."""
    if lists is None:
        state = ADD(Tiles(share.begin, share.stop), "band", state, operands, block, m_block, scores, lists, c)
    else:
        SLICES: tl.constexpr = c.LENGTH // c.DEPTH
        tiles = Tiles(share.begin * SLICES, share.stop * SLICES)
        state = ADD(tiles, "full", state, operands, block, m_block, scores, lists, c)
        tiles = Tiles(share.partial * SLICES, share.partial_stop * SLICES)
        state = ADD(tiles, "partial", state, operands, block, m_block, scores, lists, c)
    return state


@triton.jit
def add_share(
    acc, gradient, running, scores, block, i_f, m_tile, share, OF_P: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    """Add a chunk's share to the running sums of earlier chunks; write the gradient if no later chunk adds to it."""
    if running is not None:
        running = head_of(running, block.batch, block.head)
        p_running = pointers(Panel(running, index(block.i, WIDE) * running.row), i_f, WIDE)
        if share.begun:
            acc += read(p_running, m_tile)
        if not share.ended:
            write(p_running, acc, m_tile)
    if share.ended:
        if OF_P:
            if scores.seed is not None:
                acc *= number(scores.keep_scale, acc.dtype)
        else:
            acc *= number(scores.scale, acc.dtype)
        result = head_of(gradient, block.batch, block.head)
        write(pointers(Panel(result, index(block.i, WIDE) * result.row), i_f, WIDE), acc, m_tile)
