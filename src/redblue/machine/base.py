"""The abstract machine: a cache of limited capacity, unlimited slow memory, and the rules for moving words.

A schedule moves words with `load` and `store`, allocates tiles with `new`, `zeros` and `full`, releases them with
`free`, and computes with ordinary array arithmetic in between. A computed value lives only until the next move. To keep
the value, the schedule must put it into a tile, whose words count. So the peak counts every word, and a run without an
error proves that its count can be achieved within its capacity.

Subclasses decide how values are represented: by their shape (`Counting`), as NumPy arrays (`Numeric`), and so on.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, Protocol

import numpy as np

from redblue.machine.errors import CapacityError, MachineError, NotKept, NotStored, TooLong
from redblue.machine.values import Region, Slow, Tile, Value

MAX_FLAGS = 2**31  # most words of an array that is stored to: one byte per word records whether it was stored


class Index(Protocol):
    """A mask's index in slow memory. Asking for the columns of some rows loads the index entries of these rows.

    pairs: the mask, an object whose methods cols_of, holds and dense tell which pairs (row, column) attend.
    """

    def read(self, machine: Machine, pairs: Any, rows: range) -> tuple[range, ...]:
        """Load the entries of the rows, and return the columns that some of the rows attend."""
        ...

    def last_read(self, pairs: Any) -> Any:
        """Return the entries read last, which have the methods `holds` and `dense` of a mask."""
        ...


class Machine(ABC):
    """A cache of `capacity` words (None: no limit), and counts of the words moved.

    reads, writes: words loaded and stored. held, peak: words in the cache, now and at most.
    flops: 2 per multiply-add of the matrix products. max_moves: a run that makes more moves stops with TooLong.
    Methods with an argument `pairs` take a mask, as those of Index do.
    """

    def __init__(self, capacity: int | None = None, max_moves: float = math.inf) -> None:
        self.capacity, self.max_moves = capacity, max_moves
        self.reads = self.writes = self.held = self.peak = self.flops = 0
        self.clock = 0  # moves so far; a computed value is valid until the next move
        self._outputs: list[Slow] = []
        self.index: Index | None = None  # the index of a stored mask; None if a rule gives the mask

    # Abstract: the representation of values ---------------------------------------------------
    @abstractmethod
    def allocate(self, shape: tuple[int, ...]) -> Any:
        """Return storage for a new tile."""

    @abstractmethod
    def read_region(self, region: Region) -> Any:
        """Copy the words of a region of slow memory."""

    @abstractmethod
    def write_region(self, region: Region, data: Any) -> None:
        """Write words into a region of slow memory."""

    @abstractmethod
    def elementwise(self, ufunc: np.ufunc, inputs: list[Any]) -> Any:
        """Apply a function word by word to inputs that are broadcast against each other."""

    @abstractmethod
    def reduce(self, ufunc: np.ufunc, data: Any, axis: int) -> Any:
        """Compute a sum or a maximum along one axis."""

    @abstractmethod
    def product(self, a: Any, b: Any) -> Any:
        """Compute the matrix product a @ b, and count its flops."""

    @abstractmethod
    def assign(self, data: Any, key: Any, value: Any) -> None:
        """Assign data[key] = value in the storage of a tile."""

    @abstractmethod
    def select(self, pairs: Any, rows: range, cols: range, data: Any, otherwise: float) -> Any:
        """Return data where the pairs (rows x cols) attend, `otherwise` elsewhere."""

    # Slow memory ------------------------------------------------------------------------------
    def input(self, name: str, shape: tuple[int, ...], data: np.ndarray | None = None) -> Slow:
        """Declare an array that is in slow memory from the start. Raises MachineError after the first move."""
        if self.clock:
            raise MachineError(f"input {name!r} appeared after the first move: declare all inputs before it")
        return Slow(self, name, shape, None, self.slow_input(name, shape, data))

    def scratch(self, name: str, shape: tuple[int, ...]) -> Slow:
        """Allocate an array in slow memory for intermediate values: stored first, loaded later."""
        if math.prod(shape) > MAX_FLAGS:
            words = math.prod(shape)
            raise MachineError(
                f"{name!r} has {words:,} words, too many to run (at most {MAX_FLAGS:,}): use closed forms"
            )
        return Slow(self, name, shape, np.zeros(shape, bool), self.slow_storage(shape))

    def output(self, name: str, shape: tuple[int, ...]) -> Slow:
        """Allocate an array in slow memory that the schedule must have stored completely at the end."""
        array = self.scratch(name, shape)
        self._outputs.append(array)
        return array

    def slow_input(self, name: str, shape: tuple[int, ...], data: np.ndarray | None) -> np.ndarray | None:
        """Return the words of an input; None on machines without words."""
        return None

    def slow_storage(self, shape: tuple[int, ...]) -> np.ndarray | None:
        """Return storage for an array that the schedule writes; None on machines without words."""
        return None

    def finish(self) -> None:
        """End the run: check that every word of every output was stored."""
        for array in self._outputs:
            assert array.written is not None
            missing = array.written.size - int(np.count_nonzero(array.written))
            if missing:
                raise NotStored(f"output {array.name!r}: {missing} of its {array.written.size} words were never stored")

    # Moves ------------------------------------------------------------------------------------
    def tick(self) -> None:
        """Count a move, which ends the life of all computed values."""
        self.clock += 1
        if self.clock > self.max_moves:
            raise TooLong(f"the run makes more than {self.max_moves:,} moves; larger tiles take fewer")

    def load(self, region: Region) -> Tile:
        """Copy a region of slow memory into a new tile."""
        self._check_owner(region)
        if region.array.written is not None and not region.array.written[region.slices].all():
            raise NotStored(f"{region} was loaded before all of its words were stored")
        self._occupy(region, region.shape)
        tile = Tile(self, region, self.read_region(region))
        self.reads += tile.words
        return tile

    def store(self, region: Region, value: Value) -> None:
        """Copy a tile (or part of one) to slow memory; the tile stays in the cache."""
        self._check_owner(region, value)
        if region.array.written is None:
            raise MachineError(f"{region} is an input: it cannot be stored to")
        if value.owner is None:
            raise NotKept(f"only words held in a tile can be stored: put the value for {region} into a tile first")
        data = value.read()
        if value.shape != region.shape:
            raise MachineError(f"cannot store shape {value.shape} to {region} of shape {region.shape}")
        self.write_region(region, data)
        region.array.written[region.slices] = True
        self.writes += math.prod(region.shape)
        self.tick()

    def new(self, name: str, value: Value) -> Tile:
        """Allocate a tile, and write a computed value into it."""
        self._check_owner(value)
        data = value.read()
        self._occupy(name, value.shape)
        tile = Tile(self, name, self.allocate(value.shape))
        self.assign(tile.data, ..., data)
        return tile

    def full(self, name: str, shape: tuple[int, ...], number: float) -> Tile:
        """Allocate a tile, and fill it with one number."""
        self._occupy(name, shape)
        tile = Tile(self, name, self.allocate(shape))
        self.assign(tile.data, ..., number)
        return tile

    def zeros(self, name: str, *shape: int) -> Tile:
        """Allocate a tile of zeros."""
        return self.full(name, shape, 0.0)

    def free(self, *tiles: Tile) -> None:
        """Release the words of tiles. This costs nothing."""
        self._check_owner(*tiles)
        for tile in tiles:
            tile.read()
            tile.held = False
            self.held -= tile.words
        self.tick()

    def cols_of(self, pairs: Any, rows: range) -> tuple[range, ...]:
        """Return the columns that at least one of the rows attends. A schedule asks this when it starts on the rows.

        A stored mask loads the index entries of the rows. A mask given by a rule loads nothing.
        """
        return pairs.cols_of(rows) if self.index is None else self.index.read(self, pairs, rows)

    def holds(self, pairs: Any, rows: range, cols: range) -> bool:
        """Whether every pair of the tile attends, so that it needs no masking. Call `cols_of` for the rows first."""
        return (pairs if self.index is None else self.index.last_read(pairs)).holds(rows, cols)

    def where(self, pairs: Any, rows: range, cols: range, value: Value, otherwise: float) -> Value:
        """Return `value` where the pairs (rows x cols) attend, `otherwise` elsewhere. Call `cols_of` first."""
        self._check_owner(value)
        pairs = pairs if self.index is None else self.index.last_read(pairs)
        return Value(self, self.select(pairs, rows, cols, value.read(), otherwise), summed=value.summed)

    def address(self, tile: Tile, known: int) -> int:
        """Return the whole number in a tile of one word, for a schedule that loads addresses.

        known: the number that the schedule expects. Machines without numbers return it.
        """
        self._check_owner(tile)
        return self.number_in(tile.read(), known)

    def number_in(self, data: Any, known: int) -> int:
        """Return the number that the storage of a tile holds; `known` on machines without numbers."""
        return known

    def _check_owner(self, *values: Value) -> None:
        """Raise MachineError for a value of another machine."""
        for value in values:
            if value.machine is not self:
                raise MachineError("a tile or a region of another machine was used")

    def _occupy(self, label: object, shape: tuple[int, ...]) -> None:
        """Count the words of a new tile as held. label: names the tile in errors. Raises CapacityError."""
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
