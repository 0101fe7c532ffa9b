"""NumPy arrays as the compiled core takes them: an address and the strides in elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from redblue.base.errors import RedblueError
from redblue.kernels.cpu.call import Array


def described(array: np.ndarray) -> Array:
    """The array's address and strides. Raises RedblueError for strides that are no whole elements."""
    return (array.ctypes.data, *element_strides(array))


def element_strides(array: np.ndarray) -> tuple[int, ...]:
    """The array's strides in elements. Raises RedblueError where they are no whole ones."""
    if any(stride % array.itemsize for stride in array.strides):
        raise RedblueError(f"an array's strides must be whole elements, got {array.strides} bytes: give a copy")
    return tuple(stride // array.itemsize for stride in array.strides)


def contiguous(address: Any, shape: Sequence[int]) -> Array:
    """A contiguous array of this shape that begins at `address`."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return (address, *reversed(strides))
