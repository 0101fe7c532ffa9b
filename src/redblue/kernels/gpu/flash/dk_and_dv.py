"""dK and dV of the schedule `flash`: a block of keys stays on chip while rows stream by."""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from redblue.base.integers import ceil_div
from redblue.kernels.gpu.arrays import head_of, index, load, product, read, row_numbers, row_offsets, store
from redblue.kernels.gpu.band import Span, bit_set, first_of, in_band, list_of, row_range
from redblue.kernels.gpu.flash.constants import Constants, common_arguments
from redblue.kernels.gpu.launch import Run, Task, array
from redblue.kernels.gpu.planning.plan import Launch
from redblue.kernels.gpu.scores import exp2_below, factor_left, finish, keep_factors, load_lse, number, row_terms


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
    return Run(flash_dkv, (ceil_div(task.sizes.n_k, cols) * task.streams,), arguments, launch.warps, launch.stages)


class Streams(NamedTuple):
    """The arrays of one key head that stream by, and the numbers that locate its rows in lse and delta."""

    q: Any
    dout: Any
    lse: Any
    delta: Any
    batch: Any
    head: Any
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
    PRECISION: tl.constexpr,
):
    """dK and dV of a block of keys."""
    SUMS: tl.constexpr = lse.dtype.element_ty
    blocks = tl.cdiv(n_k, COLS)
    block = tl.program_id(0) % blocks
    stream = tl.program_id(0) // blocks
    batch, head = stream // kv_heads, stream % kv_heads

    i_key = block * COLS + tl.arange(0, COLS)
    m_key = None if WHOLE_COLS else i_key < n_k
    k, v = head_of(k, batch, head), head_of(v, batch, head)
    k_offsets, v_offsets = index(i_key, WIDE) * k.row, index(i_key, WIDE) * v.row
    k0 = load(k, k_offsets, m_key, 0, D0, D)
    k1 = load(k, k_offsets, m_key, D0, D1, D) if D1 else k0
    v0 = load(v, v_offsets, m_key, 0, V0, D_V)
    v1 = load(v, v_offsets, m_key, V0, V1, D_V) if V1 else v0
    b_keys = k0, k1, v0, v1
    dk0 = tl.zeros((COLS, D0), SUMS)
    dk1 = tl.zeros((COLS, D1), SUMS) if D1 else dk0
    dv0 = tl.zeros((COLS, V0), SUMS)
    dv1 = tl.zeros((COLS, V1), SUMS) if V1 else dv0
    state = dk0, dk1, dv0, dv1
    q, dout = head_of(q, batch, head * GROUP), head_of(dout, batch, head * GROUP)
    streams = Streams(q, dout, lse, delta, batch, head, kv_heads, n_q)
    if lists is None:
        last_key = tl.minimum(block * COLS + COLS, n_k) - 1
        low, high, full_low, full_high = row_range(scores, block * COLS, last_key, n_q, GROUP, ROWS)
        if scores.end is not None:
            state = _dkv_rows(
                Span(low // ROWS * ROWS, tl.minimum(full_low, high), low, high), "masked",
                state, b_keys, block * COLS, m_key, streams, scores, lists, ROWS, D1, V1,
                Constants(GROUP, D, D_V, PLAIN, WIDE, PRECISION)
            )  # fmt: skip
        state = _dkv_rows(
            Span(full_low, full_high, low, high), "whole",
            state, b_keys, block * COLS, m_key, streams, scores, lists, ROWS, D1, V1,
            Constants(GROUP, D, D_V, PLAIN, WIDE, PRECISION)
        )  # fmt: skip
        if scores.first is not None or not WHOLE_ROWS:
            state = _dkv_rows(
                Span(tl.maximum(full_low, full_high), high, low, high), "masked",
                state, b_keys, block * COLS, m_key, streams, scores, lists, ROWS, D1, V1,
                Constants(GROUP, D, D_V, PLAIN, WIDE, PRECISION)
            )  # fmt: skip
    else:
        at = list_of(lists, batch, head, block, blocks)
        state = _dkv_rows(
            Span(tl.load(lists.full_starts + at), tl.load(lists.full_starts + at + 1), 0, n_q * GROUP), "full",
            state, b_keys, block * COLS, m_key, streams, scores, lists, ROWS, D1, V1,
            Constants(GROUP, D, D_V, PLAIN, WIDE, PRECISION)
        )  # fmt: skip
        state = _dkv_rows(
            Span(tl.load(lists.partial_starts + at), tl.load(lists.partial_starts + at + 1), 0, n_q * GROUP), "partial",
            state, b_keys, block * COLS, m_key, streams, scores, lists, ROWS, D1, V1,
            Constants(GROUP, D, D_V, PLAIN, WIDE, PRECISION)
        )  # fmt: skip

    dk0, dk1, dv0, dv1 = state
    scale = number(scores.scale, SUMS)
    dk, dv = head_of(dk, batch, head), head_of(dv, batch, head)
    dk_offsets, dv_offsets = index(i_key, WIDE) * dk.row, index(i_key, WIDE) * dv.row
    store(dk, dk_offsets, dk0 * scale, m_key, 0, D0, D)
    if D1:
        store(dk, dk_offsets, dk1 * scale, m_key, D0, D1, D)
    store(dv, dv_offsets, dv0, m_key, 0, V0, D_V)
    if V1:
        store(dv, dv_offsets, dv1, m_key, V0, V1, D_V)


@triton.jit
def _dkv_rows(
    span, TILES: tl.constexpr, state, b_keys, first_key, m_key, streams, scores, lists,
    ROWS: tl.constexpr, D1: tl.constexpr, V1: tl.constexpr, c
):  # fmt: skip
    """Add tiles of rows to two parts of dK without its scale and two parts of dV.

    TILES: as in forward's _keys, with rows instead of keys. Scores are tiles (keys, rows), so that the next products
    need no transposed copy.
    b_keys: two parts of the keys, then two of the values.
    """
    dk0, dk1, dv0, dv1 = state
    k0, k1, v0, v1 = b_keys
    q, dout, batch, head = streams.q, streams.dout, streams.batch, streams.head
    COLS: tl.constexpr = k0.shape[0]
    SUMS: tl.constexpr = dk0.dtype
    WORDS: tl.constexpr = (ROWS + 63) // 64
    left = factor_left(scores, c.PLAIN, SUMS)
    i_key = first_key + tl.arange(0, COLS)
    if span.begin < span.stop:  # as in forward's _keys
        for t in tl.range(span.begin, span.stop, ROWS if TILES == "whole" or TILES == "masked" else 1):
            r = first_of(lists, t, TILES, ROWS)
            i_line = tl.arange(0, ROWS)
            i_row = r + i_line
            m_row = None
            if TILES == "masked":
                m_row = (i_row >= span.low) & (i_row < span.high)
            if TILES == "partial":
                m_row = bit_set(lists.live + t * WORDS, i_line, ROWS)
            numbers = row_numbers(batch, head, streams.kv_heads, streams.n_q, i_row, c.GROUP)
            if scores.seed is not None:  # before the products, as for dQ
                keep = tl.trans(keep_factors(scores, numbers, first_key, COLS, SUMS))
            q_offsets = row_offsets(q, index(i_row, c.WIDE), c.GROUP)
            dout_offsets = row_offsets(dout, index(i_row, c.WIDE), c.GROUP)
            q0 = load(q, q_offsets, m_row, 0, k0.shape[1], c.D)
            s = product(k0, tl.trans(q0), tl.zeros((COLS, ROWS), SUMS), c.PRECISION)
            q1 = q0
            if D1:
                q1 = load(q, q_offsets, m_row, k0.shape[1], D1, c.D)
                s = product(k1, tl.trans(q1), s, c.PRECISION)
            b_terms = row_terms(scores, batch, head, i_row, 0, c.GROUP, SUMS)
            s, derivative = finish(
                s, scores, batch, head, index(i_row, c.WIDE)[None, :], index(i_key, c.WIDE)[:, None],
                None if m_row is None else m_row[None, :], None if m_key is None else m_key[:, None],
                b_terms, c.GROUP, c.PLAIN
            )  # fmt: skip
            p = exp2_below(s * left, load_lse(streams.lse + numbers, m_row)[None, :], c.PLAIN)
            if TILES == "masked":
                m_pair = m_row[None, :] & in_band(scores, (i_row // c.GROUP)[None, :], i_key[:, None])
                p = tl.where(m_pair, p, 0.0)
            if TILES == "partial":
                line = t * COLS + tl.arange(0, COLS)
                m_pair = bit_set((lists.bits + line * WORDS)[:, None], i_line[None, :], ROWS)
                p = tl.where(m_pair, p, 0.0)
            do0 = load(dout, dout_offsets, m_row, 0, v0.shape[1], c.D_V)
            dp = product(v0, tl.trans(do0), tl.zeros((COLS, ROWS), SUMS), c.PRECISION)
            do1 = do0
            if V1:
                do1 = load(dout, dout_offsets, m_row, v0.shape[1], V1, c.D_V)
                dp = product(v1, tl.trans(do1), dp, c.PRECISION)
            kept = p
            if scores.seed is not None:
                kept, dp = p * keep, dp * keep
            kept = kept.to(dout.at.dtype.element_ty)
            dv0 = product(kept, do0, dv0, c.PRECISION)
            if V1:
                dv1 = product(kept, do1, dv1, c.PRECISION)
            ds = p * (dp - read(streams.delta + numbers, m_row)[None, :])
            if scores.softcap is not None:
                ds *= derivative
            if TILES == "masked" or TILES == "partial":
                ds = tl.where(m_pair, ds, 0.0)  # a key that no query attends may hold NaN
            ds = ds.to(q.at.dtype.element_ty)
            dk0 = product(ds, q0, dk0, c.PRECISION)
            if D1:
                dk1 = product(ds, q1, dk1, c.PRECISION)
    return dk0, dk1, dv0, dv1
