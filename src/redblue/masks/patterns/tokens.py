"""Patterns of whole rows and columns: keys that every query attends, and queries that attend every key."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from redblue.masks.patterns import spans
from redblue.masks.patterns.pattern import OneRunPerKey, Pattern


@dataclass(frozen=True, eq=False)
class FirstKeys(OneRunPerKey):
    """Every query attends the keys below `length`."""

    length: int

    def outer(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        return spans.from_runs(np.arange(len(first)), 0 * first, np.full(len(first), self.length), self.n_k)

    inner = outer

    def queries(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return 0 * keys, np.where(keys < self.length, self.n_q, 0)


@dataclass(frozen=True, eq=False)
class Tokens(Pattern):
    """Marked queries attend every key, and every query attends the marked keys.

    queries: bool (n_q,). keys: bool (n_k,).
    """

    queries: np.ndarray
    keys: np.ndarray

    @classmethod
    def of_indices(cls, indices: np.ndarray, n_q: int, n_k: int) -> Tokens:
        """Mark the queries and keys at `indices`; indices beyond n_q or n_k are ignored."""
        queries, keys = spans.arange(n_q) < 0, spans.arange(n_k) < 0
        queries[indices[indices < n_q]] = True
        keys[indices[indices < n_k]] = True
        return cls(n_q, n_k, queries, keys)

    def outer(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        return self._edges(self._marked_before[stop] > self._marked_before[first])

    def inner(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        return self._edges(self._marked_before[stop] - self._marked_before[first] == stop - first)

    @functools.cached_property
    def _marked_before(self) -> np.ndarray:
        """(n_q + 1,): marked queries before each query."""
        return np.append(0, np.cumsum(self.queries))

    def _edges(self, takes_all: np.ndarray) -> np.ndarray:
        """Return all keys for the ranges in which `takes_all` is True, and the marked keys for the other ranges."""
        runs = spans.from_positions(np.flatnonzero(self.keys)).reshape(-1, 2)
        ranges, run = spans.expand(0, np.where(takes_all, 1, len(runs)))
        runs = np.append(runs, [[0, self.n_k]], axis=0)[np.where(takes_all[ranges], -1, run)]
        return spans.from_runs(ranges, runs[:, 0], runs[:, 1], self.n_k)

    def attends(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        return self.queries[q] | self.keys[k]
