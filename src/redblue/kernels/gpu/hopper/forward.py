"""Flash attention's forward pass on Hopper GPUs: the launch of the Gluon kernel (kernel.py)."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from redblue.base.integers import ceil_div
from redblue.kernels.gpu.hopper.kernel import hopper_forward

EDGE = 64  # rows of a consumer
LOG2E = 1.4426950408889634
L2_SHARE = 0.5  # the share of the L2 cache that the keys and values of a section of heads may fill
TYPES = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}


class Settings(NamedTuple):
    """How the kernel runs. The results do not depend on it, except for rounding by `cols`."""

    cols: int = 128  # keys of a tile
    stages: int = 2  # tiles of keys, and of values, in shared memory
    ping_pong: bool = True  # whether consumers take turns at issuing products
    ordered: bool = True  # whether a tile's softmax is kept before the wait for the products beside it
    persistent: bool = True  # one block per multiprocessor, which takes several blocks of rows
    dynamic: bool = False  # whether such a block takes the next rows that none has begun, rather than every 132nd
    pack: int = 1  # heads of a group stacked into the rows of a block
    section: int = 0  # heads whose blocks follow each other; 0: as many as fit the L2 cache
    consumers: int = 2  # warpgroups of 64 rows: 2 or 3


class Prepared(NamedTuple):
    """A launch of the kernel."""

    grid: tuple[int]
    arguments: tuple[Any, ...]
    counter: Tensor | None = None  # must be 0 before each launch
    num_warps: int = 4

    def __call__(self) -> None:
        if self.counter is not None:
            self.counter.zero_()
        hopper_forward[self.grid](*self.arguments, num_warps=self.num_warps)


def attention_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    first: int | None = None,
    end: int | None = None,
    settings: Settings | None = None,
) -> tuple[Tensor, Tensor]:
    """The output (batch, heads, n_q, d_v) and the log-sum-exp (batch, heads, n_q) in float32.

    q, k, v: (batch, heads, rows, features) in 16 bits. Query i attends keys i + first .. i + end - 1.
    """
    out = q.new_empty(*q.shape[:3], v.shape[3])
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    prepare(q, k, v, out, lse, scale, first, end, settings or settings_for(q.shape[3], v.shape[3], end))()
    return out, lse


def settings_for(d: int, d_v: int, end: int | None) -> Settings:
    """Settings that fit a Hopper GPU. Under a causal mask, blocks of rows take unequal times."""
    width = max(padded(d), padded(d_v))
    return Settings(cols=128 if width < 256 else 64, stages=4 if width == 64 else 2, dynamic=end is not None)


def padded(d: int) -> int:
    """Features of a tile that holds d features."""
    return max(64, 1 << (d - 1).bit_length())


def prepare(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    scale: float,
    first: int | None,
    end: int | None,
    settings: Settings,
    multiprocessors: int = 132,
    l2_bytes: int = 50 << 20,
) -> Prepared:
    """The launch that writes out and lse. No length may be 0."""
    batch, heads, n_q, d = q.shape
    kv_heads, n_k, d_v = k.shape[1], k.shape[2], v.shape[3]
    group = heads // kv_heads
    skipped = max(0, first or 0)  # keys before the first query's may hold NaN, so they are not loaded
    if skipped and skipped < n_k:
        k, v, n_k = k[:, :, skipped:], v[:, :, skipped:], n_k - skipped
        first = None if first is None else first - skipped
        end = None if end is None else end - skipped
    if end is not None and n_q - 1 + end < n_k:  # nor keys behind the last query's
        n_k = max(1, n_q - 1 + end)
        k, v = k[:, :, :n_k], v[:, :, :n_k]
    pack, cols = settings.pack, settings.cols
    blocks = ceil_div(n_q * pack, EDGE * settings.consumers)
    streams = batch * heads // pack
    fitting = int(L2_SHARE * l2_bytes) // (2 * n_k * (d + d_v)) * group // pack
    section = settings.section or max(1, group // pack, fitting)
    q_map = tensor_map(q, EDGE // pack, pack, padded(d))
    k_map, v_map = tensor_map(k, cols, 1, padded(d)), tensor_map(v, cols, 1, padded(d_v))
    work = streams * blocks
    dynamic = settings.persistent and settings.dynamic and work > multiprocessors
    counter = torch.zeros(1, dtype=torch.int32, device=q.device) if dynamic else lse
    arguments = (
        q_map, k_map, v_map, out, *out.stride()[:3], lse, counter, scale * LOG2E, first or 0, end or 0, n_q, n_k, heads // pack, streams,
        group, blocks, min(section, streams), first is not None, end is not None, d_v, pack, cols, settings.stages, settings.ping_pong, settings.ordered, n_k % cols == 0,
        dynamic, settings.consumers
    )  # fmt: skip
    grid = min(work, multiprocessors) if settings.persistent else work
    return Prepared((grid,), arguments, counter if dynamic else None)


def tensor_map(x: Tensor, rows: int, heads: int, width: int) -> TensorDescriptor:
    """The TMA map of x (batch, heads, rows, features) as (batch, rows, heads, features), for tiles of one batch entry."""
    x = x.transpose(1, 2)
    shape = [1, rows, heads, width]
    layout = gl.NVMMASharedLayout.get_default_for(shape, TYPES[x.dtype])
    return TensorDescriptor(x, list(x.shape), list(x.stride()), shape, layout)
