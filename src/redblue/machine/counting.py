"""The counting machine: represents values by their shapes, and counts words."""

from __future__ import annotations

from typing import Any

import numpy as np

from redblue.machine.base import Machine
from redblue.machine.errors import MachineError
from redblue.machine.values import Region


class Shape:
    """An array reduced to its shape."""

    __slots__ = ("shape",)

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    @property
    def T(self) -> Shape:
        return Shape(self.shape[::-1])

    def __getitem__(self, key: Any) -> Shape:
        if key is Ellipsis:
            return self
        sizes = list(self.shape)
        shape = [1 if part is None else len(range(*part.indices(sizes.pop(0)))) for part in parts(key)]
        return Shape((*shape, *sizes))


def parts(key: Any) -> tuple[slice | None, ...]:
    """Split an index into its parts, one per axis; None inserts an axis of length 1."""
    return key if isinstance(key, tuple) else (key,)


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Broadcast two shapes as NumPy does. Raises MachineError if they do not fit."""
    if a == b or not b:
        return a
    if not a:
        return b
    if len(a) < len(b):
        a, b = b, a
    padded = (1,) * (len(a) - len(b)) + b
    if any(x != y and x != 1 and y != 1 for x, y in zip(a, padded, strict=True)):
        raise MachineError(f"shapes {a} and {b} do not broadcast")
    return tuple(y if x == 1 else x for x, y in zip(a, padded, strict=True))


class Counting(Machine):
    """Runs a schedule on shapes, at a few microseconds per move. Its counts are exact."""

    def allocate(self, shape: tuple[int, ...]) -> Shape:
        return Shape(shape)

    def read_region(self, region: Region) -> Shape:
        return Shape(region.shape)

    def write_region(self, region: Region, data: Shape) -> None:
        pass

    def elementwise(self, ufunc: np.ufunc, inputs: list[Any]) -> Shape:
        shape: tuple[int, ...] = ()
        for x in inputs:
            if isinstance(x, Shape) and x.shape != shape:
                shape = _broadcast(shape, x.shape)
        return Shape(shape)

    def reduce(self, ufunc: np.ufunc, data: Shape, axis: int) -> Shape:
        return Shape(data.shape[:axis] + data.shape[axis + 1 :])

    def product(self, a: Shape, b: Shape) -> Shape:
        if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[0]:
            raise MachineError(f"cannot multiply shapes {a.shape} and {b.shape}")
        self.flops += 2 * a.shape[0] * a.shape[1] * b.shape[1]
        return Shape((a.shape[0], b.shape[1]))

    def assign(self, data: Shape, key: Any, value: Any) -> None:
        source = value.shape if isinstance(value, Shape) else ()
        target = data.shape if key is Ellipsis else data[key].shape
        if source != target and _broadcast(target, source) != target:
            raise MachineError(f"cannot put shape {source} into {target}")

    def select(self, pairs: Any, rows: range, cols: range, data: Shape, otherwise: float) -> Shape:
        return data
