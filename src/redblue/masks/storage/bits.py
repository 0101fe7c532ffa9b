"""Formats of packed bits: one bit per pair, and n-of-m sparsity."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from redblue.base.errors import RedblueError
from redblue.base.integers import ceil_div
from redblue.masks.patterns.pairs import Pairs
from redblue.masks.storage.formats import Arrays, Part, pack, unpack
from redblue.masks.storage.pair_lists import entries


@dataclass(frozen=True)
class Bits:
    """One bit per pair."""

    name = "bits"

    def size(self, side: Pairs, bits: int) -> int:
        return side.n_rows * ceil_div(side.n_cols, bits)

    def read(self, side: Pairs, starts: np.ndarray, stops: np.ndarray, bits: int) -> int:
        return int((stops - starts).sum()) * ceil_div(side.n_cols, bits)

    def arrays(self, side: Pairs, bits: int) -> Arrays:
        return {"bits": pack(side.dense(range(side.n_rows), range(side.n_cols)), bits)}

    def parts(self, side: Pairs, arrays: Arrays, rows: range) -> Iterator[Part]:
        yield from (("bits", (rows, range(word, word + 1))) for word in range(arrays["bits"].shape[1]))

    def decode(self, side: Pairs, loaded: Arrays, rows: range) -> np.ndarray:
        return unpack(loaded["bits"].reshape(-1, len(rows)).T, side.n_cols)


@dataclass(frozen=True)
class NofM:
    """The offsets of the attended columns in their groups of m, for masks that attend exactly n of every m columns.

    An offset takes ceil(log2 m) bits, at least 1.
    """

    n: int
    m: int

    @property
    def name(self) -> str:
        return f"{self.n}:{self.m}"

    @property
    def field(self) -> int:
        """Bits of an offset."""
        return max(1, (self.m - 1).bit_length())

    def _row_words(self, n_cols: int, bits: int) -> int:
        return ceil_div(n_cols // self.m * self.n * self.field, bits)

    def size(self, side: Pairs, bits: int) -> int:
        _offsets(side, self.n, self.m)  # raises if the mask has another structure
        return side.n_rows * self._row_words(side.n_cols, bits)

    def read(self, side: Pairs, starts: np.ndarray, stops: np.ndarray, bits: int) -> int:
        return int((stops - starts).sum()) * self._row_words(side.n_cols, bits)

    def arrays(self, side: Pairs, bits: int) -> Arrays:
        offset_bits = _offsets(side, self.n, self.m)[:, :, None] >> np.arange(self.field) & 1
        return {"offsets": pack(offset_bits.reshape(side.n_rows, -1).astype(bool), bits)}

    def parts(self, side: Pairs, arrays: Arrays, rows: range) -> Iterator[Part]:
        yield from (("offsets", (rows, range(group, group + 1))) for group in range(arrays["offsets"].shape[1]))

    def decode(self, side: Pairs, loaded: Arrays, rows: range) -> np.ndarray:
        groups = side.n_cols // self.m
        fields = unpack(loaded["offsets"].reshape(-1, len(rows)).T, groups * self.n * self.field)
        offsets = (fields.reshape(len(rows), -1, self.n, self.field) << np.arange(self.field)).sum(axis=-1)
        attends = np.zeros((len(rows), groups, self.m), bool)
        np.put_along_axis(attends, offsets, True, axis=-1)
        return attends.reshape(len(rows), side.n_cols)


@functools.lru_cache(maxsize=8)
def _offsets(side: Pairs, n: int, m: int) -> np.ndarray:
    """Return the offset of each attended column in its group. Shape (rows, attended columns per row)."""
    starts, cols = entries(side)
    rows, groups = np.repeat(np.arange(side.n_rows), np.diff(starts)), side.n_cols // m
    counts = np.bincount(rows * (groups + 1) + cols // m, minlength=side.n_rows * (groups + 1))
    wrong = np.flatnonzero(counts.reshape(-1, groups + 1)[:, :groups] != n)
    if side.n_cols % m or len(wrong):
        if len(wrong):
            fault = f"row {wrong[0] // groups} attends another number of columns in group {wrong[0] % groups}"
        else:
            fault = f"{side.n_cols} columns are no multiple of {m}"
        raise RedblueError(
            f"format {n}:{m} needs a mask in which each row attends exactly {n} of every {m} columns, but {fault} "
            "(the columns are queries if a pass by keys stores the transpose): use bits or csr"
        )
    return (cols % m).reshape(side.n_rows, -1)
