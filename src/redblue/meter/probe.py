"""Measure with the compiled kernels' own probe, which counts every block that a kernel reads from or writes to arrays.

The counts are exact, and equal to the schedule's closed form (tests/kernels/cpu/test_words.py). The probe needs no
tools. It does not measure caches: it counts at the boundary between the arrays and the kernel's own tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from redblue.compiled import _core
from redblue.meter.calls import KernelCall, Region, Struct

ALIGNED = 64  # bytes


def moved_words(call: KernelCall) -> tuple[int, int]:
    """Run the kernel in this process; return the words read and written."""
    return prepared(call)()


def prepared(call: KernelCall) -> Callable[[], tuple[int, int]]:
    """Allocate the call's memory; return a function that makes the call and returns the words read and written."""
    sizes = [region if isinstance(region, int) else len(region) for region in call.regions]
    starts = np.cumsum([0, *(-(-size // ALIGNED) * ALIGNED for size in sizes)])
    memory = np.zeros(int(starts[-1]) + ALIGNED, np.uint8)
    first = -memory.ctypes.data % ALIGNED
    for start, region in zip(first + starts, call.regions, strict=False):
        if isinstance(region, bytes):
            memory[start : start + len(region)] = np.frombuffer(region, np.uint8)

    def placed(value: Any) -> Any:
        if isinstance(value, Region):
            return memory.ctypes.data + first + int(starts[value.index])
        if isinstance(value, Struct):
            fields = {name: placed(field) for name, field in value.fields.items()}
            return getattr(_core, value.name)(**fields)
        return tuple(map(placed, value)) if isinstance(value, tuple) else value

    function, arguments = getattr(_core, call.function), (_core.choose_isa(call.isa), *placed(call.arguments))

    def run() -> tuple[int, int]:
        assert memory.size  # keeps the memory alive as long as this function
        return function(*arguments)

    return run
