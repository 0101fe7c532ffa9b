"""The numeric machine: runs a schedule on float64 NumPy arrays, and so computes its result."""

from __future__ import annotations

from typing import Any

import numpy as np

from redblue.machine.base import Machine
from redblue.machine.errors import MachineError
from redblue.machine.values import Region


class Numeric(Machine):
    """Runs a schedule on float64 arrays. Words that were never written are NaN, in slow memory and in new tiles."""

    def slow_input(self, name: str, shape: tuple[int, ...], data: np.ndarray | None) -> np.ndarray:
        array = np.asarray(data)
        if array.dtype.kind not in "iu":  # the index of a mask keeps its integers
            array = array.astype(np.float64)
        if array.shape != shape:
            raise MachineError(f"{name} has shape {array.shape}, the problem needs {shape}")
        return array

    def slow_storage(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.full(shape, np.nan)

    def allocate(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.full(shape, np.nan)

    def read_region(self, region: Region) -> np.ndarray:
        assert region.array.data is not None
        return region.array.data[region.slices].copy()

    def write_region(self, region: Region, data: np.ndarray) -> None:
        assert region.array.data is not None
        region.array.data[region.slices] = data

    # exp(-inf), log(0) and overflowing products occur in correct attention, so they raise no warnings, as in PyTorch.

    def elementwise(self, ufunc: np.ufunc, inputs: list[Any]) -> np.ndarray:
        with np.errstate(all="ignore"):
            return ufunc(*inputs)

    def reduce(self, ufunc: np.ufunc, data: np.ndarray, axis: int) -> np.ndarray:
        with np.errstate(all="ignore"):
            return ufunc.reduce(data, axis=axis)

    def product(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        self.flops += 2 * a.shape[0] * a.shape[1] * b.shape[1]
        with np.errstate(all="ignore"):
            return a @ b

    def assign(self, data: np.ndarray, key: Any, value: Any) -> None:
        data[key] = value

    def select(self, pairs: Any, rows: range, cols: range, data: np.ndarray, otherwise: float) -> np.ndarray:
        return np.where(pairs.dense(rows, cols), data, otherwise)

    def number_in(self, data: np.ndarray, known: int) -> int:
        return int(data.item())
