"""dK and dV of the schedule `flash`: a block of keys stays on chip while rows stream by."""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from redblue.base.integers import ceil_div
from redblue.kernels.gpu.arrays import head_of, index, load, product, read, row_numbers, row_offsets, store
from redblue.kernels.gpu.band import bit_set, first_of, in_band, list_of, row_range
from redblue.kernels.gpu.blocks import key_block
from redblue.kernels.gpu.flash.constants import Constants, common_arguments
from redblue.kernels.gpu.launch import Run, Task, alignment, array
from redblue.kernels.gpu.planning.plan import Launch
from redblue.kernels.gpu.scores import exp2_below, factor_left, finish, keep_factors, load_lse, number, row_terms
from redblue.kernels.gpu.visits import visit


def dk_and_dv_run(task: Task, launch: Launch, precision: str) -> Run:
    """The launch that writes task.dk and task.dv from task.delta."""
    rows, cols = launch.tiles.dkv_rows, launch.tiles.dkv_cols
    arguments = {
        **common_arguments(task, precision),
        "dout": array(task.dout),
        "delta": task.delta,
        "dk": array(task.dk),
        "dv": array(task.dv),
        "lists": task.lists(rows, cols, "cols"),
        "ROWS": rows,
        "COLS": cols,
        "WHOLE_ROWS": task.rows % rows == 0,
        "WHOLE_COLS": task.sizes.n_k % cols == 0,
    }
    arguments["ALIGN"] = alignment(arguments)
    return Run(flash_dkv, (ceil_div(task.sizes.n_k, cols) * task.streams,), arguments, *launch.settings(1))


class Streams(NamedTuple):
    """The arrays of one key head that stream by, and the numbers that locate its rows in lse and delta."""

    q: Any
    dout: Any
    lse: Any
    delta: Any
    kv_heads: Any
    n_q: Any


