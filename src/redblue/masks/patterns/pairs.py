"""What a schedule asks of a mask: which (row, column) pairs attend, tile by tile, and in sum over all tiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np


class TileSums(NamedTuple):
    """Sums over the live tiles I x J of a tiling: how many, and of |I|, |J| and |I| |J|."""

    tiles: Any
    rows: Any
    cols: Any
    area: Any


Runs = tuple[range, ...]  # ranges that are not empty, ascending, and do not touch


class Pairs(Protocol):
    """What schedules ask of a mask that is laid on rows (queries) and columns (keys).

    steps: along rows and along columns, the block edge that the mask is made of (1 where it may change anywhere).
    sums(rows, cols): over the live tiles of the grid of rows x cols tiles; both may be arrays (broadcast).
    """

    @property
    def n_rows(self) -> int: ...
    @property
    def n_cols(self) -> int: ...
    @property
    def T(self) -> Pairs: ...
    @property
    def is_full(self) -> bool: ...
    @property
    def nnz(self) -> int: ...
    @property
    def steps(self) -> tuple[int, int]: ...
    def cols_of(self, rows: range) -> Runs: ...
    def rows_of(self, cols: range) -> Runs: ...
    def dense(self, rows: range, cols: range) -> np.ndarray: ...
    def holds(self, rows: range, cols: range) -> bool: ...
    def sums(self, rows: Any, cols: Any) -> TileSums: ...


@dataclass(frozen=True)
class Transposed:
    """The same pairs with rows and columns exchanged: for schedules that keep keys and stream queries."""

    of: Pairs

    @property
    def T(self) -> Pairs:
        return self.of

    @property
    def n_rows(self) -> int:
        return self.of.n_cols

    @property
    def n_cols(self) -> int:
        return self.of.n_rows

    @property
    def is_full(self) -> bool:
        return self.of.is_full

    @property
    def nnz(self) -> int:
        return self.of.nnz

    @property
    def steps(self) -> tuple[int, int]:
        rows, cols = self.of.steps
        return cols, rows

    def cols_of(self, rows: range) -> Runs:
        return self.of.rows_of(rows)

    def rows_of(self, cols: range) -> Runs:
        return self.of.cols_of(cols)

    def dense(self, rows: range, cols: range) -> np.ndarray:
        return self.of.dense(cols, rows).T

    def holds(self, rows: range, cols: range) -> bool:
        return self.of.holds(cols, rows)

    def sums(self, rows: Any, cols: Any) -> TileSums:
        tiles, row_sum, col_sum, area = self.of.sums(cols, rows)
        return TileSums(tiles, col_sum, row_sum, area)
