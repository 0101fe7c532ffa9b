"""Patterns of packed documents: each document attends itself, in full or in a window."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from redblue.masks.patterns import spans
from redblue.masks.patterns.pattern import OneRunPerKey


@dataclass(frozen=True, eq=False)
class Packed(OneRunPerKey):
    """Consecutive documents: every query of document t attends all keys of document t.

    starts: the queries of document t are starts[t] .. starts[t + 1] - 1. key_starts: the same for its keys.
    """

    starts: np.ndarray
    key_starts: np.ndarray

    def outer(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        low, high = self._documents(first), self._documents(stop - 1)
        ranges, document = spans.expand(low, high - low + 1)
        has_queries = self.starts[document] < self.starts[document + 1]  # nothing attends a document without queries
        ranges, document = ranges[has_queries], document[has_queries]
        return spans.from_runs(ranges, self.key_starts[document], self.key_starts[document + 1], self.n_k)

    def inner(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        low, high = self._documents(first), self._documents(stop - 1)
        single = low == high  # the range lies in one document
        return spans.from_runs(
            np.flatnonzero(single), self.key_starts[low[single]], self.key_starts[low[single] + 1], self.n_k
        )

    def _documents(self, queries: np.ndarray) -> np.ndarray:
        """Return the document that each query belongs to."""
        return np.searchsorted(self.starts, queries, "right") - 1

    def queries(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        document = np.searchsorted(self.key_starts, keys, "right") - 1
        return self.starts[document], self.starts[document + 1]


@dataclass(frozen=True, eq=False)
class PackedWindows(Packed):
    """Query i of document t attends the keys of document t from i + first[t] to i + end[t] - 1."""

    first: np.ndarray
    end: np.ndarray

    def outer(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        low, high = self._documents(first), self._documents(stop - 1)
        ranges, t = spans.expand(low, high - low + 1)
        begin, last = np.maximum(first[ranges], self.starts[t]), np.minimum(stop[ranges], self.starts[t + 1]) - 1
        has_queries = begin <= last  # nothing attends a document without queries
        ranges, t, begin, last = ranges[has_queries], t[has_queries], begin[has_queries], last[has_queries]
        return self._within_document(ranges, t, begin + self.first[t], last + self.end[t])

    def inner(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        low, high = self._documents(first), self._documents(stop - 1)
        single = np.flatnonzero(low == high)
        t = low[single]
        return self._within_document(single, t, stop[single] - 1 + self.first[t], first[single] + self.end[t])

    def _within_document(self, ranges: np.ndarray, t: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Return the edges of the keys low .. high - 1 that belong to document t."""
        return spans.from_runs(
            ranges, np.maximum(low, self.key_starts[t]), np.minimum(high, self.key_starts[t + 1]), self.n_k
        )

    def queries(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        t = np.searchsorted(self.key_starts, keys, "right") - 1
        first = np.maximum(self.starts[t], keys - self.end[t] + 1)
        return first, np.maximum(first, np.minimum(self.starts[t + 1], keys - self.first[t] + 1))
