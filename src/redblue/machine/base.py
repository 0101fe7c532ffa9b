"""The abstract machine: a cache of limited words, slow memory without limit, and the rules between them.

A schedule moves words with `load` and `store`, sets tiles aside with `new`, `zeros` and `full`, gives them up
with `free`, and computes with ordinary array arithmetic in between. A value that is computed lives only until
the next move: to keep it, a schedule puts it into a tile, whose words count. So the peak is no lie, and a run
that ends without an error *is* a proof that its count is achievable in its capacity.

What a machine does with the numbers is its own affair: `Counting` keeps shapes only, `Numeric` NumPy arrays.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, Protocol

import numpy as np

from redblue.machine.errors import CapacityError, MachineError, NotKept, NotStored, TooLong
from redblue.machine.values import Region, Slow, Tile, Value

MOST_FLAGS = 2**31  # bytes that a run may spend on remembering which words of slow memory were stored


class Index(Protocol):
    """The stored index of a mask: who asks for rows reads what it says of them."""

    def read(self, machine: Machine, pairs: Any, rows: range) -> tuple[range, ...]: ...
    def found(self, pairs: Any) -> Any:
        """The mask as it was read last: what answers `holds` and `dense` for the rows asked for."""
        ...


class Machine(ABC):
    """A cache of `capacity` words (None: as many as asked for), and counts of what moved.

    reads, writes: words loaded and stored. held, peak: words in the cache, now and at most.
    flops: 2 per multiply-add of the matrix products. most_moves: a run that makes more is given up with TooLong.
    """

    def __init__(self, capacity: int | None = None, most_moves: float = math.inf) -> None:
        self.capacity, self.most_moves = capacity, most_moves
        self.reads = self.writes = self.held = self.peak = self.flops = 0
        self.clock = 0  # moves so far: a computed value is valid until the next one
        self._outputs: list[Slow] = []
        self.index: Index | None = None  # of a mask that is stored, not known by rule

    # What a kind of machine decides -----------------------------------------------------------
    @abstractmethod
    def blank(self, shape: tuple[int, ...]) -> Any:
        """Storage for a new tile."""

    @abstractmethod
    def fetch(self, region: Region) -> Any:
        """A copy of the region's words."""

    @abstractmethod
    def keep(self, region: Region, data: Any) -> None:
        """Write words into the region."""

    @abstractmethod
    def elementwise(self, ufunc: np.ufunc, inputs: list[Any]) -> Any:
        """A function of single words, broadcast."""

    @abstractmethod
    def reduce(self, ufunc: np.ufunc, data: Any, axis: int) -> Any:
        """A sum or a maximum along one axis."""

    @abstractmethod
    def product(self, a: Any, b: Any) -> Any:
        """The matrix product a @ b; counts its flops."""

    @abstractmethod
    def assign(self, data: Any, key: Any, value: Any) -> None:
        """data[key] = value"""

    @abstractmethod
    def select(self, pairs: Any, rows: range, cols: range, data: Any, otherwise: float) -> Any:
        """data where pairs attend, `otherwise` elsewhere."""

    # Slow memory ------------------------------------------------------------------------------
    def input(self, name: str, shape: tuple[int, ...], data: np.ndarray | None = None) -> Slow:
        """An array that lies in slow memory from the start: none appears once the schedule has begun."""
        if self.clock:
            raise MachineError(f"input {name!r} appeared after the first move: a schedule stores what it wants to load")
        return Slow(self, name, shape, None, self.slow_input(name, shape, data))

    def scratch(self, name: str, shape: tuple[int, ...]) -> Slow:
        """Slow memory for what a schedule writes and reads back; it holds nothing yet."""
        if math.prod(shape) > MOST_FLAGS:
            words = math.prod(shape)
            raise MachineError(
                f"{name!r} has {words:,} words, too many to run (at most {MOST_FLAGS:,}): use closed forms"
            )
        return Slow(self, name, shape, np.zeros(shape, bool), self.slow_storage(shape))

    def output(self, name: str, shape: tuple[int, ...]) -> Slow:
        """An array that must be in slow memory at the end."""
        array = self.scratch(name, shape)
        self._outputs.append(array)
        return array

    def slow_input(self, name: str, shape: tuple[int, ...], data: np.ndarray | None) -> np.ndarray | None:
        """An input's words, on machines that compute."""
        return None

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
    def tick(self) -> None:
        """One move more: what was computed before is gone."""
        self.clock += 1
        if self.clock > self.most_moves:
            raise TooLong(f"the run makes more than {self.most_moves:,} moves; larger tiles take fewer")

    def load(self, region: Region) -> Tile:
        """Copy a region of slow memory into a new tile."""
        self._own(region)
        if region.array.written is not None and not region.array.written[region.slices].all():
            raise NotStored(f"{region} was loaded before all of its words were stored")
        self._take(region, region.shape)
        tile = Tile(self, region, self.fetch(region))
        self.reads += tile.words
        return tile

    def store(self, region: Region, value: Value) -> None:
        """Copy a tile (or part of one) to slow memory; the tile stays in the cache."""
        self._own(region, value)
        if region.array.written is None:
            raise MachineError(f"{region} is an input: it cannot be stored to")
        if value.owner is None:
            raise NotKept(f"only words held in a tile can be stored: put the value for {region} into a tile first")
        data = value.read()
        if value.shape != region.shape:
            raise MachineError(f"cannot store shape {value.shape} to {region} of shape {region.shape}")
        self.keep(region, data)
        region.array.written[region.slices] = True
        self.writes += math.prod(region.shape)
        self.tick()

    def new(self, name: str, value: Value) -> Tile:
        """Set words aside for a computed value."""
        self._own(value)
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
        self._own(*tiles)
        for tile in tiles:
            tile.read()
            tile.held = False
            self.held -= tile.words
        self.tick()

    def cols_of(self, pairs: Any, rows: range) -> tuple[range, ...]:
        """The columns that some of the rows attend, for a schedule that comes to these rows.

        Costs no words if the mask is known by rule; else all that its index says of the rows is read.
        """
        return pairs.cols_of(rows) if self.index is None else self.index.read(self, pairs, rows)

    def holds(self, pairs: Any, rows: range, cols: range) -> bool:
        """Whether every pair of the tile attends, so that it needs no masking: as `cols_of` found it."""
        return (pairs if self.index is None else self.index.found(pairs)).holds(rows, cols)

    def where(self, pairs: Any, rows: range, cols: range, value: Value, otherwise: float) -> Value:
        """value where (rows x cols) of the mask attend, `otherwise` elsewhere: as `cols_of` found them."""
        self._own(value)
        pairs = pairs if self.index is None else self.index.found(pairs)
        return Value(self, self.select(pairs, rows, cols, value.read(), otherwise), summed=value.summed)

    def _own(self, *values: Value) -> None:
        for value in values:
            if value.machine is not self:
                raise MachineError("a tile or a region of another machine was used")

    def _take(self, label: object, shape: tuple[int, ...]) -> None:
        words = math.prod(shape)
        if min(shape, default=0) < 0:
            raise MachineError(f"tile {str(label)!r} has a negative length: {shape}")
        if self.capacity is not None and self.held + words > self.capacity:
            raise CapacityError(
                f"tile {str(label)!r} needs {words} words, but {self.held} of the cache's {self.capacity} words are "
                f"held: {self.held + words - self.capacity} too many"
            )
        self.held += words
        self.peak = max(self.peak, self.held)
        self.tick()
