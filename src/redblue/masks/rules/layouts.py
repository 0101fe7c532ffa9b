"""The rule of block layouts: a boolean array says which blocks of queries and keys attend."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from redblue.base.errors import RedblueError
from redblue.base.integers import ceil_div
from redblue.masks.numbers import pair
from redblue.masks.patterns.layout import Layout
from redblue.masks.patterns.pattern import Pattern
from redblue.masks.patterns.squares import Squares
from redblue.masks.rules.rule import Rule

MAX_PRINTED = 16  # blocks: larger layouts print as their shape and density


@dataclass(frozen=True)
class Blocks(Rule):
    """Query i attends key j where layout[i // bq, j // bk] is True.

    bits: the layout's bits, packed by np.packbits, which makes the rule hashable. shape: the layout's shape.
    block: (bq, bk), the edges of a block in queries and keys; the last block of an axis may be shorter.
    """

    bits: bytes
    shape: tuple[int, int]
    block: tuple[int, int]

    @classmethod
    def of(cls, layout: Any, block: int | Sequence[int]) -> Blocks:
        """Make the rule from a user's arguments. Raises RedblueError if they are invalid."""
        try:
            array = np.asarray(layout)
        except ValueError as error:
            raise RedblueError(
                f"layout must be a 2-D boolean array; its rows have different lengths ({error})"
            ) from None
        if array.ndim != 2:
            raise RedblueError(f"layout must be a 2-D boolean array, got shape {array.shape}")
        if array.dtype != np.bool_:
            raise RedblueError(f"layout must be boolean (True: attend), got {array.dtype}: pass layout != 0, perhaps")
        rows, cols = array.shape
        return cls(np.packbits(array).tobytes(), (rows, cols), pair("block", block, most=math.inf))

    def with_layout(self, layout: np.ndarray) -> Blocks:
        """Return the same kind of rule with another layout of the same shape."""
        return replace(self, bits=np.packbits(layout).tobytes())

    @functools.cached_property
    def layout(self) -> np.ndarray:
        """Boolean (rows of blocks, columns of blocks), read-only."""
        bits = np.unpackbits(np.frombuffer(self.bits, np.uint8), count=self.shape[0] * self.shape[1])
        bits.flags.writeable = False
        return bits.view(np.bool_).reshape(self.shape)

    def block_rows(self, rows: range) -> np.ndarray:
        """Some rows of the layout, without unpacking the others."""
        if "layout" in self.__dict__:
            return self.layout[rows.start : rows.stop]
        first, stop = rows.start * self.shape[1], rows.stop * self.shape[1]
        packed = np.frombuffer(self.bits, np.uint8)[first // 8 : ceil_div(stop, 8)]
        return np.unpackbits(packed)[first % 8 :][: stop - first].view(np.bool_).reshape(len(rows), self.shape[1])

    @property
    def density(self) -> float:
        """Share of the blocks that attend; 0 without blocks."""
        return int(self.layout.sum()) / max(1, self.layout.size)

    def __repr__(self) -> str:
        if self.layout.size <= MAX_PRINTED:
            return f"Mask.blocks({self.layout.tolist()}, block={self.block})"
        return f"Mask.blocks(<{self.shape[0]} x {self.shape[1]}, {self.density:.3g} of them True>, block={self.block})"

    @property
    def is_full(self) -> bool:
        return bool(self.layout.all())

    @property
    def fits_any_sizes(self) -> bool:
        return False  # `sizes` does not say so, but the layout's shape allows only some sizes

    def check(self, n_q: int, n_k: int) -> None:
        """Raise RedblueError if the layout does not fit n_q and n_k."""
        bq, bk = self.block
        needed = ceil_div(n_q, bq), ceil_div(n_k, bk)
        if self.shape != needed:
            raise RedblueError(
                f"the mask's layout has {self.shape[0]} x {self.shape[1]} blocks of {bq} queries x {bk} keys, but n_q "
                f"= {n_q} and n_k = {n_k} need {needed[0]} x {needed[1]}: give another layout or other blocks"
            )

    def pattern(self, n_q: int, n_k: int) -> Pattern:
        self.check(n_q, n_k)
        # Clip the blocks to the axes: a longer block means the same, but might not fit 64-bit integers.
        return Squares(n_q, n_k, self.layout, (max(1, min(self.block[0], n_q)), max(1, min(self.block[1], n_k))))

    def on(self, n_rows: int, n_cols: int, group: int) -> Layout:
        return _layout_on(self, n_rows, n_cols, group)

    def resized(self, old: tuple[int, int], new: tuple[int, int]) -> Blocks:
        """Scale the blocks in proportion to each axis; drop rows or columns of blocks if there are too many."""
        block = [
            edge if before == after else ceil_div(after, max(1, count))
            for edge, count, before, after in zip(self.block, self.shape, old, new, strict=True)
        ]
        rows, cols = (
            np.arange(ceil_div(length, edge)) * count // max(1, ceil_div(length, edge))
            for length, edge, count in zip(new, block, self.shape, strict=True)
        )
        return Blocks.of(self.layout[np.ix_(rows, cols)], block)


@functools.lru_cache(maxsize=64)
def _layout_on(rule: Blocks, n_rows: int, n_cols: int, group: int) -> Layout:
    n_q, (bq, bk) = n_rows // group, rule.block
    rule.check(n_q, n_cols)
    return Layout(n_rows, n_cols, rule, (max(1, min(bq, n_q)) * group, max(1, min(bk, n_cols))))
