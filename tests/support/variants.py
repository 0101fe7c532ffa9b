"""Which variants of a parametrized test `make test` runs; the others are left to `make test-thorough`."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from itertools import combinations, groupby
from pathlib import Path
from typing import Any

import pytest


def leave_most_to_thorough(items: Iterable[Any], folder: Path, together: int) -> None:
    """Mark the variants of each test below `folder` that `spread` leaves out as thorough."""
    parametrized = [item for item in items if folder in item.path.parents and hasattr(item, "callspec")]
    for _, variants in groupby(parametrized, key=lambda item: (item.path, item.originalname)):
        variants = [item for item in variants if not item.get_closest_marker("thorough")]
        kept = spread(variants, together)
        for item in variants:
            if item not in kept:
                item.add_marker(pytest.mark.thorough)


def spread(variants: list[Any], together: int = 1) -> set[Any]:
    """Choose a few variants that contain every value of every parameter; every run chooses the same.

    together: 2: they contain every pair of values of two parameters, 3: every triple of three, and so on.
    """
    values = {item: _values(item.callspec.params, together) for item in variants}
    order = sorted(variants, key=lambda item: zlib.crc32(item.name.encode()))
    missing, kept = set().union(*values.values()), set()
    while missing:
        best = max(order, key=lambda item: len(values[item] & missing))
        missing -= values[best]
        kept.add(best)
    return kept


def _values(parameters: dict[str, Any], together: int) -> set[Any]:
    pairs = sorted((name, repr(x)) for name, x in parameters.items())
    return set(combinations(pairs, min(together, len(pairs))))
