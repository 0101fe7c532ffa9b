"""The schedule `flash_onepass`, backward, on Hopper GPUs: three launches that write delta, then dk and dv, then dq."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from redblue.base.integers import ceil_div
from redblue.kernels.gpu.hopper.apart import backward_apart
from redblue.kernels.gpu.hopper.in_step import backward_in_step
from redblue.kernels.gpu.hopper.sums import Workspace, finish_run, prepare_run, workspace
from redblue.kernels.gpu.launch import Run, Task
from redblue.kernels.gpu.planning.plan import Launch

APART = {"BUFFERS": 2, "REGISTERS": 192}  # tiles of dS; registers of a thread that has keys: d = 64 spills no more


def backward(task: Task, launch: Launch, precision: str = "ieee") -> list[Any]:
    """The launches that write task.dq, dk, dv and delta, and what must be called after them.

    The task is one that `flash_onepass` takes: 16 bits, d = d_v in {64, 128, 256}, a band, plain scores, no dropout.
    """
    dk, dv = (x if _describable(x) else torch.empty_like(x, memory_format=torch.contiguous_format) for x in _out(task))
    copies = [_Copy(x, to) for x, to in zip((dk, dv), _out(task), strict=True) if x is not to]
    low = max(0, task.first or 0)  # no query attends the keys before it
    work = workspace(task, launch.tiles.rows)
    first, last = prepare_run(task, work), finish_run(task, work)
    for x in (dk, dv):
        x[:, :, :low].zero_()
    fused = [_fused_run(task, launch, work, dk[:, :, low:], dv[:, :, low:], low)] if low < task.sizes.n_k else []
    return [first, *fused, last, *copies]


def _fused_run(task: Task, launch: Launch, work: Workspace, dk: Tensor, dv: Tensor, low: int) -> Run:
    """The launch that writes dk and dv, those of the keys from `low` on, and the sums of dQ."""
    rows, cols = launch.tiles
    q, dout, k, v = (_readable(x) for x in (task.q, _given(task.dout), task.k[:, :, low:], task.v[:, :, low:]))
    (batch, heads, n_q, d), (_, kv_heads, n_k, d_v) = q.shape, v.shape
    limits = [None if x is None else x - low for x in (task.first, task.end)]
    # Keys that no query attends may hold NaN: zeros are read in their place
    keys = n_k if limits[1] is None else max(0, min(n_k, n_q - 1 + limits[1]))
    tile = 64 if launch.warps == 4 else cols
    arguments: dict[str, Any] = {
        "q_desc": _descriptor(q, n_q, rows),
        "dout_desc": _descriptor(dout, n_q, rows),
        "stats_desc": _line(work.stats, 2 * rows),
        "k_desc": _descriptor(k, max(1, keys), tile),
        "v_desc": _descriptor(v, max(1, keys), tile),
        "dk_desc": _descriptor(dk, n_k, tile),
        "dv_desc": _descriptor(dv, n_k, tile),
        "sums": work.sums,
        "first": limits[0],
        "end": limits[1],
        "keys": keys,
        "n_q": n_q,
        "padded": work.padded,
        "kv_heads": kv_heads,
        "scale": task.scores.scale.high,
        "TAIL": keys < n_k or n_k % cols != 0,
        "GROUP": heads // kv_heads,
        "ROWS": rows,
        "COLS": cols,
        "D": d,
        "D_V": d_v,
        "STAGES": launch.stages,
    }
    grid = ceil_div(n_k, cols), batch * kv_heads
    if launch.warps == 4:
        return Run(backward_apart, grid, arguments | APART, 4, 1)
    return Run(backward_in_step, grid, arguments, 8, 1)


class _Copy:
    """A copy of one tensor to another, made after the kernels."""

    def __init__(self, x: Tensor, to: Tensor) -> None:
        self.x, self.to = x, to

    def __call__(self) -> None:
        self.to.copy_(self.x)


def _out(task: Task) -> tuple[Tensor, Tensor]:
    return _given(task.dk), _given(task.dv)


def _given(x: Tensor | None) -> Tensor:
    """The tensor. Never None: a backward task has it."""
    assert x is not None
    return x


def _describable(x: Tensor) -> bool:
    """Whether the memory accelerator (TMA) takes the tensor: multiples of 16 bytes, columns side by side."""
    strides = [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1]
    aligned = x.data_ptr() % 16 == 0 and all(stride > 0 and stride % 8 == 0 for stride in strides[:-1])
    return aligned and x.stride(-1) == 1


def _readable(x: Tensor) -> Tensor:
    """The tensor, or a copy that TMA takes."""
    return x if _describable(x) else x.contiguous()


def _descriptor(x: Tensor, rows: int, edge: int) -> TensorDescriptor:
    """Describes tiles of `edge` of the first `rows` rows of the heads of a tensor (batch, heads, rows, features)."""
    shape, tile = [*x.shape[:2], rows, x.shape[3]], [1, 1, edge, x.shape[3]]
    strides = [stride if size > 1 else 8 for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True)]
    layout = gl.NVMMASharedLayout.get_default_for(tile, gl.float16)  # of any type of 16 bits
    return TensorDescriptor(x, shape, [*strides, 1], tile, layout)


def _line(x: Tensor, length: int) -> TensorDescriptor:
    """Describes pieces of `length` numbers of a contiguous tensor of float32."""
    return TensorDescriptor(x.view(-1), [x.numel()], [1], [length], gl.NVMMASharedLayout(0, 32, 1))
