"""The schedule `flash_onepass`, backward, on Hopper GPUs: three launches that write delta, then dk and dv, then dq."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from redblue.base.integers import ceil_div
from redblue.kernels.gpu.hopper.backward_kernel import hopper_backward
from redblue.kernels.gpu.hopper.sums import Workspace, finish_run, prepare_run, workspace
from redblue.kernels.gpu.launch import Run, Task
from redblue.kernels.gpu.planning.plan import Launch


def backward(task: Task, launch: Launch, precision: str = "ieee") -> list[Run]:
    """The launches that write task.dq, dk, dv and delta.

    planning/one_pass.py plans only tasks with plain scores in 16 bits, a band, d = d_v of 64 or 128, and arrays that
    TMA accepts.
    """
    low = max(0, task.first or 0)  # no query attends the keys before it
    for x in (task.dk, task.dv):
        _present(x)[:, :, :low].zero_()
    work = workspace(task, launch.tiles.rows)
    fused = [_fused_run(task, launch, work, low)] if low < task.sizes.n_k else []
    return [prepare_run(task, work), *fused, finish_run(task, work)]


def _fused_run(task: Task, launch: Launch, work: Workspace, low: int) -> Run:
    """The launch that writes dk and dv from key `low` on, and adds up dQ in float32."""
    sizes, (rows, cols) = task.sizes, launch.tiles
    k, v, dk, dv = (_present(x)[:, :, low:] for x in (task.k, task.v, task.dk, task.dv))
    n_q, n_k = sizes.n_q, sizes.n_k - low
    first, end = (None if edge is None else edge - low for edge in (task.first, task.end))
    # Keys that no query attends may hold NaN, so zeros are read instead
    keys = n_k if end is None else max(0, min(n_k, n_q - 1 + end))
    arguments: dict[str, Any] = {
        "q_desc": _tiles(task.q, n_q, rows),
        "dout_desc": _tiles(_present(task.dout), n_q, rows),
        "stats_desc": _lines(work.stats, 2 * rows),
        "k_desc": _tiles(k, max(1, keys), cols),
        "v_desc": _tiles(v, max(1, keys), cols),
        "dk_desc": _tiles(dk, n_k, cols),
        "dv_desc": _tiles(dv, n_k, cols),
        "sums": work.sums,
        "first": first,
        "end": end,
        "keys": keys,
        "n_q": n_q,
        "padded": work.padded,
        "kv_heads": sizes.kv_heads,
        "scale": task.scores.scale.high,
        "TAIL": keys < n_k or n_k % cols != 0,
        "GROUP": sizes.group,
        "ROWS": rows,
        "COLS": cols,
        "D": sizes.d,
        "D_V": sizes.d_v,
        "STAGES": launch.stages,
    }
    return Run(hopper_backward, (ceil_div(n_k, cols), sizes.streams), arguments, launch.warps, launch.stages)


def _present(x: Tensor | None) -> Tensor:
    """The tensor, which a backward task always has."""
    assert x is not None
    return x


def _tiles(x: Tensor, rows: int, edge: int) -> TensorDescriptor:
    """The TMA descriptor of the first `rows` rows of each head of x (batch, heads, rows, features), by `edge` rows."""
    shape, tile = [*x.shape[:2], rows, x.shape[3]], [1, 1, edge, x.shape[3]]
    strides = [stride if size > 1 else 8 for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True)]
    # All types of 16 bits have the same layout
    layout = gl.NVMMASharedLayout.get_default_for(tile, gl.float16)  # pyright: ignore[reportCallIssue]
    return TensorDescriptor(x, shape, [*strides, 1], tile, layout)


def _lines(x: Tensor, length: int) -> TensorDescriptor:
    """The TMA map of a contiguous tensor of float32, in pieces of `length` numbers."""
    return TensorDescriptor(x.view(-1), [x.numel()], [1], [length], gl.NVMMASharedLayout(0, 32, 1))
