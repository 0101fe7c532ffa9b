"""The schedule `flash`, forward: a block of rows and its output stay on chip while keys and values stream by."""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
from __future__ import annotations

import triton
import triton.language as tl

from redblue.base.integers import ceil_div
from redblue.kernels.gpu.arrays import (
    Array,
    head_of,
    index,
    load,
    product,
    row_offsets,
    store,
    wide,
)
from redblue.kernels.gpu.band import bit_set, first_of, in_band, key_range, list_of
from redblue.kernels.gpu.blocks import row_block
from redblue.kernels.gpu.flash.constants import Constants, common_arguments
from redblue.kernels.gpu.flash.decode import listed_tiles, merge_run, partial_outputs
from redblue.kernels.gpu.launch import Run, Task, alignment, array
from redblue.kernels.gpu.planning.by_gluon import Settings
from redblue.kernels.gpu.planning.plan import Launch
from redblue.kernels.gpu.scores import (
    LN2,
    constant,
    exp2_below,
    factor_left,
    finish,
    initial_max_and_sum,
    keep_factors,
    lowest,
    row_terms,
)
from redblue.kernels.gpu.visits import visit


def forward(task: Task, launch: Launch, precision: str = "ieee") -> list[Run]:
    """The launches that write task.out and task.lse.

    If the keys are cut into several spans, the length of a span is a multiple of the tile's keys, `cols`.
    """
    if isinstance(launch.tiles, Settings):
        from redblue.kernels.gpu.hopper import forward as hopper  # needs Gluon, which some versions of Triton lack

        return [hopper.forward_run(task, launch.tiles)]
    rows, cols, span = launch.tiles
    sizes = task.sizes
    spans = ceil_div(sizes.n_k, span) if span < sizes.n_k else 1
    lists = task.lists(rows, cols, "rows", span)
    grid = ceil_div(task.rows, rows) * task.streams, spans
    arguments = {
        **common_arguments(task, precision),
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
    arguments["ALIGN"] = alignment(arguments)
    if spans == 1:
        return [Run(flash_forward, grid, arguments, launch.warps, launch.stages)]
    partial = partial_outputs(task, spans)
    arguments |= {"out": array(partial.out[0]), "lse": partial.lse}
    arguments |= {"out_step": partial.out.stride(0), "lse_step": partial.lse.stride(0)}
    arguments["ALIGN"] = alignment(arguments)
    by_span = Run(flash_forward, grid, arguments, launch.warps, launch.stages)
    return [by_span, merge_run(task, partial, lists, rows, cols, span)]


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
    span,  # keys that a program covers; None: all
    out_step,  # distance between the outputs of consecutive spans
    lse_step,
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
    """Output and log-sum-exp of a block of rows, over all keys or over one span of them."""
    SUMS: tl.constexpr = lse.dtype.element_ty
    block = row_block((0, 0, n_q * GROUP), n_q, kv_heads, tl.program_id(0), scores.end is not None, GROUP, ROWS)
    batch, head = block.batch, block.head
    i_span = tl.program_id(1)
    borders, i_list = (0, n_k, 0, n_k), 0  # borders for a band, `i_list` for lists: only one of them is used
    if lists is None:
        borders = key_range(scores, block.first, block.stop - 1, n_k, GROUP, COLS)
        if span is not None:
            low, high, full_low, full_high = borders
            low, high = tl.maximum(low, i_span * span), tl.minimum(high, i_span * span + span)
            full_low, full_high = tl.maximum(full_low, i_span * span), tl.minimum(full_high, i_span * span + span)
            borders = low, high, full_low, full_high
            if low >= high:
                return
    else:
        i_list = list_of(lists, batch, head, block.index, block.blocks)
        if span is not None:
            i_list = i_list * tl.cdiv(n_k, span) + i_span
            if listed_tiles(lists, i_list) == 0:
                return

    m_row = None if WHOLE_ROWS else block.i < n_q * GROUP
    q = head_of(q, batch, head * GROUP, ALIGN)
    q_offsets = row_offsets(q, index(block.i, WIDE), GROUP)
    q0 = load(q, q_offsets, m_row, 0, D0, D)
    b_q = q0, (load(q, q_offsets, m_row, D0, D1, D) if D1 else q0)
    acc0 = tl.zeros((ROWS, V0), SUMS)
    acc1 = tl.zeros((ROWS, V1), SUMS) if V1 else acc0
    row_max, row_sum = tl.full((ROWS,), lowest(SUMS), SUMS), tl.zeros((ROWS,), SUMS)
    if span is None:
        row_max, row_sum = initial_max_and_sum(scores, head, block.i, GROUP, SUMS)
    k, v = head_of(k, batch, head, ALIGN), head_of(v, batch, head, ALIGN)
    state = visit(
        _keys, borders, i_list, scores.first is not None, scores.end is not None or not WHOLE_COLS,
        (acc0, acc1, row_max, row_sum), (b_q, k, v), block, m_row, scores, lists,
        Constants(GROUP, COLS, D, D1, D_V, V1, PLAIN, WIDE, PRECISION)
    )  # fmt: skip

    acc0, acc1, row_max, row_sum = state
    attends = row_sum != 0  # or is NaN
    factor = tl.where(attends, 1.0 / tl.where(attends, row_sum, 1.0), 0.0)
    out, p_lse = head_of(out, batch, head * GROUP, ALIGN), lse + block.numbers
    if span is not None:
        out = Array(out.pointer + wide(i_span) * out_step, out.batch, out.head, out.row, out.col)
        p_lse += wide(i_span) * lse_step
    out_offsets = row_offsets(out, index(block.i, WIDE), GROUP)
    store(out, out_offsets, acc0 * factor[:, None], m_row, 0, V0, D_V)
    if V1:
        store(out, out_offsets, acc1 * factor[:, None], m_row, V0, V1, D_V)
    b_lse = tl.where(attends, row_max * constant(LN2, SUMS) + tl.log(tl.where(attends, row_sum, 1.0)), float("-inf"))
    tl.store(p_lse, b_lse, mask=m_row)


@triton.jit
def _keys(tiles, TILES: tl.constexpr, state, operands, block, m_row, scores, lists, c):
    """Add tiles of keys to the rows' state: two parts of the unscaled output, the maximum and the sum (see visits.py).

    operands: two parts of the rows of q, then k and v.
    """
    acc0, acc1, row_max, row_sum = state
    b_q, k, v = operands
    ROWS: tl.constexpr = block.i.shape[0]
    COLS: tl.constexpr = c.LENGTH
    SUMS: tl.constexpr = row_max.dtype
    WORDS: tl.constexpr = (COLS + 63) // 64
    left = factor_left(scores, c.PLAIN, SUMS)
    b_terms = row_terms(scores, block.batch, block.head, block.i, 1, c.GROUP, SUMS)
    # Without this test, a path that skips the loop would join a path with products in flight, and ptxas would wait for
    # every product
    if tiles.begin < tiles.stop:
        for t in tl.range(tiles.begin, tiles.stop, COLS if TILES == "whole" or TILES == "masked" else 1):
            j = first_of(lists, t, TILES, COLS)
            i_col = tl.arange(0, COLS)
            i_key = j + i_col
            m_key = None
            if TILES == "masked":
                m_key = (i_key >= tiles.low) & (i_key < tiles.high)
            if TILES == "partial":
                m_key = bit_set(lists.live + t * WORDS, i_col, COLS)
            k_offsets, v_offsets = index(i_key, c.WIDE) * k.row, index(i_key, c.WIDE) * v.row
            k0 = load(k, k_offsets, m_key, 0, b_q[0].shape[1], c.D)
            s = product(b_q[0], tl.trans(k0), tl.zeros((ROWS, COLS), SUMS), c.PRECISION)
            if c.D1:
                k1 = load(k, k_offsets, m_key, b_q[0].shape[1], c.D1, c.D)
                s = product(b_q[1], tl.trans(k1), s, c.PRECISION)
            s, _ = finish(
                s, scores, block.batch, block.head, index(block.i, c.WIDE)[:, None], index(i_key, c.WIDE)[None, :],
                None if m_row is None else m_row[:, None], None if m_key is None else m_key[None, :],
                b_terms, c.GROUP, c.PLAIN
            )  # fmt: skip
            if TILES == "masked":
                m_pair = m_key[None, :] & in_band(scores, (block.i // c.GROUP)[:, None], i_key[None, :])
                s = tl.where(m_pair, s, float("-inf"))
            if TILES == "partial":
                line = t * ROWS + tl.arange(0, ROWS)
                m_pair = bit_set((lists.bits + line * WORDS)[:, None], i_col[None, :], COLS)
                s = tl.where(m_pair, s, float("-inf"))
            new_max = tl.maximum(row_max, tl.max(s, 1) * left)
            p = exp2_below(s * left, new_max[:, None], c.PLAIN)
            shrink = tl.exp2(row_max - new_max)
            row_sum = row_sum * shrink + tl.sum(p, 1)
            row_max = new_max
            if scores.seed is not None:
                p *= keep_factors(scores, block.numbers, j, COLS, SUMS)
            p = p.to(v.pointer.dtype.element_ty)
            v0 = load(v, v_offsets, m_key, 0, acc0.shape[1], c.D_V)
            acc0 = product(p, v0, acc0 * shrink[:, None], c.PRECISION)
            if c.V1:
                v1 = load(v, v_offsets, m_key, acc0.shape[1], c.V1, c.D_V)
                acc1 = product(p, v1, acc1 * shrink[:, None], c.PRECISION)
    return acc0, acc1, row_max, row_sum
