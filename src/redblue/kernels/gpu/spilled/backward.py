"""The schedules `hybrid` and `small_cache`, backward: P and dS are spilled in chunks of rows, then multiplied.

P is spilled in the inputs' type and is negative where dropout drops it. dS is spilled without the scale. The
launches that multiply them with K, Q and dO are in gradients.py.
"""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
from __future__ import annotations

from typing import Any

import torch
import triton.language as tl

from redblue.base.integers import ceil_div
from redblue.kernels.gpu.launch import Run, Task, array
from redblue.kernels.gpu.planning.by_tma import Choice
from redblue.kernels.gpu.planning.plan import Launch
from redblue.kernels.gpu.spilled.chunks import Chunk, by_row, chunks, whole_slices, widest_slice, with_chunk
from redblue.kernels.gpu.spilled.deltas import deltas_run
from redblue.kernels.gpu.spilled.gradients import Gradients, running_sums, slice_width
from redblue.kernels.gpu.spilled.pairs import spill_ds, spill_p
from redblue.kernels.gpu.spilled.tma import launches as by_tma
from redblue.kernels.gpu.spilled.unattended import without_unattended_keys


def backward(task: Task, launch: Launch, precision: str = "ieee") -> list[Run]:
    """The launches that write task.delta, dq, dk and dv."""
    if isinstance(launch.tiles, Choice):
        return by_tma.backward(task, launch.tiles)
    task = without_unattended_keys(task)
    launch = with_chunk(task, launch, 2 + bool(task.record.softcap))
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
    runs = [deltas_run(task, t.rows, launch.warps, launch.stages)]
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
