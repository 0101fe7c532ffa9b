"""The rule of a mask restricted to some queries and keys, such as those of one process among several."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from redblue.masks.numbers import Numbers
from redblue.masks.patterns import spans
from redblue.masks.patterns.pattern import Pattern
from redblue.masks.patterns.selected import Selection
from redblue.masks.rules.arrays import Csr
from redblue.masks.rules.bands import Window
from redblue.masks.rules.rule import Rule, Sizes, check_sizes
from redblue.masks.rules.stack import Stack, planes

ROWS = 1 << 16  # rows whose runs of keys are computed at once


@dataclass(frozen=True)
class Selected(Rule):
    """Query i attends key j where query queries[i] attends key keys[j] by the rule `of` on n_q and n_k.

    queries, keys: ascending positions below n_q and n_k.
    """

    of: Rule
    queries: Numbers
    keys: Numbers
    n_q: int
    n_k: int

    @property
    def sizes(self) -> Sizes:
        return len(self.queries), len(self.keys)

    def pattern(self, n_q: int, n_k: int) -> Pattern:
        check_sizes("a part of a mask", self.sizes, n_q, n_k, "the part is for these queries and keys only")
        return Selection(n_q, n_k, self.of.pattern(self.n_q, self.n_k), self.queries.array, self.keys.array)


def selected(rule: Rule, queries: np.ndarray, keys: np.ndarray, n_q: int, n_k: int) -> Rule | None:
    """Restrict a rule to these queries and keys, ascending positions below n_q and n_k. None: no pair attends.

    If every pair of the part attends, the result is the full rule, for which kernels test no pair.
    """
    if isinstance(rule, Stack):
        rules = [selected(plane, queries, keys, n_q, n_k) for plane in rule.rules]
        if all(plane is None for plane in rules):
            return None
        nothing = Csr.of(np.zeros(len(queries) + 1, np.int64), np.zeros(0, np.int64), len(keys))
        by_plane = planes(rule)[1]
        kept = [nothing if rules[i] is None else rules[i] for i in by_plane.ravel()]
        return Stack.of([plane for plane in kept if plane is not None], rule.shape)
    if not len(queries) or not len(keys):
        return None
    if rule.is_full:
        return Window()
    pattern = Selection(len(queries), len(keys), rule.pattern(n_q, n_k), queries, keys)
    panels = spans.arange(-(-len(queries) // 64)) * 64
    stops = np.minimum(panels + 64, len(queries))
    if not len(pattern.outer(panels, stops)):
        return None
    if np.array_equal(pattern.inner(panels, stops), spans.all_keys(len(panels), len(keys))):
        return Window()
    return _shifted(rule, queries, keys, n_q, n_k) or Selected(rule, Numbers(queries), Numbers(keys), n_q, n_k)


def _shifted(rule: Rule, queries: np.ndarray, keys: np.ndarray, n_q: int, n_k: int) -> Window | None:
    """The part as a window, which kernels run faster, if queries and keys are consecutive; otherwise None."""
    if not isinstance(rule, Window) or queries[-1] - queries[0] >= len(queries) or keys[-1] - keys[0] >= len(keys):
        return None
    shift = int(queries[0] - keys[0]) + (n_k - n_q if rule.align == "bottom-right" else 0)
    left = None if rule.left is None else rule.left - shift
    right = None if rule.right is None else rule.right + shift
    if (left is not None and left < 0) or (right is not None and right < 0):
        return None
    return Window(left, right)


def attended_keys(rule: Rule, queries: np.ndarray, n_q: int, n_k: int) -> np.ndarray:
    """The keys that some of `queries` attend, ascending.

    The result is a superset of them for a mask whose outer sets of single rows are not exact, such as the complement of
    an n:m pattern.
    """
    if not len(queries):
        return np.zeros(0, np.int64)
    first = queries[np.flatnonzero(np.diff(queries, prepend=-2) > 1)]
    stop = queries[np.flatnonzero(np.diff(queries, append=queries[-1] + 2) > 1)] + 1
    live = np.zeros(n_k + 1, np.int64)
    for plane in planes(rule)[0]:
        pattern = plane.pattern(n_q, n_k)
        # The outer set of several rows may be too large, such as that of an intersection, so single rows are used.
        ranges = [(first, stop)] if pattern.exact[0] else [(rows, rows + 1) for rows in _chunks(queries)]
        for each in ranges:
            edges = pattern.outer(*each) % (n_k + 1)
            live += np.bincount(edges[::2], minlength=n_k + 1) - np.bincount(edges[1::2], minlength=n_k + 1)
    return np.flatnonzero(np.cumsum(live[:-1]) > 0)


def _chunks(rows: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the rows in parts of ROWS, so that the runs of keys of all rows are never in memory at once."""
    return (rows[i : i + ROWS] for i in range(0, len(rows), ROWS))


def attending_queries(rule: Rule, queries: np.ndarray, keys: np.ndarray, n_q: int, n_k: int) -> np.ndarray:
    """The subset of `queries` that attend some of `keys`, ascending; a superset of it where a pattern is not exact."""
    if not len(queries) or not len(keys):
        return np.zeros(0, np.int64)
    live = np.zeros(len(queries), bool)
    each_query = spans.arange(len(queries))
    for plane in planes(rule)[0]:
        pattern = Selection(len(queries), len(keys), plane.pattern(n_q, n_k), queries, keys)
        live[pattern.outer(each_query, each_query + 1)[::2] // (len(keys) + 1)] = True
    return queries[live]
