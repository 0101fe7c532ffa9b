"""The schedule `flash`, backward, in two kernels that both recompute the probabilities.

dQ: a block of rows stays and keys stream by, as forward; it also leaves delta, the row sums of dout * out, for the
other. dK and dV: a block of keys stays and rows stream by. Each sum has one owner, so that no order is left to chance.
"""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
from __future__ import annotations

import triton
import triton.language as tl

from redblue.kernels.gpu.flash.forward import common
from redblue.kernels.gpu.launch import Run, Task, array
from redblue.kernels.gpu.planning.plan import Launch
from redblue.kernels.gpu.scores import (
    block_of,
    factor_left,
    finish,
    in_band,
    index,
    kept,
    key_range,
    listed,
    load,
    log_sum,
    number,
    numbers_at,
    power,
    product,
    row_numbers,
    row_offsets,
    row_range,
    start,
    store,
)


def backward(task: Task, launch: Launch, precision: str = "ieee") -> list[Run]:
    """What writes task.dq and delta, then what writes dk and dv."""
    rows, cols, dkv_rows, dkv_cols = launch.tiles
    sizes, both = task.sizes, {**common(task, precision), "dout": array(task.dout), "delta": task.delta}
    dq = {
        **both,
        "out": array(task.out),
        "dlse": task.dlse,
        "dq": array(task.dq),
        "lists": task.lists(rows, cols, "rows"),
        "ROWS": rows,
        "COLS": cols,
        "WHOLE_ROWS": task.rows % rows == 0,
        "WHOLE_COLS": sizes.n_k % cols == 0,
    }
    dkv = {
        **both,
        "dk": array(task.dk),
        "dv": array(task.dv),
        "lists": task.lists(dkv_rows, dkv_cols, "cols"),
        "ROWS": dkv_rows,
        "COLS": dkv_cols,
        "WHOLE_ROWS": task.rows % dkv_rows == 0,
        "WHOLE_COLS": sizes.n_k % dkv_cols == 0,
    }
    return [
        Run(flash_dq, (-(-task.rows // rows) * task.streams,), dq, launch.warps, launch.stages),
        Run(flash_dkv, (-(-sizes.n_k // dkv_cols) * task.streams,), dkv, launch.warps, launch.stages),
    ]


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
    D: tl.constexpr,  # of q and k, in parts of D0 and D1
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
    SUMS: tl.constexpr = lse.dtype.element_ty
    n_rows = n_q * GROUP
    blocks = tl.cdiv(n_rows, ROWS)
    block = tl.program_id(0) % blocks
    stream = tl.program_id(0) // blocks
    if scores.end is not None:  # the longest first
        block = blocks - 1 - block
    batch, head = stream // kv_heads, stream % kv_heads

    i_row = block * ROWS + tl.arange(0, ROWS)
    m_row = None if WHOLE_ROWS else i_row < n_rows
    numbers = row_numbers(batch, head, kv_heads, n_q, i_row, GROUP)
    at_out, out_offsets = start(out, batch, head * GROUP), row_offsets(out, index(i_row, WIDE), GROUP)
    at_dout, dout_offsets = start(dout, batch, head * GROUP), row_offsets(dout, index(i_row, WIDE), GROUP)
    do0 = load(at_dout, dout_offsets, dout, m_row, 0, V0, D_V)
    out0 = load(at_out, out_offsets, out, m_row, 0, V0, D_V)
    b_delta = tl.sum(do0.to(SUMS) * out0.to(SUMS), 1)
    do1 = do0
    if V1:
        do1 = load(at_dout, dout_offsets, dout, m_row, V0, V1, D_V)
        out1 = load(at_out, out_offsets, out, m_row, V0, V1, D_V)
        b_delta += tl.sum(do1.to(SUMS) * out1.to(SUMS), 1)
    if dlse is not None:
        b_delta -= numbers_at(dlse + numbers, m_row, 0.0)
    tl.store(delta + numbers, b_delta, mask=m_row)

    at_q, q_offsets = start(q, batch, head * GROUP), row_offsets(q, index(i_row, WIDE), GROUP)
    q0 = load(at_q, q_offsets, q, m_row, 0, D0, D)
    q1 = load(at_q, q_offsets, q, m_row, D0, D1, D) if D1 else q0
    b_lse = log_sum(lse + numbers, m_row)
    dq0 = tl.zeros((ROWS, D0), SUMS)
    dq1 = tl.zeros((ROWS, D1), SUMS) if D1 else dq0
    at_k, at_v = start(k, batch, head), start(v, batch, head)
    if lists is None:
        last_row = tl.minimum(block * ROWS + ROWS, n_rows) - 1
        low, high, full_low, full_high = key_range(scores, block * ROWS, last_row, n_k, GROUP, COLS)
        if scores.first is not None:
            dq0, dq1 = _dq_keys(
                low // COLS * COLS, tl.minimum(full_low, high), low, high, "masked",
                dq0, dq1, q0, q1, do0, do1, b_lse, b_delta, at_k, at_v, k, v, scores, lists, batch, head, i_row, m_row,
                numbers, GROUP, D, D0, D1, D_V, V0, V1, COLS, PLAIN, WIDE, PRECISION
            )  # fmt: skip
        dq0, dq1 = _dq_keys(
            full_low, full_high, low, high, "whole",
            dq0, dq1, q0, q1, do0, do1, b_lse, b_delta, at_k, at_v, k, v, scores, lists, batch, head, i_row, m_row,
            numbers, GROUP, D, D0, D1, D_V, V0, V1, COLS, PLAIN, WIDE, PRECISION
        )  # fmt: skip
        if scores.end is not None or not WHOLE_COLS:
            dq0, dq1 = _dq_keys(
                tl.maximum(full_low, full_high), high, low, high, "masked",
                dq0, dq1, q0, q1, do0, do1, b_lse, b_delta, at_k, at_v, k, v, scores, lists, batch, head, i_row, m_row,
                numbers, GROUP, D, D0, D1, D_V, V0, V1, COLS, PLAIN, WIDE, PRECISION
            )  # fmt: skip
    else:
        at = block_of(lists, batch, head, block, blocks)
        dq0, dq1 = _dq_keys(
            tl.load(lists.full_starts + at), tl.load(lists.full_starts + at + 1), 0, n_k, "full",
            dq0, dq1, q0, q1, do0, do1, b_lse, b_delta, at_k, at_v, k, v, scores, lists, batch, head, i_row, m_row,
            numbers, GROUP, D, D0, D1, D_V, V0, V1, COLS, PLAIN, WIDE, PRECISION
        )  # fmt: skip
        dq0, dq1 = _dq_keys(
            tl.load(lists.partial_starts + at), tl.load(lists.partial_starts + at + 1), 0, n_k, "partial",
            dq0, dq1, q0, q1, do0, do1, b_lse, b_delta, at_k, at_v, k, v, scores, lists, batch, head, i_row, m_row,
            numbers, GROUP, D, D0, D1, D_V, V0, V1, COLS, PLAIN, WIDE, PRECISION
        )  # fmt: skip

    scale = number(scores.scale, SUMS)
    at_dq, dq_offsets = start(dq, batch, head * GROUP), row_offsets(dq, index(i_row, WIDE), GROUP)
    store(at_dq, dq_offsets, dq, dq0 * scale, m_row, 0, D0, D)
    if D1:
        store(at_dq, dq_offsets, dq, dq1 * scale, m_row, D0, D1, D)


@triton.jit
def _dq_keys(
    begin,
    stop,
    low,
    high,
    TILES: tl.constexpr,
    dq0,
    dq1,
    q0,
    q1,
    do0,
    do1,
    b_lse,
    b_delta,
    at_k,
    at_v,
    k,
    v,
    scores,
    lists,
    batch,
    head,
    i_row,
    m_row,
    numbers,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    D0: tl.constexpr,
    D1: tl.constexpr,
    D_V: tl.constexpr,
    V0: tl.constexpr,
    V1: tl.constexpr,
    COLS: tl.constexpr,
    PLAIN: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Add the shares of tiles of keys, as flash._keys goes through them, to dQ, which is not yet scaled."""
    ROWS: tl.constexpr = i_row.shape[0]
    SUMS: tl.constexpr = b_lse.dtype
    WORDS: tl.constexpr = (COLS + 63) // 64
    LISTED: tl.constexpr = TILES == "full" or TILES == "partial"
    left = factor_left(scores, PLAIN, SUMS)
    if begin < stop:  # as in flash._keys
        for t in tl.range(begin, stop, 1 if LISTED else COLS):
            j = t
            if TILES == "full":
                j = tl.load(lists.full + t) * COLS
            if TILES == "partial":
                j = tl.load(lists.partial + t) * COLS
            i_col = tl.arange(0, COLS)
            i_key = j + i_col
            m_key = None
            if TILES == "masked":
                m_key = (i_key >= low) & (i_key < high)
            if TILES == "partial":
                m_key = listed(lists.live + t * WORDS, i_col, COLS)
            if scores.seed is not None:  # before the products: beside their results it spilled up to 14 KB of a thread
                keeps = kept(scores, numbers, j, COLS, SUMS)
            k_offsets, v_offsets = index(i_key, WIDE) * k.row, index(i_key, WIDE) * v.row
            k0 = load(at_k, k_offsets, k, m_key, 0, D0, D)
            s = product(q0, tl.trans(k0), tl.zeros((ROWS, COLS), SUMS), PRECISION)
            k1 = k0
            if D1:
                k1 = load(at_k, k_offsets, k, m_key, D0, D1, D)
                s = product(q1, tl.trans(k1), s, PRECISION)
            s, slope = finish(
                s, scores, batch, head, index(i_row, WIDE)[:, None], index(i_key, WIDE)[None, :],
                None if m_row is None else m_row[:, None], None if m_key is None else m_key[None, :], GROUP, PLAIN
            )  # fmt: skip
            p = power(s * left, b_lse[:, None], PLAIN)
            if TILES == "masked":
                m_pair = m_key[None, :] & in_band(scores, (i_row // GROUP)[:, None], i_key[None, :])
                p = tl.where(m_pair, p, 0.0)
            if TILES == "partial":
                line = t * ROWS + tl.arange(0, ROWS)
                p = tl.where(listed((lists.bits + line * WORDS)[:, None], i_col[None, :], COLS), p, 0.0)
            v0 = load(at_v, v_offsets, v, m_key, 0, V0, D_V)
            dp = product(do0, tl.trans(v0), tl.zeros((ROWS, COLS), SUMS), PRECISION)
            if V1:
                v1 = load(at_v, v_offsets, v, m_key, V0, V1, D_V)
                dp = product(do1, tl.trans(v1), dp, PRECISION)
            if scores.seed is not None:
                dp *= keeps
            ds = p * (dp - b_delta[:, None])
            if scores.softcap is not None:
                ds *= slope
            ds = ds.to(k.at.dtype.element_ty)
            dq0 = product(ds, k0, dq0, PRECISION)
            if D1:
                dq1 = product(ds, k1, dq1, PRECISION)
    return dq0, dq1


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
    D: tl.constexpr,
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
    SUMS: tl.constexpr = lse.dtype.element_ty
    blocks = tl.cdiv(n_k, COLS)
    block = tl.program_id(0) % blocks
    stream = tl.program_id(0) // blocks
    batch, head = stream // kv_heads, stream % kv_heads

    i_key = block * COLS + tl.arange(0, COLS)
    m_key = None if WHOLE_COLS else i_key < n_k
    at_k, k_offsets = start(k, batch, head), index(i_key, WIDE) * k.row
    at_v, v_offsets = start(v, batch, head), index(i_key, WIDE) * v.row
    k0 = load(at_k, k_offsets, k, m_key, 0, D0, D)
    k1 = load(at_k, k_offsets, k, m_key, D0, D1, D) if D1 else k0
    v0 = load(at_v, v_offsets, v, m_key, 0, V0, D_V)
    v1 = load(at_v, v_offsets, v, m_key, V0, V1, D_V) if V1 else v0
    dk0 = tl.zeros((COLS, D0), SUMS)
    dk1 = tl.zeros((COLS, D1), SUMS) if D1 else dk0
    dv0 = tl.zeros((COLS, V0), SUMS)
    dv1 = tl.zeros((COLS, V1), SUMS) if V1 else dv0
    at_q, at_dout = start(q, batch, head * GROUP), start(dout, batch, head * GROUP)
    if lists is None:
        last_key = tl.minimum(block * COLS + COLS, n_k) - 1
        low, high, full_low, full_high = row_range(scores, block * COLS, last_key, n_q, GROUP, ROWS)
        if scores.end is not None:
            dk0, dk1, dv0, dv1 = _dkv_rows(
                low // ROWS * ROWS, tl.minimum(full_low, high), low, high, "masked",
                dk0, dk1, dv0, dv1, k0, k1, v0, v1, at_q, at_dout, q, dout, lse, delta, scores, lists, batch, head,
                kv_heads, n_q, block, m_key, GROUP, D, D0, D1, D_V, V0, V1, ROWS, COLS, PLAIN, WIDE, PRECISION
            )  # fmt: skip
        dk0, dk1, dv0, dv1 = _dkv_rows(
            full_low, full_high, low, high, "whole",
            dk0, dk1, dv0, dv1, k0, k1, v0, v1, at_q, at_dout, q, dout, lse, delta, scores, lists, batch, head,
            kv_heads, n_q, block, m_key, GROUP, D, D0, D1, D_V, V0, V1, ROWS, COLS, PLAIN, WIDE, PRECISION
        )  # fmt: skip
        if scores.first is not None or not WHOLE_ROWS:
            dk0, dk1, dv0, dv1 = _dkv_rows(
                tl.maximum(full_low, full_high), high, low, high, "masked",
                dk0, dk1, dv0, dv1, k0, k1, v0, v1, at_q, at_dout, q, dout, lse, delta, scores, lists, batch, head,
                kv_heads, n_q, block, m_key, GROUP, D, D0, D1, D_V, V0, V1, ROWS, COLS, PLAIN, WIDE, PRECISION
            )  # fmt: skip
    else:
        at = block_of(lists, batch, head, block, blocks)
        dk0, dk1, dv0, dv1 = _dkv_rows(
            tl.load(lists.full_starts + at), tl.load(lists.full_starts + at + 1), 0, n_q * GROUP, "full",
            dk0, dk1, dv0, dv1, k0, k1, v0, v1, at_q, at_dout, q, dout, lse, delta, scores, lists, batch, head,
            kv_heads, n_q, block, m_key, GROUP, D, D0, D1, D_V, V0, V1, ROWS, COLS, PLAIN, WIDE, PRECISION
        )  # fmt: skip
        dk0, dk1, dv0, dv1 = _dkv_rows(
            tl.load(lists.partial_starts + at), tl.load(lists.partial_starts + at + 1), 0, n_q * GROUP, "partial",
            dk0, dk1, dv0, dv1, k0, k1, v0, v1, at_q, at_dout, q, dout, lse, delta, scores, lists, batch, head,
            kv_heads, n_q, block, m_key, GROUP, D, D0, D1, D_V, V0, V1, ROWS, COLS, PLAIN, WIDE, PRECISION
        )  # fmt: skip

    scale = number(scores.scale, SUMS)
    at_dk, dk_offsets = start(dk, batch, head), index(i_key, WIDE) * dk.row
    at_dv, dv_offsets = start(dv, batch, head), index(i_key, WIDE) * dv.row
    store(at_dk, dk_offsets, dk, dk0 * scale, m_key, 0, D0, D)
    if D1:
        store(at_dk, dk_offsets, dk, dk1 * scale, m_key, D0, D1, D)
    store(at_dv, dv_offsets, dv, dv0, m_key, 0, V0, D_V)
    if V1:
        store(at_dv, dv_offsets, dv, dv1, m_key, V0, V1, D_V)


@triton.jit
def _dkv_rows(
    begin,
    stop,
    low,
    high,
    TILES: tl.constexpr,
    dk0,
    dk1,
    dv0,
    dv1,
    k0,
    k1,
    v0,
    v1,
    at_q,
    at_dout,
    q,
    dout,
    lse,
    delta,
    scores,
    lists,
    batch,
    head,
    kv_heads,
    n_q,
    block,
    m_key,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    D0: tl.constexpr,
    D1: tl.constexpr,
    D_V: tl.constexpr,
    V0: tl.constexpr,
    V1: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    PLAIN: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Add the shares of tiles of rows to dK, which is not yet scaled, and dV.

    TILES: as of flash._keys. Scores are (keys, rows), so that as they come they are a factor of the next products.
    """
    SUMS: tl.constexpr = dk0.dtype
    WORDS: tl.constexpr = (ROWS + 63) // 64
    LISTED: tl.constexpr = TILES == "full" or TILES == "partial"
    left = factor_left(scores, PLAIN, SUMS)
    i_key = block * COLS + tl.arange(0, COLS)
    if begin < stop:  # as in flash._keys
        for t in tl.range(begin, stop, 1 if LISTED else ROWS):
            r = t
            if TILES == "full":
                r = tl.load(lists.full + t) * ROWS
            if TILES == "partial":
                r = tl.load(lists.partial + t) * ROWS
            i_line = tl.arange(0, ROWS)
            i_row = r + i_line
            m_row = None
            if TILES == "masked":
                m_row = (i_row >= low) & (i_row < high)
            if TILES == "partial":
                m_row = listed(lists.live + t * WORDS, i_line, ROWS)
            numbers = row_numbers(batch, head, kv_heads, n_q, i_row, GROUP)
            if scores.seed is not None:  # as for dQ
                keeps = tl.trans(kept(scores, numbers, block * COLS, COLS, SUMS))
            q_offsets = row_offsets(q, index(i_row, WIDE), GROUP)
            dout_offsets = row_offsets(dout, index(i_row, WIDE), GROUP)
            q0 = load(at_q, q_offsets, q, m_row, 0, D0, D)
            s = product(k0, tl.trans(q0), tl.zeros((COLS, ROWS), SUMS), PRECISION)
            q1 = q0
            if D1:
                q1 = load(at_q, q_offsets, q, m_row, D0, D1, D)
                s = product(k1, tl.trans(q1), s, PRECISION)
            s, slope = finish(
                s, scores, batch, head, index(i_row, WIDE)[None, :], index(i_key, WIDE)[:, None],
                None if m_row is None else m_row[None, :], None if m_key is None else m_key[:, None], GROUP, PLAIN
            )  # fmt: skip
            p = power(s * left, log_sum(lse + numbers, m_row)[None, :], PLAIN)
            if TILES == "masked":
                m_pair = m_row[None, :] & in_band(scores, (i_row // GROUP)[None, :], i_key[:, None])
                p = tl.where(m_pair, p, 0.0)
            if TILES == "partial":
                line = t * COLS + tl.arange(0, COLS)
                m_pair = listed((lists.bits + line * WORDS)[:, None], i_line[None, :], ROWS)
                p = tl.where(m_pair, p, 0.0)
            do0 = load(at_dout, dout_offsets, dout, m_row, 0, V0, D_V)
            dp = product(v0, tl.trans(do0), tl.zeros((COLS, ROWS), SUMS), PRECISION)
            do1 = do0
            if V1:
                do1 = load(at_dout, dout_offsets, dout, m_row, V0, V1, D_V)
                dp = product(v1, tl.trans(do1), dp, PRECISION)
            used = p
            if scores.seed is not None:
                used, dp = p * keeps, dp * keeps
            used = used.to(dout.at.dtype.element_ty)
            dv0 = product(used, do0, dv0, PRECISION)
            if V1:
                dv1 = product(used, do1, dv1, PRECISION)
            ds = p * (dp - numbers_at(delta + numbers, m_row, 0.0)[None, :])
            if scores.softcap is not None:
                ds *= slope
            if TILES == "masked" or TILES == "partial":
                ds = tl.where(m_pair, ds, 0.0)  # a key that no query attends may hold anything
            ds = ds.to(q.at.dtype.element_ty)
            dk0 = product(ds, q0, dk0, PRECISION)
            if D1:
                dk1 = product(ds, q1, dk1, PRECISION)
    return dk0, dk1, dv0, dv1
