"""Formats that list pairs one by one: compressed sparse rows (CSR) and coordinates (COO)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from redblue.masks.patterns.pairs import Pairs
from redblue.masks.storage.formats import Arrays, Part, entry_range, split
from redblue.masks.storage.pair_lists import degrees, entries


@dataclass(frozen=True)
class Csr:
    """A pointer to the first column of each row, and the columns."""

    name = "csr"

    def size(self, side: Pairs, bits: int) -> int:
        return side.n_rows + 1 + side.nnz

    def read(self, side: Pairs, starts: np.ndarray, stops: np.ndarray, bits: int) -> int:
        return int((stops - starts + 1).sum()) + _pairs_in(side, starts, stops)

    def arrays(self, side: Pairs, bits: int) -> Arrays:
        return dict(zip(("starts", "cols"), entries(side), strict=True))

    def parts(self, side: Pairs, arrays: Arrays, rows: range) -> Iterator[Part]:
        yield "starts", (range(rows.start, rows.stop + 1),)
        yield from split("cols", *entry_range(arrays["starts"], rows), len(rows))

    def decode(self, side: Pairs, loaded: Arrays, rows: range) -> np.ndarray:
        attends = np.zeros((len(rows), side.n_cols), bool)
        attends[np.repeat(np.arange(len(rows)), np.diff(loaded["starts"])), loaded["cols"]] = True
        return attends


@dataclass(frozen=True)
class Coo:
    """The row and the column of each pair, sorted by rows."""

    name = "coo"

    def size(self, side: Pairs, bits: int) -> int:
        return 2 * side.nnz

    def read(self, side: Pairs, starts: np.ndarray, stops: np.ndarray, bits: int) -> int:
        return 2 * _pairs_in(side, starts, stops)

    def arrays(self, side: Pairs, bits: int) -> Arrays:
        starts, cols = entries(side)
        return {"rows": np.repeat(np.arange(side.n_rows), np.diff(starts)), "cols": cols}

    def parts(self, side: Pairs, arrays: Arrays, rows: range) -> Iterator[Part]:
        first, stop = np.searchsorted(arrays["rows"], [rows.start, rows.stop]).tolist()
        for _, part in split("rows", first, stop, len(rows)):
            yield "rows", part
            yield "cols", part

    def decode(self, side: Pairs, loaded: Arrays, rows: range) -> np.ndarray:
        attends = np.zeros((len(rows), side.n_cols), bool)
        attends[loaded["rows"] - rows.start, loaded["cols"]] = True
        return attends


def _pairs_in(side: Pairs, starts: np.ndarray, stops: np.ndarray) -> int:
    """Count the attending pairs of the blocks of rows starts[i] .. stops[i] - 1."""
    before = np.append(0, np.cumsum(degrees(side)))
    return int((before[stops] - before[starts]).sum())
