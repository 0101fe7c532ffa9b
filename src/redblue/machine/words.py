"""Computed values word by word: which words of tiles each depends on, and which are plain numbers.

A word of a tile is a number of int64: the node of a graph, or, below 0, a constant in a table. What is computed from
constants alone is one itself, and so is what a constant decides (0 times anything, -inf minus anything): the pairs
that a mask leaves out need no nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

NONE = -1  # where a node's number would stand

# A constant operand, left or right, that decides the result: (left, right, result); None: none does
DECIDES = {
    np.multiply: (0.0, 0.0, 0.0),
    np.divide: (0.0, None, 0.0),
    np.subtract: (-np.inf, None, -np.inf),
    np.add: (-np.inf, -np.inf, -np.inf),
}
# A constant operand that leaves the other one as it is: (left, right)
LEAVES = {
    np.add: (0.0, 0.0),
    np.subtract: (None, 0.0),
    np.multiply: (1.0, 1.0),
    np.divide: (None, 1.0),
    np.maximum: (-np.inf, -np.inf),
    np.minimum: (np.inf, np.inf),
}


@dataclass(frozen=True)
class Terms:
    """Sums (or maxima) over the last axis of `of`, one per row."""

    ufunc: np.ufunc
    of: Computed


@dataclass(frozen=True)
class Summed:
    """Which sum a word depends on: a row of terms, or NONE. start: the node that the sum starts from, or NONE."""

    terms: Terms
    index: np.ndarray
    start: np.ndarray


@dataclass(frozen=True)
class Computed:
    """A value that no tile holds yet; every array has the value's shape.

    numbers: the constant, or NaN where there is none. nodes: arrays of nodes, or NONE, that a word is computed from.
    sums: what is summed up for it first. pure: whether it is one of these itself, with nothing done to it.
    """

    numbers: np.ndarray
    nodes: tuple[np.ndarray, ...]
    sums: tuple[Summed, ...]
    pure: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.numbers.shape

    @property
    def T(self) -> Computed:
        return self.each(lambda array: array.T)

    def __getitem__(self, key: Any) -> Computed:
        return self.each(lambda array: array[key])

    def each(self, view: Callable[[np.ndarray], np.ndarray]) -> Computed:
        """The same view of every array."""
        sums = tuple(Summed(s.terms, view(s.index), view(s.start)) for s in self.sums)
        return Computed(view(self.numbers), tuple(map(view, self.nodes)), sums, view(self.pure))

    def broadcast(self, shape: tuple[int, ...]) -> Computed:
        return self if shape == self.shape else self.each(lambda array: np.broadcast_to(array, shape))

    def only(self, where: np.ndarray, numbers: np.ndarray, pure: np.ndarray) -> Computed:
        """With other numbers, and computed from something only `where` it is said."""
        nodes = tuple(np.where(where, array, NONE) for array in self.nodes)
        sums = tuple(Summed(s.terms, *(np.where(where, x, NONE) for x in (s.index, s.start))) for s in self.sums)
        return Computed(numbers, nodes, sums, pure)


def of_words(words: np.ndarray, constants: Sequence[float]) -> Computed:
    """A tile's words, themselves."""
    table = np.array([*constants, np.nan])  # NONE - word: constants[0] is NONE - 1, and a node is the NaN at the end
    numbers = table[np.where(words < NONE, NONE - 1 - words, len(constants))]
    return Computed(numbers, (np.maximum(words, NONE),), (), np.ones(words.shape, bool))


def of_number(number: float) -> Computed:
    return Computed(np.array(float(number)), (), (), np.array(False))


def elementwise(ufunc: np.ufunc, inputs: Sequence[Computed]) -> Computed:
    shape = np.broadcast_shapes(*(x.shape for x in inputs))
    inputs = [x.broadcast(shape) for x in inputs]
    numbers = [x.numbers for x in inputs]
    with np.errstate(all="ignore"):
        result = ufunc(*numbers)
    pure = np.zeros(shape, bool)
    if len(inputs) == 2:
        left, right, decided = DECIDES.get(ufunc, (None, None, None))
        result = np.where(_equals(numbers[0], left) | _equals(numbers[1], right), decided, result).astype(float)
        left, right = LEAVES.get(ufunc, (None, None))
        pure = (_equals(numbers[0], left) & inputs[1].pure) | (_equals(numbers[1], right) & inputs[0].pure)
        summed = _onto(ufunc, inputs, result)
        if summed is not None:
            return summed
    whole = Computed(result, sum((x.nodes for x in inputs), ()), sum((x.sums for x in inputs), ()), pure)
    return whole.only(np.isnan(result), result, pure)


def _equals(numbers: np.ndarray, constant: float | None) -> np.ndarray:
    return np.zeros(numbers.shape, bool) if constant is None else numbers == constant


def _onto(ufunc: np.ufunc, inputs: Sequence[Computed], result: np.ndarray) -> Computed | None:
    """x + sum (or the maximum of x and a maximum), as a chain that starts from x; None if the inputs are no such."""
    x, total = inputs
    if x.sums or len(x.nodes) != 1 or total.nodes or len(total.sums) != 1 or total.sums[0].terms.ufunc is not ufunc:
        return None
    (summed,) = total.sums
    if not (x.pure.all() and total.pure.all() and (summed.start == NONE).all()):
        return None
    (start,) = x.nodes
    chained = summed.index != NONE
    # a constant beside x changes nothing about what the chain depends on
    nodes = np.where(chained, NONE, start)
    return Computed(result, (nodes,), (Summed(summed.terms, summed.index, np.where(chained, start, NONE)),), x.pure)


def reduce(ufunc: np.ufunc, data: Computed, axis: int) -> Computed:
    last = data.each(lambda array: np.moveaxis(array, axis, -1))
    numbers = ufunc.reduce(last.numbers, axis=-1)
    index = np.arange(numbers.size).reshape(numbers.shape)
    known = ~np.isnan(numbers)
    none = np.full(numbers.shape, NONE)
    rows = last.each(lambda array: array.reshape(-1, array.shape[-1]))
    summed = Summed(Terms(ufunc, rows), np.where(known, NONE, index), none)
    return Computed(numbers, (), (summed,), np.ones(numbers.shape, bool))


def select(attends: np.ndarray, data: Computed, otherwise: float) -> Computed:
    return data.only(attends, np.where(attends, data.numbers, otherwise), data.pure)
