"""Whole numbers: the check of arguments, and arithmetic that works on numbers and, elementwise, on NumPy arrays.

Numbers stay Python integers: fast for one closed form, and never overflowing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from redblue.base.errors import RedblueError

LARGEST = 2**60  # the default limit of an argument: NumPy can index it, with room for sums


def whole_number(name: str, value: Any, least: int = 1, most: float = LARGEST, advice: str = "") -> int:
    """Check an argument that must be a whole number, and return it as an int.

    Raises RedblueError, naming the argument, for another type and outside `least` .. `most`. advice: ends the message.
    """
    if isinstance(value, (bool, np.bool_)) or not hasattr(value, "__index__") or value.__index__() < least:
        raise RedblueError(f"{name} must be a whole number of at least {least}, got {value!r}{advice}")
    number = value.__index__()
    if number > most:
        raise RedblueError(f"{name} must be at most {most:,}, got {_short(number)}{advice}")
    return number


def _short(number: int) -> str:
    """The number, unless it is too long to print (Python itself refuses 4300 digits)."""
    return f"{number:,}" if number.bit_length() <= 256 else f"a number of {number.bit_length():,} bits"


def larger(a: Any, b: Any) -> Any:
    return (a + b + abs(a - b)) // 2


def smaller(a: Any, b: Any) -> Any:
    return (a + b - abs(a - b)) // 2


def clip(x: Any, low: Any, high: Any) -> Any:
    return smaller(larger(x, low), high)


def ceil_div(a: Any, b: Any) -> Any:
    return -(-a // b)


def floor_sum(n: Any, m: Any, a: Any, b: Any) -> Any:
    """Sum of floor((a i + b) / m) for i in 0..n-1, in O(log m) steps.

    The Euclidean reduction that counts lattice points under a line (as in the greatest common divisor).
    """
    if any(isinstance(x, np.ndarray) for x in (n, m, a, b)):
        n, m, a, b = np.broadcast_arrays(n, m, a, b)
    total = 0 * n
    while True:
        total = total + n * (n - 1) // 2 * (a // m) + n * (b // m)
        a, b = a % m, b % m
        top = a * n + b
        more = (top >= m) * (n > 0)  # where this is 0, nothing is left to add
        if not np.any(more):
            return total
        n, b = more * (top // m), more * (top % m)
        a, m = more * m, more * a + (1 - more)
