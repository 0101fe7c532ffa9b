"""Arrays that border on protected pages of memory: any access outside of them kills the process."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence

import numpy as np

from redblue.base.dtypes import BYTES_PER_WORD
from redblue.kernels.cpu import call as cpu

PAGE = mmap.PAGESIZE
BYTES = BYTES_PER_WORD | {"bool": 1}


class Memory:
    """Memory of `size` bytes between two protected pages, either right after the first or right before the second."""

    def __init__(self, size: int, at_end: bool = True) -> None:
        pages = -(-size // PAGE) * PAGE
        self.mapped = mmap.mmap(-1, pages + 2 * PAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self.mapped))
        for page in (start, start + PAGE + pages):
            protect(page, PAGE)
        self.address = start + PAGE + (pages - size if at_end else 0)


def protect(address: int, size: int) -> None:
    """Make any access to these pages an error."""
    if ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), 0):
        raise OSError(ctypes.get_errno(), "mprotect")


def random_numbers(rng: np.random.Generator, dtype: str, count: int) -> np.ndarray:
    """The bytes of normally distributed numbers of a type; of random truth values for "bool"."""
    values = rng.standard_normal(count)
    return {
        "float64": lambda: values,
        "float32": lambda: values.astype(np.float32),
        "float16": lambda: values.astype(np.float16),
        "bfloat16": lambda: (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16),
        "bool": lambda: values > -0.5,
    }[dtype]()


class GuardedNumbers:
    """A copy of a contiguous array, right before a protected page. address: of its first element."""

    def __init__(self, values: np.ndarray) -> None:
        self.memory = Memory(values.nbytes)
        self.address = self.memory.address
        ctypes.memmove(self.address, values.ctypes.data, values.nbytes)


class Guarded:
    """An array (lead, heads, rows, columns) of random layout between two protected pages.

    spread: "plain" (contiguous), "any", or "broadcast" (some strides may be 0). described: the struct for the core.
    """

    def __init__(self, rng: np.random.Generator, dtype: str, shape: tuple[int, ...], spread: str = "any") -> None:
        order = rng.permutation(4) if spread != "plain" and rng.random() < 0.6 else [3, 2, 1, 0]
        strides, step = [0] * 4, 1 if spread == "plain" or rng.random() < 0.7 else int(rng.integers(2, 4))
        low = high = 0
        for axis in order:
            if spread != "broadcast" or rng.random() < 0.5:
                backwards = spread != "plain" and rng.random() < 0.2
                strides[axis] = -step if backwards else step
                reach = strides[axis] * max(0, shape[axis] - 1)
                low, high = low + min(0, reach), high + max(0, reach)
                step *= max(1, shape[axis])
                step += int(rng.integers(0, 4)) if spread != "plain" and rng.random() < 0.3 else 0
        empty = any(size == 0 and stride for size, stride in zip(shape, strides, strict=True))
        held = 0 if empty else (high - low + 1) * BYTES[dtype]
        self.memory = Memory(held, at_end=rng.random() >= 0.3)
        first = self.memory.address
        if held:
            numbers = random_numbers(rng, dtype, held // BYTES[dtype])
            ctypes.memmove(first, numbers.ctypes.data, held)
        self.described = cpu.Array(first - low * BYTES[dtype], tuple(strides))


class GuardedPages:
    """A cache (pages, heads, rows, width) with protected memory around its pages; unused pages are protected, too.

    described: the struct for the core.
    """

    def __init__(self, rng: np.random.Generator, dtype: str, shape: Sequence[int], used: np.ndarray) -> None:
        pages, *inner = shape
        strides, step = [0] * 3, 1 if rng.random() < 0.7 else int(rng.integers(2, 4))
        for axis in rng.permutation(3) if rng.random() < 0.6 else [2, 1, 0]:
            strides[axis] = step
            step = step * max(1, inner[axis]) + (int(rng.integers(0, 4)) if rng.random() < 0.3 else 0)
        size = BYTES[dtype]
        held = (1 + sum(stride * (n - 1) for stride, n in zip(strides, inner, strict=True))) * size
        room = -(-held // PAGE) * PAGE
        apart = room + PAGE
        self.memory = Memory(pages * apart, at_end=False)
        self.bytes = size
        within = 0 if rng.random() < 0.3 else room - held  # each page begins after protected memory, or ends before it
        start = self.memory.address
        for page in range(pages):
            first = start + page * apart
            if used[page]:
                numbers = random_numbers(rng, dtype, held // size)
                ctypes.memmove(first + within, numbers.ctypes.data, held)
            protect(first + room, PAGE)
            if not used[page]:
                protect(first, room)
        self.described = cpu.Array(start + within, (apart // size, *strides))

    def columns(self, first: int) -> cpu.Array:
        """The same cache from column `first` on."""
        strides = tuple(self.described.strides)
        return cpu.Array(self.described.address + first * strides[-1] * self.bytes, strides)
