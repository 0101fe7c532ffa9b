"""Arrays of whole numbers for the compiled core: a value that an array cannot hold is refused, never wrapped around."""

from __future__ import annotations

from typing import Any

import numpy as np

from redblue.base.errors import RedblueError

INT64_MAX = int(np.iinfo(np.int64).max)


class NotWhole(RedblueError):
    """An entry of an array is not a whole number within the limits. number: its index. value: the entry."""

    def __init__(self, number: int, value: object, reason: str) -> None:
        super().__init__(reason)
        self.number, self.value = number, value


def whole_array(values: Any, dtype: type[np.signedinteger] = np.int64) -> np.ndarray:
    """Convert values to a contiguous array of dtype.

    Raises NotWhole for the first value that is not a whole number or that dtype cannot hold.
    """
    array, limits = np.asarray(values), np.iinfo(dtype)
    fits = array.dtype.kind in "iu" and np.can_cast(array.dtype, dtype)
    if not fits and array.size:
        for number, value in enumerate(np.asarray(values, object).ravel()):
            if not is_whole(value) or not limits.min <= value <= limits.max:
                raise NotWhole(
                    number, value, f"must be a whole number from {limits.min} to {limits.max}, got {value!r}"
                )
    return np.ascontiguousarray(array, dtype)


def is_whole(value: object) -> bool:
    """Whether the value is an int or a NumPy integer; True and False are not."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
