"""The arguments that the functions of FlashAttention 2 share: their checks, and their conversion to options."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from redblue.base.errors import RedblueError
from redblue.base.floats import finite_number
from redblue.base.integers import whole_number
from redblue.masks import Mask
from redblue.op.checks import check_flag
from redblue.op.packed import bottom_right


def options_of(
    dropout_p: Any,
    softmax_scale: Any,
    causal: Any,
    window_size: Any,
    softcap: Any,
    alibi_slopes: Any,
    deterministic: Any = False,
    s_aux: Any = None,
) -> dict[str, Any]:
    """The keyword arguments of `attention` for these arguments. Results are always deterministic."""
    check_flag("deterministic", deterministic)
    dropout = 0.0 if dropout_p is None else finite_number("dropout_p", dropout_p)
    if not 0 <= dropout < 1:
        raise RedblueError(f"dropout_p must be at least 0 and below 1, got {dropout_p!r}")
    cap = 0.0 if softcap is None else finite_number("softcap", softcap)
    if cap < 0:
        raise RedblueError(f"softcap must be above 0, or 0 or None for no softcap, got {softcap!r}")
    return {
        "mask": window(causal, window_size),
        "scale": None if softmax_scale is None else finite_number("softmax_scale", softmax_scale),
        "softcap": cap or None,
        "alibi": alibi_slopes,
        "sinks": s_aux,
        "dropout": dropout,
    }


def window(causal: Any, window_size: Any) -> Mask:
    """The mask of FlashAttention's window (left, right); negative: no limit. causal: no key after the query's own.

    The last query has the position of the last key.
    """
    check_flag("causal", causal)
    if not isinstance(window_size, Sequence) or isinstance(window_size, str) or len(window_size) != 2:
        raise RedblueError(f"window_size must be (left, right), -1 for no limit, got {window_size!r}")
    left, right = (whole_number(f"window_size[{i}]", side, -math.inf) for i, side in enumerate(window_size))
    right = 0 if causal else right
    return bottom_right(left, right)


def check_tensors(shape: str, **tensors: Any) -> None:
    """Raise RedblueError unless all are tensors with the dimensions that `shape` names, such as "(total, heads, d)"."""
    for name, x in tensors.items():
        if not isinstance(x, Tensor):
            raise RedblueError(f"{name} must be a PyTorch tensor, got {type(x).__name__}")
        if x.dim() != shape.count(",") + 1:
            raise RedblueError(f"{name} must be {shape}, got shape {tuple(x.shape)}")


def check_heads(q: Tensor, k: Tensor) -> None:
    """Raise RedblueError unless the number of q's heads (second last dimension) is a multiple of k's."""
    heads, kv_heads = q.shape[-2], k.shape[-2]
    if heads != kv_heads and (0 in (heads, kv_heads) or heads % kv_heads):
        raise RedblueError(f"heads of q ({heads}) must be a multiple of the heads of k and v ({kv_heads})")


def check_batches(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise RedblueError unless (batch, n, heads, d) tensors have one batch size and heads that fit."""
    check_tensors("(batch, n, heads, d)", q=q, k=k, v=v)
    for name, x in (("k", k), ("v", v)):
        if x.shape[0] != q.shape[0]:
            raise RedblueError(f"{name} must have the batch of q, {q.shape[0]}, got {x.shape[0]}")
    if v.shape[-2] != k.shape[-2]:
        raise RedblueError(f"v must have as many heads as k, {k.shape[-2]}, got {v.shape[-2]}")
    check_heads(q, k)


def check_slopes(alibi_slopes: Any, batch: int, heads: int) -> None:
    """Raise RedblueError unless the slopes are None, (heads,) or (batch, heads)."""
    if alibi_slopes is None:
        return
    shape = tuple(alibi_slopes.shape) if isinstance(alibi_slopes, Tensor) else type(alibi_slopes).__name__
    if shape not in ((heads,), (batch, heads)):
        raise RedblueError(f"alibi_slopes must be a tensor {(heads,)} or {(batch, heads)}, got {shape}")
    if not alibi_slopes.is_floating_point():
        raise RedblueError(f"alibi_slopes must be of a floating-point type, got {alibi_slopes.dtype}")
    if alibi_slopes.requires_grad:
        raise RedblueError("alibi_slopes has no gradient: detach it")


def check_sinks(s_aux: Any, heads: int) -> None:
    """Raise RedblueError unless the sinks are None or (heads,), of a floating-point type."""
    if s_aux is None:
        return
    if isinstance(s_aux, Tensor) and not s_aux.is_floating_point():
        raise RedblueError(f"s_aux must be of a floating-point type, got {s_aux.dtype}")
    if not isinstance(s_aux, Tensor) or tuple(s_aux.shape) != (heads,):
        got = tuple(s_aux.shape) if isinstance(s_aux, Tensor) else type(s_aux).__name__
        raise RedblueError(f"s_aux must be a tensor {(heads,)}, one sink for each head of q, got {got}")


def unpacked(name: str, packed: Any, parts: int, shape: str) -> tuple[Tensor, ...]:
    """The tensors that `packed` holds along its third to last dimension, as views."""
    check_tensors(shape, **{name: packed})
    if packed.shape[-3] != parts:
        raise RedblueError(f"{name} must be {shape}, got shape {tuple(packed.shape)}")
    return packed.unbind(-3)


def draw_seed() -> int:
    """A seed from PyTorch's generator on the CPU."""
    return int(torch.randint(0, 2**63 - 1, ()).item())
