"""Lists of whole numbers as the parameters of rules, and the checks of a user's lists."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from redblue.base.errors import RedblueError
from redblue.base.integers import LARGEST, int64_array, whole_number

MAX_PRINTED = 16  # numbers: longer lists print only their ends


class Numbers:
    """A read-only 1-D int64 array that is a value: hashable, and equal if the numbers are equal."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = np.array(array, np.int64)
        self.array.flags.writeable = False

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Numbers) and np.array_equal(self.array, other.array))

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.array.shape, self.array.tobytes()))

    def __hash__(self) -> int:
        return self._hash

    def __len__(self) -> int:
        return len(self.array)

    def __repr__(self) -> str:
        if len(self) <= MAX_PRINTED:
            return repr(self.array.tolist())
        ends = [", ".join(map(str, part.tolist())) for part in (self.array[:3], self.array[-2:])]
        return f"<{len(self):,} numbers: {ends[0]}, ..., {ends[1]}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Numbers, (self.array,)


def numbers(name: str, value: Any, least: int = 0) -> Numbers:
    """Check a user's list of whole numbers of at least `least`. Raises RedblueError, which names the entry."""
    array = int64_array(name, value)
    too_small = np.flatnonzero(array < least)
    if len(too_small):
        i = too_small[0]
        raise RedblueError(f"{name}[{i}] must be at least {least}, got {array[i]}")
    return Numbers(array)


def pair(name: str, value: Any, most: float = LARGEST) -> tuple[int, int]:
    """Check two whole numbers (queries, keys) from 1 to `most`, or one number for both. Raises RedblueError."""
    parts = tuple(value) if isinstance(value, (tuple, list, np.ndarray)) else (value, value)
    if len(parts) != 2:
        raise RedblueError(
            f"{name} must be two whole numbers (queries, keys) of at least 1, or one for both; got {value!r}"
        )
    return whole_number(f"{name}[0]", parts[0], most=most), whole_number(f"{name}[1]", parts[1], most=most)
