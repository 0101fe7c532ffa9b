"""The schedules `hybrid` and `small_cache`, backward: P and dS are spilled chunk by chunk of rows, then multiplied.

What writes P and dS is here, the products of dS with K and Q, and of P with dO, are in spilled_gradients. P is spilled
in the inputs' type, negative where it is dropped, and dS without the scale.
"""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from redblue.integers import ceil_div
from redblue.kernels.gpu.band import keys_of, live_tiles
from redblue.kernels.gpu.chunks import PLACE, Chunk, by_row, chunks, line_at, whole
from redblue.kernels.gpu.plan import Launch
from redblue.kernels.gpu.products import lanes, places, read, rows_held, score_tile, write
from redblue.kernels.gpu.scores import (
    LOG2E,
    block_of,
    constant,
    factor_left,
    finish,
    index,
    kept,
    row_numbers,
    row_offsets,
    start,
)
from redblue.kernels.gpu.spilled import attending
from redblue.kernels.gpu.spilled_gradients import Gradients, score_gradient, slice_width, sums_of
from redblue.kernels.gpu.task import Run, Task, array


def backward(task: Task, launch: Launch, precision: str = "ieee") -> list[Run]:
    """What writes task.delta, dq, dk and dv."""
    sizes, t, hybrid = task.sizes, launch.tiles, launch.kernel == "hybrid"
    if task.mask is not None:  # P is read by the tiles that are listed for writing it
        same = {"dq_rows": t.rows, "dk_rows": t.cols, "dv_rows": t.cols}
        t = t._replace(**{edge: same[edge] for edge in t._fields if edge in same})
    common = {
        "scores": task.scores,
        "n_q": sizes.n_q,
        "n_k": sizes.n_k,
        "kv_heads": sizes.kv_heads,
        "GROUP": sizes.group,
        "ROWS": t.rows,
        "COLS": t.cols,
        "WIDE": task.wide,
        "PRECISION": precision,
    }
    spilled = {name: by_row(task, launch.chunk, sizes.n_k, task.q.dtype) for name in ("p", "ds")}
    if task.softcap:
        spilled["slope"] = by_row(task, launch.chunk, sizes.n_k, task.q.dtype)
    pairs = common | {"lists": task.lists(t.rows, t.cols, "rows"), "span": t.span} | spilled
    sums = {name: sums_of(task, launch, getattr(task, name)) for name in ("dk", "dv")}
    precisely = {"SUMS": tl.float64 if task.lse.dtype == torch.float64 else tl.float32}
    gradients = Gradients(task, launch._replace(tiles=t), common | precisely, spilled, sums)
    runs = [_deltas(task, launch, common)]
    for chunk in chunks(task, launch.chunk):
        runs.append(_p(task, launch, chunk, pairs))
        if hybrid:
            runs.append(gradients.turn(chunk))
        else:
            runs.append(_ds(task, launch, chunk, pairs))
        runs += [gradients.dq(chunk), gradients.dk(chunk)]
        if not hybrid:
            runs.append(gradients.dv(chunk))
    return runs


def _deltas(task: Task, launch: Launch, common: dict[str, Any]) -> Run:
    rows, depth = launch.tiles.rows, slice_width(task.sizes.d_v)
    names = "n_q", "kv_heads", "GROUP", "WIDE"
    arguments = {name: common[name] for name in names} | {
        "out": array(task.out),
        "dout": array(task.dout),
        "dlse": task.dlse,
        "delta": task.delta,
        "d_v": task.sizes.d_v,
        "ROWS": rows,
        "DEPTH": depth,
    }
    return Run(deltas, (ceil_div(task.rows, rows) * task.streams,), arguments, launch.warps, launch.stages)


def _p(task: Task, launch: Launch, chunk: Chunk, pairs: dict[str, Any]) -> Run:
    t, sizes = launch.tiles, task.sizes
    hybrid = launch.kernel == "hybrid"
    keys, depth = (t.depth, slice_width(sizes.d)) if hybrid else (t.cols, t.depth)
    names = {name: x for name, x in pairs.items() if name != "ds"} | chunk.place
    arguments = {"slope": None} | names | {
        "q": array(task.q),
        "k": array(task.k),
        "lse": task.lse,
        "d": sizes.d,
        "SLICES": ceil_div(sizes.d, depth) if hybrid else 0,
        "KEYS": keys,
        "DEPTH": depth,
        "PLAIN": task.plain,
        "WHOLE_ROWS": chunk.rows % t.rows == 0,
        "WHOLE_KEYS": whole(task, sizes.n_k, t.cols, keys),
        "WHOLE": sizes.d % depth == 0,
    }  # fmt: skip
    return Run(spill_p, _walks(task, launch, chunk), arguments, launch.warps, launch.stages)


