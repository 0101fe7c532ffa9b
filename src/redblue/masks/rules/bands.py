"""The rule of full, causal and sliding-window masks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from redblue.base.errors import RedblueError
from redblue.base.integers import whole_number
from redblue.masks.patterns.band import Band
from redblue.masks.patterns.diagonals import Diagonal
from redblue.masks.patterns.pattern import Pattern
from redblue.masks.rules.rule import Rule

ALIGNMENTS = ("top-left", "bottom-right")


@dataclass(frozen=True)
class Window(Rule):
    """Query i attends the keys i - left .. i + right.

    left, right: number of keys before and after the query's own position; None stands for all keys on that side.
    align: the corner through which the diagonal runs if n_q != n_k. "top-left": query 0 has position 0
        among the keys; "bottom-right": the last query has the position of the last key.
    """

    left: int | None = None
    right: int | None = None
    align: str = "top-left"

    def __post_init__(self) -> None:
        for name in ("left", "right"):
            value = getattr(self, name)
            if value is not None:  # no upper limit: `on` clips the sides
                object.__setattr__(self, name, whole_number(name, value, 0, math.inf))
        if self.align not in ALIGNMENTS:
            raise RedblueError(f"align must be one of {', '.join(ALIGNMENTS)}, got {self.align!r}")
        if self.is_full:  # a full mask has no diagonal: without its alignment, all full masks are equal
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
        # A side of n_rows + n_cols keys excludes no key. It replaces open sides, and wider sides, which might not fit
        # 64-bit integers.
        widest = n_rows + n_cols
        left, right = (widest if side is None else min(side, widest) for side in (self.left, self.right))
        return Band(n_rows, n_cols, first=offset - left, end=offset + right + 1, group=group)

    def pattern(self, n_q: int, n_k: int) -> Pattern:
        band = self.on(n_q, n_k, 1)
        return Diagonal(n_q, n_k, band.first, band.end)

    def resized(self, old: tuple[int, int], new: tuple[int, int]) -> Window:
        """Scale both sides in proportion to n_k."""
        left, right = (side and max(1, round(Fraction(side * new[1], old[1]))) for side in (self.left, self.right))
        return Window(left, right, self.align)
