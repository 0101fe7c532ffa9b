"""Whole numbers: the checks of arguments, and exact arithmetic on Python integers or, elementwise, on NumPy arrays.

A closed form on Python integers is fast and cannot overflow. The same functions take arrays, so one formula serves one
problem or a whole grid of them.
"""

from __future__ import annotations

import math
import operator
import re
from fractions import Fraction
from typing import Any

import numpy as np

from redblue.base.errors import RedblueError
from redblue.base.text import quoted

LARGEST = 2**60  # default limit of an argument: a valid NumPy index, and a sum of a few such numbers fits 64 bits


def whole_number(name: str, value: Any, least: float = 1, most: float = LARGEST, advice: str = "") -> int:
    """Check an argument that must be a whole number from `least` to `most`, and return it as an int.

    least, most: -math.inf and math.inf for no limit. advice: text that ends the error message. Raises RedblueError,
    which names the argument, for any other value.
    """
    wanted = "a whole number" if least == -math.inf else f"a whole number of at least {least}"
    try:
        number = None if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except (TypeError, ValueError, RuntimeError):  # arrays of several numbers, and traced tensors, raise these errors
        number = None
    if number is None:
        raise RedblueError(f"{name} must be {wanted}, got {value!r}{advice}")
    if number < least:
        raise RedblueError(f"{name} must be {wanted}, got {_short(number, '')}{advice}")
    if number > most:
        limit = f"{most:,} (2^60)" if most == LARGEST else f"{most:,}"
        raise RedblueError(f"{name} must be at most {limit}, got {_short(number)}: give a smaller number{advice}")
    return number


def integer_array(
    name: str, values: Any, wanted: str = "whole numbers of at most 64 bits", dimensions: int | None = None
) -> np.ndarray:
    """Check an argument that must be an array of whole numbers, and return it as an array of its own integer type.

    An empty array may have any type, because NumPy makes an empty list an array of floats; the result is then of int64.
    wanted: the description of the allowed values in errors. dimensions: the number that the array must have; None: any.
    Raises RedblueError, which names the argument, for anything else.
    """
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise RedblueError(f"{name} must be {wanted}; its entries have different shapes ({error})") from None
    except (TypeError, RuntimeError) as error:  # a tensor on a GPU, or one that requires a gradient
        raise RedblueError(f"{name} must be {wanted}: {error}") from None
    if dimensions not in (None, array.ndim) or (array.size and array.dtype.kind not in "iu"):
        raise RedblueError(f"{name} must be {wanted}, got shape {array.shape} of {array.dtype}")
    return array if array.size else np.zeros(array.shape, np.int64)


def int64_array(name: str, values: Any, wanted: str = "a list of whole numbers that fit 64 bits") -> np.ndarray:
    """Check an argument that must be a list of whole numbers, and return it as a new one-dimensional int64 array.

    wanted: as in `integer_array`. Raises RedblueError, which names the argument, for anything else.
    """
    array = integer_array(name, values, wanted, 1)
    if array.dtype.kind == "u" and array.max() > np.iinfo(np.int64).max:
        raise RedblueError(f"{name}[{array.argmax()}] must fit 63 bits, got {array.max()}")
    return array.astype(np.int64)


FACTORS = {"": 1} | {p: 1000**i for i, p in enumerate("KMGT", 1)} | {f"{p}I": 1024**i for i, p in enumerate("KMGT", 1)}
SIZE = re.compile(r"([+-]?\d+(?:_\d+)*)(\.\d+)?(?:e\+?(\d{1,2}))?\s?([kmgt]i?)?(b)?", re.ASCII | re.IGNORECASE)
SIZE_FORMS = "4096, 4_096, 4K (4,000), 4Ki (4,096), 1.5M or 1e6"
MAX_CHARACTERS = 1000  # characters of a size, leading zeros included


def parse_size(name: str, text: str, unit: str = "") -> int:
    """Read a whole number such as 4096, 4_096, 4K, 4Ki, 1.5M or 1e6.

    K, M, G, T stand for powers of 1000, as in redblue's own output; Ki, Mi, Gi, Ti for powers of 1024.

    unit: "bytes" if the size is one of bytes; it may then end in B, as in 4KiB. Raises RedblueError, which names the
    allowed forms, for any other text, and for a number that is not whole.
    """
    match = SIZE.fullmatch(text.strip()) if len(text) <= MAX_CHARACTERS else None
    if match is None:
        raise RedblueError(f"{name} must be a whole number such as {SIZE_FORMS}, got {quoted(text)}")
    whole, fraction, power, prefix, in_bytes = match.groups(default="")
    if in_bytes and unit != "bytes":
        raise RedblueError(f"{name} is counted, not measured in bytes: leave out the B of {quoted(text)}")
    value = Fraction(whole.replace("_", "") + fraction) * 10 ** int(power or 0) * FACTORS[prefix.upper()]
    if value.denominator != 1:
        raise RedblueError(f"{name} must be a whole number, got {quoted(text)}, which is {float(value):,}")
    return int(value)


def _short(number: int, separator: str = ",") -> str:
    """Format a number, or only its length in bits if it is too long to print (Python itself refuses 4300 digits)."""
    return f"{number:{separator}}" if number.bit_length() <= 256 else f"a number of {number.bit_length():,} bits"


def larger(a: Any, b: Any) -> Any:
    """Return the larger of two integers. Unlike max, it also works elementwise."""
    return np.maximum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else max(a, b)


def smaller(a: Any, b: Any) -> Any:
    """Return the smaller of two integers. Unlike min, it also works elementwise."""
    return np.minimum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else min(a, b)


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
        return _floor_sums(*np.broadcast_arrays(n, m, a, b))
    total = 0
    while n > 0:
        total += n * (n - 1) // 2 * (a // m) + n * (b // m)
        a, b = a % m, b % m
        n, b = divmod(a * n + b, m)
        a, m = m, a
    return total


def _floor_sums(n: np.ndarray, m: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return `floor_sum` of each element. Each step covers only the sums that are not complete yet."""
    shape = n.shape
    n, m, a, b = (x.ravel() for x in (n, m, a, b))
    total, active = np.zeros_like(n), np.flatnonzero(n > 0)
    n, m, a, b = n[active], m[active], a[active], b[active]
    while len(active):
        (whole_a, a), (whole_b, b) = np.divmod(a, m), np.divmod(b, m)
        total[active] += n * (n - 1) // 2 * whole_a + n * whole_b
        n, b = np.divmod(a * n + b, m)
        a, m = m, a
        more = n > 0
        active, n, m, a, b = active[more], n[more], m[more], a[more], b[more]
    return total.reshape(shape)
