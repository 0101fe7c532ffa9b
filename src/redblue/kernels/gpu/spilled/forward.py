"""The schedules `hybrid` and `small_cache`, forward: P is spilled chunk by chunk of rows and weighs V from there.

Shared memory and registers depend on the tiles alone, not on the head dimensions, except that hybrid's rows of Q stay.
P is spilled as exp2(score - its tile's row maximum), in the inputs' type, with 0 for what is dropped.
"""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from redblue.base.integers import ceil_div
from redblue.kernels.gpu.band import attending, keys_of, live_tiles
from redblue.kernels.gpu.launch import Run, Task, array
from redblue.kernels.gpu.planning.plan import Launch
from redblue.kernels.gpu.products import lanes, rows_held, score_tile, write
from redblue.kernels.gpu.scores import (
    LN2,
    LOWEST,
    block_of,
    constant,
    factor_left,
    finish,
    first_top,
    index,
    kept,
    power,
    row_numbers,
    row_offsets,
    start,
)
from redblue.kernels.gpu.spilled.chunks import PLACE, Chunk, by_column, by_row, chunks, line_at, prepared, whole, widest
from redblue.kernels.gpu.spilled.output import weigh
from redblue.kernels.gpu.spilled.unattended import seen


def forward(task: Task, launch: Launch, precision: str = "ieee") -> list[Run]:
    """What writes task.out and task.lse."""
    task = seen(task)
    launch = prepared(task, launch)
    sizes, t, sums = task.sizes, launch.tiles, task.lse.dtype
    spans = max(1, ceil_div(sizes.n_k, t.span))
    common = {
        "p": by_row(task, launch.chunk, sizes.n_k, task.q.dtype),
        "top": by_column(task, launch.chunk, ceil_div(sizes.n_k, t.cols), sums),
        "lse": task.lse,
        "scores": task.scores,
        "lists": task.lists(t.rows, t.cols, "rows"),
        "n_q": sizes.n_q,
        "n_k": sizes.n_k,
        "kv_heads": sizes.kv_heads,
        "GROUP": sizes.group,
        "COLS": t.cols,
        "DEPTH": t.depth,
        "WIDE": task.wide,
        "PRECISION": precision,
    }
    walks = {"span": t.span, "part": by_column(task, launch.chunk, spans, sums) if spans > 1 else None}
    runs = []
    for chunk in chunks(task, launch.chunk):
        runs.append(_spill(task, launch, chunk, common | walks | chunk.place, spans))
        if spans > 1:
            runs.append(_settle(task, launch, chunk, common | walks | chunk.place))
        runs.append(_weigh(task, launch, chunk, common | chunk.place, t.out_rows))
    return runs


def _spill(task: Task, launch: Launch, chunk: Chunk, common: dict[str, Any], spans: int) -> Run:
    t, sizes, hybrid = launch.tiles, task.sizes, launch.kernel == "hybrid"
    depth = widest(sizes.d, t.depth) if hybrid else t.depth
    arguments = common | {
        "q": array(task.q),
        "k": array(task.k),
        "d": sizes.d,
        "SLICES": ceil_div(sizes.d, depth) if hybrid else 0,
        "DEPTH": depth,
        "ROWS": t.rows,
        "PLAIN": task.plain,
        "WHOLE_ROWS": chunk.rows % t.rows == 0,
        "WHOLE_COLS": sizes.n_k % t.cols == 0,
        "WHOLE": sizes.d % depth == 0,
    }
    return Run(spill, (ceil_div(chunk.rows, t.rows) * chunk.streams, spans), arguments, launch.warps, launch.stages)


def _settle(task: Task, launch: Launch, chunk: Chunk, common: dict[str, Any]) -> Run:
    names = "part", "lse", "scores", "lists", "stream", "row", "rows", "n_q", "n_k", "kv_heads", "span", "GROUP"
    arguments = {name: common[name] for name in names} | {"ROWS": launch.tiles.rows}
    return Run(settle, (ceil_div(chunk.rows, launch.tiles.rows) * chunk.streams,), arguments, 4, 1)


def _weigh(task: Task, launch: Launch, chunk: Chunk, common: dict[str, Any], rows: int) -> Run:
    t, sizes = launch.tiles, task.sizes
    arguments = common | {
        "v": array(task.v),
        "out": array(task.out),
        "d_v": sizes.d_v,
        "ROWS": rows,
        "FEATURES": t.out_cols,
        "WHOLE_ROWS": chunk.rows % rows == 0,
        "WHOLE_KEYS": whole(task, sizes.n_k, t.cols, t.depth),
        "WHOLE": sizes.d_v % t.out_cols == 0,
    }
    tiles = ceil_div(chunk.rows, rows) * ceil_div(sizes.d_v, t.out_cols)
    return Run(weigh, (tiles * chunk.streams,), arguments, launch.warps, launch.stages)


