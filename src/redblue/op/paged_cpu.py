"""attention_paged on the CPU, for arrays and for tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from redblue.base.dtypes import sum_dtype
from redblue.compiled import _core
from redblue.kernels.cpu import call as cpu
from redblue.kernels.cpu import paged
from redblue.kernels.cpu.arrays import element_strides
from redblue.kernels.cpu.call import Array, Sizes
from redblue.op import api
from redblue.op.paged_call import PagedCall, type_name


def attend(call: PagedCall) -> tuple[Any, Any]:
    """The output, of the call's shape, and its log-sum-exps."""
    return run(call)[:2]


def run(call: PagedCall, **changed: Any) -> tuple[Any, Any, tuple[int, int]]:
    """As `attend`, and the words that were read and written. changed: arguments of the kernel's call."""
    dtype = type_name(call.q)
    sizes = sizes_of(call)
    out, lse = _memory(call, call.shape, dtype), _memory(call, call.shape[:-1], sum_dtype(dtype))
    if not sizes.kv_heads or not call.sequences.starts[-1]:
        return out, lse, (0, 0)
    packed, sums = out.reshape(-1, *out.shape[-2:]), lse.reshape(-1, lse.shape[-1])
    held, arguments = _options(call, sizes, dtype)
    packed_call = paged.call_of(
        sizes,
        dtype,
        _heads_first(call.q),
        paged.Cache(_strided(call.k, 0, 2, 1, 3), _strided(call.v, 0, 2, 1, 3), v_in_k(call.k, call.v)),
        _heads_first(packed),
        _heads_first(sums[..., None]),
        sequences=_sequences(call),
        **(arguments | changed),
    )
    words = paged.forward(packed_call)
    del held  # the memory of converted options must last until here
    return out, lse, words


def sizes_of(call: PagedCall) -> Sizes:
    """The sizes of the call's options: one leading dimension of sequences, and the longest sequence's keys."""
    kv_heads, (_, heads, d) = int(call.k.shape[2]), call.q.shape
    n_q = int(call.shape[1]) if len(call.shape) == 4 else 1
    n_k = int(call.sequences.lengths.max(initial=0))
    group = int(heads) // kv_heads if kv_heads else 1
    return Sizes((len(call.sequences),), kv_heads, group, n_q, n_k, int(d), int(call.shape[-1]))


def _options(call: PagedCall, sizes: Sizes, dtype: str) -> tuple[list[Any], dict[str, Any]]:
    """The options as the core takes them, and the memory that they point into."""
    options, held = call.options, []
    sums = sum_dtype(dtype)
    arguments: dict[str, Any] = {**options.numbers(sizes), "threads": api.default_threads()}
    for name, rules, x in options.present_arrays():
        if not rules.own_type:
            x = _converted(x, sums)
        x = _broadcast(x, rules.shape(sizes))
        held.append(x)
        arguments[name] = rules.as_core_array(_address(x), _strides(x), sizes)
        if rules.own_type:
            arguments[f"{name}_number"] = cpu.NUMBERS[type_name(x)]
    return held, arguments


def _sequences(call: PagedCall) -> _core.Sequences:
    """The sequences as the core takes them: addresses of arrays that `call` holds."""
    of, window, tree = call.sequences, call.options.mask.rule, call.tree
    return _core.Sequences(
        len(of),
        of.starts.ctypes.data,
        of.lengths.ctypes.data,
        of.table.ctypes.data,
        of.table.shape[1],
        max(1, of.page),
        -1 if window.left is None else min(window.left, 2**60),
        -1 if window.right is None else min(window.right, 2**60),
        0 if tree is None else tree.ctypes.data,
        0 if tree is None else tree.shape[1],
        -1 if call.prefix is None else call.prefix,
    )


def v_in_k(k: Any, v: Any) -> int:
    """The column of k at which v begins, if v is a slice of k's columns; else -1."""
    between, size = _address(v) - _address(k), _item_bytes(k)
    if _strides(k) != _strides(v) or _strides(k)[3] != 1 or between % size:
        return -1
    column = between // size
    return column if column >= 0 and column + v.shape[3] <= k.shape[3] else -1


# Arrays and tensors alike ---------------------------------------------------------------------------------------------


def _memory(call: PagedCall, shape: tuple[int, ...], dtype: str) -> Any:
    if api.is_torch(call.q):
        import torch

        return torch.empty(shape, dtype=getattr(torch, dtype))
    return np.empty(shape, call.q.dtype if dtype == type_name(call.q) else dtype)


def _address(x: Any) -> int:
    return x.data_ptr() if api.is_torch(x) else x.ctypes.data


def _strides(x: Any) -> tuple[int, ...]:
    return tuple(x.stride()) if api.is_torch(x) else element_strides(x)


def _item_bytes(x: Any) -> int:
    return x.element_size() if api.is_torch(x) else x.itemsize


def _strided(x: Any, *order: int) -> Array:
    """The array with its dimensions in this order."""
    strides = _strides(x)
    return Array(_address(x), tuple(strides[i] for i in order))


def _heads_first(x: Any) -> Array:
    """Packed rows (total, heads, width) as (heads, total, width)."""
    return _strided(x, 1, 0, 2)


def _converted(x: Any, dtype: str) -> Any:
    if api.is_torch(x):
        import torch

        return x.detach().to(getattr(torch, dtype))
    return np.asarray(x, dtype)


def _broadcast(x: Any, shape: tuple[int, ...]) -> Any:
    return x.expand(shape) if api.is_torch(x) else np.broadcast_to(x, shape)
