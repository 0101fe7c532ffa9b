"""The interface of storage formats: an index that stores which pairs of a mask attend, and its size in words.

An index is needed where no rule says which pairs attend. An entry of an index (a column, or an offset into another
array) takes one word, whatever the number type. Bits are packed into words; a word has as many bits as a number of the
problem's type, such as 16 for float16. Each key head has an index of its own. Query heads that share a key head
(grouped-query attention) share its index, which is read once for all of them. A format stores one side of a mask:
passes by rows of queries read the mask itself, and passes by keys read its transpose, which is stored as a second
index.

A sweep over blocks of rows (`schedules/schedule.py`) reads everything that the index holds for the rows of each block:

| format | read for a block of rows | words |
|---|---|---|
| `bits` | the rows' bits | rows x ceil(n_k / bits per word) |
| `blocks` | pointers of the touched rows of blocks, and their live blocks | touched + 1, and 1 per live block |
| `tiles:E` | two pointers per row of tiles, live tiles, these rows' bits of partial tiles | 2 (touched + 1), 1 per live tile, rows x ceil(E / bits) per partial tile |
| `csr` | pointers and columns | rows + 1, and 1 per pair |
| `coo` | rows and columns, no pointers: a sweep continues after the previous block | 2 per pair |
| `N:M` | N packed offsets in each group of M columns | rows x ceil(N ceil(log2 M) n_k / M / bits per word) |
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol, runtime_checkable

import numpy as np

from redblue.masks.patterns.pairs import Pairs

Part = tuple[str, tuple[range, ...]]  # a piece of an array, which a sweep loads at once: the array's name, its slices
Arrays = Mapping[str, np.ndarray]


@runtime_checkable
class Format(Protocol):
    """One way to store a side of a mask. Sizes are in words; `bits` is the number of bits in a word."""

    @property
    def name(self) -> str: ...

    def size(self, side: Pairs, bits: int) -> int:
        """Return the words of the whole index. Raises RedblueError if the format cannot store the mask."""
        ...

    def read(self, side: Pairs, starts: np.ndarray, stops: np.ndarray, bits: int) -> int:
        """Return the words read by a sweep over the blocks of rows starts[i] .. stops[i] - 1, in total."""
        ...

    def arrays(self, side: Pairs, bits: int) -> Arrays:
        """Build the index, as arrays of whole numbers."""
        ...

    def parts(self, side: Pairs, arrays: Arrays, rows: range) -> Iterator[Part]:
        """Yield the parts of the index that belong to the rows, of at most len(rows) + 1 words each."""
        ...

    def decode(self, side: Pairs, loaded: Arrays, rows: range) -> np.ndarray:
        """Return a boolean (len(rows), columns of the side) array, computed from the loaded parts alone."""
        ...


def entry_range(starts: np.ndarray, rows: range) -> tuple[int, int]:
    """Look up the first entry of the rows and the first entry after them. starts: the rows' pointers."""
    return int(starts[rows.start]), int(starts[rows.stop])


def split(name: str, start: int, stop: int, step: int) -> Iterator[Part]:
    """Yield entries start .. stop - 1 of a 1-D array as parts of at most `step` entries."""
    yield from ((name, (range(first, min(first + step, stop)),)) for first in range(start, stop, max(1, step)))


def pack(dense: np.ndarray, bits: int) -> np.ndarray:
    """Pack each row of a boolean array into words of `bits` bits, the first column in the lowest bit."""
    padded = np.pad(dense, ((0, 0), (0, -dense.shape[1] % bits)))
    return np.ascontiguousarray(np.packbits(padded, axis=1, bitorder="little")).view(f"<u{bits // 8}")


def unpack(words: np.ndarray, columns: int) -> np.ndarray:
    """Unpack rows of words into a boolean (rows, columns) array, as `pack` packed them."""
    as_bytes = np.ascontiguousarray(words).view(np.uint8)
    return np.unpackbits(as_bytes, axis=1, count=columns, bitorder="little").astype(bool)
