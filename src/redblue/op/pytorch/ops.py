"""redblue::attention and redblue::attention_backward, PyTorch's ops: on the CPU, on GPUs, and as shapes alone.

q (lead..., H, n_q, d), k (lead..., H_kv, n_k, d), v (lead..., H_kv, n_k, d_v), all leading dimensions given. The mask
travels as its two sides (-1: open) and its alignment, so that a compiled graph holds for every sequence length; one
that is no band by its name. scale None: d^-1/2.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from redblue.op import checks
from redblue.op.checks import heads_of
from redblue.base.errors import RedblueError
from redblue.kernels.cpu import call as cpu
from redblue.kernels.cpu.mask_form import attended
from redblue.kernels.cpu.call import Attended, Sizes
from redblue.op.pytorch.masks import mask_named

OLDEST_TRITON = (3, 3)
OLDEST_DROPOUT_GRADIENTS = (3, 4)  # a pass of 3.3's compiler fails on the kernel of dK and dV with dropout

library = torch.library.Library("redblue", "FRAGMENT")
_MASK_AND_SCALARS = (
    "SymInt left, SymInt right, bool bottom_right, str mask, str schedule, float? scale, float softcap, float dropout"
)
# Outputs are laid out like inputs, whose order a compiled graph must therefore keep
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
library.define(
    f"attention(Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? sinks, Tensor? seed, {_MASK_AND_SCALARS})"
    " -> (Tensor out, Tensor lse)",
    tags=_TAGS,
)
library.define(
    "attention_backward(Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor? bias,"
    f" Tensor? seed, {_MASK_AND_SCALARS}, bool bias_grad)"
    " -> (Tensor dq, Tensor dk, Tensor dv, Tensor dbias, Tensor delta)",
    tags=_TAGS,
)
forward_op = torch.ops.redblue.attention.default
backward_op = torch.ops.redblue.attention_backward.default


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


class _Call(NamedTuple):
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


def _call(q: Any, k: Any, v: Any, bias: Any, sinks: Any, *dtypes: torch.dtype | None) -> _Call:
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
    return _Call(sizes, dtype, sums, full, bias_name or "float32", *inputs, out, _dense(full[:-1]))


known_call = lru_cache(maxsize=1024)(_call)


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


def _common(
    call: _Call,
    bias: Tensor | None,
    seed: Tensor | None,
    rest: tuple,
    lse: Tensor | None = None,
    bias_grad: bool = False,
) -> dict[str, Any]:
    """Arguments that both passes share. rest: from `left` on. lse: of backward."""
    left, right, bottom_right, mask, schedule, scale, softcap, dropout = rest
    check_numbers(softcap, dropout, seed)
    sizes = call.sizes
    checks.check_widths_on_cpu(sizes)
    offset = sizes.n_k - sizes.n_q if bottom_right else 0
    most = sizes.n_q + sizes.n_k  # a side so wide never binds, and fits
    left = most if left < 0 else min(left, most)
    right = most if right < 0 else min(right, most)
    if mask:
        direction, given = ("forward", None) if lse is None else ("backward", lse.numpy())
        kept = attended(mask_named(mask), sizes, call.dtype, direction, bias_grad, schedule, given)
    else:
        kept = Attended(offset - left, offset + right + 1)
    common: dict[str, Any] = {
        "mask": kept,
        "scale": sizes.d**-0.5 if scale is None else scale,
        "softcap": softcap,
        "threads": torch.get_num_threads(),
        "schedule": schedule,
    }
    if bias is not None:
        spread = bias.expand(call.bias)
        common |= {"bias": (spread.data_ptr(), *spread.stride()), "bias_dtype": call.bias_dtype}
    if seed is not None:
        common |= {"dropout": dropout, "seed": int(seed.item()) % 2**64}
    return common


@cache
def gpu_kernels() -> Any:
    """Those for CUDA and ROCm devices, imported with the first tensor on one. Raises RedblueError without Triton."""
    try:
        import triton
    except ImportError as error:
        raise RedblueError(
            "tensors on a GPU need Triton: pip install 'redblue[gpu]', or move them with .cpu()"
        ) from error
    check_triton(triton.__version__, OLDEST_TRITON, "tensors on a GPU")
    return importlib.import_module("redblue.kernels.gpu.call")


def check_triton(version: str, oldest: tuple[int, int], what: str) -> None:
    if tuple(int(part) for part in version.split(".")[:2]) < oldest:
        raise RedblueError(f"{what} need Triton {oldest[0]}.{oldest[1]} or newer, got {version}: update PyTorch")


def _on_gpu(direction: str, *given: Any) -> Any:
    """Forward or backward where the tensors are. PyTorch's current device may be another one.

    The ops stay opaque to torch.compile. torch.library.triton_op would show it the launches inside, to fuse what comes
    before and after; but nothing can join kernels whose tiles are planned for the shared memory that there is, while
    masks, which lie on the device before a graph is captured, and tuning, which times launches, want ordinary code.
    """
    devices = {x.device for x in given if isinstance(x, Tensor)}
    if len(devices) > 1:
        raise RedblueError(f"all tensors must be on one device, got {', '.join(sorted(map(str, devices)))}")
    with torch.cuda.device(devices.pop()):
        return getattr(gpu_kernels(), direction)(*given)


_instead: Any = None


@contextmanager
def handing_over(to: Any) -> Iterator[None]:
    """Within, CPU tensors go to the functions `forward` and `backward` of `to`, unless it is None."""
    global _instead
    before, _instead = _instead, to
    try:
        yield
    finally:
        _instead = before


def handed_to() -> Any:
    return _instead


def forward(q: Tensor, k: Tensor, v: Tensor, bias: Any, sinks: Any, seed: Any, *rest: Any) -> tuple[Tensor, Tensor]:
    if q.is_cuda:
        return _on_gpu("forward", q, k, v, bias, sinks, seed, *rest)
    if _instead is not None:
        return _instead.forward(q, k, v, bias, sinks, seed, *rest)
    types = q.dtype, k.dtype, v.dtype, None if bias is None else bias.dtype
    call = known_call(q.shape, k.shape, v.shape, shape_of(bias), shape_of(sinks), *types)
    layout = call.out[inside(q)]
    out = q.new_empty_strided(*layout)
    lse = q.new_empty_strided(*call.lse, dtype=call.sums)
    if out.numel():
        common = _common(call, bias, seed, rest)
        if sinks is not None:
            sinks = check_sinks(sinks).to(call.sums).contiguous()
            common["sinks"] = (sinks.data_ptr(), *[0] * (lse.dim() - 1), 1, 0)
        cpu.forward(
            call.sizes,
            call.dtype,
            (q.data_ptr(), *q.stride()),
            (k.data_ptr(), *k.stride()),
            (v.data_ptr(), *v.stride()),
            (out.data_ptr(), *layout[1]),
            (lse.data_ptr(), *call.lse[1], 1),
            **common,
        )
    return out, lse


def backward(
    dout: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    bias: Tensor | None,
    seed: Tensor | None,
    *more: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    if _instead is not None:
        return _instead.backward(dout, dlse, q, k, v, out, lse, bias, seed, *more)
    *rest, bias_grad = more
    types = q.dtype, k.dtype, v.dtype, None if bias is None else bias.dtype
    call = known_call(q.shape, k.shape, v.shape, shape_of(bias), None, *types)
    check_outputs(call, dout, dlse, out, lse)
    dq, dk, dv = (x.new_empty_strided(*two[inside(x)]) for x, two in ((q, call.q), (k, call.k), (v, call.v)))
    delta = q.new_empty(lse.shape, dtype=call.sums)
    dbias = q.new_empty((0,) if bias is None or not bias_grad else bias.shape, dtype=call.sums)
    if not out.numel():
        return dq.zero_(), dk.zero_(), dv.zero_(), dbias.zero_(), delta
    lse = lse.contiguous()
    common = _common(call, bias, seed, tuple(rest), lse, bias is not None and bias_grad)
    if bias is not None and bias_grad:
        spread = dbias.expand(call.bias)
        if not spread.numel():  # no pair, so nothing would be written
            dbias.zero_()
        common["dbias"] = (spread.data_ptr(), *spread.stride())
    if dlse is not None:
        dlse = dlse.contiguous()
        common["dlse"] = (dlse.data_ptr(), *dlse.stride(), 1)
    cpu.backward(
        call.sizes,
        call.dtype,
        (q.data_ptr(), *q.stride()),
        (k.data_ptr(), *k.stride()),
        (v.data_ptr(), *v.stride()),
        (out.data_ptr(), *out.stride()),
        (lse.data_ptr(), *lse.stride(), 1),
        (dout.data_ptr(), *dout.stride()),
        (dq.data_ptr(), *dq.stride()),
        (dk.data_ptr(), *dk.stride()),
        (dv.data_ptr(), *dv.stride()),
        (delta.data_ptr(), *delta.stride(), 1),
        **common,
    )
    return dq, dk, dv, dbias, delta


def check_sinks(sinks: Tensor) -> Tensor:
    if not sinks.dtype.is_floating_point:
        raise RedblueError(f"sinks must be of a floating type, got {sinks.dtype}")
    return sinks


def check_outputs(call: _Call, dout: Tensor, dlse: Tensor | None, out: Tensor, lse: Tensor) -> None:
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


library.impl("attention", forward, "CPU")
library.impl("attention_backward", backward, "CPU")
library.impl("attention", partial(_on_gpu, "forward"), "CUDA")
library.impl("attention_backward", partial(_on_gpu, "backward"), "CUDA")


@torch.library.register_fake("redblue::attention", lib=library)
def _fake_forward(q, k, v, bias, sinks, seed, *rest):
    types = q.dtype, k.dtype, v.dtype, None if bias is None else bias.dtype
    call = _call(q.shape, k.shape, v.shape, shape_of(bias), shape_of(sinks), *types)
    if sinks is not None:
        check_sinks(sinks)
    return q.new_empty_strided(*call.out[inside(q)]), q.new_empty_strided(*call.lse, dtype=call.sums)


@torch.library.register_fake("redblue::attention_backward", lib=library)
def _fake_backward(dout, dlse, q, k, v, out, lse, bias, seed, *rest):
    types = q.dtype, k.dtype, v.dtype, None if bias is None else bias.dtype
    call = _call(q.shape, k.shape, v.shape, shape_of(bias), None, *types)
    check_outputs(call, dout, dlse, out, lse)
    gradients = (x.new_empty_strided(*two[inside(x)]) for x, two in ((q, call.q), (k, call.k), (v, call.v)))
    dbias = q.new_empty(bias.shape if bias is not None and rest[-1] else (0,), dtype=call.sums)
    return *gradients, dbias, q.new_empty(lse.shape, dtype=call.sums)
