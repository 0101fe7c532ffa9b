"""The second phase of `hybrid` and `small_cache`, forward: O = P V, from the spilled P."""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
from __future__ import annotations

import triton
import triton.language as tl

from redblue.kernels.gpu.arrays import (
    and_masks,
    head_of,
    index,
    product,
    read,
    row_offsets,
    tile_mask,
    write,
)
from redblue.kernels.gpu.band import attending_rows, band_tiles, first_of_slice
from redblue.kernels.gpu.blocks import row_block
from redblue.kernels.gpu.scores import LOG2E, constant, exp2_below, lowest, number
from redblue.kernels.gpu.spilled.chunks import PLACE, line_at
from redblue.kernels.gpu.spilled.constants import ProductConstants
from redblue.kernels.gpu.spilled.slices import Panel, pointers
from redblue.kernels.gpu.visits import visit_band_or_list


@triton.jit(do_not_specialize=PLACE)
def spilled_output(
    v,
    out,
    p,
    tile_max,
    lse,
    scores,
    lists,
    stream,
    row,
    rows,
    n_q,
    n_k,
    kv_heads,
    d_v,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    FEATURES: tl.constexpr,
    COLS: tl.constexpr,
    DEPTH: tl.constexpr,
    WHOLE_ROWS: tl.constexpr,
    WHOLE_KEYS: tl.constexpr,
    WHOLE: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """A tile of O = P V, where P was spilled in tiles of COLS keys with a maximum of each row."""
    SUMS: tl.constexpr = lse.dtype.element_ty
    feature_tiles = tl.cdiv(d_v, FEATURES)
    program = tl.program_id(0) // feature_tiles  # programs that share rows of P run at once
    block = row_block((stream, row, rows), n_q, kv_heads, program, scores.end is not None, GROUP, ROWS)
    i_f = tl.program_id(0) % feature_tiles * FEATURES + tl.arange(0, FEATURES)
    m_row = None if WHOLE_ROWS else block.i_local < rows

    # A tile of P is multiplied by exp2(its row maximum - log-sum-exp) as it is read
    b_lse = read(lse + block.numbers, m_row)
    b_lse = tl.maximum(b_lse * constant(LOG2E, SUMS), lowest(SUMS))
    v = head_of(v, block.batch, block.head)
    band = band_tiles(scores, lists, block, n_k, None, GROUP, DEPTH)
    acc = visit_band_or_list(
        _output_tiles, band, (0, 1), COLS // DEPTH,
        tl.zeros((ROWS, FEATURES), SUMS), (b_lse, v, p, tile_max, i_f, n_k, d_v), block, m_row, scores, lists,
        ProductConstants(GROUP, COLS, DEPTH, True, WHOLE_KEYS, WHOLE, WIDE, PRECISION)
    )  # fmt: skip
    if scores.seed is not None:
        acc *= number(scores.keep_scale, SUMS)
    out = head_of(out, block.batch, block.head * GROUP)
    out = Panel(out, row_offsets(out, index(block.i, WIDE), GROUP))
    write(pointers(out, i_f, WIDE), acc, tile_mask(m_row, None if WHOLE else i_f < d_v))


@triton.jit
def _output_tiles(tiles, TILES: tl.constexpr, acc, operands, block, m_row, scores, lists, c):
    """acc + P V over slices of DEPTH keys (see visits.py).

    operands: the rows' log-sum-exp; v, P and its row maxima; the features of the tile; n_k, d_v.
    """
    b_lse, v, p, tile_max, i_f, n_k, d_v = operands
    m_f = None if c.WHOLE_FEATURES else i_f < d_v
    COLS: tl.constexpr = c.LENGTH
    DEPTH: tl.constexpr = c.DEPTH
    factor = tl.zeros(b_lse.shape, b_lse.dtype)
    p_rows = line_at(p, block.local, block.i_local)
    if tiles.begin < tiles.stop:  # as in flash's _keys
        for t in tl.range(tiles.begin, tiles.stop, DEPTH if TILES == "band" else 1):
            j = first_of_slice(lists, t, TILES, COLS, DEPTH)
            # The visit of a listed tile begins at its first slice
            next_tile = (t % COLS == 0) | (t == tiles.begin) if TILES == "band" else t % (COLS // DEPTH) == 0
            i_key = j + tl.arange(0, DEPTH)
            m_key = None if c.WHOLE or TILES == "full" else i_key < n_k
            m_max = and_masks(m_row, next_tile & (block.i_local >= 0))
            m_p = m_row
            if TILES == "band":
                i_query, first = block.i // c.GROUP, j // COLS * COLS
                m_max = and_masks(m_max, attending_rows(scores, i_query, first, tl.minimum(first + COLS, n_k)))
                m_p = and_masks(m_row, attending_rows(scores, i_query, j, tl.minimum(j + DEPTH, n_k)))
            p_max = line_at(tile_max, block.local, j // COLS) + block.i_local
            b_max = tl.load(p_max, mask=m_max, other=float("-inf"))
            factor = tl.where(next_tile, exp2_below(b_max, b_lse, False), factor)
            b_p = read(p_rows[:, None] + i_key[None, :], tile_mask(m_p, m_key))
            b_v = read(pointers(Panel(v, index(i_key, c.WIDE) * v.row), i_f, c.WIDE), tile_mask(m_key, m_f))
            acc = product((b_p * factor[:, None]).to(b_v.dtype), b_v, acc, c.PRECISION)
    return acc
