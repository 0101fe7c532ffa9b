"""Formats that list the blocks with attended pairs: `blocks` (full blocks only), `tiles` (partial ones store bits)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from redblue.base.errors import RedblueError
from redblue.base.integers import ceil_div
from redblue.masks.patterns.pairs import Pairs
from redblue.masks.storage.formats import Arrays, Part, entry_range, pack, split, unpack
from redblue.masks.storage.tile_lists import Tiles, live_tiles


@dataclass(frozen=True)
class BlockList:
    """A pointer for each row of blocks, and the columns of its live blocks. For masks that are made of blocks."""

    name = "blocks"

    def _tiles(self, side: Pairs) -> Tiles:
        rows, cols = side.steps
        is_single = rows * cols == 1 and side.nnz < side.n_rows * side.n_cols
        # The steps of a composed mask do not say that all its tiles are full: blocks & causal has the steps of blocks.
        if is_single or not (tiles := live_tiles(side, rows, cols)).full.all():
            raise RedblueError("format blocks stores masks that are made of blocks, and this one is not: use tiles")
        return tiles

    def size(self, side: Pairs, bits: int) -> int:
        tiles = self._tiles(side)
        return len(tiles.starts) + len(tiles.cols)

    def read(self, side: Pairs, starts: np.ndarray, stops: np.ndarray, bits: int) -> int:
        first, stop = starts // side.steps[0], ceil_div(stops, side.steps[0])
        return int((stop - first + 1 + self._tiles(side).count_in_rows(first, stop)).sum())

    def arrays(self, side: Pairs, bits: int) -> Arrays:
        tiles = self._tiles(side)
        return {"starts": tiles.starts, "cols": tiles.cols}

    def parts(self, side: Pairs, arrays: Arrays, rows: range) -> Iterator[Part]:
        edge = side.steps[0]
        touched = range(rows.start // edge, ceil_div(rows.stop, edge))
        yield "starts", (range(touched.start, touched.stop + 1),)
        yield from split("cols", *entry_range(arrays["starts"], touched), len(rows))

    def decode(self, side: Pairs, loaded: Arrays, rows: range) -> np.ndarray:
        edge, width = side.steps
        counts = np.diff(loaded["starts"])
        live = np.zeros((len(counts), ceil_div(side.n_cols, width)), bool)
        live[np.repeat(np.arange(len(counts)), counts), loaded["cols"]] = True
        return live[np.ix_(np.asarray(rows) // edge - rows.start // edge, np.arange(side.n_cols) // width)]


@dataclass(frozen=True)
class BitTiles:
    """The live tiles of edge x edge pairs, each marked as full or partial, and the bits of the partial tiles."""

    edge: int = 64

    @property
    def name(self) -> str:
        return f"tiles:{self.edge}"

    def _partial(self, side: Pairs) -> np.ndarray:
        """Return the number of partial tiles before each row of tiles."""
        tiles = live_tiles(side, self.edge, self.edge)
        return np.append(0, np.cumsum(~tiles.full))[tiles.starts]

    def size(self, side: Pairs, bits: int) -> int:
        tiles, partial = live_tiles(side, self.edge, self.edge), self._partial(side)
        return 2 * len(tiles.starts) + len(tiles.cols) + int(partial[-1]) * self.edge * ceil_div(self.edge, bits)

    def read(self, side: Pairs, starts: np.ndarray, stops: np.ndarray, bits: int) -> int:
        first, stop = starts // self.edge, ceil_div(stops, self.edge)
        listed = 2 * (stop - first + 1) + live_tiles(side, self.edge, self.edge).count_in_rows(first, stop)
        before = self._partial(side)
        last = len(before) - 2

        def rows_of_bits(row: np.ndarray) -> np.ndarray:
            """Count the rows of partial tiles above `row`."""
            tile_row = np.minimum(row // self.edge, last)
            partial = before[tile_row + 1] - before[tile_row]
            return before[tile_row] * self.edge + partial * (row - tile_row * self.edge)

        return int((listed + (rows_of_bits(stops) - rows_of_bits(starts)) * ceil_div(self.edge, bits)).sum())

    def arrays(self, side: Pairs, bits: int) -> Arrays:
        tiles = live_tiles(side, self.edge, self.edge)
        row = np.repeat(np.arange(len(tiles.starts) - 1), np.diff(tiles.starts))
        words = [
            pack(self._dense(side, int(r), int(c)), bits)
            for r, c, full in zip(row, tiles.cols, tiles.full, strict=True)
            if not full
        ]
        no_words = np.zeros((0, ceil_div(self.edge, bits)), f"<u{bits // 8}")
        return {
            "starts": tiles.starts,
            "partial": self._partial(side),
            "cols": 2 * tiles.cols + tiles.full,  # the lowest bit marks a full tile
            "bits": np.concatenate([no_words, *words]),
        }

    def _dense(self, side: Pairs, row: int, col: int) -> np.ndarray:
        """Return the pairs of one tile, padded to edge x edge."""
        rows, cols = (
            range(place * self.edge, min((place + 1) * self.edge, length))
            for place, length in ((row, side.n_rows), (col, side.n_cols))
        )
        return np.pad(side.dense(rows, cols), ((0, self.edge - len(rows)), (0, self.edge - len(cols))))

    def parts(self, side: Pairs, arrays: Arrays, rows: range) -> Iterator[Part]:
        touched = range(rows.start // self.edge, ceil_div(rows.stop, self.edge))
        for name in ("starts", "partial"):
            yield name, (range(touched.start, touched.stop + 1),)
        yield from split("cols", *entry_range(arrays["starts"], touched), len(rows))
        for r in touched:
            tile_rows = range(max(rows.start, r * self.edge), min(rows.stop, (r + 1) * self.edge))
            for tile in range(*entry_range(arrays["partial"], range(r, r + 1))):
                bit_rows = range(tile_rows.start + (tile - r) * self.edge, tile_rows.stop + (tile - r) * self.edge)
                yield from (("bits", (bit_rows, range(word, word + 1))) for word in range(arrays["bits"].shape[1]))

    def decode(self, side: Pairs, loaded: Arrays, rows: range) -> np.ndarray:
        edge, first = self.edge, rows.start // self.edge
        attends = np.zeros((len(rows), ceil_div(side.n_cols, edge) * edge), bool)
        cols, words, position = loaded["cols"], ceil_div(edge, 8 * loaded["bits"].itemsize), 0
        for r, tiles in enumerate(np.split(cols, (loaded["starts"] - loaded["starts"][0])[1:-1])):
            top, stop = max(rows.start, (first + r) * edge), min(rows.stop, (first + r + 1) * edge)
            local_rows = slice(top - rows.start, stop - rows.start)
            for entry in tiles.tolist():
                span, count = slice(entry // 2 * edge, (entry // 2 + 1) * edge), (stop - top) * words
                if entry % 2:
                    attends[local_rows, span] = True
                else:
                    # `parts` loads a tile's words by columns of words.
                    attends[local_rows, span] = unpack(
                        loaded["bits"][position : position + count].reshape(words, -1).T, edge
                    )
                    position += count
        return attends[:, : side.n_cols]
