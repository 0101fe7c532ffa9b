"""Derivatives of the ops, and what else PyTorch may do to them: torch.func's transforms, vmap, autocast."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from redblue.base.errors import RedblueError
from redblue.op.pytorch import ops
from redblue.op.pytorch.masks import mask_named
from redblue.op.pytorch.ops import backward_op, forward_op, library


def _save(ctx: Any, inputs: tuple, output: tuple) -> None:
    """inputs: q, k, v, bias, sinks, seed and the rest, as the op takes them."""
    ctx.save_for_backward(*inputs[:6], *output)
    ctx.rest = inputs[6:]
    ctx.mask = mask_named(inputs[9])  # held, not only named
    ctx.handed_to = ops.handed_to()
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
    """Of the inputs; dout or dlse is None where only the other output is used."""
    q, k, v, bias, sinks, seed, out, lse = ctx.saved_tensors
    none = (None,) * (6 + len(ctx.rest))
    if dout is None and dlse is None:
        return none
    if dout is None:
        dout = torch.zeros_like(out)
    bias_grad = bias is not None and ctx.needs_input_grad[3]
    with ops.handing_over(to=ctx.handed_to):
        dq, dk, dv, dbias, delta = backward_now()(dout, dlse, q, k, v, out, lse, bias, seed, *ctx.rest, bias_grad)
    dbias = dbias.to(bias.dtype) if bias is not None and bias_grad else None
    dsinks = _sinks_gradient(sinks, lse, delta) if sinks is not None and ctx.needs_input_grad[4] else None
    return dq, dk, dv, dbias, dsinks, *none[5:]


def _sinks_gradient(sinks: Tensor, lse: Tensor, delta: Tensor) -> Tensor:
    """A sink's share of each row, times what it takes from the others."""
    share = torch.where(lse == float("-inf"), 0.0, (sinks.to(lse.dtype)[:, None] - lse).exp())
    others = [i for i in range(lse.dim()) if i != lse.dim() - 2]
    return -(share * delta).sum(others).to(sinks.dtype)


def _no_forward_mode(ctx: Any, *tangents: Any) -> Any:
    raise RedblueError("forward-mode derivatives are not supported: use backward, grad or vjp")


def _no_second_derivative(ctx: Any, *gradients: Any) -> Any:
    raise RedblueError("double backward is not supported: redblue's attention has first derivatives only")


torch.library.register_autograd("redblue::attention", _gradients, setup_context=_save, lib=library)
torch.library.register_autograd("redblue::attention_backward", _no_second_derivative, lib=library)


def forward_now() -> Any:
    """The op, or what torch.func needs in its place: it knows no gradients of ops, only those of functions."""
    return Forward.apply if torch._C._are_functorch_transforms_active() else forward_op


def backward_now() -> Any:
    return Backward.apply if torch._C._are_functorch_transforms_active() else backward_op


# torch.func takes no function whose forward has a context; that of `Eager` has one, which makes it cheap to call.


class Forward(torch.autograd.Function):
    @staticmethod
    def forward(*inputs: Any) -> Any:
        return forward_op(*inputs)

    setup_context = staticmethod(_save)  # pyright: ignore

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _gradients(ctx, *gradients)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return _vmap_forward(forward_now(), info, in_dims, *arguments)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return _no_forward_mode(ctx, *tangents)


