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
    OF_P: Any  # whether the spilled array is P, which is negative where dropout drops it
    WHOLE: Any  # whether no slice reaches beyond the last row or key
    WHOLE_FEATURES: Any  # whether the tile of the result has no features beyond the last
    WIDE: Any
    PRECISION: Any


class DvAndDsConstants(NamedTuple):
    """For the loop of dv_and_ds.py over slices of DEPTH rows."""

    GROUP: Any
    LENGTH: Any  # rows of a listed tile
    DEPTH: Any
    WHOLE: Any  # whether no slice reaches beyond the last row
    SLICES: Any  # slices of V's features
    WIDTH: Any  # features of a slice
    WIDE: Any
    PRECISION: Any
