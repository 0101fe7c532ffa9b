"""`hybrid`, backward: a block of keys of V and dV stays on chip while dS is computed from P, row by row."""

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
    row_numbers,
    row_offsets,
    tile_mask,
    write,
)
from redblue.kernels.gpu.band import attended_blocks, first_of_slice
from redblue.kernels.gpu.blocks import key_block
from redblue.kernels.gpu.scores import number
from redblue.kernels.gpu.spilled.chunks import PLACE, line_at
from redblue.kernels.gpu.spilled.constants import DvAndDsConstants
from redblue.kernels.gpu.spilled.shares import add_share, share_of, visit_share
from redblue.kernels.gpu.spilled.slices import Panel, load_slices


@triton.jit(do_not_specialize=PLACE)
def dv_and_ds(
    v,
    dout,
    dv,
    running,
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
    GROUP: tl.constexpr,
    SLICES: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    DEPTH: tl.constexpr,
    WHOLE_ROWS: tl.constexpr,
    WHOLE_COLS: tl.constexpr,
    WIDE: tl.constexpr,
    SUMS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """dS from P, and dV = P^T dO, for a block of keys whose rows of V and dV stay on chip.

    cap_derivative: the derivative of softcap tanh(x / softcap), spilled; None if there is no softcap. running: as for
    key_gradient. SLICES, WIDTH: the number of slices of V's features, and the features of a slice.
    """
    block = key_block(stream, n_k, kv_heads, tl.program_id(0), COLS)
    m_key = None if WHOLE_COLS else block.i < n_k
    share = share_of(scores, lists, block, row, rows, n_q * GROUP, GROUP, ROWS, DEPTH)
    v, dout = head_of(v, block.batch, block.head), head_of(dout, block.batch, block.head * GROUP)
    if share.any:
        b_v = load_slices(Panel(v, index(block.i, WIDE) * v.row), m_key, d_v, SLICES, WIDTH, WIDE)
        acc = ()
        for _ in tl.static_range(SLICES):
            acc = acc + (tl.zeros((COLS, WIDTH), SUMS),)  # noqa: RUF005 (Triton unpacks none)
        acc = visit_share(
            _dv_and_ds_tiles, share, acc,
            (b_v, dout, delta, (p, p if cap_derivative is None else cap_derivative, ds),
             (n_q, n_k, kv_heads, d_v, row, rows)),
            block, m_key, scores, lists,
            DvAndDsConstants(GROUP, ROWS, DEPTH, WHOLE_ROWS, SLICES, WIDTH, WIDE, PRECISION)
        )  # fmt: skip
        for f in tl.static_range(SLICES):
            i_f = f * WIDTH + tl.arange(0, WIDTH)
            add_share(acc[f], dv, running, scores, block, i_f, tile_mask(m_key, i_f < d_v), share, True, WIDE)


@triton.jit
def _dv_and_ds_tiles(tiles, TILES: tl.constexpr, acc, operands, block, m_key, scores, lists, c):
    """Write dS of slices of DEPTH rows, and add P^T dO to acc (see visits.py).

    operands: the block's V, from load_slices; dout; delta; P, the softcap's derivative (unused without a softcap) and
    dS; n_q, n_k, key heads, d_v, the chunk's first row and its rows.
    """
    b_v, dout, delta, spilled, sizes = operands
    p, cap_derivative, ds = spilled
    n_q, n_k, kv_heads, d_v, row, rows = sizes
    DEPTH: tl.constexpr = c.DEPTH
    SUMS: tl.constexpr = delta.dtype.element_ty
    for t in tl.range(tiles.begin, tiles.stop, DEPTH if TILES == "band" else 1):
        i = first_of_slice(lists, t, TILES, c.LENGTH, DEPTH)
        m_x = m_key
        if TILES == "band":
            last = tl.minimum(i + DEPTH, n_q * c.GROUP)
            m_x = and_masks(m_key, attended_blocks(scores, block.i, i, last, n_k, DEPTH, c.GROUP))
        i_row = i + tl.arange(0, DEPTH)
        m_row = None if c.WHOLE or TILES == "full" else i_row < row + rows
        m_tile = tile_mask(m_row, m_x)
        dout_rows = Panel(dout, row_offsets(dout, index(i_row, c.WIDE), c.GROUP))
        b_dout = load_slices(dout_rows, m_row, d_v, c.SLICES, c.WIDTH, c.WIDE)
        b_delta = read(delta + row_numbers(block.batch, block.head, kv_heads, n_q, i_row, c.GROUP), m_row)
        b_p = read(line_at(p, block.local, i_row - row)[:, None] + block.i[None, :], m_tile)
        kept = b_p
        if scores.seed is not None:  # P is negative where it is dropped
            kept = tl.maximum(b_p.to(SUMS), 0.0).to(b_p.dtype)
        dp = tl.zeros((DEPTH, block.i.shape[0]), SUMS)
        new_acc = ()
        for f in tl.static_range(c.SLICES):
            dp = product(b_dout[f], tl.trans(b_v[f]), dp, c.PRECISION)
            new_acc = new_acc + (product(tl.trans(kept), b_dout[f], acc[f], c.PRECISION),)  # noqa: RUF005 (as above)
        acc = new_acc
        b_ds = score_gradient(b_p.to(SUMS), dp, b_delta[:, None], scores)
        if scores.softcap is not None:
            b_ds *= read(line_at(cap_derivative, block.local, i_row - row)[:, None] + block.i[None, :], m_tile).to(SUMS)
        write(line_at(ds, block.local, i_row - row)[:, None] + block.i[None, :], b_ds, m_tile)
    return acc


@triton.jit
def score_gradient(b_p, dp, b_delta, scores):
    """dS without the derivative of a softcap; 0 where P is 0, even if dP is NaN. P is negative where it is dropped."""
    if scores.seed is not None:
        dp = tl.where(b_p > 0, dp * number(scores.keep_scale, dp.dtype), 0.0)
        b_p = tl.abs(b_p)
    return tl.where(b_p == 0, 0.0, b_p * (dp - b_delta))
