"""dQ and delta of the schedule `flash`: a block of rows stays on chip while keys and values stream by."""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
from __future__ import annotations

import triton
import triton.language as tl

from redblue.base.integers import ceil_div
from redblue.kernels.gpu.arrays import head_of, index, load, product, read, row_offsets, store
from redblue.kernels.gpu.band import bit_set, first_of, in_band, key_range, list_of
from redblue.kernels.gpu.blocks import row_block
from redblue.kernels.gpu.flash.constants import Constants, common_arguments
from redblue.kernels.gpu.launch import Run, Task, alignment, array
from redblue.kernels.gpu.planning.plan import Launch
from redblue.kernels.gpu.scores import exp2_below, factor_left, finish, keep_factors, load_lse, number, row_terms
from redblue.kernels.gpu.visits import visit


def dq_run(task: Task, launch: Launch, precision: str) -> Run:
    """The launch that writes task.dq and delta."""
    rows, cols = launch.tiles.rows, launch.tiles.cols
    arguments = {
        **common_arguments(task, precision),
        "out": array(task.out),
        "dout": array(task.dout),
        "dlse": task.dlse,
        "delta": task.delta,
        "dq": array(task.dq),
        "lists": task.lists(rows, cols, "rows"),
        "ROWS": rows,
        "COLS": cols,
        "WHOLE_ROWS": task.rows % rows == 0,
        "WHOLE_COLS": task.sizes.n_k % cols == 0,
    }
    arguments["ALIGN"] = alignment(arguments)
    return Run(flash_dq, (ceil_div(task.rows, rows) * task.streams,), arguments, *launch.settings(0))


