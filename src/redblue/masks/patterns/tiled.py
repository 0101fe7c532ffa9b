"""Any pattern as Pairs, the interface of schedules. It serves masks that are neither bands nor block layouts.

The pattern's pairs are tested once, when they are first needed, in panels of 64 rows; the work is proportional to the
live tiles.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from redblue.base.integers import ceil_div
from redblue.masks.patterns import spans
from redblue.masks.patterns.bit_words import WORD_BITS, below, popcount
from redblue.masks.patterns.graph import Graph
from redblue.masks.patterns.pairs import Pairs, Runs, TileSums, Transposed
from redblue.masks.patterns.pattern import Pattern
from redblue.masks.patterns.tiling import Tiling, tiling

MAX_CACHED_RUNS = 1 << 24  # limit of the runs that one mask caches, over all tile heights: 400 MB


class PatternRule(Protocol):
    """The part of a rule (`rules/rule.py`) that `tiled` needs. It is hashable."""

    def pattern(self, n_q: int, n_k: int) -> Pattern: ...
    def pair_count(self, n_q: int, n_k: int) -> int | None: ...
    def __hash__(self) -> int: ...


@functools.lru_cache(maxsize=16)
def tiled(rule: PatternRule, n_rows: int, n_cols: int, group: int) -> Tiled:
    """Return the pairs of a rule on rows, `group` per query. Raises RedblueError if the rule does not fit."""
    n_q = n_rows // group
    return Tiled(n_rows, n_cols, rule.pattern(n_q, n_cols), group, rule.pair_count(n_q, n_cols))


class BlockRuns(NamedTuple):
    """Maximal runs of columns that blocks of rows attend: block[i] attends first[i] .. stop[i] - 1. Sorted."""

    block: np.ndarray
    first: np.ndarray
    stop: np.ndarray


@dataclass(frozen=True, eq=False)
class Tiled:
    """A pattern on stacked rows.

    pair_count: attending pairs of queries and columns, where a closed form gives their number; otherwise None.
    """

    n_rows: int
    n_cols: int
    pattern: Pattern
    group: int
    pair_count: int | None = None

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

    @functools.cached_property
    def _nnz(self) -> int:
        if self.pair_count is not None:
            return self.pair_count * self.group
        if isinstance(self.pattern, Graph):
            return len(self.pattern.indices) * self.group
        full, _, words, lengths = self._tiling
        return int(((full[1::2] - full[::2]) * lengths[full[::2] // (self.n_cols + 1)]).sum() + popcount(words).sum())

    @property
    def nnz(self) -> int:
        return self._nnz

    @functools.cached_property
    def _tiling(self) -> Tiling:
        """The pairs in panels of 64 rows."""
        first = spans.arange(ceil_div(self.n_rows, WORD_BITS)) * WORD_BITS
        return tiling(self.pattern, first, np.minimum(first + WORD_BITS, self.n_rows), self.group)

    @functools.cached_property
    def _columns_before(self) -> np.ndarray:
        """Columns in all full runs before each full run; the last entry is the total."""
        return np.append(0, np.cumsum(self._tiling.full[1::2] - self._tiling.full[::2]))

    def _window(self, panels: np.ndarray, cols: range) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions of cols.start and of cols.stop in each panel."""
        base = panels * (self.n_cols + 1)
        return base + cols.start, base + cols.stop

    def _panels(self, rows: range) -> tuple[np.ndarray, np.ndarray]:
        """Return the panels that the rows touch and, for each panel, a word that marks the rows in it."""
        panels = np.arange(rows.start // WORD_BITS, ceil_div(rows.stop, WORD_BITS))
        first, stop = rows.start - panels * WORD_BITS, rows.stop - panels * WORD_BITS
        return panels, below(stop) & ~below(first)

    @functools.cached_property
    def degrees(self) -> tuple[np.ndarray, np.ndarray]:
        """Attending pairs of each row, int64 (n_rows,), and of each column, int64 (n_cols,)."""
        full, positions, words, lengths = self._tiling
        width = self.n_cols + 1
        panel, panel_of_word = full[::2] // width, positions // width
        rows = np.repeat(np.bincount(panel, full[1::2] - full[::2], len(lengths)).astype(np.int64), lengths)
        begins = np.flatnonzero(np.diff(panel_of_word, prepend=-1))
        partial = np.zeros((len(lengths), WORD_BITS), np.int64)
        if len(begins):
            for bit in range(WORD_BITS):
                ones = (words >> np.uint64(bit) & np.uint64(1)).astype(np.int64)
                partial[panel_of_word[begins], bit] = np.add.reduceat(ones, begins)
        edges = (np.bincount(borders % width, lengths[panel], width) for borders in (full[::2], full[1::2]))
        in_full_runs = np.cumsum(np.subtract(*edges))
        cols = in_full_runs + np.bincount(positions % width, popcount(words), width)
        return rows + partial.ravel()[: self.n_rows], np.rint(cols[:-1]).astype(np.int64)

    def cols_of(self, rows: range) -> Runs:
        """Return the columns that some row of `rows` attends, as maximal runs."""
        if not rows or not self.n_cols:
            return ()
        edges = self._live_columns(np.array([rows.start]), np.array([rows.stop]))
        return _ranges(edges.reshape(-1, 2))

    def rows_of(self, cols: range) -> Runs:
        """Return the rows that attend some column of `cols`, as maximal runs."""
        if not cols or not self.n_rows:
            return ()
        panels = spans.arange(ceil_div(self.n_rows, WORD_BITS))
        low, high = self._window(panels, cols)
        full, positions, words, lengths = self._tiling
        words = np.append(words, np.uint64(0))
        edges = np.stack([np.searchsorted(positions, low), np.searchsorted(positions, high)], axis=1)
        live = np.bitwise_or.reduceat(words, edges.ravel())[::2]
        live = np.where(edges[:, 0] < edges[:, 1], live, np.uint64(0))
        # A full run crosses the window if it starts before the window's end and ends after the window's start.
        crosses = np.searchsorted(full[::2], high) > np.searchsorted(full[1::2], low, "right")
        live = np.where(crosses, below(lengths), live)
        bits = np.unpackbits(live.astype("<u8").view(np.uint8), bitorder="little")
        return _ranges(spans.from_positions(np.flatnonzero(bits)).reshape(-1, 2))

    def dense(self, rows: range, cols: range) -> np.ndarray:
        """Return a boolean (len(rows), len(cols)) array, True where the row attends the column."""
        q, k = np.arange(rows.start, rows.stop)[:, None] // self.group, np.arange(cols.start, cols.stop)[None]
        return np.broadcast_to(self.pattern.attends(q, k), (len(rows), len(cols))).copy()

    def holds(self, rows: range, cols: range) -> bool:
        """Return whether every pair of the tile attends, so that the tile needs no masking."""
        if not rows or not cols:
            return True
        queries = np.array([rows.start // self.group]), np.array([(rows.stop - 1) // self.group + 1])
        tile = np.array([cols.start, cols.stop])
        inside_inner = len(spans.difference(tile, self.pattern.inner(*queries))) == 0
        if inside_inner or self.pattern.exact[1] or len(spans.difference(tile, self.pattern.outer(*queries))):
            return inside_inner
        return self._count(rows, cols) == len(rows) * len(cols)

    def _count(self, rows: range, cols: range) -> int:
        """Count the attending pairs of the tile."""
        panels, row_bits = self._panels(rows)
        low, high = self._window(panels, cols)
        full, positions, words, _ = self._tiling
        before, stops = self._columns_before, np.append(full[1::2], 0)

        def covered(position: np.ndarray) -> np.ndarray:
            """Count the columns of full runs before the position."""
            runs = np.searchsorted(full[::2], position)
            return before[runs] - np.where(runs > 0, np.maximum(0, stops[runs - 1] - position), 0)

        total = int((popcount(row_bits) * (covered(high) - covered(low))).sum())
        first, stop = np.searchsorted(positions, low), np.searchsorted(positions, high)
        for begin, end, bits in zip(first.tolist(), stop.tolist(), row_bits, strict=True):
            total += int(popcount(words[begin:end] & bits).sum())
        return total

    def sums(self, rows: Any, cols: Any) -> TileSums:
        """Sum over the live tiles of the grid of `rows` x `cols` tiles. Both may be arrays, which broadcast."""
        r, c = np.broadcast_arrays(np.minimum(rows, max(1, self.n_rows)), np.minimum(cols, max(1, self.n_cols)))
        shape, edges = r.shape, np.stack([r.ravel(), c.ravel()], axis=1).astype(np.int64)
        distinct, where = np.unique(edges, axis=0, return_inverse=True)
        sums = np.array([self._sum(*pair) for pair in distinct.tolist()], np.int64).reshape(-1, 4)
        total = sums[where.reshape(-1)].T
        return TileSums(*(int(x) for x in total[:, 0])) if not shape else TileSums(*total.reshape(4, *shape))

    @functools.cached_property
    def _sum_cache(self) -> dict[tuple[int, int], tuple[int, int, int, int]]:
        return {}

    def _sum(self, rows: int, cols: int) -> tuple[int, int, int, int]:
        """Return the fields of TileSums for one tile size."""
        if (rows, cols) not in self._sum_cache:
            self._sum_cache[rows, cols] = self._compute_sum(rows, cols)
        return self._sum_cache[rows, cols]

    def _compute_sum(self, rows: int, cols: int) -> tuple[int, int, int, int]:
        block, first, stop = self._block_runs(rows)
        if not len(block):
            return 0, 0, 0, 0
        low, high = first // cols, (stop - 1) // cols + 1
        shared = (block[1:] == block[:-1]) & (low[1:] < high[:-1])  # starts in the previous run's last tile
        tiles = high - low - np.append(False, shared)
        short_col = cols * ceil_div(self.n_cols, cols) - self.n_cols
        # Runs whose number of tiles includes the last, shorter tile of the row
        reaches_last = (high == ceil_div(self.n_cols, cols)) & (tiles > 0)
        widths = cols * tiles - short_col * reaches_last
        short_row = rows * ceil_div(self.n_rows, rows) - self.n_rows
        lengths = rows - short_row * (block == ceil_div(self.n_rows, rows) - 1)
        return int(tiles.sum()), int((lengths * tiles).sum()), int(widths.sum()), int((lengths * widths).sum())

    @functools.cached_property
    def _block_runs_cache(self) -> dict[int, BlockRuns]:
        return {}

    def _block_runs(self, rows: int) -> BlockRuns:
        """Return the columns that each block of `rows` rows attends."""
        cache = self._block_runs_cache
        if rows in cache:
            return cache[rows]
        divisor = max((edge for edge in cache if rows % edge == 0), default=None)
        if divisor is None or self.pattern.exact[0]:
            first = spans.arange(ceil_div(self.n_rows, rows)) * rows
            edges = self._live_columns(first, np.minimum(first + rows, self.n_rows))
        else:  # unite the columns of the smaller blocks that make up each block
            block, first, stop = cache[divisor]
            base = block // (rows // divisor) * (self.n_cols + 1)
            edges = spans.from_unsorted_runs(base + first, base + stop)
        block, key = np.divmod(edges.reshape(-1, 2), self.n_cols + 1)
        runs = BlockRuns(block[:, 0], key[:, 0], key[:, 1])
        if sum(len(cached.block) for cached in cache.values()) + len(runs.block) <= MAX_CACHED_RUNS:
            cache[rows] = runs
        return runs

    def _live_columns(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        """Return the edges of the columns that some row of each range attends.

        Range i is first[i] .. stop[i] - 1. Ranges may have any length, but none is empty.
        """
        spans.stride(len(first), self.n_cols)
        if self.pattern.exact[0]:
            return self.pattern.outer(first // self.group, (stop - 1) // self.group + 1)
        range_of, panel = spans.expand(0, ceil_div(stop - first, WORD_BITS))
        low = first[range_of] + WORD_BITS * panel
        tiles = tiling(self.pattern, low, np.minimum(low + WORD_BITS, stop[range_of]), self.group)
        edges = spans.union(tiles.full, spans.from_positions(tiles.positions))
        if len(range_of) == len(first):
            return edges
        panel, key = np.divmod(edges, self.n_cols + 1)
        positions = range_of[panel] * (self.n_cols + 1) + key
        return spans.from_unsorted_runs(positions[::2], positions[1::2])


def _ranges(runs: np.ndarray) -> Runs:
    return tuple(range(first, stop) for first, stop in runs.tolist())
