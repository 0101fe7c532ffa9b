"""redblue::attention and redblue::attention_backward, PyTorch's ops: on the CPU, on GPUs, and as shapes alone.

q (lead..., H, n_q, d), k (lead..., H_kv, n_k, d), v (lead..., H_kv, n_k, d_v), all leading dimensions given. The mask
travels as its two sides (-1: open) and its alignment, so that a compiled graph holds for every sequence length; one
that is no band by its name. scale None: d^-1/2.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from redblue.base.errors import RedblueError
from redblue.kernels.cpu import call as cpu
from redblue.kernels.cpu.call import Attended
from redblue.kernels.cpu.mask_form import attended
from redblue.kernels.gpu.versions import check_triton
from redblue.op import checks
from redblue.op.pytorch.layouts import (
    Call,
    call_of,
    check_numbers,
    check_outputs,
    check_sinks,
    inside,
    known_call,
    shape_of,
)
from redblue.op.pytorch.masks import mask_named

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


def _common(
    call: Call,
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
    """The kernels for GPUs, imported with the first tensor on one. Raises RedblueError without Triton."""
    check_triton()
    from redblue.op.pytorch import gpu

    return gpu


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


library.impl("attention", forward, "CPU")
library.impl("attention_backward", backward, "CPU")
library.impl("attention", partial(_on_gpu, "forward"), "CUDA")
library.impl("attention_backward", partial(_on_gpu, "backward"), "CUDA")


@torch.library.register_fake("redblue::attention", lib=library)
def _fake_forward(q, k, v, bias, sinks, seed, *rest):
    types = q.dtype, k.dtype, v.dtype, None if bias is None else bias.dtype
    call = call_of(q.shape, k.shape, v.shape, shape_of(bias), shape_of(sinks), *types)
    if sinks is not None:
        check_sinks(sinks)
    return q.new_empty_strided(*call.out[inside(q)]), q.new_empty_strided(*call.lse, dtype=call.sums)


@torch.library.register_fake("redblue::attention_backward", lib=library)
def _fake_backward(dout, dlse, q, k, v, out, lse, bias, seed, *rest):
    types = q.dtype, k.dtype, v.dtype, None if bias is None else bias.dtype
    call = call_of(q.shape, k.shape, v.shape, shape_of(bias), None, *types)
    check_outputs(call, dout, dlse, out, lse)
    gradients = (x.new_empty_strided(*two[inside(x)]) for x, two in ((q, call.q), (k, call.k), (v, call.v)))
    dbias = q.new_empty(bias.shape if bias is not None and rest[-1] else (0,), dtype=call.sums)
    return *gradients, dbias, q.new_empty(lse.shape, dtype=call.sums)
