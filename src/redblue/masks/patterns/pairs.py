"""The interface between masks and schedules: the attending (row, column) pairs, by tile and summed over all tiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np


class TileSums(NamedTuple):
    """Sums over the live tiles of a grid, which are the tiles with at least one attending pair.

    tiles: number of live tiles. rows, cols: the sum of their heights, and of their widths. area: the sum of height
    times width. Each is an int, or an array if the tile sizes were arrays.
    """

    tiles: Any
    rows: Any
    cols: Any
    area: Any


Runs = tuple[range, ...]  # ascending ranges, none empty, no two touching


class Pairs(Protocol):
    """A mask of given numbers of rows and columns.

    A row is a query, or one of the `group` consecutive rows that a query fills in grouped-query attention. A column is
    a key.
    """

    @property
    def n_rows(self) -> int: ...
    @property
    def n_cols(self) -> int: ...

    @property
    def T(self) -> Pairs:
        """The transpose."""
        ...

    @property
    def is_full(self) -> bool:
        """Whether every pair attends."""
        ...

    @property
    def nnz(self) -> int:
        """Number of attending pairs."""
        ...

    @property
    def steps(self) -> tuple[int, int]:
        """The edges of the blocks that the mask is made of, in rows and in columns; 1 without blocks."""
        ...

    def cols_of(self, rows: range) -> Runs:
        """Return the columns that some row of `rows` attends, as maximal runs."""
        ...

    def rows_of(self, cols: range) -> Runs:
        """Return the rows that attend some column of `cols`, as maximal runs."""
        ...

    def dense(self, rows: range, cols: range) -> np.ndarray:
        """Return a boolean (len(rows), len(cols)) array, True where the row attends the column."""
        ...

    def holds(self, rows: range, cols: range) -> bool:
        """Return whether every pair of the tile attends, so that the tile needs no masking."""
        ...

    def sums(self, rows: Any, cols: Any) -> TileSums:
        """Sum over the live tiles of the grid of `rows` x `cols` tiles. Both may be arrays, which broadcast."""
        ...


@dataclass(frozen=True)
class Transposed:
    """The same pairs with rows and columns exchanged, for schedules that keep keys and stream queries."""

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
