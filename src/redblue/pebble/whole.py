"""Whole numbers as the compiled core takes them: nothing is cut off or wrapped around on the way."""

from __future__ import annotations

from typing import Any

import numpy as np

from redblue.base.errors import RedblueError

LARGEST = int(np.iinfo(np.int64).max)


class NotWhole(RedblueError):
    """An entry that is no whole number of its range. number: its place. value: what it is."""

    def __init__(self, number: int, value: object, why: str) -> None:
        super().__init__(why)
        self.number, self.value = number, value


def whole_array(values: Any, dtype: type[np.signedinteger] = np.int64) -> np.ndarray:
    """The values as an array of whole numbers. Raises NotWhole for the first that is none, or does not fit."""
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
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
