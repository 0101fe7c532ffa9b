"""The schedules `hybrid` and `small_cache`, forward: P is spilled in chunks of rows, then multiplied by V.

In `small_cache`, shared memory and registers depend on the tiles only, not on the head dimensions. `hybrid` also holds
its rows of Q.
P is spilled as exp2(score - the row maximum of its tile), in the inputs' type; dropped probabilities are 0.
"""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from redblue.base.integers import ceil_div
from redblue.kernels.gpu.arrays import head_of, index, row_offsets, tile_mask, write
from redblue.kernels.gpu.band import band_tiles, first_of, keys_of, pair_mask
from redblue.kernels.gpu.blocks import row_block
from redblue.kernels.gpu.launch import Run, Task, array
from redblue.kernels.gpu.planning.by_tma import Choice
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
from redblue.kernels.gpu.spilled.chunks import (
    PLACE,
    Chunk,
    by_column,
    by_row,
    chunks,
    line_at,
    whole_slices,
    widest_slice,
    with_chunk,
)
from redblue.kernels.gpu.spilled.constants import PairConstants
from redblue.kernels.gpu.spilled.output import spilled_output
from redblue.kernels.gpu.spilled.slices import Panel, SliceConstants, load_slices, score_tile
from redblue.kernels.gpu.spilled.tma import launches as by_tma
from redblue.kernels.gpu.spilled.unattended import without_unattended_keys
from redblue.kernels.gpu.visits import visit_band_or_list


