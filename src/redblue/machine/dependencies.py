"""Dependencies of computed values, word by word: the tile words that each word is computed from.

The tracing machine stores an int64 per word of a tile: the number of a graph node, or, below NONE, the code of a
constant (constant i of the machine's table has the code NONE - 1 - i). A word computed from constants only is a
constant, too. So is a word that one constant operand decides, such as 0 times any word or -inf minus any word. Hence
pairs that a mask excludes need no nodes.

A sum (or maximum) becomes a chain of nodes, one node per term. A chain may start from a node that already exists: then
it adds the terms to this node's value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

NONE = -1  # no node, or no sum

# Constant operands that decide the result: (left operand, right operand, result). None: there is no such operand.
ABSORBING = {
    np.multiply: (0.0, 0.0, 0.0),
    np.divide: (0.0, None, 0.0),
    np.subtract: (-np.inf, None, -np.inf),
    np.add: (-np.inf, -np.inf, -np.inf),
}
# Constant operands that leave the other operand unchanged: (left operand, right operand).
NEUTRAL = {
    np.add: (0.0, 0.0),
    np.subtract: (None, 0.0),
    np.multiply: (1.0, 1.0),
    np.divide: (None, 1.0),
    np.maximum: (-np.inf, -np.inf),
    np.minimum: (np.inf, np.inf),
}


@dataclass(frozen=True)
class Reduction:
    """Sums (or maxima) over the last axis of `terms`, (rows, length): one result per row."""

    ufunc: np.ufunc
    terms: Computed


@dataclass(frozen=True)
class Sums:
    """Return, for each word of a value, the result of one reduction that the word depends on.

    row: the row of the reduction that gives this result; NONE if the word depends on no result. start: the node that
    the chain of this sum starts from, or NONE.
    """

    reduction: Reduction
    row: np.ndarray
    start: np.ndarray


@dataclass(frozen=True)
class Computed:
    """A value that no tile holds yet. Every array has the shape of the value.

    constants: the value of each word that is a constant; NaN for other words.
    nodes: the nodes that a word is computed from, one array for each operand; NONE where there is no node.
    sums: the results of reductions that a word is computed from.
    is_copy: whether the word is a copy of its only node or sum, without any further operation.
    """

    constants: np.ndarray
    nodes: tuple[np.ndarray, ...]
    sums: tuple[Sums, ...]
    is_copy: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.constants.shape

    @property
    def T(self) -> Computed:
        return self.map(lambda array: array.T)

    def __getitem__(self, key: Any) -> Computed:
        return self.map(lambda array: array[key])

    def map(self, view: Callable[[np.ndarray], np.ndarray]) -> Computed:
        """Apply the same view to every array."""
        sums = tuple(Sums(s.reduction, view(s.row), view(s.start)) for s in self.sums)
        return Computed(view(self.constants), tuple(map(view, self.nodes)), sums, view(self.is_copy))

    def broadcast(self, shape: tuple[int, ...]) -> Computed:
        return self if shape == self.shape else self.map(lambda array: np.broadcast_to(array, shape))

    def restrict(self, where: np.ndarray, constants: np.ndarray, is_copy: np.ndarray) -> Computed:
        """Drop the dependencies of all words outside `where`, and replace `constants` and `is_copy`."""
        nodes = tuple(np.where(where, array, NONE) for array in self.nodes)
        sums = tuple(Sums(s.reduction, *(np.where(where, x, NONE) for x in (s.row, s.start))) for s in self.sums)
        return Computed(constants, nodes, sums, is_copy)


def of_words(words: np.ndarray, constants: Sequence[float]) -> Computed:
    """Describe words of a tile as copies of themselves. constants: the machine's table of constants."""
    table = np.array([*constants, np.nan])  # the NaN at the end stands for every node
    values = table[np.where(words < NONE, NONE - 1 - words, len(constants))]
    return Computed(values, (np.maximum(words, NONE),), (), np.ones(words.shape, bool))


def of_number(number: float) -> Computed:
    """Describe a plain number."""
    return Computed(np.array(float(number)), (), (), np.array(False))


def elementwise(ufunc: np.ufunc, inputs: Sequence[Computed]) -> Computed:
    """Describe an elementwise function of one or two inputs, broadcast against each other."""
    shape = np.broadcast_shapes(*(x.shape for x in inputs))
    inputs = [x.broadcast(shape) for x in inputs]
    constants = [x.constants for x in inputs]
    with np.errstate(all="ignore"):
        result = ufunc(*constants)
    is_copy = np.zeros(shape, bool)
    if len(inputs) == 2:
        left, right, absorbed = ABSORBING.get(ufunc, (None, None, None))
        result = np.where(_equals(constants[0], left) | _equals(constants[1], right), absorbed, result).astype(float)
        left, right = NEUTRAL.get(ufunc, (None, None))
        is_copy = (_equals(constants[0], left) & inputs[1].is_copy) | (_equals(constants[1], right) & inputs[0].is_copy)
        chain = _extended_chain(ufunc, inputs, result)
        if chain is not None:
            return chain
    computed = Computed(result, sum((x.nodes for x in inputs), ()), sum((x.sums for x in inputs), ()), is_copy)
    return computed.restrict(np.isnan(result), result, is_copy)


def _equals(constants: np.ndarray, operand: float | None) -> np.ndarray:
    return np.zeros(constants.shape, bool) if operand is None else constants == operand


def _extended_chain(ufunc: np.ufunc, inputs: Sequence[Computed], result: np.ndarray) -> Computed | None:
    """Describe x + sum (or the maximum of x and a maximum) as one chain that starts from x.

    Returns None unless the inputs are tile words x and an unmodified sum (or maximum) that has no start yet.
    """
    x, total = inputs
    if x.sums or len(x.nodes) != 1 or total.nodes or len(total.sums) != 1:
        return None
    (sums,) = total.sums
    if sums.reduction.ufunc is not ufunc:
        return None
    if not (x.is_copy.all() and total.is_copy.all() and (sums.start == NONE).all()):
        return None
    (start,) = x.nodes
    has_sum = sums.row != NONE
    # A sum that is a constant adds no dependency: the word then depends on x only.
    nodes = np.where(has_sum, NONE, start)
    return Computed(result, (nodes,), (Sums(sums.reduction, sums.row, np.where(has_sum, start, NONE)),), x.is_copy)


def reduce(ufunc: np.ufunc, data: Computed, axis: int) -> Computed:
    """Describe a sum or a maximum along one axis."""
    last = data.map(lambda array: np.moveaxis(array, axis, -1))
    constants = ufunc.reduce(last.constants, axis=-1)
    rows = np.arange(constants.size).reshape(constants.shape)
    is_constant = ~np.isnan(constants)
    no_start = np.full(constants.shape, NONE)
    terms = last.map(lambda array: array.reshape(-1, array.shape[-1]))
    sums = Sums(Reduction(ufunc, terms), np.where(is_constant, NONE, rows), no_start)
    return Computed(constants, (), (sums,), np.ones(constants.shape, bool))


def select(attends: np.ndarray, data: Computed, otherwise: float) -> Computed:
    """Describe the data where `attends`, and the constant `otherwise` elsewhere."""
    return data.restrict(attends, np.where(attends, data.constants, otherwise), data.is_copy)
