"""dQ and delta of the schedule `flash`: a block of rows stays on chip while keys and values stream by."""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
from __future__ import annotations

import triton
import triton.language as tl

from redblue.base.integers import ceil_div
from redblue.kernels.gpu.arrays import Rows, head_of, index, load, product, read, row_numbers, row_offsets, store
from redblue.kernels.gpu.band import Span, bit_set, first_of, in_band, key_range, list_of
from redblue.kernels.gpu.flash.constants import Constants, common_arguments
from redblue.kernels.gpu.launch import Run, Task, array
from redblue.kernels.gpu.planning.plan import Launch
from redblue.kernels.gpu.scores import exp2_below, factor_left, finish, keep_factors, load_lse, number, row_terms


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
    return Run(flash_dq, (ceil_div(task.rows, rows) * task.streams,), arguments, launch.warps, launch.stages)


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
    PRECISION: tl.constexpr,
):
    """dQ and delta of a block of rows."""
    SUMS: tl.constexpr = lse.dtype.element_ty
    n_rows = n_q * GROUP
    blocks = tl.cdiv(n_rows, ROWS)
    block = tl.program_id(0) % blocks
    stream = tl.program_id(0) // blocks
    if scores.end is not None:  # the blocks with the most keys come first
        block = blocks - 1 - block
    batch, head = stream // kv_heads, stream % kv_heads

    i_row = block * ROWS + tl.arange(0, ROWS)
    m_row = None if WHOLE_ROWS else i_row < n_rows
    rows = Rows(batch, head, i_row, row_numbers(batch, head, kv_heads, n_q, i_row, GROUP))
    out, dout = head_of(out, batch, head * GROUP), head_of(dout, batch, head * GROUP)
    out_offsets = row_offsets(out, index(i_row, WIDE), GROUP)
    dout_offsets = row_offsets(dout, index(i_row, WIDE), GROUP)
    do0 = load(dout, dout_offsets, m_row, 0, V0, D_V)
    out0 = load(out, out_offsets, m_row, 0, V0, D_V)
    b_delta = tl.sum(do0.to(SUMS) * out0.to(SUMS), 1)
    do1 = do0
    if V1:
        do1 = load(dout, dout_offsets, m_row, V0, V1, D_V)
        out1 = load(out, out_offsets, m_row, V0, V1, D_V)
        b_delta += tl.sum(do1.to(SUMS) * out1.to(SUMS), 1)
    if dlse is not None:
        b_delta -= read(dlse + rows.numbers, m_row)
    tl.store(delta + rows.numbers, b_delta, mask=m_row)

    q = head_of(q, batch, head * GROUP)
    q_offsets = row_offsets(q, index(i_row, WIDE), GROUP)
    q0 = load(q, q_offsets, m_row, 0, D0, D)
    q1 = load(q, q_offsets, m_row, D0, D1, D) if D1 else q0
    b_rows = q0, q1, do0, do1, load_lse(lse + rows.numbers, m_row), b_delta
    dq0 = tl.zeros((ROWS, D0), SUMS)
    state = dq0, (tl.zeros((ROWS, D1), SUMS) if D1 else dq0)
    k, v = head_of(k, batch, head), head_of(v, batch, head)
    if lists is None:
        last_row = tl.minimum(block * ROWS + ROWS, n_rows) - 1
        low, high, full_low, full_high = key_range(scores, block * ROWS, last_row, n_k, GROUP, COLS)
        if scores.first is not None:
            state = _dq_keys(
                Span(low // COLS * COLS, tl.minimum(full_low, high), low, high), "masked",
                state, b_rows, k, v, rows, m_row, scores, lists, COLS, D1, V1,
                Constants(GROUP, D, D_V, PLAIN, WIDE, PRECISION)
            )  # fmt: skip
        state = _dq_keys(
            Span(full_low, full_high, low, high), "whole",
            state, b_rows, k, v, rows, m_row, scores, lists, COLS, D1, V1,
            Constants(GROUP, D, D_V, PLAIN, WIDE, PRECISION)
        )  # fmt: skip
        if scores.end is not None or not WHOLE_COLS:
            state = _dq_keys(
                Span(tl.maximum(full_low, full_high), high, low, high), "masked",
                state, b_rows, k, v, rows, m_row, scores, lists, COLS, D1, V1,
                Constants(GROUP, D, D_V, PLAIN, WIDE, PRECISION)
            )  # fmt: skip
    else:
        at = list_of(lists, batch, head, block, blocks)
        state = _dq_keys(
            Span(tl.load(lists.full_starts + at), tl.load(lists.full_starts + at + 1), 0, n_k), "full",
            state, b_rows, k, v, rows, m_row, scores, lists, COLS, D1, V1,
            Constants(GROUP, D, D_V, PLAIN, WIDE, PRECISION)
        )  # fmt: skip
        state = _dq_keys(
            Span(tl.load(lists.partial_starts + at), tl.load(lists.partial_starts + at + 1), 0, n_k), "partial",
            state, b_rows, k, v, rows, m_row, scores, lists, COLS, D1, V1,
            Constants(GROUP, D, D_V, PLAIN, WIDE, PRECISION)
        )  # fmt: skip

    dq0, dq1 = state
    scale = number(scores.scale, SUMS)
    dq = head_of(dq, batch, head * GROUP)
    dq_offsets = row_offsets(dq, index(i_row, WIDE), GROUP)
    store(dq, dq_offsets, dq0 * scale, m_row, 0, D0, D)
    if D1:
        store(dq, dq_offsets, dq1 * scale, m_row, D0, D1, D)


@triton.jit
def _dq_keys(
    span, TILES: tl.constexpr, state, b_rows, k, v, rows, m_row, scores, lists,
    COLS: tl.constexpr, D1: tl.constexpr, V1: tl.constexpr, c
):  # fmt: skip
    """Add tiles of keys to two parts of dQ without its scale. The tiles are those of forward's _keys.

    b_rows: two parts of the rows of q, two of dout, then the rows' log-sum-exp and delta.
    """
    dq0, dq1 = state
    q0, q1, do0, do1, b_lse, b_delta = b_rows
    ROWS: tl.constexpr = rows.i.shape[0]
    SUMS: tl.constexpr = b_lse.dtype
    WORDS: tl.constexpr = (COLS + 63) // 64
    left = factor_left(scores, c.PLAIN, SUMS)
    b_terms = row_terms(scores, rows.batch, rows.head, rows.i, 1, c.GROUP, SUMS)
    if span.begin < span.stop:  # as in forward's _keys
        for t in tl.range(span.begin, span.stop, COLS if TILES == "whole" or TILES == "masked" else 1):
            j = first_of(lists, t, TILES, COLS)
            i_col = tl.arange(0, COLS)
            i_key = j + i_col
            m_key = None
            if TILES == "masked":
                m_key = (i_key >= span.low) & (i_key < span.high)
            if TILES == "partial":
                m_key = bit_set(lists.live + t * WORDS, i_col, COLS)
            if scores.seed is not None:  # before the products: after them a thread spilled up to 14 KB
                keep = keep_factors(scores, rows.numbers, j, COLS, SUMS)
            k_offsets, v_offsets = index(i_key, c.WIDE) * k.row, index(i_key, c.WIDE) * v.row
            k0 = load(k, k_offsets, m_key, 0, q0.shape[1], c.D)
            s = product(q0, tl.trans(k0), tl.zeros((ROWS, COLS), SUMS), c.PRECISION)
            k1 = k0
            if D1:
                k1 = load(k, k_offsets, m_key, q0.shape[1], D1, c.D)
                s = product(q1, tl.trans(k1), s, c.PRECISION)
            s, derivative = finish(
                s, scores, rows.batch, rows.head, index(rows.i, c.WIDE)[:, None], index(i_key, c.WIDE)[None, :],
                None if m_row is None else m_row[:, None], None if m_key is None else m_key[None, :],
                b_terms, c.GROUP, c.PLAIN
            )  # fmt: skip
            p = exp2_below(s * left, b_lse[:, None], c.PLAIN)
            if TILES == "masked":
                m_pair = m_key[None, :] & in_band(scores, (rows.i // c.GROUP)[:, None], i_key[None, :])
                p = tl.where(m_pair, p, 0.0)
            if TILES == "partial":
                line = t * ROWS + tl.arange(0, ROWS)
                p = tl.where(bit_set((lists.bits + line * WORDS)[:, None], i_col[None, :], COLS), p, 0.0)
            v0 = load(v, v_offsets, m_key, 0, do0.shape[1], c.D_V)
            dp = product(do0, tl.trans(v0), tl.zeros((ROWS, COLS), SUMS), c.PRECISION)
            if V1:
                v1 = load(v, v_offsets, m_key, do0.shape[1], V1, c.D_V)
                dp = product(do1, tl.trans(v1), dp, c.PRECISION)
            if scores.seed is not None:
                dp *= keep
            ds = p * (dp - b_delta[:, None])
            if scores.softcap is not None:
                ds *= derivative
            ds = ds.to(k.at.dtype.element_ty)
            dq0 = product(ds, k0, dq0, c.PRECISION)
            if D1:
                dq1 = product(ds, k1, dq1, c.PRECISION)
    return dq0, dq1
