"""The PyTorch ops redblue::attention and redblue::attention_backward, for the CPU, GPUs and fake tensors.

q (lead..., H, n_q, d), k (lead..., H_kv, n_k, d), v (lead..., H_kv, n_k, d_v) have equal leading dimensions. The
options follow in the order of Options.flat. PyTorch calls the ops with these flat arguments; `forward` and `backward`
take the options as one record.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from redblue.base.errors import RedblueError
from redblue.compiled import _core
from redblue.kernels.cpu import call as cpu
from redblue.kernels.cpu.arrays import tensor_memory
from redblue.kernels.cpu.call import Attended
from redblue.kernels.cpu.mask_form import attended, bias_gradient_is_apart
from redblue.kernels.gpu.versions import check_triton
from redblue.kernels.mask_argument import OPEN, MaskArgument
from redblue.kernels.options import SCHEMA, Options, check_numbers
from redblue.kernels.positions import check_places
from redblue.kernels.sizes import Sizes
from redblue.op import checks
from redblue.op.pytorch.layouts import (
    Call,
    call_of,
    check_outputs,
    expanded_arrays,
    forms,
    known_call,
    layout_index,
)
from redblue.op.pytorch.masks import mask_named

library = torch.library.Library("redblue", "FRAGMENT")
# The strides of outputs have the order of the inputs' strides, so a compiled graph must keep this order
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
# For ops that read numbers of tensors on the host, such as lengths. A CUDA graph would keep the numbers of its capture.
HOST_TAGS = (*_TAGS, torch.Tag.cudagraph_unsafe)
library.define(f"attention(Tensor q, Tensor k, Tensor v, {SCHEMA}) -> (Tensor out, Tensor lse)", tags=_TAGS)
library.define(
    "attention_backward(Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse,"
    f" {SCHEMA}, bool bias_grad) -> (Tensor dq, Tensor dk, Tensor dv, Tensor dbias, Tensor delta)",
    tags=_TAGS,
)
# PyTorch's OpenMP threads spin for milliseconds after each PyTorch operation. redblue uses these threads, because its
# own threads would compete with them for the CPUs.
OPENMP = str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")
_core.use_openmp_of(OPENMP)

forward_op = torch.ops.redblue.attention.default
backward_op = torch.ops.redblue.attention_backward.default


def _arguments(
    call: Call, options: Options, arrays: dict[str, Tensor], lse: Tensor | None = None, bias_grad: bool = False
) -> dict[str, Any]:
    """The keyword arguments of the core's call. arrays: from `expanded_arrays`. lse: only for backward."""
    check_numbers(options)
    sizes = call.sizes
    checks.check_widths_on_cpu(sizes)
    if options.positions is not None:
        check_places(arrays["positions"].numpy(), sizes)
    arguments = options.core_arguments(sizes, arrays, tensor_memory)
    arguments["mask"] = _attended(call, options, lse, bias_grad)
    arguments["threads"] = torch.get_num_threads()
    arguments["schedule"] = options.schedule
    return arguments


def _attended(call: Call, options: Options, lse: Tensor | None, bias_grad: bool) -> Attended:
    """The call's mask in the form for the core."""
    mask = options.mask
    if mask is None or not mask.name:
        return _band(mask or OPEN, call.sizes)
    direction, forward_lse = ("forward", None) if lse is None else ("backward", lse.numpy())
    named = mask_named(mask.name)
    return attended(named, call.sizes, call.dtype, direction, bias_grad, options.schedule, forward_lse)


@lru_cache(maxsize=1024)
def _band(mask: MaskArgument, sizes: Sizes) -> Attended:
    """A band in the form for the core."""
    first, end = mask.band(sizes)
    return Attended(-sizes.n_q if first is None else first, sizes.n_k + 1 if end is None else end)


@cache
def gpu_kernels() -> Any:
    """The module of the kernels for GPUs, imported at the first call. Raises RedblueError without Triton."""
    check_triton()
    from redblue.op.pytorch import gpu

    return gpu


