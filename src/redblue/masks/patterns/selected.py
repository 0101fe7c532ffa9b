"""The pattern of some queries and some keys of another pattern."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from redblue.masks.patterns import spans
from redblue.masks.patterns.pattern import Pattern


@dataclass(frozen=True, eq=False)
class Selection(Pattern):
    """Query i attends key j where query queries[i] attends key keys[j] in the pattern `of`; both arrays ascend."""

    of: Pattern
    queries: np.ndarray
    keys: np.ndarray

    @property
    def exact(self) -> tuple[bool, bool]:
        consecutive = not len(self.queries) or self.queries[-1] - self.queries[0] + 1 == len(self.queries)
        return self.of.exact if consecutive else (False, False)

    def outer(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        return self._among_keys(self.of.outer(*self._hull(first, stop)))

    def inner(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        return self._among_keys(self.of.inner(*self._hull(first, stop)))

    def attends(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        return self.of.attends(self.queries[q], self.keys[k])

    def _hull(self, first: np.ndarray, stop: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the smallest ranges of the queries of `of` that contain these ranges."""
        return self.queries[first], self.queries[stop - 1] + 1

    def _among_keys(self, edges: np.ndarray) -> np.ndarray:
        """Convert the edges of a set of keys of `of` to edges among the selected keys."""
        ranges, keys = np.divmod(edges, self.of.n_k + 1)
        keys = np.searchsorted(self.keys, keys)
        return spans.from_runs(ranges[::2], keys[::2], keys[1::2], self.n_k)
