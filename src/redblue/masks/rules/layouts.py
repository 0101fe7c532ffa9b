"""Masks made of blocks: a boolean array says which blocks of queries and keys attend.

Sums over all live tiles ask each tile only which blocks it covers, and many tiles cover the same: so a tiling is a
weight on each interval of blocks, and its sums are two products of such weights with the table of live intervals.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from redblue.base.errors import RedblueError
from redblue.base.integers import ceil_div, smaller
from redblue.masks.patterns.pairs import Pairs, Runs, TileSums, Transposed
from redblue.masks.patterns.pattern import Pattern
from redblue.masks.patterns.tiles import Squares
from redblue.masks.rules.rule import Rule

SHOWN = 16  # blocks: larger layouts print as their shape and density
TOGETHER = 1 << 14  # blocks: in larger layouts column edges too are taken by octaves, which bounds the tables


@dataclass(frozen=True)
class Blocks(Rule):
    """The rule of a block layout, a value like any other: bits of the layout, packed; its shape; the blocks' edges."""

    bits: bytes
    shape: tuple[int, int]
    block: tuple[int, int]

    @classmethod
    def of(cls, layout: Any, block: int | Sequence[int]) -> Blocks:
        """The rule, from what a user gives. Raises RedblueError."""
        try:
            array = np.asarray(layout)
        except ValueError as error:
            raise RedblueError(f"layout must be a 2-D boolean array; its rows are not alike ({error})") from None
        if array.ndim != 2:
            raise RedblueError(f"layout must be a 2-D boolean array, got shape {array.shape}")
        if array.dtype != np.bool_:
            raise RedblueError(f"layout must be boolean (True: attend), got {array.dtype}: pass layout != 0, perhaps")
        edges = tuple(block) if isinstance(block, (Sequence, np.ndarray)) else (block, block)
        whole = all(hasattr(edge, "__index__") and not isinstance(edge, bool) and edge >= 1 for edge in edges)
        if len(edges) != 2 or not whole or isinstance(block, str):
            raise RedblueError(f"block must be two whole numbers (queries, keys) of at least 1, or one; got {block!r}")
        rows, cols = array.shape
        return cls(np.packbits(array).tobytes(), (rows, cols), (edges[0].__index__(), edges[1].__index__()))

    def like(self, layout: np.ndarray) -> Blocks:
        """The same kind of rule, of another layout of the same shape."""
        return replace(self, bits=np.packbits(layout).tobytes())

    @functools.cached_property
    def layout(self) -> np.ndarray:
        """Boolean (rows of blocks, columns of blocks), read-only."""
        bits = np.unpackbits(np.frombuffer(self.bits, np.uint8), count=self.shape[0] * self.shape[1])
        bits.flags.writeable = False
        return bits.view(np.bool_).reshape(self.shape)

    @property
    def density(self) -> float:
        """Share of the blocks that attend; 0 where there are none."""
        return int(self.layout.sum()) / max(1, self.layout.size)

    def __repr__(self) -> str:
        if self.layout.size <= SHOWN:
            return f"Mask.blocks({self.layout.tolist()}, block={self.block})"
        return f"Mask.blocks(<{self.shape[0]} x {self.shape[1]}, {self.density:.3g} of them True>, block={self.block})"

    @property
    def is_full(self) -> bool:
        return bool(self.layout.all())

    @property
    def takes_any(self) -> bool:
        return False  # its shape is for some sizes only

    def check(self, n_q: int, n_k: int) -> None:
        """Raises RedblueError where the layout does not fit."""
        bq, bk = self.block
        needed = ceil_div(n_q, bq), ceil_div(n_k, bk)
        if self.shape != needed:
            raise RedblueError(
                f"the mask's layout has {self.shape[0]} x {self.shape[1]} blocks of {bq} queries x {bk} keys, but n_q "
                f"= {n_q} and n_k = {n_k} need {needed[0]} x {needed[1]}: give another layout or other blocks"
            )

    def laid(self, n_q: int, n_k: int) -> Pattern:
        self.check(n_q, n_k)
        # No edge beyond its axis: it would say the same and, if huge, not fit 64-bit integers.
        return Squares(n_q, n_k, self.layout, (max(1, min(self.block[0], n_q)), max(1, min(self.block[1], n_k))))

    def on(self, n_rows: int, n_cols: int, group: int) -> Layout:
        return _laid(self, n_rows, n_cols, group)

    def resized(self, old: tuple[int, int], new: tuple[int, int]) -> Blocks:
        """Blocks of the same share of each axis, or every so-manieth of them where there are more than places."""
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
def _laid(rule: Blocks, n_rows: int, n_cols: int, group: int) -> Layout:
    n_q, (bq, bk) = n_rows // group, rule.block
    rule.check(n_q, n_cols)
    return Layout(n_rows, n_cols, rule, (max(1, min(bq, n_q)) * group, max(1, min(bk, n_cols))))


