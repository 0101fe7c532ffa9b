"""The pattern of a graph in compressed sparse row (CSR) form, and the CSR form of any pattern."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from redblue.masks.patterns import spans
from redblue.masks.patterns.bit_words import below
from redblue.masks.patterns.pattern import Pattern
from redblue.masks.patterns.tiling import tiling


@dataclass(frozen=True, eq=False)
class Graph(Pattern):
    """Query i attends the keys indices[indptr[i] : indptr[i + 1]], which ascend strictly."""

    indptr: np.ndarray
    indices: np.ndarray

    def __getstate__(self) -> dict[str, Any]:
        """The fields without the cached properties, so that pickles do not depend on what was computed before."""
        return {name: getattr(self, name) for name in ("n_q", "n_k", "indptr", "indices")}

    @classmethod
    def of_partners(cls, partners: np.ndarray, n_k: int) -> Graph:
        """Row i attends the columns partners[i], distinct and in any order; columns from n_k on are left out."""
        partners = np.sort(partners, axis=1)
        exists = partners < n_k
        return cls(len(partners), n_k, np.append(0, np.cumsum(exists.sum(axis=1))), partners[exists])

    @property
    def exact(self) -> tuple[bool, bool]:
        return True, False  # the keys that several queries have in common are known only pair by pair

    def outer(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        ranges, entries = self._entries(first, stop)
        positions = ranges * spans.stride(len(first), self.n_k) + self.indices[entries]
        return spans.from_positions(positions if (stop - first == 1).all() else np.sort(positions))

    def inner(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        single = np.flatnonzero(stop - first == 1)
        ranges, entries = self._entries(first[single], stop[single])
        return spans.from_positions(single[ranges] * spans.stride(len(first), self.n_k) + self.indices[entries])

    def _entries(self, first: np.ndarray, stop: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """List (range, place in `indices`) for every pair of the ranges' queries, in order."""
        return spans.expand(self.indptr[first], self.indptr[stop] - self.indptr[first])

    @functools.cached_property
    def _queries(self) -> np.ndarray:
        """The query of each entry of `indices`."""
        return np.repeat(np.arange(self.n_q), np.diff(self.indptr))

    @functools.cached_property
    def _pairs(self) -> np.ndarray:
        """Every pair as query * n_k + key, ascending."""
        return self._queries * self.n_k + self.indices

    def attends(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        return _find(self._pairs, q * self.n_k + np.asarray(k))[1]

    def words(self, rows: np.ndarray, count: int, group: int, keys: np.ndarray) -> np.ndarray:
        if not len(keys):
            return np.zeros(0, np.uint64)
        is_new = np.append(True, rows[1:] != rows[:-1])
        starts, panel = rows[is_new], np.cumsum(is_new) - 1  # distinct rows, and the index of rows[i] in them
        first = starts // group
        stop = np.minimum((starts + count - 1) // group + 1, self.n_q)
        panels, entries = self._entries(first, stop)
        bit = self._queries[entries] * group - starts[panels]  # first of the `group` bits of the entry's query
        positions = panels * self.n_k + self.indices[entries]
        order = np.argsort(positions, kind="stable")
        positions, bit = positions[order], bit[order]
        entry_words = below(bit + group) & ~below(bit)
        begins = np.flatnonzero(np.diff(positions, prepend=-1))
        words = np.bitwise_or.reduceat(entry_words, begins) if len(begins) else entry_words
        place, is_attended = _find(positions[begins], panel * self.n_k + keys)
        result = np.zeros(len(keys), np.uint64)
        result[is_attended] = words[place[is_attended]]
        return result


def _find(ascending: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Look each value up in a sorted array: return its place, and whether it is there."""
    values = np.asarray(values)
    if not len(ascending):
        return np.zeros(values.shape, np.int64), np.zeros(values.shape, bool)
    place = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    return place, ascending[place] == values


def csr(pattern: Pattern) -> tuple[np.ndarray, np.ndarray]:
    """List the pairs of a pattern as (indptr, indices), int64: the keys that each query attends, ascending.

    Raises RedblueError for more pairs than memory should hold.
    """
    if isinstance(pattern, Graph):
        return pattern.indptr.copy(), pattern.indices.copy()
    first = spans.arange(pattern.n_q)
    tiles = tiling(pattern, first, first + 1, 1)
    edges = spans.union(tiles.full, spans.from_positions(tiles.positions))
    row, key = np.divmod(edges.reshape(-1, 2), pattern.n_k + 1)
    ends = np.append(0, np.cumsum(key[:, 1] - key[:, 0]))
    indptr = ends[np.searchsorted(row[:, 0], np.arange(pattern.n_q + 1))]
    indices, done = np.empty(indptr[-1], np.int64), 0
    for chunk in spans.chunks(edges):
        indices[done : done + len(chunk)] = chunk % (pattern.n_k + 1)
        done += len(chunk)
    return indptr, indices
