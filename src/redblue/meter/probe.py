"""The words that the compiled kernels say they move: each block that they take from an array, or put there, is counted.

Exact, and equal to the schedule's closed form (tests/kernels/cpu/test_words.py). Nothing is needed, and nothing is learnt of
caches: it is what crosses the boundary between the arrays and tiles that the kernel holds itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from redblue.compiled import _core
from redblue.meter.calls import KernelCall, Region, Struct

ALIGNED = 64  # bytes


def moved(call: KernelCall) -> tuple[int, int]:
    """Words read and written. Runs the kernel here, on zeros."""
    return prepared(call)()


def prepared(call: KernelCall) -> Callable[[], tuple[int, int]]:
    """The call, with memory of its own; it returns the words read and written."""
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
            fields = {name: placed(each) for name, each in value.fields.items()}
            return getattr(_core, value.name)(**fields)
        return tuple(map(placed, value)) if isinstance(value, tuple) else value

    function, arguments = getattr(_core, call.function), (_core.choose_isa(call.isa), *placed(call.arguments))

    def run() -> tuple[int, int]:
        assert memory.size  # held as long as this function is
        return function(*arguments)

    return run
