"""Which variants of a parametrized test `make test` and `make test-thorough` run; `make test-all` runs all of them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Set
from itertools import combinations, groupby
from typing import Any

import pytest


def leave_most_to_thorough(items: Iterable[Any], together: Callable[[Any], int]) -> None:
    """Mark variants as thorough if they only recombine values of others.

    The other variants contain every combination of the values of `together(item)` parameters.
    """
    parametrized = [item for item in items if hasattr(item, "callspec") and not item.get_closest_marker("thorough")]
    for _, grouped in groupby(parametrized, key=lambda item: (item.path, item.originalname)):
        variants = list(grouped)
        if together(variants[0]) >= len(variants[0].callspec.params):
            continue  # no two variants have the same values
        kept = spread(variants, together(variants[0]))
        for item in variants:
            if item not in kept:
                item.add_marker(pytest.mark.thorough)


def leave_most_to_nightly(items: Iterable[Any], together: Callable[[Any], int]) -> None:
    """Mark thorough variants as nightly if they only recombine values of others.

    The variants that are not nightly contain every combination of the values of `together(item)` parameters.
    """
    parametrized = [item for item in items if hasattr(item, "callspec") and not item.get_closest_marker("nightly")]
    for _, grouped in groupby(parametrized, key=lambda item: (item.path, item.originalname)):
        variants = list(grouped)
        thorough = [item for item in variants if item.get_closest_marker("thorough")]
        if not thorough:
            continue
        kept = spread(variants, together(variants[0]), {*variants} - {*thorough})
        for item in thorough:
            if item not in kept:
                item.add_marker(pytest.mark.nightly)


def spread(variants: list[Any], together: int = 1, chosen: Set[Any] = frozenset()) -> set[Any]:
    """Choose a few variants that contain every combination of values of `together` parameters, the same in every run.

    together: 0: one variant is chosen; 2: they contain every pair of values of two parameters, 3: every triple of
    three, and so on. chosen: variants that are kept in any case.
    """
    values = {item: _values(item.callspec.params, together) for item in variants}
    order = sorted(variants, key=lambda item: zlib.crc32(item.name.encode()))
    kept = {*chosen}
    missing = set().union(*values.values()).difference(*(values[item] for item in kept))
    while missing:
        best = max(order, key=lambda item: len(values[item] & missing))
        missing -= values[best]
        kept.add(best)
    return kept


def _values(parameters: dict[str, Any], together: int) -> set[Any]:
    pairs = sorted((name, _text(x)) for name, x in parameters.items())
    return set(combinations(pairs, min(together, len(pairs))))


def _text(value: Any) -> str:
    """Return a text that differs for different values."""
    try:
        return repr(value)
    except ValueError:  # an integer of more than 4300 digits
        return f"object {id(value)}"