def forward(task: Task, launch: Launch, precision: str = "ieee") -> list[Run]:
    """The launches that write task.out and task.lse."""
    if isinstance(launch.tiles, Choice):
        return by_tma.forward(task, launch.tiles)
    task = without_unattended_keys(task)
    launch = with_chunk(task, launch, 1)
    sizes, t, sums = task.sizes, launch.tiles, task.lse.dtype
    spans = max(1, ceil_div(sizes.n_k, t.span))
    common = {
        "p": by_row(task, launch.chunk, sizes.n_k, task.q.dtype),
        "tile_max": by_column(task, launch.chunk, ceil_div(sizes.n_k, t.cols), sums),
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
    by_span = {"span": t.span, "span_lse": by_column(task, launch.chunk, spans, sums) if spans > 1 else None}
    runs = []
    for chunk in chunks(task, launch.chunk):
        runs.append(_spill(task, launch, chunk, common | by_span | chunk.place, spans))
        if spans > 1:
            runs.append(_merge_lse(task, launch, chunk, common | by_span | chunk.place))
        runs.append(_output(task, launch, chunk, common | chunk.place, t.out_rows))
    return runs


def _spill(task: Task, launch: Launch, chunk: Chunk, common: dict[str, Any], spans: int) -> Run:
    t, sizes, hybrid = launch.tiles, task.sizes, launch.kernel == "hybrid"
    depth = widest_slice(sizes.d, t.depth) if hybrid else t.depth
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


def _merge_lse(task: Task, launch: Launch, chunk: Chunk, common: dict[str, Any]) -> Run:
    names = "span_lse", "lse", "scores", "lists", "stream", "row", "rows", "n_q", "n_k", "kv_heads", "span", "GROUP"
    arguments = {name: common[name] for name in names} | {"ROWS": launch.tiles.rows}
    return Run(merge_lse, (ceil_div(chunk.rows, launch.tiles.rows) * chunk.streams,), arguments, 4, 1)


def _output(task: Task, launch: Launch, chunk: Chunk, common: dict[str, Any], rows: int) -> Run:
    t, sizes = launch.tiles, task.sizes
    arguments = common | {
        "v": array(task.v),
        "out": array(task.out),
        "d_v": sizes.d_v,
        "ROWS": rows,
        "FEATURES": t.out_cols,
        "WHOLE_ROWS": chunk.rows % rows == 0,
        "WHOLE_KEYS": whole_slices(task, sizes.n_k, t.cols, t.depth),
        "WHOLE": sizes.d_v % t.out_cols == 0,
    }
    tiles = ceil_div(chunk.rows, rows) * ceil_div(sizes.d_v, t.out_cols)
    return Run(spilled_output, (tiles * chunk.streams,), arguments, launch.warps, launch.stages)


@triton.jit
def log2_sum(row_max, row_sum):
    """log2 of row_sum 2^row_max; -inf where nothing was summed."""
    attends = row_sum != 0
    return tl.where(attends, row_max + tl.log2(tl.where(attends, row_sum, 1.0)), float("-inf"))


@triton.jit(do_not_specialize=PLACE)
def spill(
    q,
    k,
    p,
    tile_max,
    span_lse,
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
    """P and the row maxima of its tiles, for a block of rows and a span of keys; and the rows' log-sum-exp.

    span_lse: receives the log-sum-exps of the spans; None if there is one span.
    """
    SUMS: tl.constexpr = lse.dtype.element_ty
    block = row_block((stream, row, rows), n_q, kv_heads, tl.program_id(0), scores.end is not None, GROUP, ROWS)
    m_row = None if WHOLE_ROWS else block.i_local < rows
    state = tl.full((ROWS,), lowest(SUMS), SUMS), tl.zeros((ROWS,), SUMS)
    if span_lse is None:
        state = initial_max_and_sum(scores, block.head, block.i, GROUP, SUMS)
    q, k = head_of(q, block.batch, block.head * GROUP), head_of(k, block.batch, block.head)
    q = Panel(q, row_offsets(q, index(block.i, WIDE), GROUP))
    band = band_tiles(scores, lists, block, n_k, span, GROUP, COLS)
    m_held = m_row
    if lists is None and span_lse is not None:
        m_held = tl.where(band.begin < band.stop, block.i_local, rows) < rows
    b_q = load_slices(q, m_held, d, SLICES, DEPTH, WIDE)
    row_max, row_sum = visit_band_or_list(
        _spill_tiles, band, (tl.program_id(1), tl.num_programs(1)), 1,
        state, (b_q, q, k, p, tile_max, n_k, d), block, m_row, scores, lists,
        PairConstants(GROUP, COLS, COLS, PLAIN, WHOLE_COLS, SliceConstants(SLICES, DEPTH, WHOLE, WIDE, PRECISION))
    )  # fmt: skip
    if span_lse is None:
        write(lse + block.numbers, log2_sum(row_max, row_sum) * constant(LN2, SUMS), m_row)
    elif lists is not None or band.begin < band.stop:
        write(line_at(span_lse, block.local, tl.program_id(1)) + block.i_local, log2_sum(row_max, row_sum), m_row)


@triton.jit
def _spill_tiles(tiles, TILES: tl.constexpr, state, operands, block, m_row, scores, lists, c):
    """Spill tiles of P, and add them to the rows' state: the maximum and the sum (see visits.py).

    operands: the rows of q, from load_slices, and their Panel; k; P and its row maxima; n_k, d.
    """
    row_max, row_sum = state
    b_q, q, k, p, tile_maxima, n_k, d = operands
    COLS: tl.constexpr = c.COLS
    ROWS: tl.constexpr = block.i.shape[0]
    SUMS: tl.constexpr = row_sum.dtype
    WIDE: tl.constexpr = c.slices.WIDE
    left = factor_left(scores, c.PLAIN, SUMS)
    b_terms = row_terms(scores, block.batch, block.head, block.i, 1, c.GROUP, SUMS)
    p_rows = line_at(p, block.local, block.i_local)
    for t in tl.range(tiles.begin, tiles.stop, COLS if TILES == "band" else 1, flatten=c.slices.SLICES == 0):
        j = first_of(lists, t, TILES, COLS)
        i_key = j + tl.arange(0, COLS)
        m_key = None if c.WHOLE_KEYS or TILES == "full" else i_key < n_k
        s = score_tile(
            b_q, q, m_row, Panel(k, index(i_key, WIDE) * k.row), m_key, d, tl.zeros((ROWS, COLS), SUMS), c.slices
        )
        s, _ = finish(
            s, scores, block.batch, block.head, index(block.i, WIDE)[:, None], index(i_key, WIDE)[None, :],
            None if m_row is None else m_row[:, None], None if m_key is None else m_key[None, :],
            b_terms, c.GROUP, c.PLAIN
        )  # fmt: skip
        m_pair = pair_mask(scores, lists, t, TILES, block.i, i_key, m_key, COLS, c.GROUP)
        s = s * left if m_pair is None else tl.where(m_pair, s * left, float("-inf"))
        tile_max = tl.maximum(tl.max(s, 1), lowest(SUMS))
        s = exp2_below(s, tile_max[:, None], c.PLAIN)
        new_max = tl.maximum(row_max, tile_max)
        row_sum = row_sum * tl.exp2(row_max - new_max) + tl.sum(s, 1) * tl.exp2(tile_max - new_max)
        row_max = new_max
        if scores.seed is not None:
            s = tl.where(keep_factors(scores, block.numbers, j, COLS, SUMS) != 0, s, 0.0)
        write(p_rows[:, None] + i_key[None, :], s, tile_mask(m_row, m_key))
        write(line_at(tile_maxima, block.local, j // COLS) + block.i_local, tile_max, m_row)
    return row_max, row_sum


@triton.jit(do_not_specialize=PLACE)
def merge_lse(
    span_lse, lse, scores, lists, stream, row, rows, n_q, n_k, kv_heads, span, GROUP: tl.constexpr, ROWS: tl.constexpr
):
    """Merge the log-sum-exps of the spans of keys, for a block of rows."""
    SUMS: tl.constexpr = lse.dtype.element_ty
    block = row_block((stream, row, rows), n_q, kv_heads, tl.program_id(0), False, GROUP, ROWS)
    m_row = block.i_local < rows
    begin, stop = block.first * 0, tl.cdiv(n_k, span)
    if lists is None:
        low, high = keys_of(scores, block.first, block.stop, n_k, GROUP)
        begin, stop = low // span, tl.cdiv(high, span)
    row_max, row_sum = initial_max_and_sum(scores, block.head, block.i, GROUP, SUMS)
    for s in range(begin, stop):
        b_lse = tl.load(line_at(span_lse, block.local, s) + block.i_local, mask=m_row, other=lowest(SUMS))
        new_max = tl.maximum(row_max, b_lse)
        row_sum = row_sum * tl.exp2(row_max - new_max) + tl.exp2(b_lse - new_max)
        row_max = new_max
    write(lse + block.numbers, log2_sum(row_max, row_sum) * constant(LN2, SUMS), m_row)
