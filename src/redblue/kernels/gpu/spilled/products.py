"""dQ = dS K, dK = dS^T Q and dV = P^T dO of a chunk of rows, from spilled P and dS.

dQ of a chunk is complete; dK and dV are summed over chunks in the sums' type.
"""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
from __future__ import annotations

import triton
import triton.language as tl

from redblue.kernels.gpu.arrays import and_masks, head_of, index, product, read, row_offsets, tile_mask, write
from redblue.kernels.gpu.band import Tiles, attended_keys, attending_rows, entries, first_of_slice, keys_of, list_of
from redblue.kernels.gpu.scores import number
from redblue.kernels.gpu.spilled.chunks import PLACE, block_of_rows, line_at
from redblue.kernels.gpu.spilled.constants import ProductConstants
from redblue.kernels.gpu.spilled.shares import add_share, share_of
from redblue.kernels.gpu.spilled.slices import Panel, pointers


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
    blocks, feature_tiles = tl.cdiv(rows, ROWS), tl.cdiv(d, FEATURES)
    # Programs that share rows of dS run at once
    i_block, local = tl.program_id(0) // feature_tiles % blocks, tl.program_id(0) // feature_tiles // blocks
    block = block_of_rows(scores, stream, row, rows, kv_heads, i_block, local, ROWS)
    i_f = tl.program_id(0) % feature_tiles * FEATURES + tl.arange(0, FEATURES)
    m_row = None if WHOLE_ROWS else block.i_local < rows
    m_f = None if WHOLE else i_f < d
    acc = tl.zeros((ROWS, FEATURES), SUMS)
    k = head_of(k, block.batch, block.head)
    if lists is None:
        low, high = keys_of(scores, block.first, block.stop, n_k, GROUP)
        acc = _row_tiles(
            Tiles(low // DEPTH * DEPTH, high), "band", acc, k, ds, block, m_row, i_f, m_f, scores, lists, n_k,
            ProductConstants(GROUP, COLS, DEPTH, WHOLE_KEYS, WIDE, PRECISION)
        )  # fmt: skip
    else:
        PER: tl.constexpr = COLS // DEPTH
        at = list_of(lists, block.batch, block.head, block.first // ROWS, tl.cdiv(n_q * GROUP, ROWS))
        begin, stop = entries(lists.full_starts + at, 0, 1)
        acc = _row_tiles(
            Tiles(begin * PER, stop * PER), "full", acc, k, ds, block, m_row, i_f, m_f, scores, lists, n_k,
            ProductConstants(GROUP, COLS, DEPTH, WHOLE_KEYS, WIDE, PRECISION)
        )  # fmt: skip
        begin, stop = entries(lists.partial_starts + at, 0, 1)
        acc = _row_tiles(
            Tiles(begin * PER, stop * PER), "partial", acc, k, ds, block, m_row, i_f, m_f, scores, lists, n_k,
            ProductConstants(GROUP, COLS, DEPTH, WHOLE_KEYS, WIDE, PRECISION)
        )  # fmt: skip
    acc *= number(scores.scale, acc.dtype)
    dq = head_of(dq, block.batch, block.head * GROUP)
    dq = Panel(dq, row_offsets(dq, index(block.i, WIDE), GROUP))
    write(pointers(dq, i_f, WIDE), acc, tile_mask(m_row, m_f))


@triton.jit
def _row_tiles(tiles, TILES: tl.constexpr, acc, k, ds, block, m_row, i_f, m_f, scores, lists, n_k, c):
    """acc + dS K over slices of DEPTH keys. tiles, TILES: as in output's _output_tiles."""
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
    blocks, feature_tiles = tl.cdiv(n_k, KEYS), tl.cdiv(features, FEATURES)
    block = tl.program_id(0) // feature_tiles % blocks  # programs that share columns of `spilled` run at once
    local = tl.program_id(0) // feature_tiles // blocks
    batch, head = (stream + local) // kv_heads, (stream + local) % kv_heads
    i_key = block * KEYS + tl.arange(0, KEYS)
    i_f = tl.program_id(0) % feature_tiles * FEATURES + tl.arange(0, FEATURES)
    m_key = None if WHOLE_KEYS else i_key < n_k
    m_f = None if WHOLE else i_f < features
    acc = tl.zeros((KEYS, FEATURES), SUMS)
    other = head_of(other, batch, head * GROUP)
    share = share_of(scores, lists, (batch, head), (block, blocks), (row, rows), n_q, n_k, GROUP, ROWS, KEYS, DEPTH)
    if share.any:
        if lists is None:
            acc = _key_tiles(
                Tiles(share.begin, share.stop), "band", acc, other, spilled, (local, row, rows), i_key, m_key, i_f, m_f,
                scores, lists, n_q * GROUP, OF_P, ProductConstants(GROUP, ROWS, DEPTH, WHOLE_ROWS, WIDE, PRECISION)
            )  # fmt: skip
        else:
            PER: tl.constexpr = ROWS // DEPTH
            acc = _key_tiles(
                Tiles(share.begin * PER, share.stop * PER), "full", acc, other, spilled, (local, row, rows),
                i_key, m_key, i_f, m_f, scores, lists, n_q * GROUP, OF_P,
                ProductConstants(GROUP, ROWS, DEPTH, WHOLE_ROWS, WIDE, PRECISION)
            )  # fmt: skip
            acc = _key_tiles(
                Tiles(share.partial * PER, share.partial_stop * PER), "partial", acc, other, spilled,
                (local, row, rows), i_key, m_key, i_f, m_f, scores, lists, n_q * GROUP, OF_P,
                ProductConstants(GROUP, ROWS, DEPTH, WHOLE_ROWS, WIDE, PRECISION)
            )  # fmt: skip
        add_share(acc, gradient, running, scores, (batch, head), i_key, i_f, tile_mask(m_key, m_f), share, OF_P, WIDE)


@triton.jit
def _key_tiles(
    tiles, TILES: tl.constexpr, acc, other, spilled, chunk, i_key, m_key, i_f, m_f, scores, lists, n_rows,
    OF_P: tl.constexpr, c
):  # fmt: skip
    """acc + spilled^T other over slices of DEPTH rows. tiles, TILES: as in output's _output_tiles, with rows for keys.

    chunk: the stream, counted from the chunk's first stream, the chunk's first row and its number of rows.
    """
    local, row, rows = chunk
    DEPTH: tl.constexpr = c.DEPTH
    for t in tl.range(tiles.begin, tiles.stop, DEPTH if TILES == "band" else 1):
        i = first_of_slice(lists, t, TILES, c.LENGTH, DEPTH)
        m_spilled = m_key
        if TILES == "band":
            m_spilled = and_masks(m_key, attended_keys(scores, i_key, i, tl.minimum(i + DEPTH, n_rows), c.GROUP))
        i_row = i + tl.arange(0, DEPTH)
        m_row = None if c.WHOLE or TILES == "full" else i_row < row + rows
        b_spilled = read(line_at(spilled, local, i_row - row)[:, None] + i_key[None, :], tile_mask(m_row, m_spilled))
        if OF_P and scores.seed is not None:  # P is negative where it is dropped
            b_spilled = tl.maximum(b_spilled.to(acc.dtype), 0.0).to(b_spilled.dtype)
        offsets = row_offsets(other, index(i_row, c.WIDE), c.GROUP)
        b_other = read(pointers(Panel(other, offsets), i_f, c.WIDE), tile_mask(m_row, m_f))
        acc = product(tl.trans(b_spilled), b_other, acc, c.PRECISION)
    return acc