def _on_gpu(direction: str, *arguments: Any) -> Any:
    """Run the forward or backward pass on the tensors' device. PyTorch's current device may be another one.

    The ops are opaque to torch.compile. torch.library.triton_op would expose the launches, so that torch.compile could
    fuse them with neighbouring code. But these kernels leave no shared memory for other code, and two steps need
    ordinary Python: copying masks to the device before a graph is captured, and tuning, which times launches.
    """
    tensors = [x for value in arguments for x in (value.tensors if isinstance(value, Options) else (value,))]
    with torch.cuda.device(common_device(tensors)):
        return getattr(gpu_kernels(), direction)(*arguments)


def common_device(values: Iterable[Any]) -> torch.device:
    """The device of all tensors among the values, at least one. Raises RedblueError if devices differ."""
    devices = {x.device for x in values if isinstance(x, Tensor)}
    if len(devices) > 1:
        raise RedblueError(f"all tensors must be on one device, got {', '.join(sorted(map(str, devices)))}")
    return devices.pop()


class _Substitute(threading.local):
    """The object whose functions compute calls on CPU tensors, for each thread."""

    current: Any = None


_substitute = _Substitute()


@contextmanager
def substituted(by: Any) -> Iterator[None]:
    """A context in which `by.forward` and `by.backward` compute this thread's calls on CPU tensors.

    None: use the CPU's kernels.
    """
    before, _substitute.current = _substitute.current, by
    try:
        yield
    finally:
        _substitute.current = before


def substitute() -> Any:
    """The object whose functions compute this thread's calls on CPU tensors; None for the CPU's kernels."""
    return _substitute.current


