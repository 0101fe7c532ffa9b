"""Properties of a mask's rows and columns that are quick to compute: their degrees, and their common neighbours."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from redblue.base.integers import ceil_div
from redblue.masks.patterns.band import Band
from redblue.masks.patterns.layout import Layout
from redblue.masks.patterns.pairs import Pairs
from redblue.masks.storage.pair_lists import degrees, entries
from redblue.masks.storage.tile_lists import live_tiles

MAX_LISTED = 1 << 22  # pairs or blocks that are enumerated
MAX_COMMON = 1 << 22  # (row, row, common column) triples that are counted: about a second


@dataclass(frozen=True)
class Side:
    """Degrees and common columns of a mask's rows (or, with the roles exchanged, of its columns).

    degrees[s]: the s-th largest distinct degree. counts[s]: the number of rows with one of the s largest degrees.
    sums[s]: the sum of these rows' degrees, a whole number: so differences are exact. counts and sums begin with 0.
    shared[p]: take one row, and a set of lengths[p] rows that contains it. Sum, over the rows of the set, the number of
    columns that a row has in common with the one row. shared[p] is the maximum of this sum. None if unknown.
    """

    degrees: np.ndarray
    counts: np.ndarray
    sums: np.ndarray
    lengths: np.ndarray | None = None
    shared: np.ndarray | None = None

    def largest(self, r: Any, c: Any) -> Any:
        """Return the sum of the r largest min(degree, c): an upper bound of kappa(r, c)."""
        longer = np.searchsorted(-self.degrees, -c, side="right")  # number of distinct degrees of c or more
        reach = self.counts[longer]  # rows of degree c or more
        group = np.searchsorted(self.counts, r, side="right") - 1  # distinct degrees whose rows are all among the r
        # Whole numbers are subtracted, because rounding of a sum near n^2 could lose all of c reach.
        between = np.asarray(self.sums[group] - self.sums[longer], float)
        beyond = between + np.append(self.degrees, 0)[group] * (r - self.counts[group])
        return np.where(r <= reach, c * r, c * reach + beyond)

    def common(self, r: Any) -> Any:
        """Return `shared` for r rows, interpolated between the lengths."""
        assert self.lengths is not None
        assert self.shared is not None
        return np.interp(r, self.lengths, self.shared)


def sides(pairs: Pairs) -> tuple[Side, Side]:
    """Return the Sides of the rows and of the columns. Slow properties are left out, which only loosens the bounds."""
    if isinstance(pairs, Band):
        width = min(pairs.end - pairs.first, pairs.n_cols)
        tall = min(pairs.group * (pairs.end - pairs.first), pairs.n_rows)
        return _equal_degrees(width, pairs.n_rows), _equal_degrees(tall, pairs.n_cols)
    rows, cols = pairs.steps
    shape = ceil_div(pairs.n_rows, rows), ceil_div(pairs.n_cols, cols)
    if isinstance(pairs, Layout):
        row, col = np.nonzero(pairs.rule.layout)
    elif rows * cols > 1 and pairs.sums(rows, cols).tiles <= MAX_LISTED:
        starts, col, _ = live_tiles(pairs, rows, cols)
        row = np.repeat(np.arange(shape[0]), np.diff(starts))
    elif rows * cols == 1 and pairs.nnz <= MAX_LISTED:
        starts, col = entries(pairs)
        row = np.repeat(np.arange(shape[0]), np.diff(starts))
    else:
        return _by_degree(degrees(pairs), (1, 1)), _by_degree(degrees(pairs.T), (1, 1))
    # Blocks at the edge count as whole blocks.
    return _side(row, col, shape, (rows, cols)), _side(col, row, shape[::-1], (cols, rows))


def _side(rows: np.ndarray, cols: np.ndarray, shape: tuple[int, int], block: tuple[int, int]) -> Side:
    """Return the Side of the rows, given the live blocks' coordinates, the shape in blocks, and the block shape."""
    side, shared = _by_degree(np.bincount(rows, minlength=shape[0]), block), _common(rows, cols, shape)
    if shared is None:
        return side
    lengths = np.arange(len(shared) + 1.0) * block[0]
    return replace(side, lengths=lengths, shared=np.append(0.0, shared) * block[0] * block[1])


def _by_degree(blocks: np.ndarray, block: tuple[int, int]) -> Side:
    """Return the Side of rows, given the number of live blocks in each row of blocks."""
    kinds, rows = np.unique(blocks, return_counts=True)
    kinds, rows = kinds[::-1] * block[1], rows[::-1] * block[0]
    pairs = itertools.accumulate((a * b for a, b in zip(rows.tolist(), kinds.tolist(), strict=True)), initial=0)
    return Side(kinds.astype(float), np.append(0.0, np.cumsum(rows)), _whole(list(pairs)))


def _equal_degrees(degree: int, count: int) -> Side:
    """Return the Side of `count` rows that all have the same degree."""
    return Side(np.array([float(degree)]), np.array([0.0, count]), _whole([0, degree * count]))


def _whole(numbers: list[int]) -> np.ndarray:
    """Return ascending whole numbers as an array: as Python integers if the last one exceeds 64 bits."""
    return np.array(numbers, np.int64 if numbers[-1] < 2**63 else object)


def _common(rows: np.ndarray, cols: np.ndarray, shape: tuple[int, int]) -> np.ndarray | None:
    """Return Side.shared for sets of p = 1, 2, ... rows; None if there are more than MAX_COMMON triples to count."""
    size = np.bincount(cols, minlength=shape[1])
    if (size**2).sum() > MAX_COMMON or not len(rows):
        return None
    order = np.argsort(cols, kind="stable")
    by_column, start = rows[order], np.cumsum(size) - size
    sharing = size[cols]  # rows that share the column of each entry
    within = np.arange(sharing.sum()) - np.repeat(np.cumsum(sharing) - sharing, sharing)
    other = by_column[np.repeat(start[cols], sharing) + within]
    # code: (row, other row) as one number; times: their common columns
    code, times = np.unique(np.repeat(rows, sharing) * shape[0] + other, return_counts=True)
    row = code // shape[0]
    order = np.lexsort((-times, row))
    row, times = row[order], times[order]
    first = np.flatnonzero(np.diff(row, prepend=-1))
    length = np.diff(np.append(first, len(row)))
    running = np.cumsum(times)  # then, within each row, the sum over its most similar rows
    running = running - np.repeat(running[first] - times[first], length)
    rank = np.arange(len(row)) - np.repeat(first, length)
    most = np.zeros(length.max(), np.int64)
    np.maximum.at(most, rank, running)
    return np.maximum.accumulate(most)
