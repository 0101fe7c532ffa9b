"""The properties of arrays that a checked paged call depends on: shapes, strides, types and relative addresses."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from redblue.kernels.options import Options
from redblue.masks import Mask
from redblue.masks.rules.bands import Window
from redblue.op import api

_PLAIN = {type(None), str, float}  # types of options whose equal values mean equal calls


def form_of(*arrays: Any) -> tuple[Any, ...] | None:
    """Shapes, strides and types; None unless all are arrays, or all are tensors, that the CPU reads in place."""
    if api.is_torch(arrays[0]):
        from redblue.op.pytorch.paged import forms

        return forms.form_of(*arrays)
    form = []
    for x in arrays:
        if type(x) is not np.ndarray:
            return None
        form += (x.shape, x.strides, x.dtype, x.flags.writeable)
    return tuple(form)


def address_of(x: Any) -> int:
    """The address of an array or a tensor."""
    return x.data_ptr() if api.is_torch(x) else x.ctypes.data


def bytes_into_row(k_pages: Any, v_pages: Any) -> int | None:
    """The offset of V within the first row of K; None: V begins elsewhere, so it is no slice of K's columns."""
    row = k_pages.itemsize * (k_pages.shape[-1] if len(k_pages.shape) else 0)
    between = address_of(v_pages) - address_of(k_pages)
    return between if 0 <= between < row else None


def distance_within(k_pages: Any, v_pages: Any) -> int | None:
    """The bytes from K's address to V's, if they may share memory; None: their memory is separate."""
    return address_of(v_pages) - address_of(k_pages) if meet(span_of(k_pages), span_of(v_pages)) else None


def meet(a: tuple[int, int], b: tuple[int, int]) -> bool:
    """Whether two ranges of addresses overlap."""
    return a[0] < b[1] and b[0] < a[1]


def span_of(x: Any) -> tuple[int, int]:
    """The range of addresses that the memory of an array or a tensor spans."""
    if api.is_torch(x):
        address, (first, stop) = x.data_ptr(), _reach(x.shape, x.stride(), x.itemsize, x.itemsize)
    else:
        address, (first, stop) = x.ctypes.data, _reach(x.shape, x.strides, 1, x.itemsize)
    return address + first, address + stop


@lru_cache(maxsize=1024)
def _reach(shape: tuple[int, ...], strides: tuple[int, ...], unit: int, size: int) -> tuple[int, int]:
    """The range of byte offsets from an array's address."""
    if 0 in shape:
        return 0, 0
    steps = [unit * stride * (n - 1) for stride, n in zip(strides, shape, strict=True)]
    return sum(min(0, step) for step in steps), size + sum(max(0, step) for step in steps)


def may_be_cached(prefix_pages: Any, options: Options) -> bool:
    """Whether a checked call may be cached by these values: values that are equal must mean equal calls.

    The types are compared exactly, because 1 == True, although only one of them may be valid.
    """
    if prefix_pages is not None and type(prefix_pages) is not int:
        return False
    mask, *others = options
    if mask is not None and not (type(mask) is Mask and type(mask.rule) is Window):
        return False
    return _PLAIN.issuperset(map(type, others))
