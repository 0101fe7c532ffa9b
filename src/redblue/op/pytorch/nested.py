"""PyTorch's nested tensors: sequences of different lengths as one tensor (batch, heads, any length, d)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from redblue.base.errors import RedblueError
from redblue.masks import Mask
from redblue.op.checks import check_equal_heads
from redblue.op.varlen import attention_varlen


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, dropout: float, mask: Mask | None, scale: float | None, grouped: bool
) -> Tensor:
    """Attention on nested tensors (batch, heads, length, d) of either layout; the result has the layout of query."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, Tensor) or not x.is_nested:
            raise RedblueError(f"{name} must be a nested tensor like the others, got {type(x).__name__}")
        if x.dim() != 4:
            raise RedblueError(f"{name} must be nested as (batch, heads, length, d), got {x.dim()} dimensions")
    q, starts = _packed("query", query)
    k, key_starts = _packed("key", key)
    v, value_starts = _packed("value", value)
    if len(key_starts) != len(starts):
        raise RedblueError(f"key must have as many sequences as query ({len(starts) - 1}), got {len(key_starts) - 1}")
    if not grouped:
        check_equal_heads(q.shape[1], k.shape[1], v.shape[1])
    if not torch.equal(key_starts, value_starts):
        lengths = f"{key_starts.diff().tolist()}, got {value_starts.diff().tolist()}"
        raise RedblueError(f"value must have the lengths of key, sequence by sequence, {lengths}")
    out = attention_varlen(q, k, v, starts, key_starts, mask=mask, dropout=dropout, scale=scale)
    if query.layout == torch.jagged:
        inside: Any = query.transpose(1, 2)
        return torch.nested.nested_tensor_from_jagged(out, inside.offsets()).transpose(1, 2)
    parts = [part.transpose(0, 1) for part in out.split(starts.diff().tolist())]
    return torch.nested.as_nested_tensor(parts)


def _packed(name: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """The sequences packed as (total, heads, d), and the positions where they begin."""
    if x.layout == torch.jagged:
        inside: Any = x.transpose(1, 2)
        if inside._ragged_idx != 1:
            raise RedblueError(f"{name} must be ragged along its lengths, (batch, heads, any, d), got {tuple(x.shape)}")
        if inside.lengths() is not None:
            raise RedblueError(f"{name} has holes between its sequences: call .contiguous()")
        return inside.values(), inside.offsets().cpu()
    parts = x.unbind()
    lengths = torch.tensor([0, *(part.shape[1] for part in parts)])
    return torch.cat([part.transpose(0, 1) for part in parts]), lengths.cumsum(0)
