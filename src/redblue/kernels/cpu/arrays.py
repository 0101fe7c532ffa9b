"""Descriptions of NumPy arrays for the compiled core: an address and strides in elements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from redblue.base.errors import RedblueError
from redblue.kernels.cpu.call import Array


def described(array: np.ndarray) -> Array:
    """The array's address and strides. Raises RedblueError if a stride is not a whole number of elements."""
    return Array(array.ctypes.data, element_strides(array))


def element_strides(array: np.ndarray) -> tuple[int, ...]:
    """The array's strides in elements. Raises RedblueError if one is not a whole number of elements."""
    if any(stride % array.itemsize for stride in array.strides):
        raise RedblueError(f"an array's strides must be whole elements, got {array.strides} bytes: give a copy")
    return tuple(stride // array.itemsize for stride in array.strides)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous array of this shape."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))
