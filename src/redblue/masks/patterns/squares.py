"""The pattern of a block layout."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from redblue.base.integers import ceil_div
from redblue.masks.patterns import spans
from redblue.masks.patterns.pattern import Pattern


@dataclass(frozen=True, eq=False)
class Squares(Pattern):
    """Query i attends key j where layout[i // bq, j // bk] is True. block: (bq, bk)."""

    layout: np.ndarray
    block: tuple[int, int]

    @property
    def steps(self) -> tuple[int, int]:
        return self.block

    @property
    def is_array(self) -> bool:
        """Whether every axis has one entry per query or key, or one for all of them."""
        return all(edge == 1 or entries == 1 for edge, entries in zip(self.block, self.layout.shape, strict=True))

    @property
    def array(self) -> np.ndarray:
        """If `is_array`: the layout as bytes 0 and 1, (n_q, n_k); broadcast rows share their memory."""
        array = np.broadcast_to(self.layout.view(np.uint8), (self.n_q, self.n_k))
        return array if array.strides[1] == 1 else np.ascontiguousarray(array)

    def outer(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        return self._runs(first, stop, np.bitwise_or)

    def inner(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        return self._runs(first, stop, np.bitwise_and)

    def _runs(self, first: np.ndarray, stop: np.ndarray, op: np.ufunc) -> np.ndarray:
        """Return the keys of the columns of blocks in which `op` over the range's rows of blocks is True."""
        low, high = first // self.block[0], ceil_div(stop, self.block[0])
        base = len(self.layout) + 1
        # Many ranges touch the same rows of blocks; compute each distinct (low, high) once.
        codes, distinct = np.unique(low * base + high, return_inverse=True)
        low, high = codes // base, codes % base
        rows = self.layout[low] if (high - low == 1).all() else _reduce_rows(self.layout, low, high, op)
        change = np.diff(rows, axis=1, prepend=False, append=False)
        row, col = np.nonzero(change)
        row, runs = row[::2], col.reshape(-1, 2)
        count, before = np.bincount(row, minlength=len(low)), np.searchsorted(row, np.arange(len(low)))
        ranges, run = spans.expand(before[distinct], count[distinct])
        runs = runs[run] * self.block[1]
        return spans.from_runs(ranges, runs[:, 0], runs[:, 1], self.n_k)

    def attends(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        return self.layout[np.asarray(q) // self.block[0], np.asarray(k) // self.block[1]]


def _reduce_rows(rows: np.ndarray, low: np.ndarray, high: np.ndarray, op: np.ufunc) -> np.ndarray:
    """Reduce rows[low[i] : high[i]] by `op` for every i. Returns shape (len(low), columns)."""
    edges = np.stack([low, high], axis=1).ravel()
    padded = np.append(rows, rows[:1], axis=0)  # reduceat needs every edge to be a valid index
    return op.reduceat(padded, edges, axis=0)[::2] if len(edges) else rows[:0]