class Backward(torch.autograd.Function):
    @staticmethod
    def forward(*inputs: Any) -> Any:
        return backward_op(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _no_second_derivative(ctx, *gradients)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return _vmap_backward(backward_now(), info, in_dims, *arguments)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return _no_forward_mode(ctx, *tangents)


class Eager(torch.autograd.Function):
    """The same without the dispatcher, which alone takes longer than a tiny call should."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Any:
        inputs = given[:6] + given[6]
        output = ops.forward(*inputs)
        _save(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _gradients(ctx, *gradients)[:7]


_apply = super(torch.autograd.Function, Eager).apply  # pyright: ignore


def eager(*given: Any) -> tuple[Tensor, Tensor]:
    """The op's outputs with gradients, where nothing but autograd watches; all after the seed is one tuple."""
    # Function.apply looks for torch.func's transforms, of which there are none here, and then calls this
    return _apply(*given)  # pyright: ignore


def _autocast(device: str, key: str) -> Any:
    """The op under autocast of this kind of device; as PyTorch's: to autocast's type, except float64."""
    off = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def attention(q, k, v, bias, *rest):
        dtype = torch.get_autocast_dtype(device)
        q, k, v, bias = (
            x.to(dtype) if x is not None and x.is_floating_point() and x.dtype != torch.float64 else x
            for x in (q, k, v, bias)
        )
        with torch._C._ExcludeDispatchKeyGuard(off):
            return forward_op(q, k, v, bias, *rest)

    return attention


for device, key in (("cpu", "AutocastCPU"), ("cuda", "AutocastCUDA")):
    library.impl("attention", _autocast(device, key), key)


def _vmap_forward(op, info, in_dims, q, k, v, bias, sinks, seed, *rest):
    """The new dimension leads, as a leading dimension more."""
    n = info.batch_size
    # One seed for all means one pattern for all, but a pattern depends on the leading dimensions; sinks have none.
    if (seed is not None and in_dims[5] is None) or (sinks is not None and in_dims[4] is not None):
        return _one_by_one(op, n, in_dims, (0, 0), q, k, v, bias, sinks, seed, *rest)
    q, k, v = (_in_front(x, dim, n) for x, dim in zip((q, k, v), in_dims, strict=False))
    if bias is not None and in_dims[3] is not None:
        bias = _padded(bias.movedim(in_dims[3], 0), q.dim())
    if seed is not None:
        seed = seed.select(in_dims[5], 0)
    return op(q, k, v, bias, sinks, seed, *rest), (0, 0)


def _vmap_backward(op, info, in_dims, *arguments):
    n, bias, seed, bias_grad = info.batch_size, arguments[7], arguments[8], arguments[-1]
    dims = (0, 0, 0, 0 if bias is not None and bias_grad else None, 0)
    if seed is not None and in_dims[8] is None:
        return _one_by_one(op, n, in_dims, dims, *arguments)
    dout, dlse, *arrays = (
        x if x is None else _in_front(x, dim, n) for x, dim in zip(arguments[:7], in_dims, strict=False)
    )
    shape = None
    if bias is not None and (bias_grad or in_dims[7] is not None):
        bias = _in_front(bias, in_dims[7], n)
        shape = bias.shape
        bias = _padded(bias, arguments[2].dim() + (in_dims[2] is None))
    if seed is not None:
        seed = seed.select(in_dims[8], 0)
    dq, dk, dv, dbias, delta = op(dout, dlse, *arrays, bias, seed, *arguments[9:])
    return (dq, dk, dv, dbias.reshape(shape) if dims[3] == 0 else dbias, delta), dims


torch.library.register_vmap("redblue::attention", partial(_vmap_forward, forward_op), lib=library)
torch.library.register_vmap("redblue::attention_backward", partial(_vmap_backward, backward_op), lib=library)


def _in_front(x: Tensor, dim: int | None, n: int) -> Tensor:
    return x.expand(n, *x.shape) if dim is None else x.movedim(dim, 0)


def _padded(bias: Tensor, dims: int) -> Tensor:
    """Ones between its first dimension and the others."""
    return bias.reshape(bias.shape[0], *[1] * (dims - bias.dim()), *bias.shape[1:])


def _one_by_one(op: Any, n: int, in_dims: tuple, out_dims: tuple, *arguments: Any) -> tuple[Any, tuple]:
    each = [
        op(*(x if dim is None else x.select(dim, i) for x, dim in zip(arguments, in_dims, strict=True)))
        for i in range(n)
    ]
    outputs = zip(*each, strict=True)
    return tuple(x[0] if dim is None else torch.stack(x) for x, dim in zip(outputs, out_dims, strict=True)), out_dims
