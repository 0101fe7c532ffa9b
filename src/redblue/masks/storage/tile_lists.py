"""The live tiles of a mask, one by one, for formats that store tiles and for lower bounds."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from redblue.base.errors import RedblueError
from redblue.base.integers import ceil_div
from redblue.masks.patterns.census import census
from redblue.masks.patterns.pairs import Pairs, Transposed
from redblue.masks.patterns.tiled import Tiled

MAX_TILES = 1 << 22  # live tiles in one list, which takes some seconds to make


class Tiles(NamedTuple):
    """The live tiles of a mask in CSR form: entries starts[r] .. starts[r + 1] - 1 are the tiles in row r of the grid.

    cols: the column of each tile in the grid. full: whether every pair of the tile attends.
    """

    starts: np.ndarray
    cols: np.ndarray
    full: np.ndarray

    def count_in_rows(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        """Count the tiles in rows first .. stop - 1 of the grid, elementwise."""
        return self.starts[stop] - self.starts[first]


@functools.lru_cache(maxsize=16)
def live_tiles(side: Pairs, rows: int, cols: int) -> Tiles:
    """List the tiles of rows x cols that have attending pairs.

    rows: a multiple of the rows that one query fills. Raises RedblueError for more than MAX_TILES live tiles.
    """
    count = int(side.sums(rows, cols).tiles)
    if count > MAX_TILES:
        raise RedblueError(
            f"the mask has {count:,} live tiles of {rows} x {cols}, at most {MAX_TILES:,} are listed: give larger tiles"
        )
    if isinstance(side, Transposed):
        tiles = live_tiles(side.of, cols, rows)
        row = np.repeat(np.arange(len(tiles.starts) - 1), np.diff(tiles.starts))
        order = np.argsort(tiles.cols, kind="stable")
        return Tiles(_starts(tiles.cols, ceil_div(side.n_rows, rows)), row[order], tiles.full[order])
    if isinstance(side, Tiled):
        tiles = census(side.pattern, rows // side.group, cols)
        return Tiles(_starts(tiles.row, ceil_div(side.n_rows, rows)), tiles.col, tiles.pairs == tiles.area)
    row, col, full = [], [], []
    for top in range(0, side.n_rows, rows):
        block = range(top, min(top + rows, side.n_rows))
        live = sorted({c for run in side.cols_of(block) for c in range(run.start // cols, ceil_div(run.stop, cols))})
        row += [top // rows] * len(live)
        col += live
        full += [side.holds(block, range(c * cols, min((c + 1) * cols, side.n_cols))) for c in live]
    starts = _starts(np.array(row, np.int64), ceil_div(side.n_rows, rows))
    return Tiles(starts, np.array(col, np.int64), np.array(full, bool))


def _starts(rows: np.ndarray, count: int) -> np.ndarray:
    """Return the CSR pointers of `count` rows, shape (count + 1,). rows: the row of each entry, in any order."""
    return np.append(0, np.cumsum(np.bincount(rows, minlength=count)))
