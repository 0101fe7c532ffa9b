"""Masks that are bands: query i attends keys i + offset - left .. i + offset + right.

Full, causal and sliding-window masks are bands, so each answers in closed form which tiles are empty, and sums over
all live tiles cost O(log n), however large n is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from redblue.base.errors import RedblueError
from redblue.base.integers import ceil_div, clip, floor_sum, larger, smaller, whole_number
from redblue.masks.patterns.pairs import Pairs, Runs, TileSums, Transposed
from redblue.masks.patterns.pattern import Pattern
from redblue.masks.patterns.tiles import Diagonal
from redblue.masks.rules.rule import Rule

ALIGNMENTS = ("top-left", "bottom-right")


@dataclass(frozen=True)
class Window(Rule):
    """The rule of full, causal and sliding-window masks.

    left, right: keys before and after the query's own that it sees; None: all of them.
    align: which corner the diagonal starts from when n_q != n_k ("bottom-right": the last query sees the last key).
    """

    left: int | None = None
    right: int | None = None
    align: str = "top-left"

    def __post_init__(self) -> None:
        for name in ("left", "right"):
            value = getattr(self, name)
            if value is not None:  # as wide as one likes
                object.__setattr__(self, name, whole_number(name, value, 0, math.inf))
        if self.align not in ALIGNMENTS:
            raise RedblueError(f"align must be one of {', '.join(ALIGNMENTS)}, got {self.align!r}")
        if self.is_full:  # it has no diagonal to align: all full masks are one value
            object.__setattr__(self, "align", ALIGNMENTS[0])

    def __repr__(self) -> str:
        align = "" if self.align == "top-left" else f"align={self.align!r}"
        if self.is_full:
            return "Mask.full()"
        if self.left is None and self.right == 0:
            return f"Mask.causal({align})"
        return f"Mask.sliding_window(left={self.left}, right={self.right}{', ' if align else ''}{align})"

    @property
    def is_full(self) -> bool:
        return self.left is None and self.right is None

    def on(self, n_rows: int, n_cols: int, group: int) -> Band:
        offset = n_cols - n_rows // group if self.align == "bottom-right" else 0
        # So wide that a side never binds: an open side is that wide, and no wider one would fit 64-bit integers.
        everything = n_rows + n_cols
        left, right = (everything if side is None else min(side, everything) for side in (self.left, self.right))
        return Band(n_rows, n_cols, first=offset - left, end=offset + right + 1, group=group)

    def laid(self, n_q: int, n_k: int) -> Pattern:
        band = self.on(n_q, n_k, 1)
        return Diagonal(n_q, n_k, band.first, band.end)

    def resized(self, old: tuple[int, int], new: tuple[int, int]) -> Window:
        """The sides scaled with the keys."""
        left, right = (side and max(1, round(Fraction(side * new[1], old[1]))) for side in (self.left, self.right))
        return Window(left, right, self.align)


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
        """The rows that attend some column of `cols`: at most one run."""
        rows = self._live_rows(cols)
        return (rows,) if rows else ()

    def cols_of(self, rows: range) -> Runs:
        """The columns that some row of `rows` attends: at most one run."""
        live = self._live_rows(range(self.n_cols))
        rows = range(max(rows.start, live.start), min(rows.stop, live.stop))
        if not rows:
            return ()
        low = rows.start // self.group + self.first
        high = (rows.stop - 1) // self.group + self.end
        return (range(max(0, low), min(self.n_cols, high)),)

    def _live_rows(self, cols: range) -> range:
        low = self.group * (cols.start - self.end + 1)
        high = self.group * (cols.stop - self.first)
        return range(max(0, low), max(0, low, min(self.n_rows, high))) if cols else range(0)

    def dense(self, rows: range, cols: range) -> np.ndarray:
        """Boolean (len(rows), len(cols)) array, True where the row attends the column."""
        step = np.asarray(cols)[None, :] - (np.asarray(rows) // self.group)[:, None]
        return (step >= self.first) & (step < self.end)

    def holds(self, rows: range, cols: range) -> bool:
        """Whether every pair of the tile attends, so that it needs no masking."""
        return (
            rows.stop - 1
        ) // self.group + self.first <= cols.start and cols.stop <= rows.start // self.group + self.end

    def sums(self, rows: Any, cols: Any) -> TileSums:
        """Sums over the live tiles of the grid of `rows` x `cols` tiles; both may be arrays (broadcast)."""
        row_blocks, col_blocks = ceil_div(self.n_rows, rows), ceil_div(self.n_cols, cols)
        live = self._live_rows(range(self.n_cols))
        if not live:
            return TileSums(*4 * [0 * row_blocks * col_blocks])
        if self.is_full:
            every = self.n_rows * self.n_cols * (0 * row_blocks * col_blocks + 1)
            return TileSums(row_blocks * col_blocks, self.n_rows * col_blocks, row_blocks * self.n_cols, every)
        group, first, end = self.group, self.first, self.end

        # Of row block i, the live column blocks are start(i) .. stop(i) - 1.
        def start(i: Any) -> Any:
            return larger(0, larger(i * rows, live.start) // group + first) // cols

        def stop(i: Any) -> Any:
            last_row = smaller((i + 1) * rows, live.stop) - 1
            return ceil_div(smaller(self.n_cols, last_row // group + end), cols)

        def first_block_reaching(column: Any) -> Any:
            """The first row block whose columns, not cut off at the last, reach beyond `column`."""
            return ceil_div(group * (column + 1 - end) + 1, rows) - 1

        low, high = live.start // rows, (live.stop - 1) // rows  # first and last live row block
        two = 1 * (low != high)  # whether these are two
        inner, inner_stop = low + 1, low + 1 + two * (high - low - 1)  # between them: plain arithmetic sequences
        # start(i) = floor((i rows + group first) / (group cols)) from the block where it leaves 0
        leaves = clip(ceil_div(group * (1 - first), rows), inner, inner_stop)
        starts = floor_sum(inner_stop - leaves, group * cols, rows, leaves * rows + group * first)
        # stop(i) = floor((i rows + rows - 1 + group (end + cols - 1)) / (group cols)) until it meets the last column
        meets = clip(first_block_reaching(self.n_cols - 1), inner, inner_stop)
        stops = floor_sum(meets - inner, group * cols, rows, inner * rows + rows - 1 + group * (end + cols - 1))
        in_last = stop(high) - start(high)
        tiles = stops + (inner_stop - meets) * col_blocks - starts + in_last + two * (stop(low) - start(low))

        # Only the last row block and the last column block may be shorter than the others.
        short_row = (high == row_blocks - 1) * (row_blocks * rows - self.n_rows)
        short_col = col_blocks * cols - self.n_cols
        reaches = clip(first_block_reaching((col_blocks - 1) * cols), inner, inner_stop)
        last_reaches = 1 * (stop(high) == col_blocks)
        reach = inner_stop - reaches + last_reaches + two * (stop(low) == col_blocks)
        sum_cols = cols * tiles - short_col * reach
        last_cols = cols * in_last - short_col * last_reaches
        return TileSums(tiles, rows * tiles - short_row * in_last, sum_cols, rows * sum_cols - short_row * last_cols)
