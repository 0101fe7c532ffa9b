"""What is quick to know of a mask's rows and columns: how many partners each has, and how many two have in common."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from redblue.base.integers import ceil_div
from redblue.masks.patterns.band import Band
from redblue.masks.patterns.layout import Layout
from redblue.masks.patterns.pairs import Pairs
from redblue.masks.storage.pair_lists import degrees, entries
from redblue.masks.storage.tile_lists import live_tiles

MOST_LISTED = 1 << 22  # pairs, or blocks, that are looked at one by one
MOST_COMMON = 1 << 22  # (row, row, common column) triples that are counted: about a second


@dataclass(frozen=True)
class Side:
    """The rows of a mask (or its columns): how many have which degree, and what they share.

    counts[s]: rows that attend most, up to the s-th kind; sums[s]: their degrees, added up. Both begin with 0.
    degrees[s]: of the s-th kind, falling.
    shared[p]: the largest sum over any p rows of the columns that they have in common with one row, itself among them,
    at rows lengths[p]; None where that is not known.
    """

    degrees: np.ndarray
    counts: np.ndarray
    sums: np.ndarray
    lengths: np.ndarray | None = None
    shared: np.ndarray | None = None

    def largest(self, r: Any, c: Any) -> Any:
        """The r largest min(degree, c), added up."""
        reach = self.counts[np.searchsorted(-self.degrees, -c, side="right")]  # rows of degree c or more
        over = np.interp(reach, self.counts, self.sums)
        return c * np.minimum(r, reach) + np.interp(np.maximum(r, reach), self.counts, self.sums) - over

    def common(self, r: Any) -> Any:
        """The most that r rows share with one of them, in all."""
        assert self.lengths is not None
        assert self.shared is not None
        return np.interp(r, self.lengths, self.shared)


def sides(pairs: Pairs) -> tuple[Side, Side]:
    """Of the rows and of the columns. Cheap: what would take long is left out, which only loosens the bounds."""
    if isinstance(pairs, Band):
        width = min(pairs.end - pairs.first, pairs.n_cols)
        tall = min(pairs.group * (pairs.end - pairs.first), pairs.n_rows)
        return _alike(width, pairs.n_rows), _alike(tall, pairs.n_cols)
    rows, cols = pairs.steps
    shape = ceil_div(pairs.n_rows, rows), ceil_div(pairs.n_cols, cols)
    if isinstance(pairs, Layout):
        row, col = np.nonzero(pairs.rule.layout)
    elif rows * cols > 1 and pairs.sums(rows, cols).tiles <= MOST_LISTED:
        starts, col, _ = live_tiles(pairs, rows, cols)
        row = np.repeat(np.arange(shape[0]), np.diff(starts))
    elif rows * cols == 1 and pairs.nnz <= MOST_LISTED:
        starts, col = entries(pairs)
        row = np.repeat(np.arange(shape[0]), np.diff(starts))
    else:
        return _known(degrees(pairs), (1, 1)), _known(degrees(pairs.T), (1, 1))
    # Blocks that the edge cuts off count as whole ones.
    return _side(row, col, shape, (rows, cols)), _side(col, row, shape[::-1], (cols, rows))


def _side(rows: np.ndarray, cols: np.ndarray, shape: tuple[int, int], block: tuple[int, int]) -> Side:
    known, shared = _known(np.bincount(rows, minlength=shape[0]), block), _common(rows, cols, shape)
    if shared is None:
        return known
    lengths = np.arange(len(shared) + 1.0) * block[0]
    return replace(known, lengths=lengths, shared=np.append(0.0, shared) * block[0] * block[1])


def _known(blocks: np.ndarray, block: tuple[int, int]) -> Side:
    """Of rows of blocks with so many live ones."""
    kinds, many = np.unique(blocks, return_counts=True)
    kinds, many = kinds[::-1] * block[1], many[::-1] * block[0]
    counts, sums = (np.append(0, np.cumsum(x)).astype(float) for x in (many, many * kinds))
    return Side(kinds.astype(float), counts, sums)


def _alike(degree: int, count: int) -> Side:
    return Side(np.array([float(degree)]), np.array([0.0, count]), np.array([0.0, float(degree) * count]))


def _common(rows: np.ndarray, cols: np.ndarray, shape: tuple[int, int]) -> np.ndarray | None:
    """For p = 1, 2, ...: the largest sum over p rows of the columns in common with one row; None if that takes long."""
    size = np.bincount(cols, minlength=shape[1])
    if (size**2).sum() > MOST_COMMON or not len(rows):
        return None
    order = np.argsort(cols, kind="stable")
    by_column, start = rows[order], np.cumsum(size) - size
    many = size[cols]  # rows that share the column of each entry
    within = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
    other = by_column[np.repeat(start[cols], many) + within]
    code, times = np.unique(np.repeat(rows, many) * shape[0] + other, return_counts=True)
    one = code // shape[0]
    order = np.lexsort((-times, one))
    one, times = one[order], times[order]
    first = np.flatnonzero(np.diff(one, prepend=-1))
    length = np.diff(np.append(first, len(one)))
    added = np.cumsum(times)
    added = added - np.repeat(added[first] - times[first], length)
    rank = np.arange(len(one)) - np.repeat(first, length)
    most = np.zeros(length.max(), np.int64)
    np.maximum.at(most, rank, added)
    return np.maximum.accumulate(most)
