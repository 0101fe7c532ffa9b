"""Convert boolean biases to masks: kernels skip a mask's tiles without attended pairs, but read a bias completely."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from redblue.masks import Mask
from redblue.op.pytorch import ops

MIN_PAIRS = 1 << 14  # pairs of a query and a key; for fewer, lowering the mask takes longer than it saves


def mask_of(allowed: Tensor, scores: Sequence[int]) -> Mask | None:
    """The mask of a boolean tensor on the CPU that broadcasts to the shape of the scores, (..., heads, n_q, n_k).

    None for small sizes, for empty scores, for a tensor that differs between heads, which may share a key head, and
    for a tensor that does not broadcast. Every call reads the tensor again, because changes of its memory cannot all
    be detected. An equal mask is not lowered again.
    """
    shape = allowed.shape
    if scores[-2] * scores[-1] < MIN_PAIRS or not allowed.is_cpu or ops.substitute() is not None:
        return None
    if 0 in scores or not 2 <= len(shape) <= len(scores) or shape[-1] != scores[-1]:
        return None
    if any(a not in (1, b) for a, b in zip(reversed(shape), reversed(scores), strict=False)):
        return None
    for axis in range(len(shape) - 1):
        if allowed.stride(axis) == 0:  # an expanded axis stores each number once
            allowed = allowed.narrow(axis, 0, 1)
    if len(shape) > 2 and allowed.shape[-3] != 1:
        return None
    return Mask.from_dense(allowed.numpy())
