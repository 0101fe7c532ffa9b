"""Block layouts of given sizes, and their sums over tiles.

A tile covers an interval of rows of blocks and an interval of columns of blocks. Whether the tile is live depends only
on these two intervals, and many tiles cover the same ones. So tiles are grouped by interval on each axis, with their
number and total length as weights. The sums are then products of these weights with the table of live intervals.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from redblue.base.estimates import check_fits
from redblue.base.integers import ceil_div, smaller
from redblue.masks.patterns.pairs import Pairs, Runs, TileSums, Transposed

LARGE_LAYOUT = 1 << 14  # blocks: in larger layouts, tiles are grouped by the octave of their width, too


class BlockRule(Protocol):
    """The part of a block layout's rule (`rules/layouts.py`) that Layout needs. It is hashable."""

    @property
    def shape(self) -> tuple[int, int]: ...
    @functools.cached_property
    def layout(self) -> np.ndarray: ...
    def block_rows(self, rows: range) -> np.ndarray: ...
    @property
    def is_full(self) -> bool: ...
    def __hash__(self) -> int: ...


@dataclass(frozen=True)
class Layout:
    """A block layout of given numbers of rows and columns.

    block: the edges of the blocks in rows (all rows of a query included) and in columns.
    """

    n_rows: int
    n_cols: int
    rule: BlockRule
    block: tuple[int, int]

    @functools.cached_property
    def before(self) -> np.ndarray:
        """(rows of blocks + 1, columns of blocks + 1): before[a, b] counts the live blocks among the first a x b."""
        rows, cols = self.rule.shape
        counts = np.int32 if rows * cols < 2**31 else np.int64
        size = (rows + 1) * (cols + 1) * np.dtype(counts).itemsize
        check_fits(f"the table of the live blocks of a layout of {rows:,} x {cols:,} blocks", size + rows * cols)
        before = np.zeros((rows + 1, cols + 1), counts)
        inner = before[1:, 1:]
        np.cumsum(self.rule.layout, axis=0, out=inner)
        np.cumsum(inner, axis=1, out=inner)
        return before

    @property
    def T(self) -> Pairs:
        return Transposed(self)

    @property
    def is_full(self) -> bool:
        return self.rule.is_full

    @property
    def steps(self) -> tuple[int, int]:
        return self.block

    @property
    def nnz(self) -> int:
        if not (self.n_rows and self.n_cols):
            return 0
        layout, (height, width) = self.rule.layout, self.block
        lost_rows, lost_cols = (-n % edge for n, edge in zip((self.n_rows, self.n_cols), self.block, strict=True))
        live, last_row, last_col = (int(np.count_nonzero(part)) for part in (layout, layout[-1], layout[:, -1]))
        whole = height * width * live - lost_rows * width * last_row - lost_cols * height * last_col
        return whole + lost_rows * lost_cols * int(layout[-1, -1])

    def cols_of(self, rows: range) -> Runs:
        """Return the columns that some row of `rows` attends, as maximal runs."""
        first, stop = _blocks_of(rows, self.block[0])
        return _runs(np.diff(self.before[stop] - self.before[first]) > 0, self.block[1], self.n_cols)

    def rows_of(self, cols: range) -> Runs:
        """Return the rows that attend some column of `cols`, as maximal runs."""
        first, stop = _blocks_of(cols, self.block[1])
        return _runs(np.diff(self.before[:, stop] - self.before[:, first]) > 0, self.block[0], self.n_rows)

    def dense(self, rows: range, cols: range) -> np.ndarray:
        """Return a boolean (len(rows), len(cols)) array, True where the row attends the column."""
        row, col = (np.arange(x.start, x.stop) // edge for x, edge in zip((rows, cols), self.block, strict=True))
        first, stop = _blocks_of(rows, self.block[0])
        return self.rule.block_rows(range(first, stop))[np.ix_(row - first, col)]

    def holds(self, rows: range, cols: range) -> bool:
        """Return whether every pair of the tile attends, so that the tile needs no masking."""
        (a, b), (c, d) = _blocks_of(rows, self.block[0]), _blocks_of(cols, self.block[1])
        live = self.before[b, d] - self.before[a, d] - self.before[b, c] + self.before[a, c]
        return bool(live == (b - a) * (d - c))

    def sums(self, rows: Any, cols: Any) -> TileSums:
        """Sum over the live tiles of the grid of `rows` x `cols` tiles. Both may be arrays, which broadcast."""
        r, c = np.broadcast_arrays(smaller(rows, self.n_rows), smaller(cols, self.n_cols))
        shape, r, c = r.shape, r.ravel().astype(np.int64), c.ravel().astype(np.int64)
        total = np.zeros((4, r.size), self._sum_type)
        # Edges of one octave (between two powers of two) share most of their intervals of blocks, which keeps the
        # tables small.
        octaves = 64 * np.frexp(r)[1] + np.frexp(c)[1] * (self.rule.layout.size > LARGE_LAYOUT)
        for octave in np.unique(octaves):
            tiles = np.flatnonzero(octaves == octave)
            total[:, tiles] = self._sums(r[tiles], c[tiles]) if self.n_rows and self.n_cols else 0
        if not shape:
            return TileSums(*(int(x) for x in total[:, 0]))
        return TileSums(*(total if total.dtype == object else total.astype(np.int64)).reshape(4, *shape))

    @property
    def _sum_type(self) -> Any:
        """The fastest number type in which the sums are exact."""
        pairs = self.n_rows * self.n_cols
        return np.float64 if pairs < 2**53 else np.int64 if pairs < 2**63 else object

    def _sums(self, rows: np.ndarray, cols: np.ndarray) -> np.ndarray:
        """Compute the fields of TileSums for each pair of edges rows[i], cols[i]. Returns shape (4, pairs of edges)."""
        (r, r_of), (c, c_of) = (np.unique(edges, return_inverse=True) for edges in (rows, cols))
        row, col = _intervals(r, self.n_rows, self.block[0]), _intervals(c, self.n_cols, self.block[1])
        (above, below, row_at), (left, right, col_at) = row.distinct(), col.distinct()
        counts = self.before[below] - self.before[above]
        live = (counts[:, right] > counts[:, left]).astype(self._sum_type)

        # table[w, e, j] sums weight w over the row intervals of edge r[e] that are live in column interval j.
        # (einsum instead of @: NumPy's threads for large products are slow on a busy machine.)
        table = np.empty((2, len(r), live.shape[1]), self._sum_type)
        stops = np.cumsum(np.bincount(row.edge))
        for edge, (begin, stop) in enumerate(zip((0, *stops), stops, strict=False)):
            weight = row.weight[:, begin:stop].astype(self._sum_type)
            table[:, edge] = np.einsum("wi,ij->wj", weight, live[row_at[begin:stop]])

        # `entry` lists the column intervals of every pair of edges, one pair after the other.
        per_edge = np.bincount(col.edge, minlength=len(c))
        ends = np.cumsum(per_edge[c_of])
        begins = ends - per_edge[c_of]
        entry = np.arange(ends[-1]) + np.repeat((np.cumsum(per_edge) - per_edge)[c_of] - begins, per_edge[c_of])
        row_sums = table[:, np.repeat(r_of, per_edge[c_of]), col_at[entry]]
        tiles, lengths = col.weight[0, entry], col.weight[1, entry]
        parts = np.stack([row_sums[0] * tiles, row_sums[1] * tiles, row_sums[0] * lengths, row_sums[1] * lengths])
        return np.add.reduceat(parts, begins, axis=1)


class Intervals(NamedTuple):
    """The intervals of blocks that tiles cover, for several tile edges: one entry per edge and interval, by edge.

    edge: (entries,) index of the tile edge.
    first, stop: (entries,) the blocks first .. stop - 1 of the interval.
    weight: (2, entries) number of tiles that cover exactly these blocks, and the sum of the tiles' lengths.
    """

    edge: np.ndarray
    first: np.ndarray
    stop: np.ndarray
    weight: np.ndarray

    def distinct(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return `first` and `stop` of the distinct intervals, and the index of each entry's interval among them."""
        base = int(self.stop.max()) + 1
        codes, code_index = np.unique(self.first * base + self.stop, return_inverse=True)
        return codes // base, codes % base, code_index


def _intervals(edges: np.ndarray, length: int, block: int) -> Intervals:
    """Find the intervals of blocks that the tiles of each edge cover, on an axis of `length` in blocks of `block`."""
    blocks = ceil_div(length, block)
    # If at least one tile starts in every block, group the tiles by that block; otherwise take each tile by itself.
    short = edges <= block
    count = np.where(short, blocks, ceil_div(length, edges))
    edge_index = np.repeat(np.arange(len(edges)), count)
    index, edge = np.arange(len(edge_index)) - np.repeat(np.cumsum(count) - count, count), edges[edge_index]
    low = np.where(short[edge_index], ceil_div(index * block, edge), index)
    high = np.where(short[edge_index], ceil_div(np.minimum((index + 1) * block, length), edge), index + 1)
    # The tiles low .. high - 1 start in the same block; only the last of them may reach into another block.
    first, last = low * edge // block, (high - 1) * edge
    stop = np.minimum(length, last + edge)
    reaches = ceil_div(stop, block)
    beyond = (reaches > first + 1).astype(np.int64)
    within = np.minimum(high * edge, length) - low * edge - beyond * (stop - last)
    # The first of each pair is for the tiles that end in the block where they start, the second for the tile that
    # reaches into another block.
    pairs = [(edge_index, edge_index), (first, first), (first + 1, reaches), (high - low - beyond, beyond)]
    pairs.append((within, beyond * (stop - last)))
    edge_index, first, stop, tiles, lengths = (np.stack(pair, axis=1).ravel() for pair in pairs)
    used = tiles > 0
    return Intervals(edge_index[used], first[used], stop[used], np.stack([tiles[used], lengths[used]]))


def _blocks_of(part: range, block: int) -> tuple[int, int]:
    """Return the first block that the range touches, and the first block after the range."""
    return part.start // block, ceil_div(part.stop, block) if part else part.start // block


def _runs(live: np.ndarray, block: int, length: int) -> Runs:
    """Turn a boolean for each block into the maximal runs of rows, or of columns, that the live blocks cover."""
    change = np.flatnonzero(np.diff(live, prepend=False, append=False)).tolist()
    return tuple(range(a * block, min(b * block, length)) for a, b in zip(change[::2], change[1::2], strict=True))
