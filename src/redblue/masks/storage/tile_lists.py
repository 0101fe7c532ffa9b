"""Formats that list what is live block by block: blocks that attend whole, and tiles with bits where they do not."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from redblue.base.errors import RedblueError
from redblue.base.integers import ceil_div
from redblue.masks.patterns.census import census
from redblue.masks.patterns.pairs import Pairs, Transposed
from redblue.masks.rules.tiled import Tiled
from redblue.masks.storage.formats import Arrays, Part, ends, pack, pieces, unpack

MOST_TILES = 1 << 22  # that are looked at one by one: some seconds


class Tiles(NamedTuple):
    """The live tiles of a mask, by rows of tiles: those of row r are starts[r] .. starts[r + 1] - 1."""

    starts: np.ndarray
    cols: np.ndarray  # column of tiles of each
    full: np.ndarray  # whether every pair of it attends

    def between(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        return self.starts[stop] - self.starts[first]


@functools.lru_cache(maxsize=16)
def live_tiles(side: Pairs, rows: int, cols: int) -> Tiles:
    """rows: a multiple of the rows that one query fills. Raises RedblueError for more than MOST_TILES."""
    many = int(side.sums(rows, cols).tiles)
    if many > MOST_TILES:
        raise RedblueError(
            f"the mask has {many:,} live tiles of {rows} x {cols}, at most {MOST_TILES:,} are listed: give larger tiles"
        )
    if isinstance(side, Transposed):
        of = live_tiles(side.of, cols, rows)
        row = np.repeat(np.arange(len(of.starts) - 1), np.diff(of.starts))
        order = np.argsort(of.cols, kind="stable")
        return Tiles(_starts(of.cols, ceil_div(side.n_rows, rows)), row[order], of.full[order])
    if isinstance(side, Tiled):
        found = census(side.pattern, rows // side.group, cols)
        return Tiles(_starts(found.row, ceil_div(side.n_rows, rows)), found.col, found.pairs == found.area)
    row, col, full = [], [], []
    for top in range(0, side.n_rows, rows):
        block = range(top, min(top + rows, side.n_rows))
        here = sorted({at for run in side.cols_of(block) for at in range(run.start // cols, ceil_div(run.stop, cols))})
        row += [top // rows] * len(here)
        col += here
        full += [side.holds(block, range(at * cols, min((at + 1) * cols, side.n_cols))) for at in here]
    starts = _starts(np.array(row, np.int64), ceil_div(side.n_rows, rows))
    return Tiles(starts, np.array(col, np.int64), np.array(full, bool))


def _starts(rows: np.ndarray, count: int) -> np.ndarray:
    """Where each row begins in a list that is sorted by rows, or will be."""
    return np.append(0, np.cumsum(np.bincount(rows, minlength=count)))


@dataclass(frozen=True)
class BlockList:
    """Where each row of blocks begins, and the columns of its live blocks: for masks that are made of blocks."""

    name = "blocks"

    def _tiles(self, side: Pairs) -> Tiles:
        rows, cols = side.steps
        if rows * cols == 1 and side.nnz < side.n_rows * side.n_cols:
            raise RedblueError("format blocks stores masks that are made of blocks, and this one is not: use tiles")
        return live_tiles(side, rows, cols)

    def size(self, side: Pairs, bits: int) -> int:
        tiles = self._tiles(side)
        return len(tiles.starts) + len(tiles.cols)

    def read(self, side: Pairs, starts: np.ndarray, stops: np.ndarray, bits: int) -> int:
        first, stop = starts // side.steps[0], ceil_div(stops, side.steps[0])
        return int((stop - first + 1 + self._tiles(side).between(first, stop)).sum())

    def arrays(self, side: Pairs, bits: int) -> Arrays:
        tiles = self._tiles(side)
        return {"starts": tiles.starts, "cols": tiles.cols}

    def parts(self, side: Pairs, arrays: Arrays, rows: range) -> Iterator[Part]:
        edge = side.steps[0]
        touched = range(rows.start // edge, ceil_div(rows.stop, edge))
        yield "starts", (range(touched.start, touched.stop + 1),)
        yield from pieces("cols", *ends(arrays["starts"], touched), len(rows))

    def decode(self, side: Pairs, loaded: Arrays, rows: range) -> np.ndarray:
        edge, width = side.steps
        many = np.diff(loaded["starts"])
        live = np.zeros((len(many), ceil_div(side.n_cols, width)), bool)
        live[np.repeat(np.arange(len(many)), many), loaded["cols"]] = True
        return live[np.ix_(np.asarray(rows) // edge - rows.start // edge, np.arange(side.n_cols) // width)]


@dataclass(frozen=True)
class BitTiles:
    """The live tiles of edge x edge, each with a mark if it is full, and the bits of those that are not."""

    edge: int = 64

    @property
    def name(self) -> str:
        return f"tiles:{self.edge}"

    def _partial(self, side: Pairs) -> np.ndarray:
        """Partial tiles before each row of tiles."""
        tiles = live_tiles(side, self.edge, self.edge)
        return np.append(0, np.cumsum(~tiles.full))[tiles.starts]

    def size(self, side: Pairs, bits: int) -> int:
        tiles, partial = live_tiles(side, self.edge, self.edge), self._partial(side)
        return 2 * len(tiles.starts) + len(tiles.cols) + int(partial[-1]) * self.edge * ceil_div(self.edge, bits)

    def read(self, side: Pairs, starts: np.ndarray, stops: np.ndarray, bits: int) -> int:
        first, stop = starts // self.edge, ceil_div(stops, self.edge)
        listed = 2 * (stop - first + 1) + live_tiles(side, self.edge, self.edge).between(first, stop)
        before = self._partial(side)
        last = len(before) - 2

        def rows_of_bits(row: np.ndarray) -> np.ndarray:
            """Rows of the partial tiles above `row`."""
            of = np.minimum(row // self.edge, last)
            return before[of] * self.edge + (before[of + 1] - before[of]) * (row - of * self.edge)

        return int((listed + (rows_of_bits(stops) - rows_of_bits(starts)) * ceil_div(self.edge, bits)).sum())

    def arrays(self, side: Pairs, bits: int) -> Arrays:
        tiles = live_tiles(side, self.edge, self.edge)
        row = np.repeat(np.arange(len(tiles.starts) - 1), np.diff(tiles.starts))
        words = [
            pack(self._dense(side, int(r), int(c)), bits)
            for r, c, full in zip(row, tiles.cols, tiles.full, strict=True)
            if not full
        ]
        blank = np.zeros((0, ceil_div(self.edge, bits)), f"<u{bits // 8}")
        return {
            "starts": tiles.starts,
            "partial": self._partial(side),
            "cols": 2 * tiles.cols + tiles.full,
            "bits": np.concatenate([blank, *words]),
        }

    def _dense(self, side: Pairs, row: int, col: int) -> np.ndarray:
        rows, cols = (
            range(at * self.edge, min((at + 1) * self.edge, length))
            for at, length in ((row, side.n_rows), (col, side.n_cols))
        )
        return np.pad(side.dense(rows, cols), ((0, self.edge - len(rows)), (0, self.edge - len(cols))))

    def parts(self, side: Pairs, arrays: Arrays, rows: range) -> Iterator[Part]:
        touched = range(rows.start // self.edge, ceil_div(rows.stop, self.edge))
        for name in ("starts", "partial"):
            yield name, (range(touched.start, touched.stop + 1),)
        yield from pieces("cols", *ends(arrays["starts"], touched), len(rows))
        for r in touched:
            within = range(max(rows.start, r * self.edge), min(rows.stop, (r + 1) * self.edge))
            for tile in range(*ends(arrays["partial"], range(r, r + 1))):
                at = range(within.start + (tile - r) * self.edge, within.stop + (tile - r) * self.edge)
                yield from (("bits", (at, range(word, word + 1))) for word in range(arrays["bits"].shape[1]))

    def decode(self, side: Pairs, loaded: Arrays, rows: range) -> np.ndarray:
        edge, first = self.edge, rows.start // self.edge
        found = np.zeros((len(rows), ceil_div(side.n_cols, edge) * edge), bool)
        cols, words, at = loaded["cols"], ceil_div(edge, 8 * loaded["bits"].itemsize), 0
        for r, live in enumerate(np.split(cols, (loaded["starts"] - loaded["starts"][0])[1:-1])):
            top, stop = max(rows.start, (first + r) * edge), min(rows.stop, (first + r + 1) * edge)
            here = slice(top - rows.start, stop - rows.start)
            for entry in live.tolist():
                span, many = slice(entry // 2 * edge, (entry // 2 + 1) * edge), (stop - top) * words
                if entry % 2:
                    found[here, span] = True
                else:
                    found[here, span] = unpack(loaded["bits"][at : at + many].reshape(words, -1).T, edge)
                    at += many
        return found[:, : side.n_cols]
