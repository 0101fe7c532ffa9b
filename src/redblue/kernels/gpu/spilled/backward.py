"""The schedules `hybrid` and `small_cache`, backward: P and dS are spilled in chunks of rows, then multiplied.

P is spilled in the inputs' type and is negative where dropout drops it. dS is spilled without the scale. The
launches that multiply them with K, Q and dO are in gradients.py.
"""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from redblue.base.integers import ceil_div
from redblue.kernels.gpu.arrays import head_of, index, read, row_offsets, tile_mask, write
from redblue.kernels.gpu.blocks import row_block
from redblue.kernels.gpu.launch import Run, Task, array
from redblue.kernels.gpu.planning.plan import Launch
from redblue.kernels.gpu.spilled.chunks import Chunk, by_row, chunks, whole_slices, widest_slice, with_chunk
from redblue.kernels.gpu.spilled.gradients import Gradients, running_sums, slice_width
from redblue.kernels.gpu.spilled.pairs import spill_ds, spill_p
from redblue.kernels.gpu.spilled.slices import Panel, pointers
from redblue.kernels.gpu.spilled.unattended import without_unattended_keys


def backward(task: Task, launch: Launch, precision: str = "ieee") -> list[Run]:
    """The launches that write task.delta, dq, dk and dv."""
    task = without_unattended_keys(task)
    launch = with_chunk(task, launch)
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
    if task.record.softcap:
        spilled["cap_derivative"] = by_row(task, launch.chunk, sizes.n_k, task.q.dtype)
    pairs = common | {"lists": task.lists(t.rows, t.cols, "rows"), "span": t.span} | spilled
    running = {name: running_sums(task, launch, getattr(task, name)) for name in ("dk", "dv")}
    sums = {"SUMS": tl.float64 if task.lse.dtype == torch.float64 else tl.float32}
    gradients = Gradients(task, launch, common | sums, spilled, running)
    runs = [_deltas(task, launch, common)]
    for chunk in chunks(task, launch.chunk):
        runs.append(_p(task, launch, chunk, pairs))
        if hybrid:
            runs.append(gradients.dv_and_ds(chunk))
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
    keys, depth = (t.depth, widest_slice(sizes.d, slice_width(sizes.d))) if hybrid else (t.cols, t.depth)
    names = {name: x for name, x in pairs.items() if name != "ds"} | chunk.place
    arguments = {"cap_derivative": None} | names | {
        "q": array(task.q),
        "k": array(task.k),
        "lse": task.lse,
        "d": sizes.d,
        "SLICES": ceil_div(sizes.d, depth) if hybrid else 0,
        "KEYS": keys,
        "DEPTH": depth,
        "PLAIN": task.plain,
        "WHOLE_ROWS": chunk.rows % t.rows == 0,
        "WHOLE_KEYS": whole_slices(task, sizes.n_k, t.cols, keys),
        "WHOLE": sizes.d % depth == 0,
    }  # fmt: skip
    return Run(spill_p, _grid(task, launch, chunk), arguments, launch.warps, launch.stages)


def _ds(task: Task, launch: Launch, chunk: Chunk, pairs: dict[str, Any]) -> Run:
    t, sizes = launch.tiles, task.sizes
    arguments = {"cap_derivative": None} | pairs | chunk.place | {
        "v": array(task.v),
        "dout": array(task.dout),
        "delta": task.delta,
        "d_v": sizes.d_v,
        "DEPTH": t.depth,
        "WHOLE_ROWS": chunk.rows % t.rows == 0,
        "WHOLE_COLS": sizes.n_k % t.cols == 0,
        "WHOLE": sizes.d_v % t.depth == 0,
    }  # fmt: skip
    return Run(spill_ds, _grid(task, launch, chunk), arguments, launch.warps, launch.stages)


def _grid(task: Task, launch: Launch, chunk: Chunk) -> tuple[int, int]:
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
    """delta: the row sums of dout * out, minus dlse."""
    SUMS: tl.constexpr = delta.dtype.element_ty
    block = row_block((0, 0, n_q * GROUP), n_q, kv_heads, tl.program_id(0), False, GROUP, ROWS)
    m_row = block.i < n_q * GROUP
    out, dout = head_of(out, block.batch, block.head * GROUP), head_of(dout, block.batch, block.head * GROUP)
    out = Panel(out, row_offsets(out, index(block.i, WIDE), GROUP))
    dout = Panel(dout, row_offsets(dout, index(block.i, WIDE), GROUP))
    b_delta = tl.zeros((ROWS,), SUMS)
    for f in range(0, d_v, DEPTH):
        i_f = f + tl.arange(0, DEPTH)
        m_x = tile_mask(m_row, i_f < d_v)
        b_out, b_dout = read(pointers(out, i_f, WIDE), m_x), read(pointers(dout, i_f, WIDE), m_x)
        b_delta += tl.sum(b_out.to(SUMS) * b_dout.to(SUMS), 1)
    if dlse is not None:
        b_delta -= tl.load(dlse + block.numbers, mask=m_row, other=0.0)
    write(delta + block.numbers, b_delta, m_row)
