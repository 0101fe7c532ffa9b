"""attention_paged on the CPU, for arrays and for tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from redblue.base.dtypes import dtype_name, sum_dtype
from redblue.compiled import _core
from redblue.kernels.cpu import paged
from redblue.kernels.cpu.arrays import array_memory, tensor_memory
from redblue.kernels.cpu.call import Array
from redblue.kernels.options import Memory
from redblue.kernels.sizes import Sizes
from redblue.op import api
from redblue.op.paged.call import PagedCall


class Ready(NamedTuple):
    """A checked call, valid for all arrays of the same shapes, strides, types and relative addresses.

    call: None if there is nothing to compute. packed: the shape to which q must be copied; None if q already has it.
    library: PyTorch's or NumPy's functions. out, lse: their shapes and types. held: the memory that `call` points into.
    """

    call: _core.PagedCall | None
    packed: tuple[int, ...] | None
    library: _Library
    out: tuple[tuple[int, ...], Any]
    lse: tuple[tuple[int, ...], Any]
    held: Any


def ready(call: PagedCall, q: Any, **changed: Any) -> Ready:
    """The call for the core. q: the caller's q. changed: arguments of the kernel's call to replace."""
    dtype, sizes = dtype_name(call.q.dtype), call.sizes
    library = _library_of(call.q)
    out, lse = (call.shape, call.q.dtype), (call.shape[:-1], library.dtype(sum_dtype(dtype)))
    if not sizes.kv_heads or not call.sequences.total:
        return Ready(None, None, library, out, lse, None)
    memory_of = _memory_of(call.q)
    (address, of_q, _), k, v = memory_of(call.q), memory_of(call.k), memory_of(call.v)
    arguments, held = _options(call, dtype)
    core_call = paged.call_of(
        sizes,
        dtype,
        Array(address, (of_q[1], of_q[0], of_q[2])),  # heads first
        paged.Cache(_heads_second(k), _heads_second(v), v_in_k(call.k, k, v, sizes)),
        Array(0, (sizes.d_v, sizes.heads * sizes.d_v, 1)),
        Array(0, (1, sizes.heads, 1)),
        sequences=_sequences(call),
        **(arguments | changed),
    )
    packed = None if address == library.address(q) else tuple(call.q.shape)
    return Ready(core_call, packed, library, out, lse, (held, call.sequences, call.tree))


def run(made: Ready, q: Any, k: Any, v: Any, wants_lse: bool = True) -> tuple[Any, Any, tuple[int, int]]:
    """The output, of q's shape with d_v in place of d, its log-sum-exps, and the words read and written.

    wants_lse: if False, None replaces the log-sum-exps, which saves an allocation.
    """
    empty, address = made.library.empty, made.library.address
    (shape, dtype), lse = made.out, None
    out = empty(shape, dtype=dtype)
    if wants_lse:
        shape, dtype = made.lse
        lse = empty(shape, dtype=dtype)
    if made.call is None:
        return out, lse, (0, 0)
    if made.packed:
        q = q.reshape(made.packed)
    addresses = address(q), address(k), address(v), address(out), 0 if lse is None else address(lse)
    return out, lse, paged.forward_on(made.call, api.default_threads(), *addresses)


def _options(call: PagedCall, dtype: str) -> tuple[dict[str, Any], list[Any]]:
    """The options in the form for the core, and the memory that they point into."""
    arrays = {}
    for name, rules, x in call.options.present_arrays():
        if not rules.own_type:
            x = _converted(x, sum_dtype(dtype))
        arrays[name] = _broadcast(x, rules.shape(call.sizes))
    return call.options.core_arguments(call.sizes, arrays, _memory_of(call.q)), list(arrays.values())


def _sequences(call: PagedCall) -> _core.Sequences:
    """The sequences in the form for the core: addresses of arrays that `call` holds."""
    of, window, tree = call.sequences, call.options.mask.rule, call.tree
    return _core.Sequences(
        len(of),
        *of.addresses,
        of.table.shape[1],
        max(1, of.page),
        -1 if window.left is None else min(window.left, 2**60),
        -1 if window.right is None else min(window.right, 2**60),
        0 if tree is None else tree.ctypes.data,
        0 if tree is None else tree.shape[1],
        -1 if call.prefix is None else call.prefix,
    )


def v_in_k(pages: Any, k: Memory, v: Memory, sizes: Sizes) -> int:
    """The column of K at which V begins, if V is a slice of K's columns; else -1. pages: K."""
    between, size = v[0] - k[0], pages.element_size() if api.is_torch(pages) else pages.itemsize
    if k[1] != v[1] or k[1][3] != 1 or between % size:
        return -1
    column = between // size
    return column if column >= 0 and column + sizes.d_v <= sizes.d else -1


# Helpers for both arrays and tensors ----------------------------------------------------------------------------------


class _Library(NamedTuple):
    """Functions of PyTorch or of NumPy. dtype: maps a type's name to the library's type."""

    empty: Any
    address: Any
    dtype: Any


def _library_of(x: Any) -> _Library:
    if not api.is_torch(x):
        return _Library(np.empty, lambda x: x.ctypes.data, np.dtype)
    import torch

    return _Library(torch.empty, torch.Tensor.data_ptr, lambda name: getattr(torch, name))


def _memory_of(x: Any) -> Callable[[Any], Memory]:
    """The function that returns the memory of an array of x's library."""
    return tensor_memory if api.is_torch(x) else array_memory


def _heads_second(x: Memory) -> Array:
    """Pages (pages, page, heads, width) as (pages, heads, page, width)."""
    address, (a, b, c, d), _ = x
    return Array(address, (a, c, b, d))


def _converted(x: Any, dtype: str) -> Any:
    """The array in this type, dense, because the core reads sinks without strides."""
    if api.is_torch(x):
        import torch

        return x.detach().to(getattr(torch, dtype)).contiguous()
    return np.ascontiguousarray(x, dtype)


def _broadcast(x: Any, shape: tuple[int, ...]) -> Any:
    return x.expand(shape) if api.is_torch(x) else np.broadcast_to(x, shape)
