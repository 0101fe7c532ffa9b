"""Packed documents that are each masked by a window of their own, counted from the document's ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from redblue.masks.numbers import Numbers
from redblue.masks.patterns import spans
from redblue.masks.patterns.pattern import Pattern
from redblue.masks.patterns.tiles import Packed
from redblue.masks.rules.bands import Window
from redblue.masks.rules.rule import Rule, Sizes, fits


@dataclass(frozen=True)
class WindowedDocuments(Rule):
    """Documents one behind the other: queries attend those keys of their own that the window keeps within it."""

    lengths: Numbers
    key_lengths: Numbers
    window: Window

    def __repr__(self) -> str:
        keys = "" if self.key_lengths == self.lengths else f", key_lengths={self.key_lengths!r}"
        return f"Mask.documents({self.lengths!r}{keys}, within={self.window!r})"

    @property
    def sizes(self) -> Sizes:
        return int(self.lengths.array.sum()), int(self.key_lengths.array.sum())

    def laid(self, n_q: int, n_k: int) -> Pattern:
        fits("documents", self.sizes, n_q, n_k, "lengths must add up to it, padding included")
        lengths, key_lengths, window = self.lengths.array, self.key_lengths.array, self.window
        offset = key_lengths - lengths if window.align == "bottom-right" else 0 * lengths
        everything = n_q + n_k
        left, right = (everything if side is None else min(side, everything) for side in (window.left, window.right))
        starts, key_starts = (np.append(0, np.cumsum(each)) for each in (lengths, key_lengths))
        begin = key_starts[:-1] - starts[:-1] + offset  # the key that query 0 would stand at
        return PackedWindows(n_q, n_k, starts, key_starts, begin - left, begin + right + 1)


@dataclass(frozen=True, eq=False)
class PackedWindows(Packed):
    """Query i of document t attends keys i + first[t] .. i + end[t] - 1, those of the document."""

    first: np.ndarray
    end: np.ndarray

    def outer(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        low, high = self._documents(first), self._documents(stop - 1)
        at, t = spans.listed(low, high - low + 1)
        begin, last = np.maximum(first[at], self.starts[t]), np.minimum(stop[at], self.starts[t + 1]) - 1
        some = begin <= last  # a document without queries is attended by none
        at, t, begin, last = at[some], t[some], begin[some], last[some]
        return self._clipped(at, t, begin + self.first[t], last + self.end[t])

    def inner(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        low, high = self._documents(first), self._documents(stop - 1)
        alone = np.flatnonzero(low == high)
        t = low[alone]
        return self._clipped(alone, t, stop[alone] - 1 + self.first[t], first[alone] + self.end[t])

    def _clipped(self, at: np.ndarray, t: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        return spans.from_runs(
            at, np.maximum(low, self.key_starts[t]), np.minimum(high, self.key_starts[t + 1]), self.n_k
        )

    def queries(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        t = np.searchsorted(self.key_starts, keys, "right") - 1
        first = np.maximum(self.starts[t], keys - self.end[t] + 1)
        return first, np.maximum(first, np.minimum(self.starts[t + 1], keys - self.first[t] + 1))
