"""The schedule `flash`, forward: a block of rows and its output stay, keys and values stream by."""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from redblue.base.integers import ceil_div
from redblue.kernels.gpu.flash.decode import listed_tiles, merging, parts_of
from redblue.kernels.gpu.launch import Run, Task, array, parts
from redblue.kernels.gpu.planning.plan import Launch
from redblue.kernels.gpu.scores import (
    LN2,
    LOWEST,
    block_of,
    constant,
    factor_left,
    finish,
    first_top,
    in_band,
    index,
    kept,
    key_range,
    listed,
    load,
    power,
    product,
    row_numbers,
    row_offsets,
    start,
    store,
    wide,
)


def forward(task: Task, launch: Launch, precision: str = "ieee") -> list[Run]:
    """What writes task.out and task.lse. A span of the tiles that cuts the keys is a multiple of cols."""
    rows, cols, span = launch.tiles
    sizes = task.sizes
    spans = ceil_div(sizes.n_k, span) if span < sizes.n_k else 1
    lists = task.lists(rows, cols, "rows", span)
    grid = ceil_div(task.rows, rows) * task.streams, spans
    arguments = {
        **common(task, precision),
        "out": array(task.out),
        "lists": lists,
        "span": span if spans > 1 else None,
        "out_step": None,
        "lse_step": None,
        "ROWS": rows,
        "COLS": cols,
        "WHOLE_ROWS": task.rows % rows == 0,
        "WHOLE_COLS": sizes.n_k % cols == 0,
    }
    if spans == 1:
        return [Run(flash_forward, grid, arguments, launch.warps, launch.stages)]
    found = parts_of(task, spans)
    arguments |= {"out": array(found.out[0]), "lse": found.lse}
    arguments |= {"out_step": found.out.stride(0), "lse_step": found.lse.stride(0)}
    walks = Run(flash_forward, grid, arguments, launch.warps, launch.stages)
    return [walks, merging(task, found, lists, rows, cols, span)]


def common(task: Task, precision: str) -> dict[str, Any]:
    """Arguments of forward and backward kernels alike."""
    sizes = task.sizes
    (d0, d1), (v0, v1) = parts(sizes.d), parts(sizes.d_v)
    return {
        "q": array(task.q),
        "k": array(task.k),
        "v": array(task.v),
        "lse": task.lse,
        "scores": task.scores,
        "n_q": sizes.n_q,
        "n_k": sizes.n_k,
        "kv_heads": sizes.kv_heads,
        "GROUP": sizes.group,
        "D": sizes.d,
        "D0": d0,
        "D1": d1,
        "D_V": sizes.d_v,
        "V0": v0,
        "V1": v1,
        "PLAIN": task.plain,
        "WIDE": task.wide,
        "PRECISION": precision,
    }