@triton.jit
def flash_dkv(
    q,
    k,
    v,
    dout,
    lse,
    delta,
    dk,
    dv,
    scores,
    lists,
    n_q,
    n_k,
    kv_heads,
    GROUP: tl.constexpr,
    D: tl.constexpr,  # features of q and k, held in two tiles of D0 and D1
    D0: tl.constexpr,
    D1: tl.constexpr,
    D_V: tl.constexpr,
    V0: tl.constexpr,
    V1: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    PLAIN: tl.constexpr,
    WHOLE_ROWS: tl.constexpr,
    WHOLE_COLS: tl.constexpr,
    WIDE: tl.constexpr,
    ALIGN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """dK and dV of a block of keys."""
    SUMS: tl.constexpr = lse.dtype.element_ty
    block = key_block(0, n_k, kv_heads, tl.program_id(0), COLS)
    batch, head = block.batch, block.head
    m_key = None if WHOLE_COLS else block.i < n_k
    k, v = head_of(k, batch, head, ALIGN), head_of(v, batch, head, ALIGN)
    k_offsets, v_offsets = index(block.i, WIDE) * k.row, index(block.i, WIDE) * v.row
    k0 = load(k, k_offsets, m_key, 0, D0, D)
    k1 = load(k, k_offsets, m_key, D0, D1, D) if D1 else k0
    v0 = load(v, v_offsets, m_key, 0, V0, D_V)
    v1 = load(v, v_offsets, m_key, V0, V1, D_V) if V1 else v0
    b_keys = k0, k1, v0, v1
    dk0 = tl.zeros((COLS, D0), SUMS)
    dk1 = tl.zeros((COLS, D1), SUMS) if D1 else dk0
    dv0 = tl.zeros((COLS, V0), SUMS)
    dv1 = tl.zeros((COLS, V1), SUMS) if V1 else dv0
    q, dout = head_of(q, batch, head * GROUP, ALIGN), head_of(dout, batch, head * GROUP, ALIGN)
    # Borders for a band, i_list for lists: only one of them is used
    borders, i_list = (0, n_q * GROUP, 0, n_q * GROUP), 0
    if lists is None:
        borders = row_range(scores, block.first, block.stop - 1, n_q, GROUP, ROWS)
    else:
        i_list = list_of(lists, batch, head, block.index, block.blocks)
    dk0, dk1, dv0, dv1 = visit(
        _dkv_rows, borders, i_list, scores.end is not None, scores.first is not None or not WHOLE_ROWS,
        (dk0, dk1, dv0, dv1), (b_keys, Streams(q, dout, lse, delta, kv_heads, n_q)), block, m_key, scores, lists,
        Constants(GROUP, ROWS, D, D1, D_V, V1, PLAIN, WIDE, PRECISION)
    )  # fmt: skip

    scale = number(scores.scale, SUMS)
    dk, dv = head_of(dk, batch, head, ALIGN), head_of(dv, batch, head, ALIGN)
    dk_offsets, dv_offsets = index(block.i, WIDE) * dk.row, index(block.i, WIDE) * dv.row
    store(dk, dk_offsets, dk0 * scale, m_key, 0, D0, D)
    if D1:
        store(dk, dk_offsets, dk1 * scale, m_key, D0, D1, D)
    store(dv, dv_offsets, dv0, m_key, 0, V0, D_V)
    if V1:
        store(dv, dv_offsets, dv1, m_key, V0, V1, D_V)


@triton.jit
def _dkv_rows(tiles, TILES: tl.constexpr, state, operands, block, m_key, scores, lists, c):
    """Add tiles of rows to dK, without its scale, and to dV, each in two parts (see visits.py).

    Scores are tiles (keys, rows), so that the next products need no transposed copy.
    operands: the keys in two parts and the values in two, then Streams.
    """
    dk0, dk1, dv0, dv1 = state
    b_keys, streams = operands
    k0, k1, v0, v1 = b_keys
    q, dout, batch, head = streams.q, streams.dout, block.batch, block.head
    COLS: tl.constexpr = k0.shape[0]
    ROWS: tl.constexpr = c.LENGTH
    SUMS: tl.constexpr = dk0.dtype
    WORDS: tl.constexpr = (ROWS + 63) // 64
    left = factor_left(scores, c.PLAIN, SUMS)
    # Always true, but the compilers do not know this. The kernel has a loop over masked tiles and one over whole tiles.
    # Without these selections before each loop, ptxas 12.8 (Triton 3.6) shares accumulators between the two loops, and
    # then makes each product wait for the previous one
    exists = streams.n_q > 0
    dk0, dv0 = tl.where(exists, dk0, 0.0), tl.where(exists, dv0, 0.0)
    dk1 = tl.where(exists, dk1, 0.0) if c.D1 else dk0
    dv1 = tl.where(exists, dv1, 0.0) if c.V1 else dv0
    if tiles.begin < tiles.stop:  # as in forward's _keys
        for t in tl.range(tiles.begin, tiles.stop, ROWS if TILES == "whole" or TILES == "masked" else 1):
            r = first_of(lists, t, TILES, ROWS)
            i_line = tl.arange(0, ROWS)
            i_row = r + i_line
            m_row = None
            if TILES == "masked":
                m_row = (i_row >= tiles.low) & (i_row < tiles.high)
            if TILES == "partial":
                m_row = bit_set(lists.live + t * WORDS, i_line, ROWS)
            numbers = row_numbers(batch, head, streams.kv_heads, streams.n_q, i_row, c.GROUP)
            if scores.seed is not None:  # computed before the products, as for dQ
                keep = tl.trans(keep_factors(scores, numbers, block.first, COLS, SUMS))
            q_offsets = row_offsets(q, index(i_row, c.WIDE), c.GROUP)
            dout_offsets = row_offsets(dout, index(i_row, c.WIDE), c.GROUP)
            q0 = load(q, q_offsets, m_row, 0, k0.shape[1], c.D)
            s = product(k0, tl.trans(q0), tl.zeros((COLS, ROWS), SUMS), c.PRECISION)
            q1 = q0
            if c.D1:
                q1 = load(q, q_offsets, m_row, k0.shape[1], c.D1, c.D)
                s = product(k1, tl.trans(q1), s, c.PRECISION)
            b_terms = row_terms(scores, batch, head, i_row, 0, c.GROUP, SUMS)
            s, derivative = finish(
                s, scores, batch, head, index(i_row, c.WIDE)[None, :], index(block.i, c.WIDE)[:, None],
                None if m_row is None else m_row[None, :], None if m_key is None else m_key[:, None],
                b_terms, c.GROUP, c.PLAIN
            )  # fmt: skip
            p = exp2_below(s * left, load_lse(streams.lse + numbers, m_row)[None, :], c.PLAIN)
            if TILES == "masked":
                m_pair = m_row[None, :] & in_band(scores, (i_row // c.GROUP)[None, :], block.i[:, None])
                p = tl.where(m_pair, p, 0.0)
            if TILES == "partial":
                line = t * COLS + tl.arange(0, COLS)
                m_pair = bit_set((lists.bits + line * WORDS)[:, None], i_line[None, :], ROWS)
                p = tl.where(m_pair, p, 0.0)
            do0 = load(dout, dout_offsets, m_row, 0, v0.shape[1], c.D_V)
            dp = product(v0, tl.trans(do0), tl.zeros((COLS, ROWS), SUMS), c.PRECISION)
            do1 = do0
            if c.V1:
                do1 = load(dout, dout_offsets, m_row, v0.shape[1], c.V1, c.D_V)
                dp = product(v1, tl.trans(do1), dp, c.PRECISION)
            kept = p
            if scores.seed is not None:
                kept, dp = p * keep, dp * keep
            kept = kept.to(dout.pointer.dtype.element_ty)
            dv0 = product(kept, do0, dv0, c.PRECISION)
            if c.V1:
                dv1 = product(kept, do1, dv1, c.PRECISION)
            ds = p * (dp - read(streams.delta + numbers, m_row)[None, :])
            if scores.softcap is not None:
                ds *= derivative
            if TILES == "masked" or TILES == "partial":
                ds = tl.where(m_pair, ds, 0.0)  # a key that no query attends may hold NaN
            ds = ds.to(q.pointer.dtype.element_ty)
            dk0 = product(ds, q0, dk0, c.PRECISION)
            if c.D1:
                dk1 = product(ds, q1, dk1, c.PRECISION)
    return dk0, dk1, dv0, dv1