@dataclass(frozen=True)
class Layout:
    """A block layout laid on rows and columns; block: edges in rows (all rows of a query included) and columns."""

    n_rows: int
    n_cols: int
    rule: Blocks
    block: tuple[int, int]

    @functools.cached_property
    def before(self) -> np.ndarray:
        """before[a, b]: True blocks among the first a x b. Shape (rows of blocks + 1, columns of blocks + 1)."""
        return np.pad(self.rule.layout.cumsum(axis=0).cumsum(axis=1), ((1, 0), (1, 0)))

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
        return int(self.sums(*self.block).area) if self.n_rows and self.n_cols else 0

    def cols_of(self, rows: range) -> Runs:
        """The columns that some row of `rows` attends, as maximal runs."""
        first, stop = _covered(rows, self.block[0])
        return _runs(np.diff(self.before[stop] - self.before[first]) > 0, self.block[1], self.n_cols)

    def rows_of(self, cols: range) -> Runs:
        """The rows that attend some column of `cols`, as maximal runs."""
        first, stop = _covered(cols, self.block[1])
        return _runs(np.diff(self.before[:, stop] - self.before[:, first]) > 0, self.block[0], self.n_rows)

    def dense(self, rows: range, cols: range) -> np.ndarray:
        """Boolean (len(rows), len(cols)) array, True where the row attends the column."""
        row, col = (np.arange(x.start, x.stop) // edge for x, edge in zip((rows, cols), self.block, strict=True))
        return self.rule.layout[np.ix_(row, col)]

    def holds(self, rows: range, cols: range) -> bool:
        """Whether every pair of the tile attends, so that it needs no masking."""
        (a, b), (c, d) = _covered(rows, self.block[0]), _covered(cols, self.block[1])
        live = self.before[b, d] - self.before[a, d] - self.before[b, c] + self.before[a, c]
        return bool(live == (b - a) * (d - c))

    def sums(self, rows: Any, cols: Any) -> TileSums:
        """Sums over the live tiles of the grid of `rows` x `cols` tiles; both may be arrays (broadcast)."""
        r, c = np.broadcast_arrays(smaller(rows, self.n_rows), smaller(cols, self.n_cols))
        shape, r, c = r.shape, r.ravel().astype(np.int64), c.ravel().astype(np.int64)
        total = np.zeros((4, r.size), self._number)
        # Edges of like length share most of their intervals, so that their tables stay small.
        octaves = 64 * np.frexp(r)[1] + np.frexp(c)[1] * (self.rule.layout.size > TOGETHER)
        for octave in np.unique(octaves):
            here = np.flatnonzero(octaves == octave)
            total[:, here] = self._sums(r[here], c[here]) if self.n_rows and self.n_cols else 0
        if not shape:
            return TileSums(*(int(x) for x in total[:, 0]))
        return TileSums(*(total if total.dtype == object else total.astype(np.int64)).reshape(4, *shape))

    @property
    def _number(self) -> Any:
        """What adds up exactly, the fastest first."""
        pairs = self.n_rows * self.n_cols
        return np.float64 if pairs < 2**53 else np.int64 if pairs < 2**63 else object

    def _sums(self, rows: np.ndarray, cols: np.ndarray) -> np.ndarray:
        """(4, pairs of edges): what TileSums holds, of each pair."""
        (r, r_of), (c, c_of) = (np.unique(edges, return_inverse=True) for edges in (rows, cols))
        row, col = _intervals(r, self.n_rows, self.block[0]), _intervals(c, self.n_cols, self.block[1])
        (above, below, row_at), (left, right, col_at) = row.distinct(), col.distinct()
        trues = self.before[below] - self.before[above]
        live = (trues[:, right] > trues[:, left]).astype(self._number)

        # Over the live row intervals of every column interval: tiles of each row edge, and their rows.
        # (einsum, not @: the threads that NumPy takes for large products crawl on a busy machine.)
        table = np.empty((2, len(r), live.shape[1]), self._number)
        stops = np.cumsum(np.bincount(row.of))
        for edge, (begin, stop) in enumerate(zip((0, *stops), stops, strict=False)):
            weight = row.weight[:, begin:stop].astype(self._number)
            table[:, edge] = np.einsum("wi,ij->wj", weight, live[row_at[begin:stop]])

        # Over the column intervals of every pair of edges, which lie side by side in `entry`.
        per_edge = np.bincount(col.of, minlength=len(c))
        ends = np.cumsum(per_edge[c_of])
        begins = ends - per_edge[c_of]
        entry = np.arange(ends[-1]) + np.repeat((np.cumsum(per_edge) - per_edge)[c_of] - begins, per_edge[c_of])
        at = table[:, np.repeat(r_of, per_edge[c_of]), col_at[entry]]
        tiles, lengths = col.weight[0, entry], col.weight[1, entry]
        parts = np.stack([at[0] * tiles, at[1] * tiles, at[0] * lengths, at[1] * lengths])
        return np.add.reduceat(parts, begins, axis=1)


class Intervals(NamedTuple):
    """Which blocks the tiles of each edge cover. One entry per edge and interval of blocks, in order of the edges."""

    of: np.ndarray  # (entries,) index of the edge
    first: np.ndarray  # (entries,) first block of the interval, and the first beyond it
    stop: np.ndarray
    weight: np.ndarray  # (2, entries) tiles that cover exactly these blocks, and the sum of their lengths

    def distinct(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """First and stop of the distinct intervals, and which of them each entry has."""
        base = int(self.stop.max()) + 1
        codes, at = np.unique(self.first * base + self.stop, return_inverse=True)
        return codes // base, codes % base, at


def _intervals(edges: np.ndarray, length: int, block: int) -> Intervals:
    blocks = ceil_div(length, block)
    short = edges <= block  # at least one tile starts in every block: group them by it; else take each tile by itself
    count = np.where(short, blocks, ceil_div(length, edges))
    of = np.repeat(np.arange(len(edges)), count)
    each, edge = np.arange(len(of)) - np.repeat(np.cumsum(count) - count, count), edges[of]
    low = np.where(short[of], ceil_div(each * block, edge), each)
    high = np.where(short[of], ceil_div(np.minimum((each + 1) * block, length), edge), each + 1)
    # Of the tiles low .. high - 1, which start in the same block, only the last may reach into another.
    first, last = low * edge // block, (high - 1) * edge
    stop = np.minimum(length, last + edge)
    reaches = ceil_div(stop, block)
    beyond = (reaches > first + 1).astype(np.int64)
    within = np.minimum(high * edge, length) - low * edge - beyond * (stop - last)
    # Column 0: the tiles that end where they start; column 1: the one that reaches beyond.
    pairs = [(of, of), (first, first), (first + 1, reaches), (high - low - beyond, beyond)]
    pairs.append((within, beyond * (stop - last)))
    of, first, stop, tiles, lengths = (np.stack(pair, axis=1).ravel() for pair in pairs)
    kept = tiles > 0
    return Intervals(of[kept], first[kept], stop[kept], np.stack([tiles[kept], lengths[kept]]))


def _covered(part: range, block: int) -> tuple[int, int]:
    """The blocks that the range touches: the first, and the first beyond."""
    return part.start // block, ceil_div(part.stop, block) if part else part.start // block


def _runs(live: np.ndarray, block: int, length: int) -> Runs:
    """The maximal runs of live blocks, in rows or columns."""
    change = np.flatnonzero(np.diff(live, prepend=False, append=False)).tolist()
    return tuple(range(a * block, min(b * block, length)) for a, b in zip(change[::2], change[1::2], strict=True))
