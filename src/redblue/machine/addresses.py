"""Addresses in the memory of the cached machine: allocations, rectangles of them, and the scratch area's allocator."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from operator import mul
from typing import Any

from redblue.machine.counting import Shape, parts
from redblue.machine.errors import MachineError

SCRATCH_LINES = 2**20  # lines of the scratch area: more than any cache holds, and a multiple of every cache's sets


class Allocation:
    """The memory of one array or tile. base: address of the first word. strides: words between neighbours, per axis.

    scratch: range of lines of the scratch area; None in slow memory. block: the result of the function block() for all
    words.
    """

    __slots__ = ("base", "block", "scratch", "shape", "strides")

    def __init__(self, base: int, shape: tuple[int, ...], strides: tuple[int, ...], scratch: range | None) -> None:
        self.base, self.shape, self.strides, self.scratch = base, shape, strides, scratch
        self.block = block(base, shape, strides)


def block(base: int, lengths: Sequence[int], strides: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Describe a rectangle of words, in the order of addresses, by (first address, rows, row stride, words per row)."""
    if not lengths:
        return base, 1, 0, 1
    if len(lengths) == 1:
        return base, 1, 0, lengths[0]
    rows, words, stride, unit = *lengths, *strides
    if unit != 1:  # transposed: the contiguous words lie along the first axis
        rows, words, stride = words, rows, unit
    return (base, 1, 0, rows * words) if words == stride else (base, rows, stride, words)


class PlacedShape(Shape):
    """A shape whose words have addresses: a rectangle of an allocation, possibly transposed.

    start: first index on each axis of the allocation. axes: per axis of this shape, the axis of the allocation, or None
    for an inserted axis. whole: whether the rectangle is the whole allocation.
    """

    __slots__ = ("allocation", "axes", "start", "whole")

    def __init__(
        self,
        shape: tuple[int, ...],
        allocation: Allocation,
        start: tuple[int, ...],
        axes: tuple[int | None, ...],
        whole: bool,
    ) -> None:
        super().__init__(shape)
        self.allocation, self.start, self.axes, self.whole = allocation, start, axes, whole

    @classmethod
    def all_of(cls, allocation: Allocation) -> PlacedShape:
        axes = len(allocation.shape)
        return cls(allocation.shape, allocation, (0,) * axes, tuple(range(axes)), True)

    @property
    def T(self) -> PlacedShape:
        return PlacedShape(self.shape[::-1], self.allocation, self.start, self.axes[::-1], self.whole)

    def __getitem__(self, key: Any) -> PlacedShape:
        if key is Ellipsis:
            return self
        start, lengths, axes, whole = list(self.start), list(self.shape), list(self.axes), self.whole
        for position, part in enumerate(parts(key)):
            if part is None:
                lengths.insert(position, 1)
                axes.insert(position, None)
                continue
            first, stop, _ = part.indices(lengths[position])
            axis, length = axes[position], max(0, stop - first)
            whole = whole and length == lengths[position]
            lengths[position] = length
            if axis is not None:
                start[axis] += first
        return PlacedShape(tuple(lengths), self.allocation, tuple(start), tuple(axes), whole)

    @property
    def block(self) -> tuple[int, int, int, int]:
        """The rectangle, as `block` describes it."""
        allocation = self.allocation
        if self.whole:
            return allocation.block
        lengths = [0] * len(self.start)
        for length, axis in zip(self.shape, self.axes, strict=True):
            if axis is not None:
                lengths[axis] = length
        base = allocation.base + sum(map(mul, self.start, allocation.strides))
        return block(base, lengths, allocation.strides)


class ScratchArea:
    """First-fit allocator of the scratch area's lines."""

    def __init__(self, lines: int) -> None:
        self.holes = [range(lines)]  # free ranges, ascending; no two are adjacent

    def allocate(self, lines: int) -> range:
        """Take the lowest free range of `lines` lines. Raises MachineError if there is none."""
        for i, hole in enumerate(self.holes):
            if len(hole) >= lines:
                self.holes[i : i + 1] = [range(hole.start + lines, hole.stop)] if len(hole) > lines else []
                return range(hole.start, hole.start + lines)
        raise MachineError(f"no {lines} adjacent lines of the {SCRATCH_LINES:,} for tiles are free: use smaller tiles")

    def release(self, lines: range) -> None:
        """Return a range, and merge it with adjacent free ranges."""
        if not lines:
            return
        i = bisect([hole.start for hole in self.holes], lines.start)
        low, high, start, stop = i, i, lines.start, lines.stop
        if i and self.holes[i - 1].stop == start:
            low, start = i - 1, self.holes[i - 1].start
        if i < len(self.holes) and self.holes[i].start == stop:
            high, stop = i + 1, self.holes[i].stop
        self.holes[low:high] = [range(start, stop)]
