"""Patterns made of patterns: a pattern of blocks, the intersection or union of two patterns, and the complement."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from redblue.base.integers import ceil_div
from redblue.masks.patterns import spans
from redblue.masks.patterns.pattern import Pattern


@dataclass(frozen=True, eq=False)
class Coarse(Pattern):
    """Query i attends key j where block i // bq attends block j // bk in the pattern `of`.

    block: (bq, bk); the last block of an axis may be shorter.
    """

    of: Pattern
    block: tuple[int, int]

    @property
    def steps(self) -> tuple[int, int]:
        return self.block

    @property
    def exact(self) -> tuple[bool, bool]:
        return self.of.exact

    def outer(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        return self._scale(self.of.outer(first // self.block[0], ceil_div(stop, self.block[0])))

    def inner(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        return self._scale(self.of.inner(first // self.block[0], ceil_div(stop, self.block[0])))

    def _scale(self, edges: np.ndarray) -> np.ndarray:
        """Turn edges in blocks of keys into edges in keys."""
        ranges, key = np.divmod(edges, self.of.n_k + 1)
        return ranges * (self.n_k + 1) + np.minimum(key * self.block[1], self.n_k)

    def attends(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        return self.of.attends(np.asarray(q) // self.block[0], np.asarray(k) // self.block[1])


@dataclass(frozen=True, eq=False)
class Joined(Pattern):
    """The pairs of both patterns (op is np.bitwise_and), or of at least one of them (np.bitwise_or)."""

    a: Pattern
    b: Pattern
    op: np.ufunc

    @property
    def exact(self) -> tuple[bool, bool]:
        outer, inner = (a and b for a, b in zip(self.a.exact, self.b.exact, strict=True))
        return (False, inner) if self.op is np.bitwise_and else (outer, False)

    @property
    def steps(self) -> tuple[int, int]:
        (a, b), (c, d) = self.a.steps, self.b.steps
        return max(a, c), max(b, d)

    def outer(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        return self._join(self.a.outer(first, stop), self.b.outer(first, stop))

    def inner(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        return self._join(self.a.inner(first, stop), self.b.inner(first, stop))

    def _join(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return spans.intersection(a, b) if self.op is np.bitwise_and else spans.union(a, b)

    def attends(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        return self.op(self.a.attends(q, k), self.b.attends(q, k))

    def words(self, rows: np.ndarray, count: int, group: int, keys: np.ndarray) -> np.ndarray:
        return self.op(self.a.words(rows, count, group, keys), self.b.words(rows, count, group, keys))


@dataclass(frozen=True, eq=False)
class Inverted(Pattern):
    """The pairs that the pattern `of` does not have."""

    of: Pattern

    @property
    def steps(self) -> tuple[int, int]:
        return self.of.steps

    @property
    def exact(self) -> tuple[bool, bool]:
        outer, inner = self.of.exact
        return inner, outer

    def outer(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        return spans.difference(spans.all_keys(len(first), self.n_k), self.of.inner(first, stop))

    def inner(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        return spans.difference(spans.all_keys(len(first), self.n_k), self.of.outer(first, stop))

    def attends(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        return ~self.of.attends(q, k)

    def words(self, rows: np.ndarray, count: int, group: int, keys: np.ndarray) -> np.ndarray:
        return ~self.of.words(rows, count, group, keys)
