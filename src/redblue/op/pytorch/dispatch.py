"""redblue.attention for PyTorch tensors: checks, broadcasting, and a fast path that skips PyTorch's dispatcher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from redblue.base.errors import RedblueError
from redblue.kernels.mask_argument import MaskArgument
from redblue.kernels.mask_planes import per_head
from redblue.kernels.options import Options, check_gradients, checked
from redblue.masks import Mask
from redblue.masks.rules.bands import Window
from redblue.op import checks
from redblue.op.pytorch import autograd, boolean, layouts, ops, sharding
from redblue.op.pytorch.masks import graph_name_of, name_of, traced_name_of
from redblue.op.pytorch.positions import packed


def attention(q: Any, k: Any, v: Any, options: Options, return_lse: bool = False) -> Any:
    """redblue.attention for tensors. Raises RedblueError for arguments that no kernel supports."""
    options = checked(options)
    if options.positions is not None:
        check_tensors({"q": q, "k": k, "v": v})
        options = options._replace(positions=packed(q, k, v, options))
    arrays = [x for x in options.arrays if x is not None]
    if arrays:
        check_gradients(options)
    plain = is_plain(q, k, v, *arrays)
    if not plain:
        tensors = {"q": q, "k": k, "v": v} | {name: x for name, _, x in options.present_arrays()}
        check_tensors(tensors)
        sharding.prepare(list(tensors.values()), options)
    one_head = q.dim() == k.dim() == v.dim() == 2
    q, k, v = expanded(q, k, v, plain)
    if plain and arrays:
        options = _with_boolean_bias_as_mask(options, (*q.shape[:-1], k.shape[-2]))
    if per_head(options.mask) and k.shape[-3] != q.shape[-3]:
        # The kernels take one mask per key head, so copy k and v for every query head
        k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    mask = options.mask  # held while its name is in use
    if mask is not None or options.schedule == "gather":
        options = options.with_mask(mask_argument(mask, options.schedule, not plain and _is_captured(q)))
    if options.dropout or options.seed is not None:
        options = options._replace(seed=drawn_seed(q, options.seed) if options.dropout else None)
    if not plain:
        out, lse = autograd.forward_now()(q, k, v, *options.flat)
    elif torch.is_grad_enabled() and (
        q.requires_grad or k.requires_grad or v.requires_grad or (arrays and _any_wants_gradient(arrays))
    ):
        out, lse = autograd.eager(q, k, v, options)
    else:
        out, lse = ops.forward(q, k, v, options)
    if one_head:
        out, lse = out[0], lse[0]
    return (out, lse) if return_lse else out


def attention_backward(
    dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, options: Options
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients dq, dk, dv of `attention`, and delta, the row sums of dout * out. Tensors have four dimensions.

    out, lse: the outputs of `attention`, or the merged outputs of several calls on parts of the keys. In the second
    case, dk and dv are the gradients of the given part, and dq is the part's share of the gradient. Dropout needs the
    seed of the forward pass. A bias gets no gradient. Nothing is broadcast.
    """
    dq, dk, dv, _, delta = gradients(dout, None, q, k, v, out, lse, options, bias_gradient=False)
    return dq, dk, dv, delta


