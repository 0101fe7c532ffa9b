"""The base class of patterns: masks on n_q queries and n_k keys, in the form that the algebra combines.

For a range of queries, a pattern gives two sets of keys without testing any pair:

- the *outer* set contains every key that some query of the range attends, and perhaps other keys;
- the *inner* set contains only keys that every query of the range attends, but perhaps not all of them.

Only keys in the outer set that are not in the inner set must be tested pair by pair. `&` intersects both sets, `|`
unites both, and `~` swaps and complements them. The cost of a composition is therefore proportional to its live tiles,
and no array of size n_q x n_k is built.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from redblue.masks.patterns.bit_words import between


@dataclass(frozen=True, eq=False)
class Pattern(ABC):
    """A mask on n_q queries and n_k keys.

    Ranges of queries are passed as two arrays: range i is first[i] .. stop[i] - 1 and is not empty.
    """

    n_q: int
    n_k: int

    @property
    def exact(self) -> tuple[bool, bool]:
        """Whether the outer set is the smallest possible, and whether the inner set is the largest possible."""
        return True, True

    @property
    def steps(self) -> tuple[int, int]:
        """The edges of the blocks that the pattern is made of, in queries and in keys; 1 without blocks."""
        return 1, 1

    @abstractmethod
    def outer(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        """Return the outer sets of the ranges, as edges (see `spans`)."""

    @abstractmethod
    def inner(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        """Return the inner sets of the ranges, as edges. Each is a subset of the outer set."""

    @abstractmethod
    def attends(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        """Return whether query q attends key k, elementwise; q and k broadcast."""

    def words(self, rows: np.ndarray, count: int, group: int, keys: np.ndarray) -> np.ndarray:
        """Return a 64-bit word for each i: bit b says whether row rows[i] + b attends key keys[i].

        rows, keys: int64 arrays of the same length; the pairs (rows[i], keys[i]) ascend. Row r belongs to query
        r // group. Bits from `count` on are undefined, and so are bits of rows beyond the last.
        """
        words = np.zeros(len(keys), np.uint64)
        query = attended = None
        for b in range(count):
            next_query = np.minimum((rows + b) // group, self.n_q - 1)
            if query is None or not np.array_equal(next_query, query):
                query, attended = next_query, self.attends(next_query, keys).astype(np.uint64)
            assert attended is not None
            words |= attended << np.uint64(b)
        return words


class OneRunPerKey(Pattern):
    """A pattern in which the queries that attend a key are consecutive."""

    @abstractmethod
    def queries(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return, for each key, the first query that attends it, and the first one after the run (first <= stop)."""

    def attends(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        first, stop = self.queries(np.asarray(k))
        return (first <= q) & (q < stop)

    def words(self, rows: np.ndarray, count: int, group: int, keys: np.ndarray) -> np.ndarray:
        first, stop = self.queries(keys)
        return between(first * group - rows, stop * group - rows)
