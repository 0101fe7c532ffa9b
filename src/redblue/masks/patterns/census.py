"""How many pairs each tile of a grid has: which tiles are empty, full or partly attended."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from redblue.base.integers import ceil_div
from redblue.masks.patterns import spans
from redblue.masks.patterns.pattern import MOST_ROWS, Pattern, popcount, tiling


class Census(NamedTuple):
    """The tiles of rows x cols that have pairs. row, col: which tile; pairs: how many attend; area: of how many."""

    row: np.ndarray
    col: np.ndarray
    pairs: np.ndarray
    area: np.ndarray
    tiles: int  # of the grid, the empty ones included

    @property
    def full(self) -> int:
        return int((self.pairs == self.area).sum())

    @property
    def partial(self) -> int:
        return len(self.pairs) - self.full

    @property
    def empty(self) -> int:
        return self.tiles - len(self.pairs)


def census(pattern: Pattern, rows: int, cols: int) -> Census:
    """The tiles of `rows` queries and `cols` keys. Costs what the live tiles cost; no n_q x n_k array."""
    n_q, n_k = pattern.n_q, pattern.n_k
    grid = ceil_div(n_q, rows), ceil_div(n_k, cols)
    first = spans.numbered(grid[0]) * rows
    stop = np.minimum(first + rows, n_q)
    tile, piece = spans.listed(0, ceil_div(stop - first, MOST_ROWS))
    low = first[tile] + MOST_ROWS * piece
    found = tiling(pattern, low, np.minimum(low + MOST_ROWS, stop[tile]), 1)

    part, key = np.divmod(found.full.reshape(-1, 2), n_k + 1)
    run, col = spans.listed(key[:, 0] // cols, (key[:, 1] - 1) // cols + 1 - key[:, 0] // cols)
    width = np.minimum(key[run, 1], (col + 1) * cols) - np.maximum(key[run, 0], col * cols)
    at, key_at = np.divmod(found.at, n_k + 1)
    codes = np.concatenate([tile[part[run, 0]] * grid[1] + col, tile[at] * grid[1] + key_at // cols])
    pairs = np.concatenate([width * found.lengths[part[run, 0]], popcount(found.words)])

    order = np.argsort(codes, kind="stable")
    begins = np.flatnonzero(np.diff(codes[order], prepend=-1))
    row, col = np.divmod(codes[order][begins], max(1, grid[1]))
    area = (stop - first)[row] * np.minimum(cols, n_k - col * cols)
    total = np.add.reduceat(pairs[order], begins) if len(begins) else begins
    return Census(row, col, total, area, grid[0] * grid[1])
