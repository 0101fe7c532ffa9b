"""The launches of `hybrid` and `small_cache`, backward, that compute dQ = dS K, dK = dS^T Q and dV = P^T dO.

dQ of a chunk of rows is complete; dK and dV are summed over chunks in the sums' type. In hybrid one kernel writes both
dV and dS, while V and dV of a block of keys stay on chip.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from redblue.base.integers import ceil_div
from redblue.kernels.gpu.launch import Array, Run, Task, array
from redblue.kernels.gpu.planning.plan import Launch
from redblue.kernels.gpu.spilled.chunks import Chunk, Spilled, whole_slices
from redblue.kernels.gpu.spilled.dv_and_ds import dv_and_ds
from redblue.kernels.gpu.spilled.products import key_gradient, row_gradient


def slice_width(features: int) -> int:
    """The widest slice of features, at most 64, whose padding is at most a quarter; 16 if there is none."""
    return next((width for width in (64, 32) if 4 * (-features % width) <= features), 16)


@dataclass(frozen=True)
class Gradients:
    """The launches of a chunk, as methods.

    common: arguments of all kernels. spilled: the arrays p, ds and, with a softcap, cap_derivative.
    """

    task: Task
    launch: Launch
    common: dict[str, Any]
    spilled: dict[str, Spilled]
    running: dict[str, Array | None]  # sums of dk and dv over chunks (running_sums)

    def dq(self, chunk: Chunk) -> Run:
        """dQ = dS K."""
        task, t, sizes = self.task, self.launch.tiles, self.task.sizes
        arguments = self.common | chunk.place | {
            "k": array(task.k),
            "dq": array(task.dq),
            "ds": self.spilled["ds"],
            "lists": task.lists(t.rows, t.cols, "rows"),
            "d": sizes.d,
            "ROWS": t.dq_rows,
            "FEATURES": t.dq_cols,
            "DEPTH": t.depth,
            "WHOLE_ROWS": chunk.rows % t.dq_rows == 0,
            "WHOLE_KEYS": whole_slices(task, sizes.n_k, t.cols, t.depth),
            "WHOLE": sizes.d % t.dq_cols == 0,
        }  # fmt: skip
        tiles = ceil_div(chunk.rows, t.dq_rows) * ceil_div(sizes.d, t.dq_cols)
        return Run(row_gradient, (tiles * chunk.streams,), arguments, self.launch.warps, self.launch.stages)

    def dk(self, chunk: Chunk) -> Run:
        """dK = dS^T Q."""
        t = self.launch.tiles
        return self._by_key(chunk, "dk", "ds", "q", (t.dk_rows, t.dk_cols))

    def dv(self, chunk: Chunk) -> Run:
        """dV = P^T dO, for small_cache."""
        t = self.launch.tiles
        return self._by_key(chunk, "dv", "p", "dout", (t.dv_rows, t.dv_cols))

    def _by_key(self, chunk: Chunk, result: str, spilled: str, other: str, tile: tuple[int, int]) -> Run:
        task, t, sizes = self.task, self.launch.tiles, self.task.sizes
        gradient, (keys, features) = getattr(task, result), tile
        length = gradient.shape[-1]
        arguments = self.common | chunk.place | {
            "spilled": self.spilled[spilled],
            "other": array(getattr(task, other)),
            "gradient": array(gradient),
            "running": self.running[result],
            "lists": task.lists(t.rows, t.cols, "cols"),
            "features": length,
            "KEYS": keys,
            "FEATURES": features,
            "DEPTH": t.depth,
            "OF_P": spilled == "p",
            "WHOLE_ROWS": whole_slices(task, chunk.rows, t.rows, t.depth),
            "WHOLE_KEYS": sizes.n_k % keys == 0,
            "WHOLE": length % features == 0,
        }  # fmt: skip
        del arguments["COLS"]
        tiles = ceil_div(sizes.n_k, keys) * ceil_div(length, features)
        return Run(key_gradient, (tiles * chunk.streams,), arguments, self.launch.warps, self.launch.stages)

    def dv_and_ds(self, chunk: Chunk) -> Run:
        """dV = P^T dO, and dS from P, for hybrid."""
        task, t, sizes = self.task, self.launch.tiles, self.task.sizes
        width = slice_width(sizes.d_v)
        arguments = {"cap_derivative": None} | self.common | chunk.place | self.spilled | {
            "v": array(task.v),
            "dout": array(task.dout),
            "dv": array(task.dv),
            "running": self.running["dv"],
            "delta": task.delta,
            "lists": task.lists(t.rows, t.cols, "cols"),
            "d_v": sizes.d_v,
            "DEPTH": t.depth,
            "WIDTH": width,
            "SLICES": ceil_div(sizes.d_v, width),
            "WHOLE_ROWS": whole_slices(task, chunk.rows, t.rows, t.depth),
            "WHOLE_COLS": sizes.n_k % t.cols == 0,
        }  # fmt: skip
        blocks = ceil_div(sizes.n_k, t.cols) * chunk.streams
        return Run(dv_and_ds, (blocks,), arguments, self.launch.warps, self.launch.stages)


def running_sums(task: Task, launch: Launch, gradient: Any) -> Array | None:
    """Memory for the sums over chunks of one stream's gradient; None if one chunk holds all rows."""
    if launch.chunk >= task.rows:
        return None
    if gradient.dtype == task.lse.dtype:
        return array(gradient)
    n_k, features = gradient.shape[-2:]
    return Array(gradient.new_empty((n_k, features), dtype=task.lse.dtype), 0, 0, features, 1)
