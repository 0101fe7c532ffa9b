"""The abstract machine: a cache of limited words, slow memory without limit, and the rules between them.

A schedule moves words with `load` and `store`, sets tiles aside with `new`, `zeros` and `full`, gives them up
with `free`, and computes with ordinary array arithmetic in between. A value that is computed lives only until
the next move: to keep it, a schedule puts it into a tile, whose words count. So the peak is no lie, and a run
that ends without an error *is* a proof that its count is achievable in its capacity.

What a machine does with the numbers is its own affair: `Counting` keeps shapes only, `Numeric` NumPy arrays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from redblue.errors import RedblueError


class MachineError(RedblueError):
    """A schedule broke a rule of the machine."""


class CapacityError(MachineError):
    """A tile does not fit into what is left of the cache."""


class UseAfterFree(MachineError):
    """A tile was used after its words were given up."""


class NotLoaded(MachineError):
    """Slow memory was used in arithmetic without a load."""


class NotStored(MachineError):
    """Words of an output were never stored, or words were loaded that nothing ever stored."""


class NotKept(MachineError):
    """A computed value was used after the next move without having been put into a tile."""


class Slow:
    """An array in slow memory. Index it with ranges to name a region to load or store; `.T` exchanges its axes."""

    def __init__(self, name: str, shape: tuple[int, ...], written: np.ndarray | None, data: np.ndarray | None) -> None:
        self.name, self.shape = name, shape
        self.written = written  # bool per word, for arrays that the schedule itself has to write; None for inputs
        self.data = data  # the words themselves, on machines that compute

    @property
    def T(self) -> Slow:
        flip = (None if x is None else x.T for x in (self.written, self.data))
        return Slow(f"{self.name}.T", self.shape[::-1], *flip)

    def __getitem__(self, ranges: range | tuple[range, ...]) -> Region:
        return Region(self, ranges if isinstance(ranges, tuple) else (ranges,))


class Value(NDArrayOperatorsMixin):
    """A computed value: shape, perhaps numbers, and the moment it was computed."""

    __slots__ = ("clock", "data", "machine", "owner")
    machine: Machine | None
    owner: Tile | None  # the tile this is a view of; None for a computed value

    def __init__(self, machine: Machine | None, data: Any, owner: Tile | None = None) -> None:
        self.machine, self.data, self.owner = machine, data, owner
        self.clock = machine.clock if machine else 0

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    def read(self) -> Any:
        """The numbers (or their shape), if they still exist."""
        if self.owner is not None:
            self.owner.check_held()
        elif self.machine is not None and self.clock != self.machine.clock:
            raise NotKept(
                f"a computed value of shape {self.shape} was used after the next move: put it into a tile with new()"
            )
        return self.data

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        machine, numbers = None, []
        for x in inputs:
            if isinstance(x, Value):
                machine = machine or x.machine
                numbers.append(x.read())
            else:
                numbers.append(x)
        assert machine is not None
        data = machine.compute(ufunc, method, numbers, options)
        if out is None:
            return Value(machine, data)
        out[0].put(..., data)
        return out[0]

    def __getitem__(self, key: Any) -> Value:
        return Value(self.machine, self.read()[key], self.owner)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.put(key, value.read() if isinstance(value, Value) else value)

    def put(self, key: Any, data: Any) -> None:
        """Write into words that a tile holds: a move, so that what was computed before is gone."""
        if self.owner is None or self.machine is None:
            raise NotKept("only words held in a tile can be written: put the value into a tile with new() first")
        self.owner.check_held()
        self.machine.assign(self.data, key, data)
        self.machine.clock += 1

    @property
    def T(self) -> Value:
        return Value(self.machine, self.read().T, self.owner)

    def sum(self, axis: int) -> Value:
        return np.add.reduce(self, axis=axis)  # type: ignore[call-overload]

    def max(self, axis: int) -> Value:
        return np.maximum.reduce(self, axis=axis)  # type: ignore[call-overload]


def exp(x: Value) -> Value:
    return np.exp(x)  # type: ignore[call-overload]


def log(x: Value) -> Value:
    return np.log(x)  # type: ignore[call-overload]


def maximum(a: Value, b: Value | float) -> Value:
    return np.maximum(a, b)  # type: ignore[call-overload]


def minimum(a: Value, b: Value | float) -> Value:
    return np.minimum(a, b)  # type: ignore[call-overload]


class Region(Value):
    """Part of an array in slow memory: it can be loaded from and stored to, nothing else."""

    __slots__ = ("array", "ranges")

    def __init__(self, array: Slow, ranges: tuple[range, ...]) -> None:
        self.array, self.ranges = array, ranges
        super().__init__(None, None)
        for axis, (part, length) in enumerate(zip(ranges, array.shape, strict=False)):
            if part.start < 0 or part.stop > length:
                raise MachineError(f"{self.name} reaches beyond axis {axis} of {array.name}, which has {length} words")

    @property
    def shape(self) -> tuple[int, ...]:
        return (*map(len, self.ranges), *self.array.shape[len(self.ranges) :])

    @property
    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(r.start, r.stop) for r in self.ranges)

    @property
    def name(self) -> str:
        return f"{self.array.name}[{', '.join(f'{r.start}:{r.stop}' for r in self.ranges)}]"

    def read(self) -> Any:
        raise NotLoaded(f"{self.name} lies in slow memory: load it before computing with it")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        self.read()


class Tile(Value):
    """Words set aside in the cache, under a name for error messages."""

    __slots__ = ("held", "name", "words")

    def __init__(self, machine: Machine, name: str, data: Any) -> None:
        super().__init__(machine, data, owner=self)
        self.name, self.held = name, True
        self.words = math.prod(data.shape)

    def check_held(self) -> None:
        if not self.held:
            raise UseAfterFree(f"tile {self.name!r} was used after it was freed")


class Machine:
    """A cache of `capacity` words (None: as many as asked for), and counts of what moved.

    reads, writes: words loaded and stored. held, peak: words in the cache, now and at most.
    flops: 2 per multiply-add of the matrix products.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.reads = self.writes = self.held = self.peak = self.flops = 0
        self.clock = 0  # moves so far: a computed value is valid until the next one
        self._outputs: list[Slow] = []

    # What a kind of machine decides -----------------------------------------------------------
    def blank(self, shape: tuple[int, ...]) -> Any:
        """Storage for a new tile."""
        raise NotImplementedError

    def fetch(self, region: Region) -> Any:
        """A copy of the region's words."""
        raise NotImplementedError

    def keep(self, region: Region, data: Any) -> None:
        """Write words into the region."""
        raise NotImplementedError

    def compute(self, ufunc: np.ufunc, method: str, inputs: list[Any], options: Mapping[str, Any]) -> Any:
        """One operation of ordinary array arithmetic."""
        raise NotImplementedError

    def assign(self, data: Any, key: Any, value: Any) -> None:
        """data[key] = value"""
        raise NotImplementedError

    def select(self, pairs: Any, rows: range, cols: range, data: Any, otherwise: float) -> Any:
        """data where pairs attend, `otherwise` elsewhere."""
        raise NotImplementedError

    # Slow memory ------------------------------------------------------------------------------
    def input(self, name: str, shape: tuple[int, ...], data: np.ndarray | None = None) -> Slow:
        """An array that lies in slow memory from the start."""
        return Slow(name, shape, None, data)

    def scratch(self, name: str, shape: tuple[int, ...]) -> Slow:
        """Slow memory for what a schedule writes and reads back; it holds nothing yet."""
        return Slow(name, shape, np.zeros(shape, bool), self.slow_storage(shape))

    def output(self, name: str, shape: tuple[int, ...]) -> Slow:
        """An array that must be in slow memory at the end."""
        array = self.scratch(name, shape)
        self._outputs.append(array)
        return array

    def slow_storage(self, shape: tuple[int, ...]) -> np.ndarray | None:
        """Storage for an array that the schedule writes, on machines that compute."""
        return None

    def finish(self) -> None:
        """Check that every word of every output was stored."""
        for array in self._outputs:
            assert array.written is not None
            missing = array.written.size - int(np.count_nonzero(array.written))
            if missing:
                raise NotStored(f"output {array.name!r}: {missing} of its {array.written.size} words were never stored")

    # Moves ------------------------------------------------------------------------------------
    def load(self, region: Region) -> Tile:
        """Copy a region of slow memory into a new tile."""
        if region.array.written is not None and not region.array.written[region.slices].all():
            raise NotStored(f"{region.name} was loaded before all of its words were stored")
        self._take(region.name, region.shape)
        tile = Tile(self, region.name, self.fetch(region))
        self.reads += tile.words
        return tile

    def store(self, region: Region, value: Value) -> None:
        """Copy a tile (or part of one) to slow memory; the tile stays in the cache."""
        if region.array.written is None:
            raise MachineError(f"{region.name} is an input: it cannot be stored to")
        if value.owner is None:
            raise NotKept(f"only words held in a tile can be stored: put the value for {region.name} into a tile first")
        data = value.read()
        if value.shape != region.shape:
            raise MachineError(f"cannot store shape {value.shape} to {region.name} of shape {region.shape}")
        self.keep(region, data)
        region.array.written[region.slices] = True
        self.writes += math.prod(region.shape)
        self.clock += 1

    def new(self, name: str, value: Value) -> Tile:
        """Set words aside for a computed value."""
        data = value.read()
        self._take(name, value.shape)
        tile = Tile(self, name, self.blank(value.shape))
        self.assign(tile.data, ..., data)
        return tile

    def full(self, name: str, shape: tuple[int, ...], number: float) -> Tile:
        """Set words aside, all holding one number."""
        self._take(name, shape)
        tile = Tile(self, name, self.blank(shape))
        self.assign(tile.data, ..., number)
        return tile

    def zeros(self, name: str, *shape: int) -> Tile:
        return self.full(name, shape, 0.0)

    def free(self, *tiles: Tile) -> None:
        """Give tiles' words up. Costs nothing."""
        for tile in tiles:
            tile.check_held()
            tile.held = False
            self.held -= tile.words
        self.clock += 1

    def where(self, pairs: Any, rows: range, cols: range, value: Value, otherwise: float) -> Value:
        """value where (rows x cols) of the mask attend, `otherwise` elsewhere. Masks known by rule cost no words."""
        return Value(self, self.select(pairs, rows, cols, value.read(), otherwise))

    def _take(self, name: str, shape: tuple[int, ...]) -> None:
        words = math.prod(shape)
        if self.capacity is not None and self.held + words > self.capacity:
            raise CapacityError(
                f"tile {name!r} needs {words} words, but {self.held} of the cache's {self.capacity} words are held: "
                f"{self.held + words - self.capacity} too many"
            )
        self.held += words
        self.peak = max(self.peak, self.held)
        self.clock += 1