def gradients(
    dout: Any, dlse: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, options: Options, bias_gradient: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """dq, dk, dv, dbias and delta, which is the row sums of dout * out, minus dlse. Else as `attention_backward`."""
    options = checked(options)
    tensors = {"dout": dout, "q": q, "k": k, "v": v, "out": out, "lse": lse}
    if options.positions is not None:
        check_tensors(tensors)
        options = options._replace(positions=packed(q, k, v, options))
    check_tensors(tensors | {name: x for name, _, x in options.present_arrays()})
    mask = options.mask  # held while its name is in use
    options = options.with_mask(mask_argument(mask, options.schedule, False))
    if options.dropout and options.seed is None:
        raise RedblueError(
            "with dropout, seed must be the forward pass's seed, got None: another seed drops other probabilities"
        )
    options = options._replace(seed=drawn_seed(q, options.seed) if options.dropout else None)
    with torch.no_grad():
        return ops.backward_op(dout, dlse, q, k, v, out, lse, *options.for_backward.flat, bias_gradient)


def expanded(q: Tensor, k: Tensor, v: Tensor, plain: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The tensors with a dimension of heads and equal leading dimensions."""
    if q.dim() == 2 or k.dim() == 2 or v.dim() == 2:
        q, k, v = (x.unsqueeze(0) if x.dim() == 2 else x for x in (q, k, v))
    # Symbolic sizes cannot be hashed, so only plain calls use the cache
    expanded = (layouts.known_expanded_shapes if plain else layouts.expanded_shapes)(q.shape, k.shape, v.shape)
    if q.is_cpu and ops.substitute() is None:
        checks.check_widths_on_cpu(expanded.sizes)
    if expanded.q is not None:
        q = q.expand(expanded.q)
    if expanded.k is not None:
        k = k.expand(expanded.k)
    if expanded.v is not None:
        v = v.expand(expanded.v)
    return q, k, v


def _with_boolean_bias_as_mask(options: Options, scores: Sequence[int]) -> Options:
    """The options with a mask instead of a boolean bias, where that is faster. scores: their shape."""
    if options.bias is None or options.bias.dtype is not torch.bool or options.schedule not in ("auto", "flash"):
        return options
    mask = boolean.mask_of(options.bias, scores)
    if mask is None:
        return options
    return options._replace(bias=None, mask=mask if options.mask is None else options.mask & mask)


def _any_wants_gradient(tensors: list[Tensor]) -> bool:
    """Whether any of the tensors requires a gradient. A loop, because a generator slows tiny calls down."""
    for x in tensors:  # noqa: SIM110
        if x.requires_grad:
            return True
    return False


def mask_argument(mask: Mask | None, schedule: str, captured: bool) -> MaskArgument:
    """The ops' mask argument: the sides of a band; a name or text if the mask is not a band or pairs are gathered."""
    mask = _EVERYTHING if mask is None else mask
    if schedule != "gather" and isinstance(mask.rule, Window):
        window = mask.rule
        left = -1 if window.left is None else min(window.left, _WIDEST)
        right = -1 if window.right is None else min(window.right, _WIDEST)
        return MaskArgument(left, right, window.align == "bottom-right")
    if torch.compiler.is_dynamo_compiling():
        return MaskArgument(name=traced_name_of(mask))
    return MaskArgument(name=graph_name_of(mask) if captured else name_of(mask))


def _is_captured(q: Tensor) -> bool:
    """Whether the call may become part of a graph, which may be saved."""
    if torch.compiler.is_dynamo_compiling():  # its tracer cannot evaluate the conditions below
        return True
    return _tracing() is not None or bool(_dispatch_modes()) or type(q) not in _PLAIN


_EVERYTHING = Mask.full()


def is_plain(*tensors: Any) -> bool:
    """Whether nothing but autograd observes this call. Then it may skip PyTorch's dispatcher, which takes 10 us."""
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
            or _is_wrapped(x)  # a tensor that outlived its transform
            or x.get_device() != device
        ):
            return False
    return True


# Looked up once, because attribute look-ups slow tiny calls down
_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._is_torch_function_mode_enabled
_transforms = torch._C._are_functorch_transforms_active
_tracing = torch._C._get_tracing_state
_autocast = torch.is_autocast_enabled
_STRIDED = torch.strided
_WIDEST = 2**60  # the widest side of a window; a wider side would exclude no key either
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # pyright: ignore
_PLAIN = {Tensor, torch.nn.Parameter}


def check_tensors(tensors: dict[str, Any]) -> None:
    """Raise RedblueError unless all are dense tensors without tangents, on one device that has kernels."""
    for name, x in tensors.items():
        if not isinstance(x, Tensor):
            raise RedblueError(f"{name} must be a PyTorch tensor like the others, got {type(x).__name__}")
        if x.is_nested:
            raise RedblueError(
                f"{name} is a nested tensor: give a padded tensor and a mask, or make one call per sequence"
            )
        if x.layout != torch.strided:
            raise RedblueError(f"{name} must be dense, got a tensor of layout {x.layout}: use to_dense()")
        if x.device.type not in ("cpu", "cuda", "meta"):
            raise RedblueError(f"{name} is on {x.device}: there are kernels for the CPU and for CUDA and ROCm devices")
        if x.device != tensors["q"].device:
            raise RedblueError(f"{name} must be on the device of q ({tensors['q'].device}), got {x.device}")
        if x.is_cuda and not torch.compiler.is_compiling():  # torch.compile warns about functions with a cache
            ops.gpu_kernels()  # raises an error that names the missing package
        if forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None:
            raise RedblueError(f"{name} has a forward-mode tangent: only reverse mode (backward, vjp) is supported")


def drawn_seed(q: Tensor, seed: int | None) -> Tensor:
    """The seed as a tensor, drawn from PyTorch's generator if None, so that a compiled graph draws one in each run."""
    if seed is not None:  # fill the tensor on the device: a copy would wait for the device
        return torch.full((), seed, dtype=torch.int64, device=q.device)
    return torch.randint(0, 2**63 - 1, (), dtype=torch.int64, device=q.device)
