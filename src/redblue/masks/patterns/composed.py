"""Patterns made of patterns: a pattern of blocks, the complement, and any combination by & and |."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from redblue.base.integers import ceil_div
from redblue.masks.patterns import spans
from redblue.masks.patterns.pattern import Pattern

T = TypeVar("T")


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


@dataclass(frozen=True, eq=False)
class Joined(Pattern):
    """Patterns combined by & and |, as a program for a stack, because recursion cannot reach deep combinations.

    program: each step is a pattern, which is pushed, or np.bitwise_and or np.bitwise_or, which replaces the last two
    entries by their combination.
    """

    program: tuple[Pattern | np.ufunc, ...]

    def _run(self, value_of: Callable[[Pattern], T], join: Callable[[np.ufunc, T, T], T]) -> T:
        """Run the program on value_of(pattern). join(op, a, b) combines two values."""
        stack: list[T] = []
        for step in self.program:
            if isinstance(step, Pattern):
                stack.append(value_of(step))
            else:
                last = stack.pop()
                stack[-1] = join(step, stack[-1], last)
        return stack.pop()

    @functools.cached_property
    def _exact(self) -> tuple[bool, bool]:
        return self._run(lambda pattern: pattern.exact, _exact_of_two)

    @property
    def exact(self) -> tuple[bool, bool]:
        return self._exact

    @functools.cached_property
    def _steps(self) -> tuple[int, int]:
        rows, cols = zip(*(step.steps for step in self.program if isinstance(step, Pattern)), strict=True)
        return max(rows), max(cols)

    @property
    def steps(self) -> tuple[int, int]:
        return self._steps

    def outer(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        return self._run(lambda pattern: pattern.outer(first, stop), _join_spans)

    def inner(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        return self._run(lambda pattern: pattern.inner(first, stop), _join_spans)

    def attends(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        return self._run(lambda pattern: pattern.attends(q, k), _apply)

    def words(self, rows: np.ndarray, count: int, group: int, keys: np.ndarray) -> np.ndarray:
        return self._run(lambda pattern: pattern.words(rows, count, group, keys), _apply)


def _exact_of_two(op: np.ufunc, a: tuple[bool, bool], b: tuple[bool, bool]) -> tuple[bool, bool]:
    """Whether the outer and the inner set of a combination are known to be exact.

    An intersection of outer sets, or a union of inner sets, need not be exact even if its parts are.
    """
    outer, inner = (x and y for x, y in zip(a, b, strict=True))
    return (False, inner) if op is np.bitwise_and else (outer, False)


def _join_spans(op: np.ufunc, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return spans.intersection(a, b) if op is np.bitwise_and else spans.union(a, b)


def _apply(op: np.ufunc, a: Any, b: Any) -> Any:
    return op(a, b)
