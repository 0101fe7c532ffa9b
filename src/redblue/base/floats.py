"""The check of arguments that must be finite numbers."""

from __future__ import annotations

import math
from typing import Any

from redblue.base.errors import RedblueError


def finite_number(name: str, value: Any) -> float:
    """The value as a Python float. Raises RedblueError, which names it, unless it is a finite number."""
    if type(value) is not float:  # torch.compile cannot trace these checks for a float
        if isinstance(value, (bool, str)) or not hasattr(value, "__float__"):
            raise RedblueError(f"{name} must be a number, got {value!r}")
        if getattr(value, "requires_grad", False):
            raise RedblueError(f"{name} has no gradient: give a number, or multiply q by a tensor, got {value!r}")
        try:
            value = float(value)
        except (TypeError, ValueError, OverflowError, RuntimeError):
            raise RedblueError(f"{name} must be a number, got {value!r}") from None
    if not -math.inf < value < math.inf:
        raise RedblueError(f"{name} must be finite, got {value!r}")
    return value
