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

from redblue.base.integers import ceil_div
from redblue.kernels.gpu.launch import Run, Task, array
from redblue.kernels.gpu.planning.plan import Launch
from redblue.kernels.gpu.products import lanes, places, read, write
from redblue.kernels.gpu.scores import index, row_numbers, row_offsets, start
from redblue.kernels.gpu.spilled.chunks import Chunk, by_row, chunks, prepared, whole, widest
from redblue.kernels.gpu.spilled.gradients import Gradients, slice_width, sums_of
from redblue.kernels.gpu.spilled.pairs import spill_ds, spill_p
from redblue.kernels.gpu.spilled.unattended import seen


def backward(task: Task, launch: Launch, precision: str = "ieee") -> list[Run]:
    """What writes task.delta, dq, dk and dv."""
    task = seen(task)
    launch = prepared(task, launch)
    sizes, t, hybrid = task.sizes, launch.tiles, launch.kernel == "hybrid"
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
    gradients = Gradients(task, launch, common | precisely, spilled, sums)
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
    keys, depth = (t.depth, widest(sizes.d, slice_width(sizes.d))) if hybrid else (t.cols, t.depth)
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