@triton.jit
def flash_forward(
    q,
    k,
    v,
    out,
    lse,
    scores,
    lists,
    n_q,
    n_k,
    kv_heads,
    span,  # of keys that a walk covers; None: all
    out_step,  # from where one walk leaves its output to where the next does
    lse_step,
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

    walk = tl.program_id(1)
    low, high, full_low, full_high = block * 0, n_k, block * 0, n_k
    if lists is None:
        last_row = tl.minimum(block * ROWS + ROWS, n_rows) - 1
        low, high, full_low, full_high = key_range(scores, block * ROWS, last_row, n_k, GROUP, COLS)
        if span is not None:
            low, high = tl.maximum(low, walk * span), tl.minimum(high, walk * span + span)
            full_low, full_high = tl.maximum(full_low, walk * span), tl.minimum(full_high, walk * span + span)
            if low >= high:
                return
    else:
        at = block_of(lists, batch, head, block, blocks)
        if span is not None:
            at = at * tl.cdiv(n_k, span) + walk
            if listed_tiles(lists, at) == 0:
                return

    i_row = block * ROWS + tl.arange(0, ROWS)
    m_row = None if WHOLE_ROWS else i_row < n_rows
    at_q = start(q, batch, head * GROUP)
    q_offsets = row_offsets(q, index(i_row, WIDE), GROUP)
    q0 = load(at_q, q_offsets, q, m_row, 0, D0, D)
    q1 = load(at_q, q_offsets, q, m_row, D0, D1, D) if D1 else q0
    acc0 = tl.zeros((ROWS, V0), SUMS)
    acc1 = tl.zeros((ROWS, V1), SUMS) if V1 else acc0
    top, total = tl.full((ROWS,), LOWEST, SUMS), tl.zeros((ROWS,), SUMS)
    if span is None:
        top, total = first_top(scores, head, i_row, GROUP, SUMS)
    numbers = row_numbers(batch, head, kv_heads, n_q, i_row, GROUP)
    at_k, at_v = start(k, batch, head), start(v, batch, head)

    if lists is None:
        if scores.first is not None:
            acc0, acc1, top, total = _keys(
                low // COLS * COLS, tl.minimum(full_low, high), low, high, "masked",
                q0, q1, acc0, acc1, top, total, at_k, at_v, k, v, scores, lists, batch, head, i_row, m_row, numbers,
                GROUP, D, D0, D1, D_V, V0, V1, COLS, PLAIN, WIDE, PRECISION
            )  # fmt: skip
        acc0, acc1, top, total = _keys(
            full_low, full_high, low, high, "whole",
            q0, q1, acc0, acc1, top, total, at_k, at_v, k, v, scores, lists, batch, head, i_row, m_row, numbers,
            GROUP, D, D0, D1, D_V, V0, V1, COLS, PLAIN, WIDE, PRECISION
        )  # fmt: skip
        if scores.end is not None or not WHOLE_COLS:
            acc0, acc1, top, total = _keys(
                tl.maximum(full_low, full_high), high, low, high, "masked",
                q0, q1, acc0, acc1, top, total, at_k, at_v, k, v, scores, lists, batch, head, i_row, m_row, numbers,
                GROUP, D, D0, D1, D_V, V0, V1, COLS, PLAIN, WIDE, PRECISION
            )  # fmt: skip
    else:
        acc0, acc1, top, total = _keys(
            tl.load(lists.full_starts + at), tl.load(lists.full_starts + at + 1), 0, n_k, "full",
            q0, q1, acc0, acc1, top, total, at_k, at_v, k, v, scores, lists, batch, head, i_row, m_row, numbers,
            GROUP, D, D0, D1, D_V, V0, V1, COLS, PLAIN, WIDE, PRECISION
        )  # fmt: skip
        acc0, acc1, top, total = _keys(
            tl.load(lists.partial_starts + at), tl.load(lists.partial_starts + at + 1), 0, n_k, "partial",
            q0, q1, acc0, acc1, top, total, at_k, at_v, k, v, scores, lists, batch, head, i_row, m_row, numbers,
            GROUP, D, D0, D1, D_V, V0, V1, COLS, PLAIN, WIDE, PRECISION
        )  # fmt: skip

    some = total > 0  # not where a row attends nothing
    share = tl.where(some, 1.0 / tl.where(some, total, 1.0), 0.0)
    at_out, p_lse = start(out, batch, head * GROUP), lse + numbers
    if span is not None:
        at_out, p_lse = at_out + wide(walk) * out_step, p_lse + wide(walk) * lse_step
    out_offsets = row_offsets(out, index(i_row, WIDE), GROUP)
    store(at_out, out_offsets, out, acc0 * share[:, None], m_row, 0, V0, D_V)
    if V1:
        store(at_out, out_offsets, out, acc1 * share[:, None], m_row, V0, V1, D_V)
    b_lse = tl.where(some, top * constant(LN2, SUMS) + tl.log(tl.where(some, total, 1.0)), float("-inf"))
    tl.store(p_lse, b_lse, mask=m_row)


@triton.jit
def _keys(
    begin,
    stop,
    low,
    high,
    TILES: tl.constexpr,
    q0,
    q1,
    acc0,
    acc1,
    top,
    total,
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
    """Take tiles of keys along: the rows' output, maxima and sums so far.

    TILES: "whole" and "masked" are those from key `begin` below `stop`, of which "masked" ones attend only within
    low .. high - 1 and the band; "full" and "partial" are entries begin .. stop - 1 of lists.
    """
    ROWS: tl.constexpr = i_row.shape[0]
    SUMS: tl.constexpr = top.dtype
    WORDS: tl.constexpr = (COLS + 63) // 64
    LISTED: tl.constexpr = TILES == "full" or TILES == "partial"
    left = factor_left(scores, PLAIN, SUMS)
    # Else ptxas, where a loop not entered meets the loop's products still under way, waits for each of them
    if begin < stop:
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
            k_offsets, v_offsets = index(i_key, WIDE) * k.row, index(i_key, WIDE) * v.row
            k0 = load(at_k, k_offsets, k, m_key, 0, D0, D)
            s = product(q0, tl.trans(k0), tl.zeros((ROWS, COLS), SUMS), PRECISION)
            if D1:
                k1 = load(at_k, k_offsets, k, m_key, D0, D1, D)
                s = product(q1, tl.trans(k1), s, PRECISION)
            s, _ = finish(
                s, scores, batch, head, index(i_row, WIDE)[:, None], index(i_key, WIDE)[None, :],
                None if m_row is None else m_row[:, None], None if m_key is None else m_key[None, :], GROUP, PLAIN
            )  # fmt: skip
            if TILES == "masked":
                m_pair = m_key[None, :] & in_band(scores, (i_row // GROUP)[:, None], i_key[None, :])
                s = tl.where(m_pair, s, float("-inf"))
            if TILES == "partial":
                line = t * ROWS + tl.arange(0, ROWS)
                m_pair = listed((lists.bits + line * WORDS)[:, None], i_col[None, :], COLS)
                s = tl.where(m_pair, s, float("-inf"))
            new_top = tl.maximum(top, tl.max(s, 1) * left)
            p = power(s * left, new_top[:, None], PLAIN)
            shrink = tl.exp2(top - new_top)
            total = total * shrink + tl.sum(p, 1)
            top = new_top
            if scores.seed is not None:
                p *= kept(scores, numbers, j, COLS, SUMS)
            p = p.to(v.at.dtype.element_ty)
            v0 = load(at_v, v_offsets, v, m_key, 0, V0, D_V)
            acc0 = product(p, v0, acc0 * shrink[:, None], PRECISION)
            if V1:
                v1 = load(at_v, v_offsets, v, m_key, V0, V1, D_V)
                acc1 = product(p, v1, acc1 * shrink[:, None], PRECISION)
    return acc0, acc1, top, total
