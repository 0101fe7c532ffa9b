"""How a mask is stored, if no rule says which pairs attend: the index of every format, in words.

An index entry (a column, a place in another array) takes one word, whatever the type of the numbers; bits are packed
into words of 8 x the bytes of a number: 16 bits for float16. An index belongs to the queries: the heads that share it
(grouped-query attention) read it together, other heads each for themselves. A format describes one side: for passes by
rows of queries the mask itself, for passes by keys its transpose, which is stored besides.

A sweep over blocks of rows (schedules/schedule.py) reads for each block all that the index holds of its rows:

| format | of a block of rows | words |
|---|---|---|
| `bits` | their rows of bits | rows x ceil(n_k / bits of a word) |
| `blocks` | pointers of the rows of blocks it touches, and their live blocks | touched + 1, and one for each live block |
| `tiles:E` | two pointers each, the live tiles, and bits of the partial ones, of these rows | 2 (touched + 1), one for each, rows x ceil(E / bits) for each partial |
| `csr` | pointers and columns | rows + 1, and one for each pair |
| `coo` | rows and columns; a sweep is at its place already | 2 for each pair |
| `N:M` | N places in each group of M columns, packed | rows x ceil(N ceil(log2 M) n_k / M / bits of a word) |
"""  # noqa: E501

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from redblue.base.errors import RedblueError
from redblue.base.integers import ceil_div
from redblue.masks.patterns.pairs import Pairs
from redblue.masks.storage.pair_lists import degrees, entries

Part = tuple[str, tuple[range, ...]]  # of an array: what a sweep loads at a time
Arrays = Mapping[str, np.ndarray]


class Format(Protocol):
    """One way to store a side of a mask. bits: of a word. All sizes are in words."""

    @property
    def name(self) -> str: ...
    def size(self, side: Pairs, bits: int) -> int:
        """Words that the index takes. Raises RedblueError if the mask cannot be stored so."""
        ...

    def read(self, side: Pairs, starts: np.ndarray, stops: np.ndarray, bits: int) -> int:
        """Words of the index of all blocks of rows starts[i] .. stops[i] - 1."""
        ...

    def arrays(self, side: Pairs, bits: int) -> Arrays:
        """The index itself, as whole numbers."""
        ...

    def parts(self, side: Pairs, arrays: Arrays, rows: range) -> Iterator[Part]:
        """What the index holds of the rows, at most len(rows) + 1 words at a time."""
        ...

    def decode(self, side: Pairs, loaded: Arrays, rows: range) -> np.ndarray:
        """Which columns the rows attend, from these parts alone: (len(rows), columns of the side), bool."""
        ...


def ends(starts: np.ndarray, of: range) -> tuple[int, int]:
    """Where the entries of these rows begin, and where they end."""
    return int(starts[of.start]), int(starts[of.stop])


def pieces(name: str, start: int, stop: int, step: int) -> Iterator[Part]:
    yield from ((name, (range(at, min(at + step, stop)),)) for at in range(start, stop, max(1, step)))


def pack(dense: np.ndarray, bits: int) -> np.ndarray:
    """Each row's bits in words, the first in the lowest bit."""
    filled = np.pad(dense, ((0, 0), (0, -dense.shape[1] % bits)))
    return np.ascontiguousarray(np.packbits(filled, axis=1, bitorder="little")).view(f"<u{bits // 8}")


def unpack(words: np.ndarray, columns: int) -> np.ndarray:
    bytes_of = np.ascontiguousarray(words).view(np.uint8)
    return np.unpackbits(bytes_of, axis=1, count=columns, bitorder="little").astype(bool)


@dataclass(frozen=True)
class Bits:
    """One bit for each pair."""

    name = "bits"

    def size(self, side: Pairs, bits: int) -> int:
        return side.n_rows * ceil_div(side.n_cols, bits)

    def read(self, side: Pairs, starts: np.ndarray, stops: np.ndarray, bits: int) -> int:
        return int((stops - starts).sum()) * ceil_div(side.n_cols, bits)

    def arrays(self, side: Pairs, bits: int) -> Arrays:
        return {"bits": pack(side.dense(range(side.n_rows), range(side.n_cols)), bits)}

    def parts(self, side: Pairs, arrays: Arrays, rows: range) -> Iterator[Part]:
        yield from (("bits", (rows, range(at, at + 1))) for at in range(arrays["bits"].shape[1]))

    def decode(self, side: Pairs, loaded: Arrays, rows: range) -> np.ndarray:
        return unpack(loaded["bits"].reshape(-1, len(rows)).T, side.n_cols)


