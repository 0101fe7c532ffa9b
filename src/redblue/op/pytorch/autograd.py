"""The ops' derivatives, and their rules for torch.func's transforms, vmap and autocast."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from redblue.base.errors import RedblueError
from redblue.kernels.options import NO_GRADIENTS, WITH_GRADIENT, WITHOUT_GRADIENT, Options
from redblue.op.pytorch import ops
from redblue.op.pytorch.masks import mask_named
from redblue.op.pytorch.ops import backward_op, forward_op, library


def _save(ctx: Any, inputs: tuple, output: tuple) -> None:
    """Keep everything that the backward pass needs. inputs: the op's flat arguments."""
    q, k, v, *flat = inputs
    _keep(ctx, q, k, v, Options.unflatten(flat), output)


def _keep(ctx: Any, q: Tensor, k: Tensor, v: Tensor, options: Options, output: tuple) -> None:
    ctx.save_for_backward(q, k, v, *output, *options.tensors)
    ctx.others = options.others
    ctx.mask = (
        mask_named(options.mask.name) if options.mask and options.mask.name else None
    )  # kept, so that the name stays valid
    ctx.substitute = ops.substitute()
    ctx.set_materialize_grads(False)


def _flat_gradients(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
    """The gradients of the op's flat arguments."""
    _, _, _, *flat = ctx.needs_input_grad
    needed = Options.unflatten(flat)
    for name in WITHOUT_GRADIENT:
        if getattr(needed, name):
            raise RedblueError(f"{name} has no gradient: detach it, or give a bias")
    dq, dk, dv, gradients = _gradients(ctx, dout, dlse, {name: getattr(needed, name) for name in WITH_GRADIENT})
    return dq, dk, dv, *NO_GRADIENTS._replace(**gradients).flat


def _gradients(ctx: Any, dout: Tensor | None, dlse: Tensor | None, needed: dict[str, bool]) -> tuple[Any, ...]:
    """(dq, dk, dv, the gradients of `needed` options by name). dout or dlse is None if its output is not used."""
    if dout is None and dlse is None:
        return None, None, None, {}
    q, k, v, out, lse, *tensors = ctx.saved_tensors
    options = Options(*ctx.others, *tensors)
    if dout is None:
        dout = torch.zeros_like(out)
    bias, sinks = options.bias, options.sinks
    bias_grad = bias is not None and needed["bias"]
    with ops.substituted(by=ctx.substitute):
        dq, dk, dv, dbias, delta = _backward_now(dout, dlse, q, k, v, out, lse, options.for_backward, bias_grad)
    gradients = {}
    if bias is not None and bias_grad:
        gradients["bias"] = dbias.to(bias.dtype)
    if sinks is not None and needed["sinks"]:
        gradients["sinks"] = sinks_gradient(sinks, lse, delta)
    return dq, dk, dv, gradients


def sinks_gradient(sinks: Tensor, lse: Tensor, delta: Tensor) -> Tensor:
    """The sinks' gradient: the sum over rows of -delta times the sink's probability."""
    share = torch.where(lse == float("-inf"), 0.0, (sinks.to(lse.dtype)[:, None] - lse).exp())
    others = [i for i in range(lse.dim()) if i != lse.dim() - 2]
    return -(share * delta).sum(others).to(sinks.dtype)


def _no_forward_mode(ctx: Any, *tangents: Any) -> Any:
    raise RedblueError("forward-mode derivatives are not supported: use backward, grad or vjp")


def no_second_derivative(ctx: Any, *gradients: Any) -> Any:
    raise RedblueError("double backward is not supported: redblue's attention has first derivatives only")


torch.library.register_autograd("redblue::attention", _flat_gradients, setup_context=_save, lib=library)
torch.library.register_autograd("redblue::attention_backward", no_second_derivative, lib=library)


def forward_now() -> Any:
    """The forward op, or, within torch.func, `Forward`: torch.func supports only gradients of autograd.Functions."""
    return Forward.apply if torch._C._are_functorch_transforms_active() else forward_op


def _backward_now(*arguments: Any) -> Any:
    """Call the backward op, or, within torch.func, `Backward`. arguments: as for `ops.backward`."""
    *tensors, options, bias_grad = arguments
    op = Backward.apply if torch._C._are_functorch_transforms_active() else backward_op
    return op(*tensors, *options.flat, bias_grad)


# torch.func refuses an autograd.Function whose forward takes ctx. `Eager` uses this form because its calls are cheaper.


class Forward(torch.autograd.Function):
    @staticmethod
    def forward(*inputs: Any) -> Any:
        return forward_op(*inputs)

    setup_context = staticmethod(_save)  # pyright: ignore

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _flat_gradients(ctx, *gradients)

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
        return no_second_derivative(ctx, *gradients)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return _vmap_backward(Backward.apply, info, in_dims, *arguments)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return _no_forward_mode(ctx, *tangents)


class Eager(torch.autograd.Function):
    """The op's function without PyTorch's dispatcher, which takes longer than a tiny call.

    Its inputs are q, k, v, the arrays that have a gradient, and the record with all options.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, *more: Any) -> Any:
        options = more[-1]
        output = ops.forward(q, k, v, options)
        _keep(ctx, q, k, v, options, output)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        _, _, _, *flags, _ = ctx.needs_input_grad
        dout, dlse = gradients
        dq, dk, dv, others = _gradients(ctx, dout, dlse, dict(zip(WITH_GRADIENT, flags, strict=True)))
        return dq, dk, dv, *(others.get(name) for name in WITH_GRADIENT), None


_apply = super(torch.autograd.Function, Eager).apply  # pyright: ignore


def eager(q: Tensor, k: Tensor, v: Tensor, options: Options) -> tuple[Tensor, Tensor]:
    """The op's outputs with gradients, for calls that nothing but autograd observes."""
    # Function.apply checks for torch.func's transforms, which cannot be active here, and then calls `_apply`
    return _apply(q, k, v, *options.with_gradient, options)  # pyright: ignore


def autocast_to(device: str, x: Tensor) -> Tensor:
    """The array in the type of autocast on this kind of device. As in PyTorch, float64 arrays keep their type."""
    return x.to(torch.get_autocast_dtype(device)) if x.is_floating_point() and x.dtype != torch.float64 else x


def _autocast(device: str, key: str) -> Any:
    """The op under autocast on this kind of device."""
    off = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    converted = partial(autocast_to, device)

    def attention(q, k, v, *flat):
        options = Options.unflatten(flat)
        # Options of the sums' type are not rounded
        changed = {name: converted(x) for name, rules, x in options.present_arrays() if rules.own_type}
        with torch._C._ExcludeDispatchKeyGuard(off):
            return forward_op(converted(q), converted(k), converted(v), *options._replace(**changed).flat)

    return attention


for device, key in (("cpu", "AutocastCPU"), ("cuda", "AutocastCUDA")):
    library.impl("attention", _autocast(device, key), key)


def _vmap_forward(op: Any, info: Any, in_dims: Any, q: Tensor, k: Tensor, v: Tensor, *flat: Any) -> Any:
    """The op under vmap: the mapped dimension becomes the first of the leading dimensions."""
    q_dim, k_dim, v_dim, *flat_dims = in_dims
    n, options, dims = info.batch_size, Options.unflatten(flat), Options.unflatten(flat_dims)
    if _needs_a_call_each(options, dims):
        return one_by_one(op, n, in_dims, (0, 0), q, k, v, *flat)
    q, k, v = _in_front(q, q_dim, n), _in_front(k, k_dim, n), _in_front(v, v_dim, n)
    return op(q, k, v, *_options_in_front(options, dims, q.dim()).flat), (0, 0)


def _vmap_backward(op: Any, info: Any, in_dims: Any, *arguments: Any) -> Any:
    """The backward op under vmap. A bias gets one gradient for every entry of the mapped dimension."""
    dout, dlse, q, k, v, out, lse, *flat, bias_grad = arguments
    tensors = dout, dlse, q, k, v, out, lse
    n, options, dims = info.batch_size, Options.unflatten(flat), Options.unflatten(in_dims[len(tensors) : -1])
    bias = options.bias if bias_grad else None
    out_dims = (0, 0, 0, None if bias is None else 0, 0)
    if _needs_a_call_each(options, dims):
        return one_by_one(op, n, in_dims, out_dims, *arguments)
    moved: list[Any] = [None if x is None else _in_front(x, dim, n) for x, dim in zip(tensors, in_dims, strict=False)]
    dout, *_ = moved
    if bias is not None:
        bias = _in_front(bias, dims.bias, n)
        options, dims = options._replace(bias=bias), dims._replace(bias=0)
    flat = _options_in_front(options, dims, dout.dim()).flat
    dq, dk, dv, dbias, delta = op(*moved, *flat, bias_grad)
    return (dq, dk, dv, dbias if bias is None else dbias.reshape(bias.shape), delta), out_dims


def _needs_a_call_each(options: Options, dims: Options) -> bool:
    """Whether vmap's entries need separate calls: an option without leading dimensions differs between entries.

    A seed that all entries share needs separate calls, too. It means one dropout pattern for all entries, but in one
    call the pattern would differ with the leading dimensions.
    """
    if options.seed is not None and dims.seed is None:
        return True
    return any(not rules.lead and getattr(dims, name) is not None for name, rules, _ in options.present_arrays())


def _options_in_front(options: Options, dims: Options, rank: int) -> Options:
    """The options with their mapped dimensions `dims` first. rank: the rank of q with its mapped dimension."""
    changed = {
        name: _padded(x.movedim(getattr(dims, name), 0), rank - rules.missing)
        for name, rules, x in options.present_arrays()
        if getattr(dims, name) is not None
    }
    if options.seed is not None:
        changed["seed"] = options.seed.select(dims.seed, 0)
    return options._replace(**changed)


torch.library.register_vmap("redblue::attention", partial(_vmap_forward, forward_op), lib=library)
torch.library.register_vmap("redblue::attention_backward", partial(_vmap_backward, backward_op), lib=library)


def _in_front(x: Tensor, dim: int | None, n: int) -> Tensor:
    """The tensor with dimension `dim` first. If `dim` is None, a new first dimension repeats the tensor n times."""
    return x.expand(n, *x.shape) if dim is None else x.movedim(dim, 0)


def _padded(x: Tensor, dims: int) -> Tensor:
    """The tensor with dimensions of size 1 after its first one, `dims` in all."""
    return x.reshape(x.shape[0], *[1] * (dims - x.dim()), *x.shape[1:])


def one_by_one(op: Any, n: int, in_dims: tuple, out_dims: tuple, *arguments: Any) -> tuple[Any, tuple]:
    """The stacked outputs of n calls, one for every entry of the mapped dimension."""
    outputs = [
        op(*(x if dim is None else x.select(dim, i) for x, dim in zip(arguments, in_dims, strict=True)))
        for i in range(n)
    ]
    by_output = zip(*outputs, strict=True)
    return tuple(x[0] if dim is None else torch.stack(x) for x, dim in zip(by_output, out_dims, strict=True)), out_dims
