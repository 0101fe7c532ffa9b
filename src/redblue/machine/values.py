"""The objects of a schedule: arrays in slow memory, tiles in the cache, and values that live until the next move."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, Protocol, TypeVar

import numpy as np

from redblue.machine.errors import MachineError, NotKept, NotLoaded, UseAfterFree


class Arithmetic(Protocol):
    """The methods of a machine (machine/base.py) that values call."""

    clock: int

    def elementwise(self, ufunc: np.ufunc, inputs: list[Any]) -> Any: ...
    def reduce(self, ufunc: np.ufunc, data: Any, axis: int) -> Any: ...
    def product(self, a: Any, b: Any) -> Any: ...
    def assign(self, data: Any, key: Any, value: Any) -> None: ...
    def tick(self) -> None: ...


AnyValue = TypeVar("AnyValue", bound="Value")


class Slow:
    """An array in slow memory. Indexing with ranges gives a region to load or store; `.T` is the transposed array."""

    def __init__(
        self,
        machine: Arithmetic,
        name: str,
        shape: tuple[int, ...],
        written: np.ndarray | None,
        data: np.ndarray | None,
    ) -> None:
        self.machine, self.name, self.shape = machine, name, shape
        self.written = written  # per word: whether it was stored; None for inputs
        self.data = data  # the machine's representation of the words; None if the machine keeps no words

    @property
    def T(self) -> Slow:
        flip = (None if x is None else x.T for x in (self.written, self.data))
        return Slow(self.machine, f"{self.name}.T", self.shape[::-1], *flip)

    def part(self, rows: range, cols: range) -> Slow:
        """Return a rectangle of the array as an array of its own, on the same words."""
        place = slice(rows.start, rows.stop), slice(cols.start, cols.stop)
        words = (None if x is None else x[place] for x in (self.written, self.data))
        return Slow(self.machine, f"{self.name}[{rows.start}:, {cols.start}:]", (len(rows), len(cols)), *words)

    def __getitem__(self, ranges: range | tuple[range, ...]) -> Region:
        return Region(self, ranges if isinstance(ranges, tuple) else (ranges,))


class Value:
    """A computed value, which takes no words of the cache and lives until the next move.

    A word of a value is recomputed each time it is used, so the value needs no storage. An operation that uses a word
    many times must therefore not take a value that is expensive to recompute: matrix products take only words of tiles,
    and sums take only values computed word by word from tiles.

    data: the machine's representation, such as a shape or an array. owner: the tile, if the value is a view of one.
    summed: whether a sum, a maximum or a product over many words is part of the value.
    """

    __slots__ = ("_owner", "clock", "data", "machine", "summed")

    def __init__(self, machine: Arithmetic, data: Any, owner: Tile | None = None, summed: bool = False) -> None:
        self.machine, self.data = machine, data
        self._owner = owner
        self.summed = summed
        self.clock = machine.clock

    @property
    def owner(self) -> Tile | None:
        """The tile of which this value is the whole or a view; None for a computed value."""
        return self._owner

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    def read(self) -> Any:
        """Return the data. Raises UseAfterFree after the tile was freed, and NotKept after the next move."""
        owner = self.owner
        if owner is not None:
            if not owner.held:
                raise UseAfterFree(f"tile {owner.name!r} was used after it was freed")
        elif self.clock != self.machine.clock:
            raise NotKept(
                f"a computed value of shape {self.shape} was used after the next move: put it into a tile with new()"
            )
        return self.data

    __array_ufunc__ = None  # refuse NumPy's functions: they would create words that are not counted

    def _elementwise(self, ufunc: np.ufunc, *inputs: Any) -> Value:
        machine, operands, summed = self.machine, [], False
        for x in inputs:
            if type(x) is float:
                operands.append(x)
            elif isinstance(x, Value):
                if x.machine is not machine:
                    raise MachineError("a value of another machine was used")
                operands.append(x.read())
                summed = summed or x.summed
            else:
                operands.append(checked_number(x))
        return Value(machine, machine.elementwise(ufunc, operands), None, summed)

    def _update(self: AnyValue, ufunc: np.ufunc, other: Any) -> AnyValue:
        self.put(..., self._elementwise(ufunc, self, other).data)
        return self

    def _reduce(self, ufunc: np.ufunc, axis: int) -> Value:
        if self.summed:
            raise NotKept(f"a sum of sums reads words many times: put the value of shape {self.shape} in a tile first")
        return Value(self.machine, self.machine.reduce(ufunc, self.read(), axis), summed=True)

    def __matmul__(self, other: Value) -> Value:
        for x in (self, other):
            if not isinstance(x, Value) or x.machine is not self.machine:
                raise MachineError("matrix products take tiles of one machine")
            if x.owner is None:
                x.read()
                raise NotKept(f"a product reads words many times: put the value of shape {x.shape} into a tile first")
        return Value(self.machine, self.machine.product(self.read(), other.read()), summed=True)

    def __add__(self, other: Any) -> Value:
        return self._elementwise(np.add, self, other)

    def __sub__(self, other: Any) -> Value:
        return self._elementwise(np.subtract, self, other)

    def __mul__(self, other: Any) -> Value:
        return self._elementwise(np.multiply, self, other)

    def __truediv__(self, other: Any) -> Value:
        return self._elementwise(np.divide, self, other)

    def __radd__(self, other: Any) -> Value:
        return self._elementwise(np.add, other, self)

    def __rmul__(self, other: Any) -> Value:
        return self._elementwise(np.multiply, other, self)

    def __iadd__(self: AnyValue, other: Any) -> AnyValue:
        return self._update(np.add, other)

    def __imul__(self: AnyValue, other: Any) -> AnyValue:
        return self._update(np.multiply, other)

    def __itruediv__(self: AnyValue, other: Any) -> AnyValue:
        return self._update(np.divide, other)

    def sum(self, axis: int) -> Value:
        return self._reduce(np.add, axis)

    def max(self, axis: int) -> Value:
        return self._reduce(np.maximum, axis)

    def __getitem__(self, key: Any) -> Value:
        return Value(self.machine, self.read()[checked_key(key)], self.owner, self.summed)

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, Value):
            if value.machine is not self.machine:
                raise MachineError("a value of another machine was used")
            self.put(checked_key(key), value.read())
        else:
            self.put(checked_key(key), checked_number(value))

    def put(self, key: Any, data: Any) -> None:
        """Write into words of a tile. This is a move, so it ends the life of all computed values."""
        if self.owner is None:
            raise NotKept("only words held in a tile can be written: put the value into a tile with new() first")
        self.machine.assign(self.read(), key, data)
        self.machine.tick()

    @property
    def T(self) -> Value:
        return Value(self.machine, self.read().T, self.owner, self.summed)


def checked_key(key: Any) -> Any:
    """Return an index that selects a view. Raises MachineError for an index that would make an uncounted copy."""
    if key is Ellipsis:
        return key
    for part in key if isinstance(key, tuple) else (key,):
        if not (part is None or (isinstance(part, slice) and part.step in (None, 1))):
            raise MachineError(f"tiles are indexed with slices of step 1 and None, not {part!r}")
    return key


def checked_number(x: Any) -> Any:
    """Return a plain number, which costs no word. Raises MachineError for an array: its words are not counted."""
    if not isinstance(x, Real):
        raise MachineError(
            f"arithmetic takes tiles and plain numbers, not {type(x).__name__}: its words are not counted"
        )
    return x


def exp(x: Value) -> Value:
    return x._elementwise(np.exp, x)


def log(x: Value) -> Value:
    return x._elementwise(np.log, x)


def maximum(a: Value, b: Value | float) -> Value:
    return a._elementwise(np.maximum, a, b)


def minimum(a: Value, b: Value | float) -> Value:
    return a._elementwise(np.minimum, a, b)


class Region(Value):
    """Part of an array in slow memory. It can only be loaded and stored to; arithmetic with it raises NotLoaded."""

    __slots__ = ("array", "ranges", "size")

    def __init__(self, array: Slow, ranges: tuple[range, ...]) -> None:
        super().__init__(array.machine, None)
        self.array, self.ranges = array, ranges
        if len(ranges) > len(array.shape):
            raise MachineError(f"{array.name} has {len(array.shape)} axes, {len(ranges)} ranges were given")
        for part, length in zip(ranges, array.shape, strict=False):
            if part.step != 1 or not 0 <= part.start <= part.stop <= length:
                raise MachineError(f"{self} is no part of {array.name}, whose shape is {array.shape}")
        self.size = (*map(len, ranges), *array.shape[len(ranges) :])

    @property
    def shape(self) -> tuple[int, ...]:
        return self.size

    @property
    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(r.start, r.stop) for r in self.ranges)

    def __str__(self) -> str:
        parts = (f"{r.start}:{r.stop}" + (f":{r.step}" if r.step != 1 else "") for r in self.ranges)
        return f"{self.array.name}[{', '.join(parts)}]"

    def read(self) -> Any:
        raise NotLoaded(f"{self} lies in slow memory: load it before computing with it")


class Tile(Value):
    """Words in the cache. label: the tile's name in errors, set by the schedule, or the loaded region."""

    __slots__ = ("held", "label", "words")

    def __init__(self, machine: Arithmetic, label: object, data: Any) -> None:
        super().__init__(machine, data)
        self.label, self.held = label, True
        self.words = math.prod(data.shape)

    @property
    def owner(self) -> Tile:
        return self

    @property
    def name(self) -> str:
        return str(self.label)
