"""Whole numbers: the check of arguments, and exact arithmetic on Python integers or, elementwise, on NumPy arrays.

A closed form on Python integers is fast and cannot overflow. The same functions take arrays, so one formula serves one
problem or a whole grid of them.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from redblue.base.errors import RedblueError

LARGEST = 2**60  # default limit of an argument: a valid NumPy index, and a sum of a few such numbers fits 64 bits


def whole_number(name: str, value: Any, least: int = 1, most: float = LARGEST, advice: str = "") -> int:
    """Check an argument that must be a whole number from `least` to `most`, and return it as an int.

    advice: text that ends the error message. Raises RedblueError, which names the argument, for any other value.
    """
    try:
        number = None if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except TypeError:  # arrays of several numbers have an __index__ that raises it
        number = None
    if number is None:
        raise RedblueError(f"{name} must be a whole number of at least {least}, got {value!r}{advice}")
    if number < least:
        raise RedblueError(f"{name} must be a whole number of at least {least}, got {_short(number, '')}{advice}")
    if number > most:
        limit = f"{most:,} (2^60)" if most == LARGEST else f"{most:,}"
        raise RedblueError(f"{name} must be at most {limit}, got {_short(number)}: give a smaller number{advice}")
    return number


def _short(number: int, separator: str = ",") -> str:
    """Format a number, or only its length in bits if it is too long to print (Python itself refuses 4300 digits)."""
    return f"{number:{separator}}" if number.bit_length() <= 256 else f"a number of {number.bit_length():,} bits"


def larger(a: Any, b: Any) -> Any:
    """Return the larger of two integers. Unlike max, it also works elementwise."""
    return (a + b + abs(a - b)) // 2


def smaller(a: Any, b: Any) -> Any:
    """Return the smaller of two integers. Unlike min, it also works elementwise."""
    return (a + b - abs(a - b)) // 2


def clip(x: Any, low: Any, high: Any) -> Any:
    """Move x into low .. high."""
    return smaller(larger(x, low), high)


def ceil_div(a: Any, b: Any) -> Any:
    """Divide and round up."""
    return -(-a // b)


def floor_sum(n: Any, m: Any, a: Any, b: Any) -> Any:
    """Sum floor((a i + b) / m) over i in 0..n-1, in O(log m) steps.

    The method is the Euclidean reduction that counts the lattice points under a line: each step swaps the roles of a
    and m, as in the computation of a greatest common divisor.
    """
    if any(isinstance(x, np.ndarray) for x in (n, m, a, b)):
        n, m, a, b = np.broadcast_arrays(n, m, a, b)
    total = 0 * n
    while True:
        total = total + n * (n - 1) // 2 * (a // m) + n * (b // m)
        a, b = a % m, b % m
        top = a * n + b
        more = (top >= m) * (n > 0)  # 0 where the sum is complete
        if not np.any(more):
            return total
        n, b = more * (top // m), more * (top % m)
        a, m = more * m, more * a + (1 - more)