@triton.jit
def log_sum(row_max, row_sum):
    """log2 of row_sum 2^row_max: -inf where nothing was summed."""
    some = row_sum != 0
    return tl.where(some, row_max + tl.log2(tl.where(some, row_sum, 1.0)), float("-inf"))


@triton.jit(do_not_specialize=PLACE)
def spill(
    q,
    k,
    p,
    top,
    part,
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
    DEPTH: tl.constexpr,
    PLAIN: tl.constexpr,
    WHOLE_ROWS: tl.constexpr,
    WHOLE_COLS: tl.constexpr,
    WHOLE: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """P and its tiles' row maxima, of a block of rows and a span of keys; and the rows' log-sum-exp.

    part: where that of each span goes; None if there is but one.
    """
    SUMS: tl.constexpr = lse.dtype.element_ty
    blocks = tl.cdiv(rows, ROWS)
    block = tl.program_id(0) % blocks
    local = tl.program_id(0) // blocks
    if scores.end is not None:  # the longest first
        block = blocks - 1 - block
    batch, head = (stream + local) // kv_heads, (stream + local) % kv_heads
    i_local = block * ROWS + tl.arange(0, ROWS)
    i_row = row + i_local
    m_row = None if WHOLE_ROWS else i_local < rows
    numbers = row_numbers(batch, head, kv_heads, n_q, i_row, GROUP)

    top_row, total = tl.full((ROWS,), LOWEST, SUMS), tl.zeros((ROWS,), SUMS)
    if part is None:
        top_row, total = first_top(scores, head, i_row, GROUP, SUMS)
    at_q, at_k = start(q, batch, head * GROUP), start(k, batch, head)
    q_offsets = row_offsets(q, index(i_row, WIDE), GROUP)
    if lists is None:
        low, high = keys_of(scores, row + block * ROWS, row + tl.minimum(block * ROWS + ROWS, rows), n_k, GROUP)
        begin = tl.maximum(low, tl.program_id(1) * span) // COLS * COLS
        stop = tl.minimum(high, tl.program_id(1) * span + span)
        m_held = m_row if part is None else tl.where(begin < stop, i_local, rows) < rows
        b_q = rows_held(at_q, q, q_offsets, m_held, d, SLICES, DEPTH, WIDE)
        top_row, total = _spill_tiles(
            begin, stop, "band", top_row, total, b_q, at_q, q_offsets, at_k, q, k, p, top, scores, lists, batch, head,
            local, i_local, i_row, m_row, numbers, n_k, d,
            GROUP, SLICES, COLS, DEPTH, PLAIN, WHOLE_COLS, WHOLE, WIDE, PRECISION
        )  # fmt: skip
        if part is not None and begin < stop:
            write(line_at(part, local, tl.program_id(1)) + i_local, log_sum(top_row, total), m_row)
    else:
        b_q = rows_held(at_q, q, q_offsets, m_row, d, SLICES, DEPTH, WIDE)
        at = block_of(lists, batch, head, (row // ROWS) + block, tl.cdiv(n_q * GROUP, ROWS))
        begin, stop = live_tiles(lists.full_starts + at, tl.program_id(1), tl.num_programs(1))
        top_row, total = _spill_tiles(
            begin, stop, "full", top_row, total, b_q, at_q, q_offsets, at_k, q, k, p, top, scores, lists, batch, head,
            local, i_local, i_row, m_row, numbers, n_k, d,
            GROUP, SLICES, COLS, DEPTH, PLAIN, WHOLE_COLS, WHOLE, WIDE, PRECISION
        )  # fmt: skip
        begin, stop = live_tiles(lists.partial_starts + at, tl.program_id(1), tl.num_programs(1))
        top_row, total = _spill_tiles(
            begin, stop, "partial", top_row, total, b_q, at_q, q_offsets, at_k, q, k, p, top, scores, lists, batch,
            head, local, i_local, i_row, m_row, numbers, n_k, d,
            GROUP, SLICES, COLS, DEPTH, PLAIN, WHOLE_COLS, WHOLE, WIDE, PRECISION
        )  # fmt: skip
        if part is not None:
            write(line_at(part, local, tl.program_id(1)) + i_local, log_sum(top_row, total), m_row)
    if part is None:
        write(lse + numbers, log_sum(top_row, total) * constant(LN2, SUMS), m_row)


@triton.jit
def _spill_tiles(
    begin,
    stop,
    TILES: tl.constexpr,
    top_row,
    total,
    b_q,
    at_q,
    q_offsets,
    at_k,
    q,
    k,
    p,
    top,
    scores,
    lists,
    batch,
    head,
    local,
    i_local,
    i_row,
    m_row,
    numbers,
    n_k,
    d,
    GROUP: tl.constexpr,
    SLICES: tl.constexpr,
    COLS: tl.constexpr,
    DEPTH: tl.constexpr,
    PLAIN: tl.constexpr,
    WHOLE_COLS: tl.constexpr,
    WHOLE: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Spill tiles of P; the rows' maximum and sum so far.

    TILES: "band": those from key `begin` below `stop`; "full" and "partial": entries begin .. stop - 1 of lists.
    """
    ROWS: tl.constexpr = i_row.shape[0]
    SUMS: tl.constexpr = total.dtype
    left = factor_left(scores, PLAIN, SUMS)
    p_rows = line_at(p, local, i_local)
    for t in tl.range(begin, stop, COLS if TILES == "band" else 1, flatten=SLICES == 0):
        j = t
        if TILES == "full":
            j = tl.load(lists.full + t) * COLS
        if TILES == "partial":
            j = tl.load(lists.partial + t) * COLS
        i_key = j + tl.arange(0, COLS)
        m_key = None if WHOLE_COLS or TILES == "full" else i_key < n_k
        k_offsets = index(i_key, WIDE) * k.row
        s = score_tile(
            b_q, at_q, q, q_offsets, m_row, at_k, k, k_offsets, m_key, d, tl.zeros((ROWS, COLS), SUMS),
            SLICES, DEPTH, WHOLE, WIDE, PRECISION
        )  # fmt: skip
        s, _ = finish(
            s, scores, batch, head, index(i_row, WIDE)[:, None], index(i_key, WIDE)[None, :],
            None if m_row is None else m_row[:, None], None if m_key is None else m_key[None, :], GROUP, PLAIN
        )  # fmt: skip
        m_pair = attending(scores, lists, t, TILES, i_row, i_key, m_key, ROWS, COLS, GROUP)
        s = s * left if m_pair is None else tl.where(m_pair, s * left, float("-inf"))
        tile_max = tl.maximum(tl.max(s, 1), LOWEST)
        s = power(s, tile_max[:, None], PLAIN)
        higher = tl.maximum(top_row, tile_max)
        total = total * tl.exp2(top_row - higher) + tl.sum(s, 1) * tl.exp2(tile_max - higher)
        top_row = higher
        if scores.seed is not None:
            s = tl.where(kept(scores, numbers, j, COLS, SUMS) != 0, s, 0.0)
        write(p_rows[:, None] + i_key[None, :], s, lanes(m_row, m_key))
        write(line_at(top, local, j // COLS) + i_local, tile_max, m_row)
    return top_row, total


@triton.jit(do_not_specialize=PLACE)
def settle(
    part, lse, scores, lists, stream, row, rows, n_q, n_k, kv_heads, span, GROUP: tl.constexpr, ROWS: tl.constexpr
):
    """The log-sum-exp of a block of rows from those of spans of keys."""
    SUMS: tl.constexpr = lse.dtype.element_ty
    blocks = tl.cdiv(rows, ROWS)
    block = tl.program_id(0) % blocks
    local = tl.program_id(0) // blocks
    batch, head = (stream + local) // kv_heads, (stream + local) % kv_heads
    i_local = block * ROWS + tl.arange(0, ROWS)
    i_row = row + i_local
    m_row = i_local < rows
    begin, stop = block * 0, tl.cdiv(n_k, span)
    if lists is None:
        low, high = keys_of(scores, row + block * ROWS, row + tl.minimum(block * ROWS + ROWS, rows), n_k, GROUP)
        begin, stop = low // span, tl.cdiv(high, span)
    top_row, total = first_top(scores, head, i_row, GROUP, SUMS)
    for s in range(begin, stop):
        b_part = tl.load(line_at(part, local, s) + i_local, mask=m_row, other=LOWEST)
        higher = tl.maximum(top_row, b_part)
        total = total * tl.exp2(top_row - higher) + tl.exp2(b_part - higher)
        top_row = higher
    numbers = row_numbers(batch, head, kv_heads, n_q, i_row, GROUP)
    write(lse + numbers, log_sum(top_row, total) * constant(LN2, SUMS), m_row)
