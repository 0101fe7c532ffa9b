"""redblue.attention for PyTorch tensors: checks, broadcasting, and the shortest way to the kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from redblue.base.errors import RedblueError
from redblue.kernels.cpu.mask_form import per_head
from redblue.masks import Mask
from redblue.masks.rules.bands import Window
from redblue.op import checks
from redblue.op.checks import Options, Scalars
from redblue.op.pytorch import autograd, layouts, ops
from redblue.op.pytorch.masks import name_of, traced_name_of


def attention(q: Any, k: Any, v: Any, options: Options, return_lse: bool = False) -> Any:
    """See redblue.attention. Raises RedblueError for what no kernel takes."""
    scalars = checks.check_scalars(options)
    checks.check_mask(options.mask)
    window, name = _carried(options.mask, options.schedule)
    bias, sinks = options.bias, options.sinks
    plain = _is_plain(q, k, v, *(x for x in (bias, sinks) if x is not None))
    if not plain:
        _check_tensors({"q": q, "k": k, "v": v, "bias": bias, "sinks": sinks})
    flat = q.dim() == k.dim() == v.dim() == 2  # one head
    if q.dim() == 2 or k.dim() == 2 or v.dim() == 2:
        q, k, v = (x.unsqueeze(0) if x.dim() == 2 else x for x in (q, k, v))
    # Symbolic sizes have no hash
    spread = (layouts.known_spread if plain else layouts.spread_of)(q.shape, k.shape, v.shape)
    if q.is_cpu and ops.handed_to() is None:
        checks.check_widths_on_cpu(spread.sizes)
    if spread.q is not None:
        q = q.expand(spread.q)
    if spread.k is not None:
        k = k.expand(spread.k)
    if spread.v is not None:
        v = v.expand(spread.v)
    left = -1 if window.left is None else min(window.left, _WIDEST)
    right = -1 if window.right is None else min(window.right, _WIDEST)
    if per_head(options.mask) and k.shape[-3] != q.shape[-3]:
        k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))  # no two heads see the same keys
    seed = _seed(q, scalars) if scalars.dropout else None
    rest = (
        left,
        right,
        window.align == "bottom-right",
        name,
        options.schedule,
        scalars.scale,
        scalars.softcap,
        scalars.dropout,
    )
    if not plain:
        out, lse = autograd.forward_now()(q, k, v, bias, sinks, seed, *rest)
    elif torch.is_grad_enabled() and (
        q.requires_grad
        or k.requires_grad
        or v.requires_grad
        or (bias is not None and bias.requires_grad)
        or (sinks is not None and sinks.requires_grad)
    ):
        out, lse = autograd.eager(q, k, v, bias, sinks, seed, rest)
    else:
        out, lse = ops.forward(q, k, v, bias, sinks, seed, *rest)
    if flat:
        out, lse = out[0], lse[0]
    return (out, lse) if return_lse else out


def _carried(mask: Mask | None, schedule: str) -> tuple[Window, str]:
    """The mask as the ops take it: a band as its sides, another, or one whose pairs are gathered, by its name."""
    if schedule == "gather":
        mask = mask or _EVERYTHING
    elif mask is None:
        return _FULL, ""
    elif isinstance(mask.rule, Window):
        return mask.rule, ""
    return _FULL, traced_name_of(mask) if torch.compiler.is_dynamo_compiling() else name_of(mask)


_FULL = Window()
_EVERYTHING = Mask.full()


def _is_plain(*tensors: Any) -> bool:
    """Whether nothing but autograd watches this call, so that it may skip PyTorch's dispatcher, which takes 10 us."""
    if (
        torch.compiler.is_dynamo_compiling()
        or _dispatch_modes()
        or _function_modes()
        or _transforms()
        or _tracing() is not None
        or _autocast("cpu")
        or _autocast("cuda")
        or forward_ad._current_level >= 0
    ):
        return False
    device = tensors[0].get_device() if type(tensors[0]) in _PLAIN else None
    for x in tensors:
        if (
            type(x) not in _PLAIN
            or not (x.is_cpu or x.is_cuda)
            or x.layout is not _STRIDED
            or x.is_nested
            or x.is_neg()
            or _is_wrapped(x)  # one that outlived its transform
            or x.get_device() != device
        ):
            return False
    return True


# Looked up once: a tiny call notices
_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._is_torch_function_mode_enabled
_transforms = torch._C._are_functorch_transforms_active
_tracing = torch._C._get_tracing_state
_autocast = torch.is_autocast_enabled
_STRIDED = torch.strided
_WIDEST = 2**60  # of a window's side: no wider one would bind
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # pyright: ignore
_PLAIN = {Tensor, torch.nn.Parameter}


def _check_tensors(given: dict[str, Any]) -> None:
    """Raise RedblueError for what is no ordinary tensor on a device with kernels, or has a forward-mode tangent."""
    for name, x in given.items():
        if x is None and name in ("bias", "sinks"):
            continue
        if not isinstance(x, Tensor):
            raise RedblueError(f"{name} must be a PyTorch tensor as the others are, got {type(x).__name__}")
        if x.is_nested:
            raise RedblueError(f"{name} is a nested tensor: give a padded one and a mask, or one call per sequence")
        if x.layout != torch.strided:
            raise RedblueError(f"{name} must be dense, got a tensor of layout {x.layout}: use to_dense()")
        if x.device.type not in ("cpu", "cuda", "meta"):
            raise RedblueError(f"{name} is on {x.device}: there are kernels for the CPU and for CUDA and ROCm devices")
        if x.device != given["q"].device:
            raise RedblueError(f"{name} must be on the device of q ({given['q'].device}), got {x.device}")
        if x.is_cuda:
            ops.gpu_kernels()  # says what is missing
        if forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None:
            raise RedblueError(f"{name} has a forward-mode tangent: only reverse mode (backward, vjp) is supported")


def _seed(q: Tensor, scalars: Scalars) -> Tensor:
    """From PyTorch's generator, unless given; as a tensor, so that a compiled graph draws a new one in each run."""
    if scalars.seed is not None:  # filled there: to copy it would be to wait for the device
        return torch.full((), scalars.seed, dtype=torch.int64, device=q.device)
    return torch.randint(0, 2**63 - 1, (), dtype=torch.int64, device=q.device)
