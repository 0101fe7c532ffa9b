"""Number types: their names, and how many bytes one word of each takes."""

from __future__ import annotations

from collections.abc import Sequence

from redblue.base.errors import RedblueError

BYTES_PER_WORD = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8": 1}
COMPUTED = ("float64", "float32", "bfloat16", "float16")  # the types that kernels take


def check_dtype(name: str, dtype: object, allowed: Sequence[str] = tuple(BYTES_PER_WORD)) -> None:
    """Raise RedblueError, naming the argument, for a number type that is not allowed."""
    if dtype not in allowed:
        raise RedblueError(f"{name} must be one of {', '.join(allowed)}, got {dtype!r}")
