"""The schedule `flash`, forward, on Hopper GPUs: launches the Gluon kernel of forward_kernel.py."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from redblue.base.integers import ceil_div
from redblue.kernels.gpu.hopper.forward_kernel import hopper_forward
from redblue.kernels.gpu.launch import Run, Task
from redblue.kernels.gpu.planning.by_gluon import Settings, padded
from redblue.kernels.gpu.planning.resources import WARPGROUP_ROWS

LOG2E = 1.4426950408889634
L2_SHARE = 0.5  # share of the L2 cache that the keys and values of a section of heads may fill
WARPS = 4  # warps of a consumer
TYPES: dict[torch.dtype, Any] = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}


def forward_run(task: Task, chosen: Settings) -> Run:
    """The launch that writes task.out and task.lse."""
    scale = task.record.numbers(task.sizes)["scale"]
    return prepare(task.q, task.k, task.v, task.out, task.lse, scale, task.first, task.end, chosen)


def prepare(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    scale: float,
    first: int | None,
    end: int | None,
    chosen: Settings,
) -> Run:
    """The launch that writes `out` and `lse`."""
    (batch, heads, n_q, d), (kv_heads, n_k), d_v = q.shape, k.shape[1:3], v.shape[3]
    unattended = min(n_k - 1, max(0, first or 0))  # keys that no query attends may hold NaN, so they are not loaded
    first, end = (None if edge is None else edge - unattended for edge in (first, end))
    n_k = n_k - unattended if end is None else max(1, min(n_k - unattended, n_q - 1 + end))
    k, v = (x[:, :, unattended : unattended + n_k] for x in (k, v))

    group, pack, cols = heads // kv_heads, chosen.pack, chosen.cols
    streams, blocks = batch * heads // pack, ceil_div(n_q * pack, WARPGROUP_ROWS * chosen.consumers)
    in_l2 = int(L2_SHARE * chosen.l2_bytes) // (q.itemsize * n_k * (d + d_v)) * group // pack
    section = min(streams, chosen.section or max(1, group // pack, in_l2))
    work = streams * blocks
    arguments = {
        "q_map": tensor_map(q, WARPGROUP_ROWS // pack, pack, padded(d)),
        "k_map": tensor_map(k, cols, 1, padded(d)),
        "v_map": tensor_map(v, cols, 1, padded(d_v)),
        "out": out,
        "out_batch": out.stride(0),
        "out_head": out.stride(1),
        "out_row": out.stride(2),
        "lse": lse,
        "scale": scale * LOG2E,
        "first": first or 0,
        "end": end or 0,
        "n_q": n_q,
        "n_k": n_k,
        "heads": heads // pack,
        "batch_heads": streams,
        "group": group,
        "blocks": blocks,
        "section": section,
        "FIRST": first is not None,
        "END": end is not None,
        "D_V": d_v,
        "PACK": pack,
        "COLS": cols,
        "STAGES": chosen.stages,
        "PING_PONG": chosen.ping_pong,
        "ORDERED": chosen.ordered,
        "WHOLE_COLS": n_k % cols == 0,
        "CONSUMERS": chosen.consumers,
    }
    grid = min(work, chosen.multiprocessors) if chosen.persistent else work
    return Run(hopper_forward, (grid,), arguments, WARPS, chosen.stages)


def tensor_map(x: Tensor, rows: int, heads: int, width: int) -> TensorDescriptor:
    """The TMA map of x (batch, heads, rows, features), for tiles of rows x heads of one batch entry."""
    x = x.transpose(1, 2)
    shape = [1, rows, heads, width]
    layout = gl.NVMMASharedLayout.get_default_for(shape, TYPES[x.dtype])  # type: ignore[operator]
    aligned = 16 // x.itemsize  # the stride of an axis of length 1 is arbitrary, but TMA checks it
    strides = [stride if size > 1 else aligned for size, stride in zip(x.shape[:3], x.stride()[:3], strict=True)]
    return TensorDescriptor(x, list(x.shape), [*strides, 1], shape, layout)
