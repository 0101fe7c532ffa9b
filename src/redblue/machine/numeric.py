"""The machine that computes: the same moves, and the real result on float64 NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from redblue.machine.base import Machine, Region, Slow


class Numeric(Machine):
    """Runs a schedule on float64 arrays. What nobody wrote is NaN, in slow memory and in new tiles alike."""

    def input(self, name: str, shape: tuple[int, ...], data: np.ndarray | None = None) -> Slow:
        array = np.asarray(data, np.float64)
        if array.shape != shape:
            raise ValueError(f"{name} has shape {array.shape}, the problem needs {shape}")
        return Slow(name, shape, None, array)

    def slow_storage(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.full(shape, np.nan)

    def blank(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.full(shape, np.nan)

    def fetch(self, region: Region) -> np.ndarray:
        assert region.array.data is not None
        return region.array.data[region.slices].copy()

    def keep(self, region: Region, data: np.ndarray) -> None:
        assert region.array.data is not None
        region.array.data[region.slices] = data

    def compute(self, ufunc: np.ufunc, method: str, inputs: list[Any], options: Mapping[str, Any]) -> Any:
        if ufunc is np.matmul:
            self.flops += 2 * inputs[0].shape[0] * inputs[0].shape[1] * inputs[1].shape[1]
        # exp(-inf), log(0) and overflowing products are values of attention, not mistakes: as in PyTorch
        with np.errstate(all="ignore"):
            return getattr(ufunc, method)(*inputs, **options)

    def assign(self, data: np.ndarray, key: Any, value: Any) -> None:
        data[key] = value

    def select(self, pairs: Any, rows: range, cols: range, data: np.ndarray, otherwise: float) -> np.ndarray:
        return np.where(pairs.dense(rows, cols), data, otherwise)
