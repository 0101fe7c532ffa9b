"""Groups of numbers known at compile time that the spilling kernels pass to their loops over tiles.

A kernel constructs a group in the call of a loop, as with flash's Constants.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class PairConstants(NamedTuple):
    """Constants of loops over tiles of scores."""

    GROUP: Any
    COLS: Any  # keys of a listed tile
    KEYS: Any  # keys of a tile that the loop visits
    PLAIN: Any
    WHOLE_KEYS: Any
    slices: Any  # SliceConstants


class ProductConstants(NamedTuple):
    """Constants of loops over slices of DEPTH rows or keys of a spilled array."""

    GROUP: Any
    LENGTH: Any  # rows or keys of a listed tile, along the slices
    DEPTH: Any
    OF_P: Any  # whether the spilled array is P, which is negative where dropout drops it
    WHOLE: Any  # whether every slice lies within the rows or keys
    WHOLE_FEATURES: Any  # whether the tile of the result lies within the features
    WIDE: Any
    PRECISION: Any


class DvAndDsConstants(NamedTuple):
    """Constants of the loop in dv_and_ds.py over slices of DEPTH rows."""

    GROUP: Any
    LENGTH: Any  # rows of a listed tile
    DEPTH: Any
    WHOLE: Any  # whether every slice lies within the rows
    SLICES: Any  # slices of V's features
    WIDTH: Any  # features of a slice
    WIDE: Any
    PRECISION: Any
