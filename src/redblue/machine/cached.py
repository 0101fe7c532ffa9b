"""The machine whose cache is a real one: nobody tells it what to hold; what was touched recently is there.

Memory is one row of words. First comes the scratch area, from which tiles take the lowest free lines that are enough
and give them back when they are freed, as on a stack or a heap. Then come the arrays in slow memory, row-major, one
after the other, each from the start of a line on; `leading` sets how many words lie between the rows of an array.

What the caches see of a schedule:

- `load` touches nothing: the tile *is* the array's own words, read in place by whatever uses it. Once it is written to,
  it moves to the scratch area, for slow memory changes by `store` alone. With `packed`, `load` reads the region and
  writes a dense copy to the scratch area, which is used from then on.
- `new`, `zeros` and `full` write a tile in the scratch area.
- Arithmetic reads its operands when it is called: each operand that is a tile or a view of one, in the order in which
  they are given (a matrix product: left, then right). Computed values stay in registers. Putting a value into a tile
  writes the tile.
- `store` reads the tile and writes the region.
- `free` touches nothing; its dirty lines are written back like any others when they are evicted, and are counted
  once more as dead.

A block is touched in the order of its addresses, one access per line and row, or one per line if its rows leave no gap.
At the end all dirty lines are written back.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Mapping, Sequence
from operator import mul
from typing import Any

import numpy as np

from redblue.base.integers import ceil_div
from redblue.machine.counting import Counting, Shape, parts
from redblue.machine.errors import MachineError, TooLong
from redblue.machine.hierarchy import MOST_LINES, CacheLevel, LevelTraffic, Trace, hierarchy, traffic
from redblue.machine.values import Region, Slow, Tile

SCRATCH_LINES = 2**20  # where slow memory begins: more than any cache holds, and a multiple of its sets


class Home:
    """Where words lie: the address of the first, in words, and the words from one index to the next on each axis.

    scratch: the range of lines that it takes in the scratch area; None in slow memory.
    """

    __slots__ = ("base", "block", "scratch", "shape", "strides")

    def __init__(self, base: int, shape: tuple[int, ...], strides: tuple[int, ...], scratch: range | None) -> None:
        self.base, self.shape, self.strides, self.scratch = base, shape, strides, scratch
        self.block = block(base, shape, strides)


def block(base: int, lengths: Sequence[int], strides: tuple[int, ...]) -> tuple[int, int, int, int]:
    """A rectangle as (address of its first word, rows, words from row to row, words per row), in order of addresses."""
    if not lengths:
        return base, 1, 0, 1
    if len(lengths) == 1:
        return base, 1, 0, lengths[0]
    rows, words, stride, unit = *lengths, *strides
    if unit != 1:  # loaded transposed: the words of a row lie along the other axis
        rows, words, stride = words, rows, unit
    return (base, 1, 0, rows * words) if words == stride else (base, rows, stride, words)


class Laid(Shape):
    """A shape whose words have addresses: a rectangle of a home, perhaps transposed.

    start: its first index on each axis of the home. axes: for each axis of this shape that of the home, or None.
    whole: whether it is all of the home.
    """

    __slots__ = ("axes", "home", "start", "whole")

    def __init__(
        self, shape: tuple[int, ...], home: Home, start: tuple[int, ...], axes: tuple[int | None, ...], whole: bool
    ) -> None:
        super().__init__(shape)
        self.home, self.start, self.axes, self.whole = home, start, axes, whole

    @classmethod
    def all_of(cls, home: Home) -> Laid:
        return cls(home.shape, home, (0,) * len(home.shape), tuple(range(len(home.shape))), True)

    @property
    def T(self) -> Laid:
        return Laid(self.shape[::-1], self.home, self.start, self.axes[::-1], self.whole)

    def __getitem__(self, key: Any) -> Laid:
        if key is Ellipsis:
            return self
        start, lengths, axes, whole = list(self.start), list(self.shape), list(self.axes), self.whole
        for at, part in enumerate(parts(key)):
            if part is None:
                lengths.insert(at, 1)
                axes.insert(at, None)
                continue
            first, stop, _ = part.indices(lengths[at])
            axis, length = axes[at], max(0, stop - first)
            whole = whole and length == lengths[at]
            lengths[at] = length
            if axis is not None:
                start[axis] += first
        return Laid(tuple(lengths), self.home, tuple(start), tuple(axes), whole)

    @property
    def block(self) -> tuple[int, int, int, int]:
        home = self.home
        if self.whole:
            return home.block
        lengths = [0] * len(self.start)
        for length, axis in zip(self.shape, self.axes, strict=True):
            if axis is not None:
                lengths[axis] = length
        return block(home.base + sum(map(mul, self.start, home.strides)), lengths, home.strides)


class Scratch:
    """Which lines of the scratch area are free. The lowest that are enough are taken."""

    def __init__(self, lines: int) -> None:
        self.holes = [range(lines)]  # ascending, with something between any two

    def take(self, lines: int) -> range:
        for i, hole in enumerate(self.holes):
            if len(hole) >= lines:
                self.holes[i : i + 1] = [range(hole.start + lines, hole.stop)] if len(hole) > lines else []
                return range(hole.start, hole.start + lines)
        raise MachineError(f"no {lines} lines in a row are free of {SCRATCH_LINES:,} for tiles: use smaller tiles")

    def give_back(self, lines: range) -> None:
        if not lines:
            return
        i = bisect([hole.start for hole in self.holes], lines.start)
        low, high, start, stop = i, i, lines.start, lines.stop
        if i and self.holes[i - 1].stop == start:
            low, start = i - 1, self.holes[i - 1].start
        if i < len(self.holes) and self.holes[i].start == stop:
            high, stop = i + 1, self.holes[i].stop
        self.holes[low:high] = [range(start, stop)]


class Cached(Counting):
    """Runs a schedule on shapes and plays its accesses through caches; `traffic` says what each level moved.

    levels: nearest first. capacity: words that the schedule may hold, as on any machine (None: no limit); the caches
    do not know it. packed: `load` copies. leading: words between rows, by array name (the others: their row length).
    fetch_on_write: see machine/hierarchy.py. records: keep the accesses for `trace`. most_accesses: a run that makes
    more is given up with TooLong.
    reads, writes and peak count what the schedule asks for, as on the counting machine.
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
        most_accesses: float = math.inf,
    ) -> None:
        super().__init__(capacity)
        self.levels, self.packed, self.leading = tuple(levels), packed, dict(leading or {})
        line_bytes = self.levels[0].line_bytes if self.levels else bytes_per_word
        if line_bytes % bytes_per_word:
            raise MachineError(f"a line of {line_bytes} bytes does not hold whole words of {bytes_per_word} bytes")
        self.line_words = line_bytes // bytes_per_word
        self._caches = hierarchy(self.levels, self.line_words, fetch_on_write, records)
        self._scratch = Scratch(SCRATCH_LINES)
        self._next_line = SCRATCH_LINES
        self._names: set[str] = set()
        self.accesses, self.most_accesses = 0, most_accesses  # about: a row that begins inside a line may take one more

    @property
    def traffic(self) -> tuple[LevelTraffic, ...]:
        """What each level did so far; after `finish`, dirty lines at the end included."""
        return traffic(self.levels, self._caches, self.line_words)

    @property
    def trace(self) -> Trace:
        """The accesses so far, if `records` was asked for."""
        return Trace(*self._caches.recorded())

    # Where words lie --------------------------------------------------------------------------
    def slow_input(self, name: str, shape: tuple[int, ...], data: np.ndarray | None) -> Any:
        return self._lay(name, shape)

    def scratch(self, name: str, shape: tuple[int, ...]) -> Slow:
        array = super().scratch(name, shape)
        array.data = self._lay(name, shape)
        return array

    def _lay(self, name: str, shape: tuple[int, ...]) -> Any:
        if not 1 <= len(shape) <= 2:
            raise MachineError(f"{name} has shape {shape}: arrays of one or two axes can be laid out")
        leading = self.leading.get(name, shape[-1])
        if isinstance(leading, bool) or not hasattr(leading, "__index__") or leading < shape[-1]:
            raise MachineError(f"leading of {name} must be a whole number, at least {shape[-1]}, got {leading!r}")
        leading, first = leading.__index__(), self._next_line
        self._next_line += ceil_div(leading * (shape[0] if len(shape) == 2 else 1), self.line_words)
        if self._next_line > MOST_LINES:
            size = f"{name}, {shape} with {leading:,} words from row to row,"
            raise MachineError(f"{size} ends beyond the {MOST_LINES:,} lines that are simulated: give smaller sizes")
        self._names.add(name)
        return Laid.all_of(Home(first * self.line_words, shape, (leading, 1)[-len(shape) :], None))

    def _tile_home(self, shape: tuple[int, ...]) -> Home:
        strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        lines = self._scratch.take(ceil_div(math.prod(shape), self.line_words))
        return Home(lines.start * self.line_words, shape, strides, lines)

    def _touch(self, data: Any, writes: bool = False) -> None:
        if not isinstance(data, Laid):
            return
        base, rows, stride, words = data.block
        lines = data.home.scratch
        if data.whole and lines is not None:  # the rest of its last line is nobody's: it is touched whole
            rows, words = 1, len(lines) * self.line_words
        self.accesses += rows * ceil_div(words, self.line_words)
        if self.accesses > self.most_accesses:
            raise TooLong(
                f"the run makes more than {self.most_accesses:,} accesses; larger tiles or a shorter problem take fewer"
            )
        self._caches.block(base, rows, stride, words, writes)

    # What a kind of machine decides -----------------------------------------------------------
    def blank(self, shape: tuple[int, ...]) -> Laid:
        return Laid.all_of(self._tile_home(shape))

    def fetch(self, region: Region) -> Laid:
        place: Any = region.array.data
        source = place[region.slices]
        tile = Laid.all_of(
            Home(source.block[0], source.shape, tuple(source.home.strides[axis] for axis in source.axes), None)
        )
        if self.packed:
            self._move(tile, copies=True)
        return tile

    def _move(self, tile: Laid, copies: bool) -> None:
        """Give a tile that was read in place room of its own."""
        old, new = tile.home, self._tile_home(tile.home.shape)
        if copies:
            self._touch(Laid.all_of(old))
            self._touch(Laid.all_of(new), writes=True)
        old.base, old.strides, old.scratch, old.block = new.base, new.strides, new.scratch, new.block

    def keep(self, region: Region, data: Shape) -> None:
        place: Any = region.array.data
        self._touch(data)
        self._touch(place[region.slices], writes=True)

    def elementwise(self, ufunc: np.ufunc, inputs: list[Any]) -> Shape:
        for x in inputs:
            self._touch(x)
        return super().elementwise(ufunc, inputs)

    def reduce(self, ufunc: np.ufunc, data: Shape, axis: int) -> Shape:
        self._touch(data)
        return super().reduce(ufunc, data, axis)

    def product(self, a: Shape, b: Shape) -> Shape:
        value = super().product(a, b)
        self._touch(a)
        self._touch(b)
        return value

    def assign(self, data: Shape, key: Any, value: Any) -> None:
        super().assign(data, key, value)
        self._touch(value)
        target: Any = data[key]
        if target.home.scratch is None:
            self._move(target, copies=not target.whole)
        self._touch(target, writes=True)

    def select(self, pairs: Any, rows: range, cols: range, data: Shape, otherwise: float) -> Shape:
        self._touch(data)
        return Shape(data.shape)

    # Moves ------------------------------------------------------------------------------------
    def free(self, *tiles: Tile) -> None:
        super().free(*tiles)
        for tile in tiles:
            lines = tile.data.home.scratch
            if lines:
                self._caches.discard(lines.start, len(lines))
                self._scratch.give_back(lines)

    def finish(self) -> None:
        super().finish()
        unknown = sorted(set(self.leading) - self._names)
        if unknown:
            raise MachineError(f"leading names {unknown[0]!r}, but the arrays are {', '.join(sorted(self._names))}")
        self._caches.flush()
