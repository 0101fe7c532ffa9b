"""Rules made from a user's arrays: graphs (CSR, COO) and stacks of dense boolean arrays."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from redblue.base.errors import RedblueError
from redblue.base.integers import int64_array, whole_number
from redblue.masks.numbers import Numbers
from redblue.masks.patterns.graph import Graph
from redblue.masks.patterns.pattern import Pattern
from redblue.masks.patterns.spans import stride
from redblue.masks.rules.dense import Dense
from redblue.masks.rules.rule import Rule, Sizes, check_sizes
from redblue.masks.rules.stack import Stack


@dataclass(frozen=True)
class Csr(Rule):
    """Query i attends the keys indices[indptr[i] : indptr[i + 1]], which ascend strictly."""

    indptr: Numbers
    indices: Numbers
    n_k: int

    @classmethod
    def of(cls, indptr: Any, indices: Any, n_k: Any) -> Csr:
        """Make the rule from a user's arguments. Raises RedblueError, which names the argument and the entry."""
        ptr, keys, n_k = int64_array("indptr", indptr), int64_array("indices", indices), whole_number("n_k", n_k, 0)
        if not len(ptr) or ptr[0]:
            raise RedblueError(f"indptr[0] must be 0, got {ptr[0] if len(ptr) else 'an empty array'}")
        descents = np.flatnonzero(np.diff(ptr) < 0)
        if len(descents):
            i = descents[0] + 1
            raise RedblueError(f"indptr must not descend, but indptr[{i}] = {ptr[i]} follows {ptr[i - 1]}")
        if ptr[-1] != len(keys):
            raise RedblueError(
                f"indptr[{len(ptr) - 1}] (its last) must be the number of indices, {len(keys)}; got {ptr[-1]}"
            )
        outside = np.flatnonzero((keys < 0) | (keys >= n_k))
        if len(outside):
            i = outside[0]
            raise RedblueError(f"indices[{i}] must be a key, 0 to n_k - 1 = {n_k - 1}, got {keys[i]}")
        starts_row = np.zeros(len(keys) + 1, bool)
        starts_row[ptr] = True
        wrong = np.flatnonzero((np.diff(keys) <= 0) & ~starts_row[1:-1])
        if len(wrong):
            i = wrong[0] + 1
            row = int(np.searchsorted(ptr, i, "right")) - 1
            fault = "occurs twice" if keys[i] == keys[i - 1] else f"follows {keys[i - 1]}"
            raise RedblueError(
                f"indices must ascend in each row, each key once, but in row {row} indices[{i}] = {keys[i]} {fault}: "
                "sort them, or use Mask.from_coo"
            )
        return cls(Numbers(ptr), Numbers(keys), n_k)

    def __repr__(self) -> str:
        return f"Mask.from_csr({self.indptr!r}, {self.indices!r}, n_k={self.n_k})"

    @property
    def sizes(self) -> Sizes:
        return len(self.indptr) - 1, self.n_k

    def pattern(self, n_q: int, n_k: int) -> Pattern:
        check_sizes("the mask from CSR", self.sizes, n_q, n_k, "give another indptr or n_k")
        return self._graph

    @functools.cached_property
    def _graph(self) -> Graph:
        return Graph(len(self.indptr) - 1, self.n_k, self.indptr.array, self.indices.array)


def from_coo(rows: Any, cols: Any, shape: Any) -> Csr:
    """Make the rule of pairs in any order, each given once. Raises RedblueError, which names argument and entry."""
    try:
        n_q, n_k = shape
    except (TypeError, ValueError):
        raise RedblueError(f"shape must be two whole numbers (n_q, n_k), got {shape!r}") from None
    n_q, n_k = whole_number("shape[0]", n_q, 0), whole_number("shape[1]", n_k, 0)
    queries, keys = int64_array("rows", rows), int64_array("cols", cols)
    if len(queries) != len(keys):
        raise RedblueError(f"rows and cols must have the same length, got {len(queries)} and {len(keys)}")
    for name, array, n in (("rows", queries, n_q), ("cols", keys, n_k)):
        outside = np.flatnonzero((array < 0) | (array >= n))
        if len(outside):
            raise RedblueError(f"{name}[{outside[0]}] must be 0 to {n - 1}, got {array[outside[0]]}")
    stride(n_q, n_k)  # raises if query * n_k + key would not fit 64 bits
    pairs = queries * n_k + keys
    is_sorted = bool((pairs[1:] > pairs[:-1]).all())
    order = np.arange(len(pairs)) if is_sorted else np.argsort(pairs, kind="stable")
    queries, keys, pairs = queries[order], keys[order], pairs[order]
    repeats = np.flatnonzero(pairs[1:] == pairs[:-1])
    if len(repeats):
        first = repeats[0]
        i, j = order[first : first + 2].tolist()
        raise RedblueError(
            f"each pair must be given once, but rows[{j}], cols[{j}] = {queries[first]}, {keys[first]} repeats "
            f"entry {i}"
        )
    return Csr(Numbers(np.append(0, np.cumsum(np.bincount(queries, minlength=n_q)))), Numbers(keys), n_k)


def from_dense(dense: Any) -> Rule:
    """Make the rule of a boolean array (..., n_q, n_k), or (n_k,) for every query. Raises RedblueError."""
    try:
        array = np.asarray(dense)
    except ValueError as error:
        raise RedblueError(
            f"the dense mask must be a boolean array; its rows have different lengths ({error})"
        ) from None
    if array.dtype != np.bool_:
        raise RedblueError(
            f"the dense mask must be boolean (True: attend), got {array.dtype}: pass array != 0, perhaps"
        )
    if not array.ndim:
        raise RedblueError("the dense mask must have at least one axis, its keys; got a single number")
    array = array[None] if array.ndim == 1 else array
    while array.ndim > 2 and array.shape[0] == 1:  # an axis of length 1 broadcasts
        array = array[0]
    *lead, n_q, n_k = array.shape
    if not lead:
        return Dense.of_array(array)
    if 0 in lead:
        raise RedblueError(f"the dense mask must have at least one batch entry and head, got shape {array.shape}")
    return Stack.of([Dense.of_array(plane) for plane in array.reshape(math.prod(lead), n_q, n_k)], tuple(lead))
