"""The cached machine: plays a schedule's memory accesses through simulated hardware caches.

The schedule does not control these caches; they hold the lines that were accessed recently.

Memory is one sequence of words. It begins with the scratch area, in which tiles are allocated: each tile takes the
lowest free range of lines that is long enough, and returns it when the tile is freed. The arrays in slow memory follow,
row-major, each starting at a new line; `leading` sets the number of words from one row of an array to the next.

The operations of a schedule make these accesses:

- `load` makes none. The tile is the region itself, and arithmetic reads it in place. A write to the tile first moves it
  to the scratch area, because only `store` changes slow memory. With `packed`, `load` reads the region and writes a
  dense copy to the scratch area, and arithmetic reads the copy.
- `new`, `zeros` and `full` write a tile in the scratch area.
- Arithmetic reads each operand that is a tile or a view of one, in the order of the operands (of a matrix product:
  left, then right). Computed values stay in registers. Putting a value into a tile writes the tile.
- `store` reads the tile and writes the region.
- `free` makes no access. Dirty lines of the tile are written back when they are evicted, as usual. Nothing will read
  these lines, so their write-backs are also counted as dead write-backs.

A block is accessed in the order of its addresses: once per line and row, or once per line if the rows leave no gap.
At the end of the run all dirty lines are written back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from redblue.base.integers import ceil_div, whole_number
from redblue.machine.addresses import SCRATCH_LINES, Allocation, PlacedShape, ScratchArea
from redblue.machine.counting import Counting, Shape
from redblue.machine.errors import MachineError, TooLong
from redblue.machine.hierarchy import MAX_LINES, CacheLevel, LevelTraffic, Trace, simulator, traffic
from redblue.machine.values import Region, Slow, Tile


class Cached(Counting):
    """Runs a schedule on shapes, and plays its accesses through caches.

    levels: the caches, nearest first. bytes_per_word: the size of a word, in all arrays.
    capacity: words that the schedule may hold, as on any machine (None: no limit); it does not affect the caches.
    packed: whether `load` copies the region. leading: words from row to row, by array name; default: the row length.
    fetch_on_write: see machine/hierarchy.py. records: whether accesses are recorded for `trace`.
    max_accesses: a run that makes more accesses stops with TooLong.
    `traffic` has the counts of each level; reads, writes and peak count the schedule's words, as on `Counting`.
    """

    def __init__(
        self,
        levels: Sequence[CacheLevel],
        bytes_per_word: int,
        capacity: int | None = None,
        *,
        packed: bool = False,
        leading: Mapping[str, int] | None = None,
        fetch_on_write: bool = False,
        records: bool = False,
        max_accesses: float = math.inf,
    ) -> None:
        super().__init__(capacity)
        self.levels, self.packed, self.leading = tuple(levels), packed, dict(leading or {})
        line_bytes = self.levels[0].line_bytes if self.levels else bytes_per_word
        if line_bytes % bytes_per_word:
            raise MachineError(f"a line of {line_bytes} bytes does not hold whole words of {bytes_per_word} bytes")
        self.line_words = line_bytes // bytes_per_word
        self._caches = simulator(self.levels, self.line_words, fetch_on_write, records)
        self._scratch = ScratchArea(SCRATCH_LINES)
        self._next_line = SCRATCH_LINES
        self._names: set[str] = set()
        # An estimate: a row that begins inside a line may take one access more.
        self.accesses, self.max_accesses = 0, max_accesses

    @property
    def traffic(self) -> tuple[LevelTraffic, ...]:
        """Counts of each level so far; after `finish` they include the final write-backs."""
        return traffic(self.levels, self._caches, self.line_words)

    @property
    def trace(self) -> Trace:
        """The accesses so far; empty without `records`."""
        return Trace(*self._caches.recorded())

    # Addresses --------------------------------------------------------------------------------
    def slow_input(self, name: str, shape: tuple[int, ...], data: np.ndarray | None) -> Any:
        return self._place(name, shape)

    def scratch(self, name: str, shape: tuple[int, ...]) -> Slow:
        array = super().scratch(name, shape)
        array.data = self._place(name, shape)
        return array

    def _place(self, name: str, shape: tuple[int, ...]) -> Any:
        """Give an array of slow memory its addresses."""
        if not 1 <= len(shape) <= 2:
            raise MachineError(f"{name} has shape {shape}: only arrays of one or two axes have addresses here")
        leading = whole_number(f"leading of {name}", self.leading.get(name, shape[-1]), shape[-1])
        first = self._next_line
        self._next_line += ceil_div(leading * (shape[0] if len(shape) == 2 else 1), self.line_words)
        if self._next_line > MAX_LINES:
            array_text = f"{name}, {shape} with {leading:,} words from row to row,"
            raise MachineError(
                f"{array_text} ends beyond the {MAX_LINES:,} lines that are simulated: give smaller sizes"
            )
        self._names.add(name)
        return PlacedShape.all_of(Allocation(first * self.line_words, shape, (leading, 1)[-len(shape) :], None))

    def _allocate_tile(self, shape: tuple[int, ...]) -> Allocation:
        """Allocate a dense tile in the scratch area."""
        strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        lines = self._scratch.allocate(ceil_div(math.prod(shape), self.line_words))
        return Allocation(lines.start * self.line_words, shape, strides, lines)

    def _access(self, data: Any, writes: bool = False) -> None:
        """Play the accesses that read or write all words of `data`. Data without addresses is in registers."""
        if not isinstance(data, PlacedShape):
            return
        base, rows, stride, words = data.block
        lines = data.allocation.scratch
        if data.whole and lines is not None:  # a whole tile owns all of its last line
            rows, words = 1, len(lines) * self.line_words
        self.accesses += rows * ceil_div(words, self.line_words)
        if self.accesses > self.max_accesses:
            raise TooLong(
                f"the run makes more than {self.max_accesses:,} accesses; larger tiles or a shorter problem take fewer"
            )
        self._caches.block(base, rows, stride, words, writes)

    # The abstract methods of a machine --------------------------------------------------------
    def allocate(self, shape: tuple[int, ...]) -> PlacedShape:
        return PlacedShape.all_of(self._allocate_tile(shape))

    def read_region(self, region: Region) -> PlacedShape:
        array: Any = region.array.data
        source = array[region.slices]
        strides = tuple(source.allocation.strides[axis] for axis in source.axes)
        tile = PlacedShape.all_of(Allocation(source.block[0], source.shape, strides, None))
        if self.packed:
            self._relocate(tile, copies=True)
        return tile

    def _relocate(self, tile: PlacedShape, copies: bool) -> None:
        """Move a tile that was read in place to the scratch area. copies: whether its words are read and written."""
        old, new = tile.allocation, self._allocate_tile(tile.allocation.shape)
        if copies:
            self._access(PlacedShape.all_of(old))
            self._access(PlacedShape.all_of(new), writes=True)
        old.base, old.strides, old.scratch, old.block = new.base, new.strides, new.scratch, new.block

    def write_region(self, region: Region, data: Shape) -> None:
        array: Any = region.array.data
        self._access(data)
        self._access(array[region.slices], writes=True)

    def elementwise(self, ufunc: np.ufunc, inputs: list[Any]) -> Shape:
        for x in inputs:
            self._access(x)
        return super().elementwise(ufunc, inputs)

    def reduce(self, ufunc: np.ufunc, data: Shape, axis: int) -> Shape:
        self._access(data)
        return super().reduce(ufunc, data, axis)

    def product(self, a: Shape, b: Shape) -> Shape:
        value = super().product(a, b)
        self._access(a)
        self._access(b)
        return value

    def assign(self, data: Shape, key: Any, value: Any) -> None:
        super().assign(data, key, value)
        self._access(value)
        target: Any = data[key]
        if target.allocation.scratch is None:
            self._relocate(target, copies=not target.whole)
        self._access(target, writes=True)

    def select(self, pairs: Any, rows: range, cols: range, data: Shape, otherwise: float) -> Shape:
        self._access(data)
        return Shape(data.shape)

    def number_in(self, data: Shape, known: int) -> int:
        self._access(data)
        return known

    # Moves ------------------------------------------------------------------------------------
    def free(self, *tiles: Tile) -> None:
        super().free(*tiles)
        for tile in tiles:
            lines = tile.data.allocation.scratch
            if lines:
                self._caches.discard(lines.start, len(lines))
                self._scratch.release(lines)

    def finish(self) -> None:
        super().finish()
        unknown = sorted(set(self.leading) - self._names)
        if unknown:
            raise MachineError(f"leading names {unknown[0]!r}, but the arrays are {', '.join(sorted(self._names))}")
        self._caches.flush()
