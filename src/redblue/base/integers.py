"""Integer arithmetic that works alike on numbers and, elementwise, on NumPy arrays of candidates.

Numbers stay Python integers: fast for one closed form, and never overflowing.
"""

from __future__ import annotations

from typing import Any

import numpy as np


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