def forward(q: Tensor, k: Tensor, v: Tensor, options: Options) -> tuple[Tensor, Tensor]:
    """The output and the log-sum-exp of each row."""
    if q.is_cuda:
        return _on_gpu("forward", q, k, v, options)
    if _substitute.current is not None:
        return _substitute.current.forward(q, k, v, options)
    call = known_call(q.shape, k.shape, v.shape, (q.dtype, k.dtype, v.dtype), forms(options))
    layout = call.out[layout_index(q)]
    out = q.new_empty_strided(*layout)
    lse = q.new_empty_strided(*call.lse, dtype=call.sums)
    if out.numel():
        arrays = expanded_arrays(options, call)  # held until the kernel has run
        cpu.forward(
            call.sizes,
            call.dtype,
            cpu.Array(q.data_ptr(), q.stride()),
            cpu.Array(k.data_ptr(), k.stride()),
            cpu.Array(v.data_ptr(), v.stride()),
            cpu.Array(out.data_ptr(), layout[1]),
            cpu.Array(lse.data_ptr(), (*call.lse[1], 1)),
            **_arguments(call, options, arrays),
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
    options: Options,
    bias_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """dq, dk, dv, the bias's gradient (empty without bias_grad) and delta, the row sums of dout * out minus dlse."""
    if q.is_cuda:
        return _on_gpu("backward", dout, dlse, q, k, v, out, lse, options, bias_grad)
    if _substitute.current is not None:
        return _substitute.current.backward(dout, dlse, q, k, v, out, lse, options, bias_grad)
    call = known_call(q.shape, k.shape, v.shape, (q.dtype, k.dtype, v.dtype), forms(options))
    check_outputs(call, dout, dlse, out, lse)
    dq, dk, dv = (x.new_empty_strided(*two[layout_index(x)]) for x, two in ((q, call.q), (k, call.k), (v, call.v)))
    delta = q.new_empty(lse.shape, dtype=call.sums)
    dbias = _bias_gradient(q, call, options, bias_grad)
    if not out.numel():
        return dq.zero_(), dk.zero_(), dv.zero_(), dbias.zero_(), delta
    lse = lse.contiguous()
    arrays = expanded_arrays(options, call, backward=True)
    bias_grad = bias_grad and "bias" in arrays
    arguments = _arguments(call, options, arrays, lse, bias_grad)
    if bias_grad:
        expanded = dbias.expand(arrays["bias"].shape)
        if not expanded.numel():  # no pair, so the kernel would write nothing
            dbias.zero_()
        arguments["dbias"] = cpu.Array(expanded.data_ptr(), expanded.stride())
    if dlse is not None:
        dlse = dlse.contiguous()
        arguments["dlse"] = cpu.Array(dlse.data_ptr(), (*dlse.stride(), 1))
    cpu.backward(
        call.sizes,
        call.dtype,
        cpu.Array(q.data_ptr(), q.stride()),
        cpu.Array(k.data_ptr(), k.stride()),
        cpu.Array(v.data_ptr(), v.stride()),
        cpu.Array(out.data_ptr(), out.stride()),
        cpu.Array(lse.data_ptr(), (*lse.stride(), 1)),
        cpu.Array(dout.data_ptr(), dout.stride()),
        cpu.Array(dq.data_ptr(), dq.stride()),
        cpu.Array(dk.data_ptr(), dk.stride()),
        cpu.Array(dv.data_ptr(), dv.stride()),
        cpu.Array(delta.data_ptr(), (*delta.stride(), 1)),
        **arguments,
    )
    if bias_grad and _bias_gradient_is_apart(call, options, lse):
        dq, dk, dv, _, delta = backward(dout, dlse, q, k, v, out, lse, options, False)
    return dq, dk, dv, dbias, delta


def _bias_gradient_is_apart(call: Call, options: Options, lse: Tensor) -> bool:
    if options.mask is None or not options.mask.name:  # a band, which is never gathered
        return False
    mask = mask_named(options.mask.name)
    return bias_gradient_is_apart(mask, call.sizes, call.dtype, options.schedule, lse.numpy())


def _bias_gradient(q: Tensor, call: Call, options: Options, bias_grad: bool) -> Tensor:
    """Memory for the bias's gradient; empty if there is no bias or its gradient is not needed."""
    return q.new_empty(options.bias.shape if options.bias is not None and bias_grad else (0,), dtype=call.sums)


def _flat_forward(run: Any, q: Tensor, k: Tensor, v: Tensor, *flat: Any) -> Any:
    """Call `run` with the options of the op's flat arguments as one record."""
    return run(q, k, v, Options.unflatten(flat))


def _flat_backward(run: Any, dout: Any, dlse: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *flat: Any) -> Any:
    """Call `run` with the options of the backward op's flat arguments as one record; the last argument is bias_grad."""
    return run(dout, dlse, q, k, v, out, lse, Options.unflatten(flat[:-1]), flat[-1])


def fake_forward(q: Tensor, k: Tensor, v: Tensor, options: Options) -> tuple[Tensor, Tensor]:
    """Memory for the results of `forward`, of the same strides; also for tensors without values."""
    call = call_of(q.shape, k.shape, v.shape, (q.dtype, k.dtype, v.dtype), forms(options))
    return q.new_empty_strided(*call.out[layout_index(q)]), q.new_empty_strided(*call.lse, dtype=call.sums)


def fake_backward(
    dout: Tensor,
    dlse: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    options: Options,
    bias_grad: bool,
) -> tuple[Tensor, ...]:
    """Memory for the results of `backward`, of the same strides; also for tensors without values."""
    call = call_of(q.shape, k.shape, v.shape, (q.dtype, k.dtype, v.dtype), forms(options))
    check_outputs(call, dout, dlse, out, lse)
    gradients = (x.new_empty_strided(*two[layout_index(x)]) for x, two in ((q, call.q), (k, call.k), (v, call.v)))
    return *gradients, _bias_gradient(q, call, options, bias_grad), q.new_empty(lse.shape, dtype=call.sums)


library.impl("attention", partial(_flat_forward, forward), "CPU")
library.impl("attention_backward", partial(_flat_backward, backward), "CPU")
library.impl("attention", partial(_flat_forward, partial(_on_gpu, "forward")), "CUDA")
library.impl("attention_backward", partial(_flat_backward, partial(_on_gpu, "backward")), "CUDA")
torch.library.register_fake("redblue::attention", partial(_flat_forward, fake_forward), lib=library)
torch.library.register_fake("redblue::attention_backward", partial(_flat_backward, fake_backward), lib=library)
