"""Bands: row i attends the columns from i // group + first to i // group + end - 1.

Full, causal and sliding-window masks are bands. The empty tiles of a band have a closed form, and a sum over all live
tiles takes O(log n) steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from redblue.base.integers import ceil_div, clip, floor_sum, larger, smaller
from redblue.masks.patterns.pairs import Pairs, Runs, TileSums, Transposed


@dataclass(frozen=True)
class Band:
    """Row i attends columns max(0, i//group + first) .. min(n_cols, i//group + end) - 1."""

    n_rows: int
    n_cols: int
    first: int
    end: int
    group: int = 1

    @property
    def T(self) -> Pairs:
        return Transposed(self)

    @property
    def is_full(self) -> bool:
        return self.holds(range(self.n_rows), range(self.n_cols))

    @property
    def nnz(self) -> int:
        return int(self.sums(1, 1).area)

    @property
    def steps(self) -> tuple[int, int]:
        return 1, 1

    def rows_of(self, cols: range) -> Runs:
        """Return the rows that attend some column of `cols`: at most one run."""
        rows = self._live_rows(cols)
        return (rows,) if rows else ()

    def cols_of(self, rows: range) -> Runs:
        """Return the columns that some row of `rows` attends: at most one run."""
        live = self._live_rows(range(self.n_cols))
        rows = range(max(rows.start, live.start), min(rows.stop, live.stop))
        if not rows:
            return ()
        low = rows.start // self.group + self.first
        high = (rows.stop - 1) // self.group + self.end
        return (range(max(0, low), min(self.n_cols, high)),)

    def _live_rows(self, cols: range) -> range:
        """Return the rows that attend some column of `cols`."""
        low = self.group * (cols.start - self.end + 1)
        high = self.group * (cols.stop - self.first)
        return range(max(0, low), max(0, low, min(self.n_rows, high))) if cols else range(0)

    def dense(self, rows: range, cols: range) -> np.ndarray:
        """Return a boolean (len(rows), len(cols)) array, True where the row attends the column."""
        step = np.asarray(cols)[None, :] - (np.asarray(rows) // self.group)[:, None]
        return (step >= self.first) & (step < self.end)

    def holds(self, rows: range, cols: range) -> bool:
        """Return whether every pair of the tile attends, so that the tile needs no masking."""
        last = (rows.stop - 1) // self.group
        return last + self.first <= cols.start and cols.stop <= rows.start // self.group + self.end

    def sums(self, rows: Any, cols: Any) -> TileSums:
        """Sum over the live tiles of the grid of `rows` x `cols` tiles. Both may be arrays, which broadcast."""
        row_blocks, col_blocks = ceil_div(self.n_rows, rows), ceil_div(self.n_cols, cols)
        live = self._live_rows(range(self.n_cols))
        if not live:
            return TileSums(*4 * [0 * row_blocks * col_blocks])
        if self.is_full:
            area = self.n_rows * self.n_cols * (0 * row_blocks * col_blocks + 1)
            return TileSums(row_blocks * col_blocks, self.n_rows * col_blocks, row_blocks * self.n_cols, area)
        group, first, end = self.group, self.first, self.end

        # Row block i meets the column blocks start(i) .. stop(i) - 1.
        def start(i: Any) -> Any:
            return larger(0, larger(i * rows, live.start) // group + first) // cols

        def stop(i: Any) -> Any:
            last_row = smaller((i + 1) * rows, live.stop) - 1
            return ceil_div(smaller(self.n_cols, last_row // group + end), cols)

        def first_block_reaching(column: Any) -> Any:
            """Return the first row block that would attend `column` or a later one if the band had no last column."""
            return ceil_div(group * (column + 1 - end) + 1, rows) - 1

        # The first and the last live row block are summed by themselves; the blocks between, by floor_sum.
        low, high = live.start // rows, (live.stop - 1) // rows
        distinct = 1 * (low != high)  # 0 where the first live row block is also the last
        inner, inner_stop = low + 1, low + 1 + distinct * (high - low - 1)
        # start(i) is 0 for the blocks before `leaves`; from there, it is floor((i rows + group first) / (group cols)).
        leaves = clip(ceil_div(group * (1 - first), rows), inner, inner_stop)
        starts = floor_sum(inner_stop - leaves, group * cols, rows, leaves * rows + group * first)
        # stop(i) is floor((i rows + rows - 1 + group (end + cols - 1)) / (group cols)) for the blocks before `meets`;
        # from there, it is col_blocks.
        meets = clip(first_block_reaching(self.n_cols - 1), inner, inner_stop)
        stops = floor_sum(meets - inner, group * cols, rows, inner * rows + rows - 1 + group * (end + cols - 1))
        first_stop, last_stop = stop(low), stop(high)
        in_last = last_stop - start(high)
        tiles = stops + (inner_stop - meets) * col_blocks - starts + in_last + distinct * (first_stop - start(low))

        # Only the last row block and the last column block may be shorter than the others.
        short_row = (high == row_blocks - 1) * (row_blocks * rows - self.n_rows)
        short_col = col_blocks * cols - self.n_cols
        first_reaching = clip(first_block_reaching((col_blocks - 1) * cols), inner, inner_stop)
        last_reaches = 1 * (last_stop == col_blocks)
        blocks_in_last_col = inner_stop - first_reaching + last_reaches + distinct * (first_stop == col_blocks)
        sum_cols = cols * tiles - short_col * blocks_in_last_col
        last_cols = cols * in_last - short_col * last_reaches
        return TileSums(tiles, rows * tiles - short_row * in_last, sum_cols, rows * sum_cols - short_row * last_cols)
