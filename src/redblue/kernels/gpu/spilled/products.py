"""dQ = dS K, dK = dS^T Q and dV = P^T dO of a chunk of rows, from spilled P and dS.

dQ of a chunk is complete; dK and dV are summed over chunks in the sums' type.
"""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
from __future__ import annotations

import triton
import triton.language as tl

from redblue.kernels.gpu.arrays import and_masks, head_of, index, product, read, row_offsets, tile_mask, write
from redblue.kernels.gpu.band import attended_keys, attending_rows, band_tiles, first_of_slice
from redblue.kernels.gpu.blocks import key_block, row_block
from redblue.kernels.gpu.scores import number
from redblue.kernels.gpu.spilled.chunks import PLACE, line_at
from redblue.kernels.gpu.spilled.constants import ProductConstants
from redblue.kernels.gpu.spilled.shares import add_share, share_of, visit_share
from redblue.kernels.gpu.spilled.slices import Panel, pointers
from redblue.kernels.gpu.visits import visit_band_or_list


@triton.jit(do_not_specialize=PLACE)
def row_gradient(
    k,
    dq,
    ds,
    scores,
    lists,
    stream,
    row,
    rows,
    n_q,
    n_k,
    kv_heads,
    d,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    FEATURES: tl.constexpr,
    COLS: tl.constexpr,
    DEPTH: tl.constexpr,
    WHOLE_ROWS: tl.constexpr,
    WHOLE_KEYS: tl.constexpr,
    WHOLE: tl.constexpr,
    WIDE: tl.constexpr,
    SUMS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """A tile of dQ = dS K."""
    feature_tiles = tl.cdiv(d, FEATURES)
    program = tl.program_id(0) // feature_tiles  # programs that share rows of dS run at once
    block = row_block((stream, row, rows), n_q, kv_heads, program, scores.end is not None, GROUP, ROWS)
    i_f = tl.program_id(0) % feature_tiles * FEATURES + tl.arange(0, FEATURES)
    m_row = None if WHOLE_ROWS else block.i_local < rows
    k = head_of(k, block.batch, block.head)
    band = band_tiles(scores, lists, block, n_k, None, GROUP, DEPTH)
    acc = visit_band_or_list(
        _row_tiles, band, (0, 1), COLS // DEPTH,
        tl.zeros((ROWS, FEATURES), SUMS), (k, ds, i_f, n_k, d), block, m_row, scores, lists,
        ProductConstants(GROUP, COLS, DEPTH, False, WHOLE_KEYS, WHOLE, WIDE, PRECISION)
    )  # fmt: skip
    acc *= number(scores.scale, SUMS)
    dq = head_of(dq, block.batch, block.head * GROUP)
    dq = Panel(dq, row_offsets(dq, index(block.i, WIDE), GROUP))
    write(pointers(dq, i_f, WIDE), acc, tile_mask(m_row, None if WHOLE else i_f < d))


@triton.jit
def _row_tiles(tiles, TILES: tl.constexpr, acc, operands, block, m_row, scores, lists, c):
    """acc + dS K over slices of DEPTH keys (see visits.py). operands: k, dS, the features of the tile, n_k, d."""
    k, ds, i_f, n_k, d = operands
    m_f = None if c.WHOLE_FEATURES else i_f < d
    DEPTH: tl.constexpr = c.DEPTH
    for t in tl.range(tiles.begin, tiles.stop, DEPTH if TILES == "band" else 1):
        j = first_of_slice(lists, t, TILES, c.LENGTH, DEPTH)
        m_ds = m_row
        if TILES == "band":
            m_ds = and_masks(m_row, attending_rows(scores, block.i // c.GROUP, j, tl.minimum(j + DEPTH, n_k)))
        i_key = j + tl.arange(0, DEPTH)
        m_key = None if c.WHOLE or TILES == "full" else i_key < n_k
        b_ds = read(line_at(ds, block.local, block.i_local)[:, None] + i_key[None, :], tile_mask(m_ds, m_key))
        b_k = read(pointers(Panel(k, index(i_key, c.WIDE) * k.row), i_f, c.WIDE), tile_mask(m_key, m_f))
        acc = product(b_ds, b_k, acc, c.PRECISION)
    return acc


@triton.jit(do_not_specialize=PLACE)
def key_gradient(
    spilled,
    other,
    gradient,
    running,
    scores,
    lists,
    stream,
    row,
    rows,
    n_q,
    n_k,
    kv_heads,
    features,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    FEATURES: tl.constexpr,
    DEPTH: tl.constexpr,
    OF_P: tl.constexpr,
    WHOLE_ROWS: tl.constexpr,
    WHOLE_KEYS: tl.constexpr,
    WHOLE: tl.constexpr,
    WIDE: tl.constexpr,
    SUMS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """A tile of spilled^T other over a chunk's rows: dK from dS and q, or, with OF_P, dV from P and dout.

    running: the sums over chunks so far; None if one chunk holds all rows.
    """
    feature_tiles = tl.cdiv(features, FEATURES)
    # Programs that share columns of `spilled` run at once
    block = key_block(stream, n_k, kv_heads, tl.program_id(0) // feature_tiles, KEYS)
    i_f = tl.program_id(0) % feature_tiles * FEATURES + tl.arange(0, FEATURES)
    m_key = None if WHOLE_KEYS else block.i < n_k
    other = head_of(other, block.batch, block.head * GROUP)
    share = share_of(scores, lists, block, row, rows, n_q * GROUP, GROUP, ROWS, DEPTH)
    if share.any:
        acc = visit_share(
            _key_tiles, share, tl.zeros((KEYS, FEATURES), SUMS),
            (other, spilled, i_f, features, row, rows, n_q * GROUP), block, m_key, scores, lists,
            ProductConstants(GROUP, ROWS, DEPTH, OF_P, WHOLE_ROWS, WHOLE, WIDE, PRECISION)
        )  # fmt: skip
        m_tile = tile_mask(m_key, None if WHOLE else i_f < features)
        add_share(acc, gradient, running, scores, block, i_f, m_tile, share, OF_P, WIDE)


@triton.jit
def _key_tiles(tiles, TILES: tl.constexpr, acc, operands, block, m_key, scores, lists, c):
    """acc + spilled^T other over slices of DEPTH rows (see visits.py).

    operands: the two factors; the features of the tile; the number of all features; the chunk's first row and its rows;
    n_q * GROUP.
    """
    other, spilled, i_f, features, row, rows, n_rows = operands
    m_f = None if c.WHOLE_FEATURES else i_f < features
    DEPTH: tl.constexpr = c.DEPTH
    for t in tl.range(tiles.begin, tiles.stop, DEPTH if TILES == "band" else 1):
        i = first_of_slice(lists, t, TILES, c.LENGTH, DEPTH)
        m_spilled = m_key
        if TILES == "band":
            m_spilled = and_masks(m_key, attended_keys(scores, block.i, i, tl.minimum(i + DEPTH, n_rows), c.GROUP))
        i_row = i + tl.arange(0, DEPTH)
        m_row = None if c.WHOLE or TILES == "full" else i_row < row + rows
        b_spilled = read(
            line_at(spilled, block.local, i_row - row)[:, None] + block.i[None, :], tile_mask(m_row, m_spilled)
        )
        if c.OF_P and scores.seed is not None:  # P is negative where it is dropped
            b_spilled = tl.maximum(b_spilled.to(acc.dtype), 0.0).to(b_spilled.dtype)
        offsets = row_offsets(other, index(i_row, c.WIDE), c.GROUP)
        b_other = read(pointers(Panel(other, offsets), i_f, c.WIDE), tile_mask(m_row, m_f))
        acc = product(tl.trans(b_spilled), b_other, acc, c.PRECISION)
    return acc
