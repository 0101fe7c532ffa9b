"""The gate of a call on the GPU, at the size that is timed; common/gate.py has the allowed errors.

The first head of the first sequence and the last head of the last one are compared, since heads share nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch  # pyright: ignore[reportMissingImports]
from torch import Tensor  # pyright: ignore[reportMissingImports]

from benchmarks.common.gate import Gate, gate_of, unfused
from benchmarks.gpu.calls import OURS, Call


def ends(call: Call, x: Tensor) -> list[Tensor]:
    """The heads of the first key head of the first sequence and of the last key head of the last; each (1, h, n, d)."""
    if not x.numel():
        return [x, x]
    heads = x.shape[1] // call.kv_heads
    return [x[:1, :heads], x[-1:, -heads:]]


def textbook(call: Call, arrays: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The results of the textbook expression in this type, on arrays with one key head."""
    q, k, v, dout = (x.detach().to(dtype) for x in arrays)
    mask = None if call.density == 1 or call.mask is None else torch.from_numpy(call.mask.to_dense(call.n_q, call.n))
    attends = None if mask is None else mask.to(q.device)
    if call.direction == "forward":
        return [unfused(q, k, v, call.causal, attends)]
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    return list(torch.autograd.grad(unfused(q, k, v, call.causal, attends), (q, k, v), dout))


def gate(call: Call, arrays: Sequence[Tensor]) -> Gate:
    """The gate of a call. Its compared results are all results of the first end, then all of the last end."""

    def compared(results: Sequence[Tensor]) -> list[Tensor]:
        first, last = zip(*(ends(call, x) for x in results), strict=True)
        return [*first, *last]

    def both_ends(dtype: torch.dtype) -> list[Tensor]:
        parts = zip(*(ends(call, x) for x in arrays), strict=True)
        return [x for part in parts for x in textbook(call, part, dtype)]

    return gate_of(call.title, both_ends, getattr(torch, call.dtype), compared, OURS)


def worst(errors: Sequence[float]) -> list[float]:
    """The larger error of each result at both ends."""
    half = len(errors) // 2
    return [max(pair) for pair in zip(errors[:half], errors[half:], strict=True)]