def _ds(task: Task, launch: Launch, chunk: Chunk, pairs: dict[str, Any]) -> Run:
    t, sizes = launch.tiles, task.sizes
    arguments = {"slope": None} | pairs | chunk.place | {
        "v": array(task.v),
        "dout": array(task.dout),
        "delta": task.delta,
        "d_v": sizes.d_v,
        "DEPTH": t.depth,
        "WHOLE_ROWS": chunk.rows % t.rows == 0,
        "WHOLE_COLS": sizes.n_k % t.cols == 0,
        "WHOLE": sizes.d_v % t.depth == 0,
    }  # fmt: skip
    return Run(spill_ds, _walks(task, launch, chunk), arguments, launch.warps, launch.stages)


def _walks(task: Task, launch: Launch, chunk: Chunk) -> tuple[int, int]:
    return ceil_div(chunk.rows, launch.tiles.rows) * chunk.streams, max(1, ceil_div(task.sizes.n_k, launch.tiles.span))


@triton.jit
def deltas(
    out,
    dout,
    dlse,
    delta,
    n_q,
    kv_heads,
    d_v,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Row sums of dout * out, less dlse."""
    SUMS: tl.constexpr = delta.dtype.element_ty
    blocks = tl.cdiv(n_q * GROUP, ROWS)
    stream = tl.program_id(0) // blocks
    batch, head = stream // kv_heads, stream % kv_heads
    i_row = tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)
    m_row = i_row < n_q * GROUP
    numbers = row_numbers(batch, head, kv_heads, n_q, i_row, GROUP)
    at_out, at_dout = start(out, batch, head * GROUP), start(dout, batch, head * GROUP)
    out_offsets = row_offsets(out, index(i_row, WIDE), GROUP)
    dout_offsets = row_offsets(dout, index(i_row, WIDE), GROUP)
    b_delta = tl.zeros((ROWS,), SUMS)
    for f in range(0, d_v, DEPTH):
        i_f = f + tl.arange(0, DEPTH)
        m_x = lanes(m_row, i_f < d_v)
        b_out = read(places(at_out, out, out_offsets, i_f, WIDE), m_x)
        b_dout = read(places(at_dout, dout, dout_offsets, i_f, WIDE), m_x)
        b_delta += tl.sum(b_out.to(SUMS) * b_dout.to(SUMS), 1)
    if dlse is not None:
        b_delta -= tl.load(dlse + numbers, mask=m_row, other=0.0)
    write(delta + numbers, b_delta, m_row)


@triton.jit(do_not_specialize=PLACE)
def spill_p(
    q,
    k,
    p,
    slope,
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
    KEYS: tl.constexpr,
    DEPTH: tl.constexpr,
    PLAIN: tl.constexpr,
    WHOLE_ROWS: tl.constexpr,
    WHOLE_KEYS: tl.constexpr,
    WHOLE: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """P of a block of rows and a span of keys, in tiles of KEYS keys; listed ones of COLS are covered whole.

    slope: where the derivative of softcap tanh(x / softcap) goes, if there is a softcap.
    """
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
    at_q, at_k = start(q, batch, head * GROUP), start(k, batch, head)
    q_offsets = row_offsets(q, index(i_row, WIDE), GROUP)
    if lists is None:
        low, high = keys_of(scores, row + block * ROWS, row + tl.minimum(block * ROWS + ROWS, rows), n_k, GROUP)
        begin = tl.maximum(low, tl.program_id(1) * span) // KEYS * KEYS
        stop = tl.minimum(high, tl.program_id(1) * span + span)
        m_held = tl.where((begin < stop) | (tl.num_programs(1) == 1), i_local, rows) < rows
        b_q = rows_held(at_q, q, q_offsets, m_held, d, SLICES, DEPTH, WIDE)
        b_lse = log_sum_at(lse + numbers, m_held)
        _p_tiles(
            begin, stop, "band", b_lse, b_q, at_q, q_offsets, at_k, q, k, p, slope, scores, lists, batch, head,
            local, i_local, i_row, m_row, numbers, n_k, d,
            GROUP, SLICES, COLS, KEYS, DEPTH, PLAIN, WHOLE_KEYS, WHOLE, WIDE, PRECISION
        )  # fmt: skip
    else:
        PER: tl.constexpr = COLS // KEYS
        b_q = rows_held(at_q, q, q_offsets, m_row, d, SLICES, DEPTH, WIDE)
        b_lse = log_sum_at(lse + numbers, m_row)
        at = block_of(lists, batch, head, (row // ROWS) + block, tl.cdiv(n_q * GROUP, ROWS))
        begin, stop = live_tiles(lists.full_starts + at, tl.program_id(1), tl.num_programs(1))
        _p_tiles(
            begin * PER, stop * PER, "full", b_lse, b_q, at_q, q_offsets, at_k, q, k, p, slope, scores, lists, batch,
            head, local, i_local, i_row, m_row, numbers, n_k, d,
            GROUP, SLICES, COLS, KEYS, DEPTH, PLAIN, WHOLE_KEYS, WHOLE, WIDE, PRECISION
        )  # fmt: skip
        begin, stop = live_tiles(lists.partial_starts + at, tl.program_id(1), tl.num_programs(1))
        _p_tiles(
            begin * PER, stop * PER, "partial", b_lse, b_q, at_q, q_offsets, at_k, q, k, p, slope, scores, lists,
            batch, head, local, i_local, i_row, m_row, numbers, n_k, d,
            GROUP, SLICES, COLS, KEYS, DEPTH, PLAIN, WHOLE_KEYS, WHOLE, WIDE, PRECISION
        )  # fmt: skip


@triton.jit
def log_sum_at(at, m_row):
    """Rows' log-sum-exp in units of log 2; for those that attend nothing +inf, which makes all their powers 0."""
    b_lse = read(at, m_row)
    return tl.where(b_lse == float("-inf"), float("inf"), b_lse * constant(LOG2E, b_lse.dtype))


@triton.jit
def _p_tiles(
    begin,
    stop,
    TILES: tl.constexpr,
    b_lse,
    b_q,
    at_q,
    q_offsets,
    at_k,
    q,
    k,
    p,
    slope,
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
    KEYS: tl.constexpr,
    DEPTH: tl.constexpr,
    PLAIN: tl.constexpr,
    WHOLE_KEYS: tl.constexpr,
    WHOLE: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """TILES: "band": those from key `begin` below `stop`; "full" and "partial": entries of lists, in pieces of KEYS."""
    ROWS: tl.constexpr = i_row.shape[0]
    SUMS: tl.constexpr = b_lse.dtype
    PER: tl.constexpr = COLS // KEYS
    left = factor_left(scores, PLAIN, SUMS)
    p_rows = line_at(p, local, i_local)
    for t in tl.range(begin, stop, KEYS if TILES == "band" else 1, flatten=SLICES == 0):
        j = t
        if TILES == "full":
            j = tl.load(lists.full + t // PER) * COLS + t % PER * KEYS
        if TILES == "partial":
            j = tl.load(lists.partial + t // PER) * COLS + t % PER * KEYS
        i_key = j + tl.arange(0, KEYS)
        m_key = None if WHOLE_KEYS or TILES == "full" else i_key < n_k
        s = score_tile(
            b_q, at_q, q, q_offsets, m_row, at_k, k, index(i_key, WIDE) * k.row, m_key, d,
            tl.zeros((ROWS, KEYS), SUMS), SLICES, DEPTH, WHOLE, WIDE, PRECISION
        )  # fmt: skip
        s, bent = finish(
            s, scores, batch, head, index(i_row, WIDE)[:, None], index(i_key, WIDE)[None, :],
            None if m_row is None else m_row[:, None], None if m_key is None else m_key[None, :], GROUP, PLAIN
        )  # fmt: skip
        m_pair = attending(scores, lists, t // PER, TILES, i_row, i_key, m_key, ROWS, COLS, GROUP)
        s = tl.exp2(s * left - b_lse[:, None])
        if m_pair is not None:
            s = tl.where(m_pair, s, 0.0)
        if scores.seed is not None:
            s = tl.where(kept(scores, numbers, j, KEYS, SUMS) != 0, s, -s)
        m_tile = lanes(m_row, m_key)
        write(p_rows[:, None] + i_key[None, :], s, m_tile)
        if slope is not None:
            write(line_at(slope, local, i_local)[:, None] + i_key[None, :], bent, m_tile)


@triton.jit(do_not_specialize=PLACE)
def spill_ds(
    v,
    dout,
    p,
    slope,
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
    span,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    DEPTH: tl.constexpr,
    WHOLE_ROWS: tl.constexpr,
    WHOLE_COLS: tl.constexpr,
    WHOLE: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """dS of a block of rows and a span of keys."""
    blocks = tl.cdiv(rows, ROWS)
    block = tl.program_id(0) % blocks
    local = tl.program_id(0) // blocks
    if scores.end is not None:  # the longest first
        block = blocks - 1 - block
    batch, head = (stream + local) // kv_heads, (stream + local) % kv_heads
    i_local = block * ROWS + tl.arange(0, ROWS)
    i_row = row + i_local
    m_row = None if WHOLE_ROWS else i_local < rows
    at_dout, at_v = start(dout, batch, head * GROUP), start(v, batch, head)
    dout_offsets = row_offsets(dout, index(i_row, WIDE), GROUP)
    p_delta = delta + row_numbers(batch, head, kv_heads, n_q, i_row, GROUP)
    if lists is None:
        low, high = keys_of(scores, row + block * ROWS, row + tl.minimum(block * ROWS + ROWS, rows), n_k, GROUP)
        begin = tl.maximum(low, tl.program_id(1) * span) // COLS * COLS
        stop = tl.minimum(high, tl.program_id(1) * span + span)
        b_delta = read(p_delta, tl.where((begin < stop) | (tl.num_programs(1) == 1), i_local, rows) < rows)
        _ds_tiles(
            begin, stop, "band", b_delta, at_dout, dout_offsets, at_v, dout, v, p, slope, ds, scores, lists, local,
            i_local, m_row, n_k, d_v, COLS, DEPTH, WHOLE_COLS, WHOLE, WIDE, PRECISION
        )  # fmt: skip
    else:
        b_delta = read(p_delta, m_row)
        at = block_of(lists, batch, head, (row // ROWS) + block, tl.cdiv(n_q * GROUP, ROWS))
        begin, stop = live_tiles(lists.full_starts + at, tl.program_id(1), tl.num_programs(1))
        _ds_tiles(
            begin, stop, "full", b_delta, at_dout, dout_offsets, at_v, dout, v, p, slope, ds, scores, lists, local,
            i_local, m_row, n_k, d_v, COLS, DEPTH, WHOLE_COLS, WHOLE, WIDE, PRECISION
        )  # fmt: skip
        begin, stop = live_tiles(lists.partial_starts + at, tl.program_id(1), tl.num_programs(1))
        _ds_tiles(
            begin, stop, "partial", b_delta, at_dout, dout_offsets, at_v, dout, v, p, slope, ds, scores, lists, local,
            i_local, m_row, n_k, d_v, COLS, DEPTH, WHOLE_COLS, WHOLE, WIDE, PRECISION
        )  # fmt: skip


@triton.jit
def _ds_tiles(
    begin,
    stop,
    TILES: tl.constexpr,
    b_delta,
    at_dout,
    dout_offsets,
    at_v,
    dout,
    v,
    p,
    slope,
    ds,
    scores,
    lists,
    local,
    i_local,
    m_row,
    n_k,
    d_v,
    COLS: tl.constexpr,
    DEPTH: tl.constexpr,
    WHOLE_COLS: tl.constexpr,
    WHOLE: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """TILES: as of _p_tiles."""
    ROWS: tl.constexpr = b_delta.shape[0]
    for t in tl.range(begin, stop, COLS if TILES == "band" else 1, flatten=True):
        j = t
        if TILES == "full":
            j = tl.load(lists.full + t) * COLS
        if TILES == "partial":
            j = tl.load(lists.partial + t) * COLS
        i_key = j + tl.arange(0, COLS)
        m_key = None if WHOLE_COLS or TILES == "full" else i_key < n_k
        m_tile = lanes(m_row, m_key)
        dp = score_tile(
            (), at_dout, dout, dout_offsets, m_row, at_v, v, index(i_key, WIDE) * v.row, m_key, d_v,
            tl.zeros((ROWS, COLS), b_delta.dtype), 0, DEPTH, WHOLE, WIDE, PRECISION
        )  # fmt: skip
        b_p = read(line_at(p, local, i_local)[:, None] + i_key[None, :], m_tile).to(dp.dtype)
        b_ds = score_gradient(b_p, dp, b_delta[:, None], scores)
        if slope is not None:
            b_ds *= read(line_at(slope, local, i_local)[:, None] + i_key[None, :], m_tile).to(dp.dtype)
        write(line_at(ds, local, i_local)[:, None] + i_key[None, :], b_ds, m_tile)
