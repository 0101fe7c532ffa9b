"""The machine that counts words and nothing else: shapes only, no numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from redblue.machine.base import Machine, MachineError, Region


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
        shape: list[int] = []
        for part in key if isinstance(key, tuple) else (key,):
            if part is None:
                shape.append(1)
            elif isinstance(part, slice):
                shape.append(len(range(*part.indices(sizes.pop(0)))))
            else:
                raise MachineError(f"tiles are indexed with slices and None, not {part!r}")
        return Shape((*shape, *sizes))


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
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
    """Runs a schedule on shapes: words moved and held, exactly, at a few microseconds per move."""

    def blank(self, shape: tuple[int, ...]) -> Shape:
        return Shape(shape)

    def fetch(self, region: Region) -> Shape:
        return Shape(region.shape)

    def keep(self, region: Region, data: Shape) -> None:
        pass

    def compute(self, ufunc: np.ufunc, method: str, inputs: list[Any], options: Mapping[str, Any]) -> Shape:
        shape: Any = getattr(inputs[0], "shape", ())
        if ufunc is np.matmul:
            (rows, inner), (inner_too, cols) = shape, inputs[1].shape
            if inner != inner_too:
                raise MachineError(f"cannot multiply shapes {shape} and {inputs[1].shape}")
            self.flops += 2 * rows * inner * cols
            return Shape((rows, cols))
        if method == "reduce":
            axis = options["axis"]
            return Shape(shape[:axis] + shape[axis + 1 :])
        for other in inputs[1:]:
            shape = _broadcast(shape, getattr(other, "shape", ()))
        return Shape(shape)

    def assign(self, data: Shape, key: Any, value: Any) -> None:
        target, source = data[key].shape, getattr(value, "shape", ())
        if source != target and _broadcast(target, source) != target:
            raise MachineError(f"cannot put shape {source} into {target}")

    def select(self, pairs: Any, rows: range, cols: range, data: Shape, otherwise: float) -> Shape:
        return data
