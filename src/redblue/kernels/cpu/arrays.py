"""Descriptions of arrays for the compiled core: an address, strides in elements, and a number type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from redblue.base.errors import RedblueError
from redblue.kernels.cpu.call import Array
from redblue.kernels.options import Memory


def described(array: np.ndarray) -> Array:
    """The array's address and strides. Raises RedblueError if a stride is not a whole number of elements."""
    return Array(array.ctypes.data, element_strides(array))


def array_memory(array: np.ndarray) -> Memory:
    """The memory of a NumPy array. Raises RedblueError if a stride is not a whole number of elements."""
    return array.ctypes.data, element_strides(array), array.dtype


def tensor_memory(tensor: Any) -> Memory:
    """The memory of a PyTorch tensor."""
    return tensor.data_ptr(), tensor.stride(), tensor.dtype


def element_strides(array: np.ndarray) -> tuple[int, ...]:
    """The array's strides in elements. Raises RedblueError if one is not a whole number of elements."""
    size, in_bytes = array.itemsize, array.strides
    strides = tuple([stride // size for stride in in_bytes])  # a list, because a generator slows tiny calls down
    if tuple([stride * size for stride in strides]) != in_bytes:
        raise RedblueError(f"an array's strides must be whole elements, got {in_bytes} bytes: give a copy")
    return strides


def dense_strides(shape: Sequence[int], order: Sequence[int] | None = None) -> tuple[int, ...]:
    """The strides of a dense array of this shape, in elements.

    order: the dimensions in the order of memory, outermost first; None: the order of the shape.
    """
    strides, step = [0] * len(shape), 1
    for i in reversed(range(len(shape)) if order is None else order):
        strides[i] = step
        step *= max(1, shape[i])
    return tuple(strides)
