"""The number of pairs in each tile of a grid, which shows the tiles that are empty, full or partly attended."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from redblue.base.integers import ceil_div
from redblue.masks.patterns import spans
from redblue.masks.patterns.bit_words import WORD_BITS, popcount
from redblue.masks.patterns.pattern import Pattern
from redblue.masks.patterns.tiling import tiling


class Census(NamedTuple):
    """The live tiles of a grid, one entry per tile that has attending pairs, in row-major order.

    row, col: place of the tile in the grid. pairs: attending pairs in the tile. area: all pairs in the tile.
    tiles: number of tiles in the grid, empty ones included.
    """

    row: np.ndarray
    col: np.ndarray
    pairs: np.ndarray
    area: np.ndarray
    tiles: int

    @property
    def full(self) -> int:
        """Number of tiles in which every pair attends."""
        return int((self.pairs == self.area).sum())

    @property
    def partial(self) -> int:
        """Number of tiles in which some pairs attend."""
        return len(self.pairs) - self.full

    @property
    def empty(self) -> int:
        """Number of tiles in which no pair attends."""
        return self.tiles - len(self.pairs)


def census(pattern: Pattern, rows: int, cols: int) -> Census:
    """Count the pairs in the tiles of `rows` queries and `cols` keys, in time proportional to the live tiles.

    Raises RedblueError for a mask that is partly attended nearly everywhere.
    """
    n_q, n_k = pattern.n_q, pattern.n_k
    grid = ceil_div(n_q, rows), ceil_div(n_k, cols)
    first = spans.arange(grid[0]) * rows
    stop = np.minimum(first + rows, n_q)
    # Cut each row of tiles into panels of at most 64 queries.
    tile_row, panel = spans.expand(0, ceil_div(stop - first, WORD_BITS))
    low = first[tile_row] + WORD_BITS * panel
    tiles = tiling(pattern, low, np.minimum(low + WORD_BITS, stop[tile_row]), 1)

    # Full runs, cut at the edges of tiles; then single keys with bits.
    panel_of_run, key = np.divmod(tiles.full.reshape(-1, 2), n_k + 1)
    run, col = spans.expand(key[:, 0] // cols, (key[:, 1] - 1) // cols + 1 - key[:, 0] // cols)
    width = np.minimum(key[run, 1], (col + 1) * cols) - np.maximum(key[run, 0], col * cols)
    panel_of_word, key_of_word = np.divmod(tiles.positions, n_k + 1)
    codes = np.concatenate(
        [tile_row[panel_of_run[run, 0]] * grid[1] + col, tile_row[panel_of_word] * grid[1] + key_of_word // cols]
    )
    pairs = np.concatenate([width * tiles.lengths[panel_of_run[run, 0]], popcount(tiles.words)])

    order = np.argsort(codes, kind="stable")
    begins = np.flatnonzero(np.diff(codes[order], prepend=-1))
    row, col = np.divmod(codes[order][begins], max(1, grid[1]))
    area = (stop - first)[row] * np.minimum(cols, n_k - col * cols)
    total = np.add.reduceat(pairs[order], begins) if len(begins) else begins
    return Census(row, col, total, area, grid[0] * grid[1])
