"""Groups of numbers known at compile time that the spilling kernels pass to their loops over tiles.

A kernel constructs a group in the call of a loop, as with flash's Constants.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class PairConstants(NamedTuple):
    """For loops over tiles of scores."""

    GROUP: Any
    COLS: Any  # keys of a listed tile
    KEYS: Any  # keys of a tile that the loop visits
    PLAIN: Any
    WHOLE_KEYS: Any
    slices: Any  # SliceConstants


class ProductConstants(NamedTuple):
    """For loops over slices of DEPTH rows or keys of a spilled array."""

    GROUP: Any
    LENGTH: Any  # rows or keys of a listed tile, along the slices
    DEPTH: Any
    WHOLE: Any  # whether no slice reaches beyond the last row or key
    WIDE: Any
    PRECISION: Any
