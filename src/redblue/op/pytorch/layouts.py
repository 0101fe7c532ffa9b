"""What the shapes, strides and types of tensors decide of a call, on every device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from redblue.base.errors import RedblueError
from redblue.kernels.cpu.call import Sizes
from redblue.op import checks
from redblue.op.checks import heads_of


class Spread(NamedTuple):
    """Sizes of a call, and the shapes that its arrays must be expanded to; None: as they are."""

    sizes: Sizes
    q: tuple[int, ...] | None
    k: tuple[int, ...] | None
    v: tuple[int, ...] | None


def spread_of(q: Any, k: Any, v: Any) -> Spread:
    sizes = checks.check_shapes(q, k, v)
    spread = []
    for shape, heads in ((q, heads_of(sizes)), (k, sizes.kv_heads), (v, sizes.kv_heads)):
        wanted = (*sizes.lead, heads, shape[-2], shape[-1])
        spread.append(None if wanted == tuple(shape) else wanted)
    return Spread(sizes, *spread)


known_spread = lru_cache(maxsize=1024)(spread_of)


Layout = tuple[tuple[int, ...], tuple[int, ...]]  # shape, strides


class Call(NamedTuple):
    """What the shapes and types of a call decide. Of two layouts the second has heads inside positions."""

    sizes: Sizes
    dtype: str
    sums: torch.dtype
    bias: tuple[int, ...]  # the shape that it broadcasts to
    bias_dtype: str
    q: tuple[Layout, Layout]
    k: tuple[Layout, Layout]
    v: tuple[Layout, Layout]
    out: tuple[Layout, Layout]
    lse: Layout


def call_of(q: Any, k: Any, v: Any, bias: Any, sinks: Any, *dtypes: torch.dtype | None) -> Call:
    """Shapes and types (of q, k, v and bias). Raises RedblueError for those that no kernel takes."""
    spread = spread_of(q, k, v)
    if spread[1:] != (None, None, None):
        shapes = ", ".join(f"{name} {tuple(shape)}" for name, shape in (("q", q), ("k", k), ("v", v)))
        raise RedblueError(f"redblue::attention takes equal leading dimensions and expands none, got {shapes}")
    sizes = spread.sizes
    if bias is not None:
        checks.check_bias_shape(bias, sizes)
    if sinks is not None:
        checks.check_sinks_shape(sinks, sizes)
    q_name, k_name, v_name, bias_name = (None if x is None else str(x).removeprefix("torch.") for x in dtypes)
    dtype = checks.check_dtypes({"q": q_name or "", "k": k_name or "", "v": v_name or ""}, bias_name)
    sums = torch.float64 if dtype == "float64" else torch.float32
    lead, heads = sizes.lead, heads_of(sizes)
    full = (*lead, heads, sizes.n_q, sizes.n_k)
    out = _layouts((*lead, heads, sizes.n_q, sizes.d_v))
    inputs = _layouts(q), _layouts(k), _layouts(v)
    return Call(sizes, dtype, sums, full, bias_name or "float32", *inputs, out, _dense(full[:-1]))


known_call = lru_cache(maxsize=1024)(call_of)


def _layouts(shape: Any) -> tuple[Layout, Layout]:
    inside = (0, 2, 1, 3) if len(shape) == 4 else None
    return _dense(tuple(shape)), _dense(tuple(shape), inside)


def _dense(shape: tuple[int, ...], order: Sequence[int] | None = None) -> Layout:
    """The shape, and its strides if the dimensions lie in this order, outermost first."""
    strides, step = [0] * len(shape), 1
    for i in reversed(range(len(shape)) if order is None else order):
        strides[i] = step
        step *= max(1, shape[i])
    return shape, tuple(strides)


def inside(x: Tensor) -> int:
    """Whether each position has its heads together. As PyTorch's kernels, ours write outputs and gradients like the
    tensor that they belong to, so that joining the heads after it, or splitting them before it, is no copy."""
    strides = x.stride()
    return 1 if len(strides) == 4 and strides[1] < strides[2] else 0


def shape_of(x: Tensor | None) -> Any:
    return None if x is None else x.shape


def check_numbers(softcap: float, dropout: float, seed: Tensor | None) -> None:
    if not 0 <= dropout < 1 or (dropout and (seed is None or seed.numel() != 1)) or not 0 <= softcap < math.inf:
        raise RedblueError(
            "dropout must be at least 0 and below 1 and have one seed, softcap at least 0; "
            f"got {dropout}, {seed} and {softcap}"
        )


def check_sinks(sinks: Tensor) -> Tensor:
    if not sinks.dtype.is_floating_point:
        raise RedblueError(f"sinks must be of a floating type, got {sinks.dtype}")
    return sinks


def check_outputs(call: Call, dout: Tensor, dlse: Tensor | None, out: Tensor, lse: Tensor) -> None:
    """Raise RedblueError unless these are outputs of `attention` and their gradients: the kernel trusts them."""
    shape = call.out[0][0]
    for name, x, wanted, dtype in (
        ("dout", dout, shape, call.dtype),
        ("out", out, shape, call.dtype),
        ("lse", lse, shape[:-1], str(call.sums).removeprefix("torch.")),
        ("dlse", dlse, shape[:-1], str(call.sums).removeprefix("torch.")),
    ):
        if x is not None and (tuple(x.shape) != wanted or str(x.dtype).removeprefix("torch.") != dtype):
            raise RedblueError(f"{name} must be {wanted} of {dtype}, got {tuple(x.shape)} of {x.dtype}")
