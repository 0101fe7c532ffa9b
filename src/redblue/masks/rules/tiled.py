"""What schedules ask of a mask that is no band and no layout: answered from its tiles, in time proportional to them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from redblue.base.integers import ceil_div
from redblue.masks.patterns import spans
from redblue.masks.patterns.pairs import Pairs, Runs, TileSums, Transposed
from redblue.masks.patterns.pattern import MOST_ROWS, Pattern, Tiling, below, popcount, tiling
from redblue.masks.patterns.tiles import Graph

KEPT_RUNS = 1 << 24  # of one laid mask, for the edges of tiles that were asked about: 400 MB


class Layable(Protocol):
    """The part of a rule (rules/rule.py) that tiles need."""

    def laid(self, n_q: int, n_k: int) -> Pattern: ...
    def pairs(self, n_q: int, n_k: int) -> int | None: ...


@functools.lru_cache(maxsize=16)
def tiled(rule: Layable, n_rows: int, n_cols: int, group: int) -> Tiled:
    """The rule laid on rows of which `group` belong to each query. Raises RedblueError where it does not fit."""
    return Tiled(n_rows, n_cols, rule.laid(n_rows // group, n_cols), group, rule.pairs(n_rows // group, n_cols))


class Blocks(NamedTuple):
    """The columns that rows attend, of each block of rows: maximal runs, in order."""

    block: np.ndarray
    first: np.ndarray
    stop: np.ndarray


@dataclass(frozen=True, eq=False)
class Tiled:
    """A pattern on stacked rows. Its pairs are looked at once, when first needed, in panels of 64 rows.

    known: pairs of queries and columns, where the rule says without looking.
    """

    n_rows: int
    n_cols: int
    pattern: Pattern
    group: int
    known: int | None = None

    @property
    def T(self) -> Pairs:
        return Transposed(self)

    @property
    def steps(self) -> tuple[int, int]:
        rows, cols = self.pattern.steps
        return rows * self.group, cols

    @property
    def is_full(self) -> bool:
        return self.holds(range(self.n_rows), range(self.n_cols))

    @property
    def nnz(self) -> int:
        return self._nnz

    @functools.cached_property
    def _nnz(self) -> int:
        if self.known is not None:
            return self.known * self.group
        if isinstance(self.pattern, Graph):
            return len(self.pattern.indices) * self.group
        full, _, words, lengths = self._tiles
        return int(((full[1::2] - full[::2]) * lengths[full[::2] // (self.n_cols + 1)]).sum() + popcount(words).sum())

    # The tiles ------------------------------------------------------------------------------------
    @functools.cached_property
    def _tiles(self) -> Tiling:
        first = spans.numbered(ceil_div(self.n_rows, MOST_ROWS)) * MOST_ROWS
        return tiling(self.pattern, first, np.minimum(first + MOST_ROWS, self.n_rows), self.group)

    @functools.cached_property
    def _lengths(self) -> np.ndarray:
        """Columns in all full runs before each one; the last: in all."""
        return np.append(0, np.cumsum(self._tiles.full[1::2] - self._tiles.full[::2]))

    def _window(self, panels: np.ndarray, cols: range) -> tuple[np.ndarray, np.ndarray]:
        """Positions of the columns in each panel: the first, and the one beyond."""
        base = panels * (self.n_cols + 1)
        return base + cols.start, base + cols.stop

    def _parts(self, rows: range) -> tuple[np.ndarray, np.ndarray]:
        """The panels that the rows touch, and which of its rows they are of each, as a word."""
        panels = np.arange(rows.start // MOST_ROWS, ceil_div(rows.stop, MOST_ROWS))
        within = rows.stop - panels * MOST_ROWS, rows.start - panels * MOST_ROWS
        return panels, below(within[0]) & ~below(within[1])

    @functools.cached_property
    def degrees(self) -> tuple[np.ndarray, np.ndarray]:
        """Pairs of each row, and of each column."""
        full, at, words, lengths = self._tiles
        width = self.n_cols + 1
        panel, of_word = full[::2] // width, at // width
        rows = np.repeat(np.bincount(panel, full[1::2] - full[::2], len(lengths)).astype(np.int64), lengths)
        begins = np.flatnonzero(np.diff(of_word, prepend=-1))
        partial = np.zeros((len(lengths), MOST_ROWS), np.int64)
        if len(begins):
            for bit in range(MOST_ROWS):
                ones = (words >> np.uint64(bit) & np.uint64(1)).astype(np.int64)
                partial[of_word[begins], bit] = np.add.reduceat(ones, begins)
        edges = (np.bincount(at % width, lengths[panel], width) for at in (full[::2], full[1::2]))
        covered = np.cumsum(np.subtract(*edges))
        cols = covered + np.bincount(at % width, popcount(words), width)
        return rows + partial.ravel()[: self.n_rows], np.rint(cols[:-1]).astype(np.int64)

    # What schedules ask ---------------------------------------------------------------------------
    def cols_of(self, rows: range) -> Runs:
        """The columns that some row of `rows` attends, as maximal runs."""
        if not rows or not self.n_cols:
            return ()
        found = self._live(np.array([rows.start]), np.array([rows.stop]))
        return _ranges(found.reshape(-1, 2))

    def rows_of(self, cols: range) -> Runs:
        """The rows that some column of `cols` is attended by, as maximal runs."""
        if not cols or not self.n_rows:
            return ()
        panels = spans.numbered(ceil_div(self.n_rows, MOST_ROWS))
        low, high = self._window(panels, cols)
        full, at, words, lengths = self._tiles
        words = np.append(words, np.uint64(0))
        edges = np.stack([np.searchsorted(at, low), np.searchsorted(at, high)], axis=1)
        some = np.bitwise_or.reduceat(words, edges.ravel())[::2]
        some = np.where(edges[:, 0] < edges[:, 1], some, np.uint64(0))
        # A full run crosses the window if one begins before its end and ends behind its start.
        crosses = np.searchsorted(full[::2], high) > np.searchsorted(full[1::2], low, "right")
        some = np.where(crosses, below(lengths), some)
        bits = np.unpackbits(some.astype("<u8").view(np.uint8), bitorder="little")
        return _ranges(spans.from_positions(np.flatnonzero(bits)).reshape(-1, 2))

    def dense(self, rows: range, cols: range) -> np.ndarray:
        """Boolean (len(rows), len(cols)) array, True where the row attends the column."""
        q, k = np.arange(rows.start, rows.stop)[:, None] // self.group, np.arange(cols.start, cols.stop)[None]
        return np.broadcast_to(self.pattern.attends(q, k), (len(rows), len(cols))).copy()

    def holds(self, rows: range, cols: range) -> bool:
        """Whether every pair of the tile attends, so that it needs no masking."""
        if not rows or not cols:
            return True
        queries = np.array([rows.start // self.group]), np.array([(rows.stop - 1) // self.group + 1])
        tile = np.array([cols.start, cols.stop])
        within = len(spans.difference(tile, self.pattern.inner(*queries))) == 0
        if within or self.pattern.exact[1] or len(spans.difference(tile, self.pattern.outer(*queries))):
            return within
        return self._pairs(rows, cols) == len(rows) * len(cols)

    def _pairs(self, rows: range, cols: range) -> int:
        """Pairs of the tile that attend."""
        panels, bits = self._parts(rows)
        low, high = self._window(panels, cols)
        full, at, words, _ = self._tiles
        before, stops = self._lengths, np.append(full[1::2], 0)

        def covered(position: np.ndarray) -> np.ndarray:
            """Columns of full runs before the position."""
            runs = np.searchsorted(full[::2], position)
            return before[runs] - np.where(runs > 0, np.maximum(0, stops[runs - 1] - position), 0)

        total = int((popcount(bits) * (covered(high) - covered(low))).sum())
        first, stop = np.searchsorted(at, low), np.searchsorted(at, high)
        for begin, end, bit in zip(first.tolist(), stop.tolist(), bits, strict=True):
            total += int(popcount(words[begin:end] & bit).sum())
        return total

    # Sums over tiles ------------------------------------------------------------------------------
    def sums(self, rows: Any, cols: Any) -> TileSums:
        """Sums over the live tiles of the grid of `rows` x `cols` tiles; both may be arrays (broadcast)."""
        r, c = np.broadcast_arrays(np.minimum(rows, max(1, self.n_rows)), np.minimum(cols, max(1, self.n_cols)))
        shape, each = r.shape, np.stack([r.ravel(), c.ravel()], axis=1).astype(np.int64)
        distinct, where = np.unique(each, axis=0, return_inverse=True)
        found = np.array([self._sum(*pair) for pair in distinct.tolist()], np.int64).reshape(-1, 4)
        total = found[where.reshape(-1)].T
        return TileSums(*(int(x) for x in total[:, 0])) if not shape else TileSums(*total.reshape(4, *shape))

    @functools.cached_property
    def _sums(self) -> dict[tuple[int, int], tuple[int, int, int, int]]:
        return {}

    def _sum(self, rows: int, cols: int) -> tuple[int, int, int, int]:
        if (rows, cols) not in self._sums:
            self._sums[rows, cols] = self._summed(rows, cols)
        return self._sums[rows, cols]

    def _summed(self, rows: int, cols: int) -> tuple[int, int, int, int]:
        """Live tiles of rows x cols, and the sums of their rows, of their columns, and of both multiplied."""
        block, first, stop = self._blocks(rows)
        if not len(block):
            return 0, 0, 0, 0
        low, high = first // cols, (stop - 1) // cols + 1
        shared = (block[1:] == block[:-1]) & (low[1:] < high[:-1])  # tiles that the run before reaches into
        tiles = high - low - np.append(False, shared)
        short_col = cols * ceil_div(self.n_cols, cols) - self.n_cols
        last = (high == ceil_div(self.n_cols, cols)) & (tiles > 0)  # the run that brings the last, shorter tile
        widths = cols * tiles - short_col * last
        short_row = rows * ceil_div(self.n_rows, rows) - self.n_rows
        lengths = rows - short_row * (block == ceil_div(self.n_rows, rows) - 1)
        return int(tiles.sum()), int((lengths * tiles).sum()), int(widths.sum()), int((lengths * widths).sum())

    @functools.cached_property
    def _blocks_of(self) -> dict[int, Blocks]:
        return {}

    def _blocks(self, rows: int) -> Blocks:
        """The columns that each block of so many rows attends."""
        known = self._blocks_of
        if rows not in known:
            part = max((edge for edge in known if rows % edge == 0), default=None)
            if part is None or self.pattern.exact[0]:
                first = spans.numbered(ceil_div(self.n_rows, rows)) * rows
                edges = self._live(first, np.minimum(first + rows, self.n_rows))
            else:  # what the blocks attend that it is made of
                block, first, stop = known[part]
                base = block // (rows // part) * (self.n_cols + 1)
                edges = spans.from_any_runs(base + first, base + stop)
            block, key = np.divmod(edges.reshape(-1, 2), self.n_cols + 1)
            found = Blocks(block[:, 0], key[:, 0], key[:, 1])
            if sum(len(each.block) for each in known.values()) + len(found.block) > KEPT_RUNS:
                return found
            known[rows] = found
        return known[rows]

    def _live(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        """Edges of the columns that some row of each range attends. Ranges may be of any length, none is empty."""
        spans.stride(len(first), self.n_cols)
        if self.pattern.exact[0]:
            return self.pattern.outer(first // self.group, (stop - 1) // self.group + 1)
        of, piece = spans.listed(0, ceil_div(stop - first, MOST_ROWS))
        low = first[of] + MOST_ROWS * piece
        found = tiling(self.pattern, low, np.minimum(low + MOST_ROWS, stop[of]), self.group)
        edges = spans.union(found.full, spans.from_positions(found.at))
        if len(of) == len(first):
            return edges
        piece, key = np.divmod(edges, self.n_cols + 1)
        positions = of[piece] * (self.n_cols + 1) + key
        return spans.from_any_runs(positions[::2], positions[1::2])


def _ranges(runs: np.ndarray) -> Runs:
    return tuple(range(first, stop) for first, stop in runs.tolist())


def csr(pattern: Pattern) -> tuple[np.ndarray, np.ndarray]:
    """(indptr, indices): the keys that each query attends, ascending."""
    if isinstance(pattern, Graph):
        return pattern.indptr.copy(), pattern.indices.copy()
    first = spans.numbered(pattern.n_q)
    found = tiling(pattern, first, first + 1, 1)
    edges = spans.union(found.full, spans.from_positions(found.at))
    row, key = np.divmod(edges.reshape(-1, 2), pattern.n_k + 1)
    ends = np.append(0, np.cumsum(key[:, 1] - key[:, 0]))
    indptr = ends[np.searchsorted(row[:, 0], np.arange(pattern.n_q + 1))]
    indices, done = np.empty(indptr[-1], np.int64), 0
    for piece in spans.pieces(edges):
        indices[done : done + len(piece)] = piece % (pattern.n_k + 1)
        done += len(piece)
    return indptr, indices
