"""P, and for `small_cache` dS, of a chunk of rows, backward: kernels that spill one number for each pair."""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
from __future__ import annotations

import triton
import triton.language as tl

from redblue.kernels.gpu.arrays import head_of, index, read, row_offsets, tile_mask, write
from redblue.kernels.gpu.band import band_tiles, first_of, first_of_slice, pair_mask
from redblue.kernels.gpu.blocks import row_block
from redblue.kernels.gpu.scores import exp2_below, factor_left, finish, keep_factors, load_lse, row_terms
from redblue.kernels.gpu.spilled.chunks import PLACE, line_at
from redblue.kernels.gpu.spilled.constants import PairConstants
from redblue.kernels.gpu.spilled.dv_and_ds import score_gradient
from redblue.kernels.gpu.spilled.slices import Panel, SliceConstants, load_slices, score_tile
from redblue.kernels.gpu.visits import visit_band_or_list


@triton.jit(do_not_specialize=PLACE)
def spill_p(
    q,
    k,
    p,
    cap_derivative,
    lse,
    scores,
    lists,
    stream,
    row,
    rows,
    n_q,
    n_k,
    kv_heads,
    d,
    span,
    GROUP: tl.constexpr,
    SLICES: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    KEYS: tl.constexpr,
    DEPTH: tl.constexpr,
    PLAIN: tl.constexpr,
    WHOLE_ROWS: tl.constexpr,
    WHOLE_KEYS: tl.constexpr,
    WHOLE: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """P of a block of rows and a span of keys, in tiles of KEYS keys. Listed tiles of COLS keys are written completely.

    cap_derivative: receives the derivative of softcap tanh(x / softcap); None if there is no softcap.
    """
    block = row_block((stream, row, rows), n_q, kv_heads, tl.program_id(0), scores.end is not None, GROUP, ROWS)
    m_row = None if WHOLE_ROWS else block.i_local < rows
    q, k = head_of(q, block.batch, block.head * GROUP), head_of(k, block.batch, block.head)
    q = Panel(q, row_offsets(q, index(block.i, WIDE), GROUP))
    band = band_tiles(scores, lists, block, n_k, span, GROUP, KEYS)
    m_held = m_row
    if lists is None:
        m_held = tl.where((band.begin < band.stop) | (tl.num_programs(1) == 1), block.i_local, rows) < rows
    b_q, b_lse = load_slices(q, m_held, d, SLICES, DEPTH, WIDE), load_lse(lse + block.numbers, m_held)
    visit_band_or_list(
        _p_tiles, band, (tl.program_id(1), tl.num_programs(1)), COLS // KEYS,
        (), (b_lse, b_q, q, k, p, p if cap_derivative is None else cap_derivative, n_k, d), block, m_row, scores, lists,
        PairConstants(GROUP, COLS, KEYS, PLAIN, WHOLE_KEYS, SliceConstants(SLICES, DEPTH, WHOLE, WIDE, PRECISION))
    )  # fmt: skip


@triton.jit
def _p_tiles(tiles, TILES: tl.constexpr, state, operands, block, m_row, scores, lists, c):
    """Write tiles of P, and of the softcap's derivative if there is a softcap (see visits.py).

    state: none. operands: the rows' log-sum-exp; the rows of q, from load_slices, and their Panel; k; P; the
    softcap's derivative (unused without a softcap); n_k, d.
    """
    b_lse, b_q, q, k, p, cap_derivative, n_k, d = operands
    COLS: tl.constexpr = c.COLS
    KEYS: tl.constexpr = c.KEYS
    WIDE: tl.constexpr = c.slices.WIDE
    ROWS: tl.constexpr = block.i.shape[0]
    SUMS: tl.constexpr = b_lse.dtype
    left = factor_left(scores, c.PLAIN, SUMS)
    b_terms = row_terms(scores, block.batch, block.head, block.i, 1, c.GROUP, SUMS)
    p_rows = line_at(p, block.local, block.i_local)
    for t in tl.range(tiles.begin, tiles.stop, KEYS if TILES == "band" else 1, flatten=c.slices.SLICES == 0):
        j = first_of_slice(lists, t, TILES, COLS, KEYS)
        i_key = j + tl.arange(0, KEYS)
        m_key = None if c.WHOLE_KEYS or TILES == "full" else i_key < n_k
        s = score_tile(
            b_q, q, m_row, Panel(k, index(i_key, WIDE) * k.row), m_key, d, tl.zeros((ROWS, KEYS), SUMS), c.slices
        )
        s, derivative = finish(
            s, scores, block.batch, block.head, index(block.i, WIDE)[:, None], index(i_key, WIDE)[None, :],
            None if m_row is None else m_row[:, None], None if m_key is None else m_key[None, :],
            b_terms, c.GROUP, c.PLAIN
        )  # fmt: skip
        entry = t // (COLS // KEYS) if TILES == "partial" else t
        m_pair = pair_mask(scores, lists, entry, TILES, block.i, i_key, m_key, COLS, c.GROUP)
        s = exp2_below(s * left, b_lse[:, None], c.PLAIN)
        if m_pair is not None:
            s = tl.where(m_pair, s, 0.0)
        if scores.seed is not None:
            s = tl.where(keep_factors(scores, block.numbers, j, KEYS, SUMS) != 0, s, -s)
        m_tile = tile_mask(m_row, m_key)
        write(p_rows[:, None] + i_key[None, :], s, m_tile)
        if scores.softcap is not None:
            p_derivative = line_at(cap_derivative, block.local, block.i_local)[:, None] + i_key[None, :]
            write(p_derivative, derivative, m_tile)
    return state


@triton.jit(do_not_specialize=PLACE)
def spill_ds(
    v,
    dout,
    p,
    cap_derivative,
    ds,
    delta,
    scores,
    lists,
    stream,
    row,
    rows,
    n_q,
    n_k,
    kv_heads,
    d_v,
    span,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    DEPTH: tl.constexpr,
    WHOLE_ROWS: tl.constexpr,
    WHOLE_COLS: tl.constexpr,
    WHOLE: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """dS of a block of rows and a span of keys, from P."""
    block = row_block((stream, row, rows), n_q, kv_heads, tl.program_id(0), scores.end is not None, GROUP, ROWS)
    m_row = None if WHOLE_ROWS else block.i_local < rows
    dout, v = head_of(dout, block.batch, block.head * GROUP), head_of(v, block.batch, block.head)
    dout = Panel(dout, row_offsets(dout, index(block.i, WIDE), GROUP))
    band = band_tiles(scores, lists, block, n_k, span, GROUP, COLS)
    m_held = m_row
    if lists is None:
        m_held = tl.where((band.begin < band.stop) | (tl.num_programs(1) == 1), block.i_local, rows) < rows
    b_delta = read(delta + block.numbers, m_held)
    visit_band_or_list(
        _ds_tiles, band, (tl.program_id(1), tl.num_programs(1)), 1,
        (), (b_delta, dout, v, p, p if cap_derivative is None else cap_derivative, ds, n_k, d_v),
        block, m_row, scores, lists,
        PairConstants(GROUP, COLS, COLS, False, WHOLE_COLS, SliceConstants(0, DEPTH, WHOLE, WIDE, PRECISION))
    )  # fmt: skip


@triton.jit
def _ds_tiles(tiles, TILES: tl.constexpr, state, operands, block, m_row, scores, lists, c):
    """Write tiles of dS (see visits.py).

    state: none. operands: the rows' delta; dout and v; P; the softcap's derivative (unused without a softcap); dS;
    n_k, d_v.
    """
    b_delta, dout, v, p, cap_derivative, ds, n_k, d_v = operands
    COLS: tl.constexpr = c.COLS
    WIDE: tl.constexpr = c.slices.WIDE
    ROWS: tl.constexpr = b_delta.shape[0]
    for t in tl.range(tiles.begin, tiles.stop, COLS if TILES == "band" else 1, flatten=True):
        j = first_of(lists, t, TILES, COLS)
        i_key = j + tl.arange(0, COLS)
        m_key = None if c.WHOLE_KEYS or TILES == "full" else i_key < n_k
        m_tile = tile_mask(m_row, m_key)
        dp = score_tile(
            (), dout, m_row, Panel(v, index(i_key, WIDE) * v.row), m_key, d_v,
            tl.zeros((ROWS, COLS), b_delta.dtype), c.slices
        )  # fmt: skip
        b_p = read(line_at(p, block.local, block.i_local)[:, None] + i_key[None, :], m_tile).to(dp.dtype)
        b_ds = score_gradient(b_p, dp, b_delta[:, None], scores)
        if scores.softcap is not None:
            p_derivative = line_at(cap_derivative, block.local, block.i_local)[:, None] + i_key[None, :]
            b_ds *= read(p_derivative, m_tile).to(dp.dtype)
        write(line_at(ds, block.local, block.i_local)[:, None] + i_key[None, :], b_ds, m_tile)
    return state