@triton.jit
def flash_dq(
    q,
    k,
    v,
    out,
    dout,
    lse,
    dlse,
    delta,
    dq,
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
    """dQ and delta of a block of rows."""
    SUMS: tl.constexpr = lse.dtype.element_ty
    block = row_block((0, 0, n_q * GROUP), n_q, kv_heads, tl.program_id(0), scores.end is not None, GROUP, ROWS)
    batch, head = block.batch, block.head
    m_row = None if WHOLE_ROWS else block.i < n_q * GROUP
    out, dout = head_of(out, batch, head * GROUP, ALIGN), head_of(dout, batch, head * GROUP, ALIGN)
    out_offsets = row_offsets(out, index(block.i, WIDE), GROUP)
    dout_offsets = row_offsets(dout, index(block.i, WIDE), GROUP)
    do0 = load(dout, dout_offsets, m_row, 0, V0, D_V)
    out0 = load(out, out_offsets, m_row, 0, V0, D_V)
    b_delta = tl.sum(do0.to(SUMS) * out0.to(SUMS), 1)
    do1 = do0
    if V1:
        do1 = load(dout, dout_offsets, m_row, V0, V1, D_V)
        out1 = load(out, out_offsets, m_row, V0, V1, D_V)
        b_delta += tl.sum(do1.to(SUMS) * out1.to(SUMS), 1)
    if dlse is not None:
        b_delta -= read(dlse + block.numbers, m_row)
    tl.store(delta + block.numbers, b_delta, mask=m_row)

    q = head_of(q, batch, head * GROUP, ALIGN)
    q_offsets = row_offsets(q, index(block.i, WIDE), GROUP)
    q0 = load(q, q_offsets, m_row, 0, D0, D)
    q1 = load(q, q_offsets, m_row, D0, D1, D) if D1 else q0
    b_rows = q0, q1, do0, do1, load_lse(lse + block.numbers, m_row), b_delta
    dq0 = tl.zeros((ROWS, D0), SUMS)
    dq1 = tl.zeros((ROWS, D1), SUMS) if D1 else dq0
    k, v = head_of(k, batch, head, ALIGN), head_of(v, batch, head, ALIGN)
    borders, i_list = (0, n_k, 0, n_k), 0  # borders for a band, `i_list` for lists: only one of them is used
    if lists is None:
        borders = key_range(scores, block.first, block.stop - 1, n_k, GROUP, COLS)
    else:
        i_list = list_of(lists, batch, head, block.index, block.blocks)
    dq0, dq1 = visit(
        _dq_keys, borders, i_list, scores.first is not None, scores.end is not None or not WHOLE_COLS,
        (dq0, dq1), (b_rows, k, v), block, m_row, scores, lists,
        Constants(GROUP, COLS, D, D1, D_V, V1, PLAIN, WIDE, PRECISION)
    )  # fmt: skip

    scale = number(scores.scale, SUMS)
    dq = head_of(dq, batch, head * GROUP, ALIGN)
    dq_offsets = row_offsets(dq, index(block.i, WIDE), GROUP)
    store(dq, dq_offsets, dq0 * scale, m_row, 0, D0, D)
    if D1:
        store(dq, dq_offsets, dq1 * scale, m_row, D0, D1, D)


@triton.jit
def _dq_keys(tiles, TILES: tl.constexpr, state, operands, block, m_row, scores, lists, c):
    """Add tiles of keys to dQ, without its scale, in two parts (see visits.py).

    operands: the rows' q and dout in two parts each, their log-sum-exp and their delta; then k and v.
    """
    dq0, dq1 = state
    b_rows, k, v = operands
    q0, q1, do0, do1, b_lse, b_delta = b_rows
    ROWS: tl.constexpr = block.i.shape[0]
    COLS: tl.constexpr = c.LENGTH
    SUMS: tl.constexpr = b_lse.dtype
    WORDS: tl.constexpr = (COLS + 63) // 64
    left = factor_left(scores, c.PLAIN, SUMS)
    b_terms = row_terms(scores, block.batch, block.head, block.i, 1, c.GROUP, SUMS)
    if tiles.begin < tiles.stop:  # as in forward's _keys
        for t in tl.range(tiles.begin, tiles.stop, COLS if TILES == "whole" or TILES == "masked" else 1):
            j = first_of(lists, t, TILES, COLS)
            i_col = tl.arange(0, COLS)
            i_key = j + i_col
            m_key = None
            if TILES == "masked":
                m_key = (i_key >= tiles.low) & (i_key < tiles.high)
            if TILES == "partial":
                m_key = bit_set(lists.live + t * WORDS, i_col, COLS)
            if scores.seed is not None:  # computed before the products, because after them a thread spilled up to 14 KB
                keep = keep_factors(scores, block.numbers, j, COLS, SUMS)
            k_offsets, v_offsets = index(i_key, c.WIDE) * k.row, index(i_key, c.WIDE) * v.row
            k0 = load(k, k_offsets, m_key, 0, q0.shape[1], c.D)
            s = product(q0, tl.trans(k0), tl.zeros((ROWS, COLS), SUMS), c.PRECISION)
            k1 = k0
            if c.D1:
                k1 = load(k, k_offsets, m_key, q0.shape[1], c.D1, c.D)
                s = product(q1, tl.trans(k1), s, c.PRECISION)
            s, derivative = finish(
                s, scores, block.batch, block.head, index(block.i, c.WIDE)[:, None], index(i_key, c.WIDE)[None, :],
                None if m_row is None else m_row[:, None], None if m_key is None else m_key[None, :],
                b_terms, c.GROUP, c.PLAIN
            )  # fmt: skip
            p = exp2_below(s * left, b_lse[:, None], c.PLAIN)
            if TILES == "masked":
                m_pair = m_key[None, :] & in_band(scores, (block.i // c.GROUP)[:, None], i_key[None, :])
                p = tl.where(m_pair, p, 0.0)
            if TILES == "partial":
                line = t * ROWS + tl.arange(0, ROWS)
                p = tl.where(bit_set((lists.bits + line * WORDS)[:, None], i_col[None, :], COLS), p, 0.0)
            v0 = load(v, v_offsets, m_key, 0, do0.shape[1], c.D_V)
            dp = product(do0, tl.trans(v0), tl.zeros((ROWS, COLS), SUMS), c.PRECISION)
            if c.V1:
                v1 = load(v, v_offsets, m_key, do0.shape[1], c.V1, c.D_V)
                dp = product(do1, tl.trans(v1), dp, c.PRECISION)
            if scores.seed is not None:
                dp *= keep
            ds = p * (dp - b_delta[:, None])
            if scores.softcap is not None:
                ds *= derivative
            ds = ds.to(k.pointer.dtype.element_ty)
            dq0 = product(ds, k0, dq0, c.PRECISION)
            if c.D1:
                dq1 = product(ds, k1, dq1, c.PRECISION)
    return dq0, dq1
