"""Rotary position embedding, as FlashAttention applies it to new queries and keys of a cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from redblue.base.errors import RedblueError
from redblue.integrations.flash_attn.arguments import check_tensors


def check_tables(rotary_cos: Any, rotary_sin: Any, d: int, positions: int) -> None:
    """Raise RedblueError unless the tables (positions, up to d / 2) hold cosines and sines of `positions` positions."""
    for name, table in (("rotary_cos", rotary_cos), ("rotary_sin", rotary_sin)):
        if table is None:
            raise RedblueError("rotary_cos and rotary_sin must be given together, got one of them")
        check_tensors("(positions, rotary_dim / 2)", **{name: table})
        if not table.is_floating_point():
            raise RedblueError(f"{name} must be of a floating-point type, got {table.dtype}")
        if table.shape[0] < positions:
            raise RedblueError(f"{name} must have a row for each of {positions} positions, got {table.shape[0]}")
        if not 2 * table.shape[1] <= d:
            raise RedblueError(f"{name} must have at most d / 2 = {d // 2} columns, got {table.shape[1]}")
    if rotary_cos.shape != rotary_sin.shape:
        raise RedblueError(
            f"rotary_sin must be {tuple(rotary_cos.shape)} like rotary_cos, got {tuple(rotary_sin.shape)}"
        )


def rotated(x: Tensor, rotary_cos: Tensor, rotary_sin: Tensor, positions: Tensor, interleaved: bool) -> Tensor:
    """x (batch, n, heads, d) with its first features rotated, by the angles of `positions` (batch, n).

    interleaved: features 0 and 1, 2 and 3, ... are pairs; else the first half with the second. Computed in float32,
    or in float64 if x is float64.
    """
    pairs = rotary_cos.shape[1]
    wide = torch.promote_types(x.dtype, torch.float32)
    cos, sin = (table[positions][:, :, None].to(wide) for table in (rotary_cos, rotary_sin))
    turned = x[..., : 2 * pairs].to(wide)
    turned = turned.unflatten(-1, (pairs, 2) if interleaved else (2, pairs))
    first, second = turned.unbind(-1 if interleaved else -2)
    parts = first * cos - second * sin, first * sin + second * cos
    turned = torch.stack(parts, -1 if interleaved else -2).flatten(-2)
    return torch.cat([turned.to(x.dtype), x[..., 2 * pairs :]], -1)