@dataclass(frozen=True)
class Csr:
    """Where each row's columns begin, and the columns."""

    name = "csr"

    def size(self, side: Pairs, bits: int) -> int:
        return side.n_rows + 1 + side.nnz

    def read(self, side: Pairs, starts: np.ndarray, stops: np.ndarray, bits: int) -> int:
        return int((stops - starts + 1).sum()) + _pairs_in(side, starts, stops)

    def arrays(self, side: Pairs, bits: int) -> Arrays:
        return dict(zip(("starts", "cols"), entries(side), strict=True))

    def parts(self, side: Pairs, arrays: Arrays, rows: range) -> Iterator[Part]:
        yield "starts", (range(rows.start, rows.stop + 1),)
        yield from pieces("cols", *ends(arrays["starts"], rows), len(rows))

    def decode(self, side: Pairs, loaded: Arrays, rows: range) -> np.ndarray:
        found = np.zeros((len(rows), side.n_cols), bool)
        found[np.repeat(np.arange(len(rows)), np.diff(loaded["starts"])), loaded["cols"]] = True
        return found


@dataclass(frozen=True)
class Coo:
    """Row and column of each pair, sorted by rows."""

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
        for _, part in pieces("rows", first, stop, len(rows)):
            yield "rows", part
            yield "cols", part

    def decode(self, side: Pairs, loaded: Arrays, rows: range) -> np.ndarray:
        found = np.zeros((len(rows), side.n_cols), bool)
        found[loaded["rows"] - rows.start, loaded["cols"]] = True
        return found


def _pairs_in(side: Pairs, starts: np.ndarray, stops: np.ndarray) -> int:
    before = np.append(0, np.cumsum(degrees(side)))
    return int((before[stops] - before[starts]).sum())


@dataclass(frozen=True)
class NofM:
    """In every m columns side by side exactly n attend: their places, each in as few bits as m needs."""

    n: int
    m: int

    @property
    def name(self) -> str:
        return f"{self.n}:{self.m}"

    @property
    def field(self) -> int:
        """Bits of a place."""
        return max(1, (self.m - 1).bit_length())

    def _row_words(self, n_cols: int, bits: int) -> int:
        return ceil_div(n_cols // self.m * self.n * self.field, bits)

    def size(self, side: Pairs, bits: int) -> int:
        _places(side, self.n, self.m)
        return side.n_rows * self._row_words(side.n_cols, bits)

    def read(self, side: Pairs, starts: np.ndarray, stops: np.ndarray, bits: int) -> int:
        return int((stops - starts).sum()) * self._row_words(side.n_cols, bits)

    def arrays(self, side: Pairs, bits: int) -> Arrays:
        place = _places(side, self.n, self.m)[:, :, None] >> np.arange(self.field) & 1
        return {"places": pack(place.reshape(side.n_rows, -1).astype(bool), bits)}

    def parts(self, side: Pairs, arrays: Arrays, rows: range) -> Iterator[Part]:
        yield from (("places", (rows, range(at, at + 1))) for at in range(arrays["places"].shape[1]))

    def decode(self, side: Pairs, loaded: Arrays, rows: range) -> np.ndarray:
        groups = side.n_cols // self.m
        fields = unpack(loaded["places"].reshape(-1, len(rows)).T, groups * self.n * self.field)
        place = (fields.reshape(len(rows), -1, self.n, self.field) << np.arange(self.field)).sum(axis=-1)
        found = np.zeros((len(rows), groups, self.m), bool)
        np.put_along_axis(found, place, True, axis=-1)
        return found.reshape(len(rows), side.n_cols)


@functools.lru_cache(maxsize=8)
def _places(side: Pairs, n: int, m: int) -> np.ndarray:
    """(rows, attended columns of each): where in its group each lies."""
    starts, cols = entries(side)
    rows, groups = np.repeat(np.arange(side.n_rows), np.diff(starts)), side.n_cols // m
    kept = np.bincount(rows * (groups + 1) + cols // m, minlength=side.n_rows * (groups + 1))
    wrong = np.flatnonzero(kept.reshape(-1, groups + 1)[:, :groups] != n)
    if side.n_cols % m or len(wrong):
        at = f"row {wrong[0] // groups} keeps another number in group {wrong[0] % groups}" if len(wrong) else "it ends"
        raise RedblueError(
            f"format {n}:{m} stores masks of whole groups of {m} columns of which each row attends exactly {n}; this "
            f"one has {side.n_cols} columns, and {at} (a pass by keys stores the transpose): use bits or csr"
        )
    return (cols % m).reshape(side.n_rows, -1)
