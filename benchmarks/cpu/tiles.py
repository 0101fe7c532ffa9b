"""Compare the speed of the planned tile, which minimises words, with every tile of a grid."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch  # pyright: ignore[reportMissingImports]

from benchmarks.common.timing import THREADS, best_of, race, rate, seconds_of
from benchmarks.cpu.calls import Call, inputs
from redblue.base.dtypes import DTYPE_CODES
from redblue.kernels.cpu import call as cpu
from redblue.kernels.cpu.call import Tile
from redblue.kernels.sizes import Sizes

ROWS = (1, 2, 3, 4, 6, 8, 16, 32)  # in kernel panels
COLS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 22, 43)  # in units of 48 keys; the last covers all 2048 keys
TRIES = 2  # calls of each tile; the fastest counts
FINALISTS = 5  # the fastest tiles of the sweep, which are then compared with the plan


class Kernel:
    """One call of the compiled kernel as a function of its tile; the results are ignored."""

    def __init__(self, call: Call) -> None:
        self.call, self.x = call, inputs(call)
        self.sizes = Sizes((1,), call.heads, 1, call.n_q, call.n_k, call.d, call.d)
        x, lse = self.x, torch.empty(1, call.heads, call.n_q, 1)
        self.written = [torch.empty_like(x.q), lse]
        self.gradients = [torch.empty_like(array) for array in (x.q, x.k, x.v, lse)]
        self.options = {"mask": cpu.Attended(-call.n_q, call.n_k + 1), "scale": call.d**-0.5, "threads": THREADS}
        if call.direction == "backward":
            cpu.forward(self.sizes, call.dtype, *_core_arrays(x[:3], self.written), **self.options)

    @property
    def plan(self) -> Tile:
        return cpu.plan_tile(self.call.direction, self.sizes, self.call.dtype)

    def candidates(self) -> Iterator[Tile]:
        """Every tile of the grid; the backward pass takes one panel of rows at a time."""
        lanes = cpu.isa().lanes(DTYPE_CODES[self.call.dtype])
        for rows in ROWS if self.call.direction == "forward" else ROWS[:1]:
            for cols in COLS:
                yield Tile(rows * lanes, cols * 48)

    def __call__(self, tile: Tile) -> None:
        x, arrays = self.x, (self.x[:3], self.written)
        if self.call.direction == "forward":
            cpu.forward(self.sizes, self.call.dtype, *_core_arrays(*arrays), **self.options, tile=tile)
        else:
            described = _core_arrays(*arrays, [x.dout], self.gradients)
            cpu.backward(self.sizes, self.call.dtype, *described, **self.options, tile=tile)


def _core_arrays(*groups: list[torch.Tensor] | tuple[torch.Tensor, ...]) -> list[cpu.Array]:
    return [cpu.Array(array.data_ptr(), array.stride()) for group in groups for array in group]


def sweep(call: Call, rounds: int, seconds: float) -> tuple[dict[str, list[float]], str, str, int]:
    """(FLOP/s of the planned tile and the finalists, the planned tile, the best tile, the number of tiles tried).

    Every tile of the grid runs. The fastest tiles are then timed in alternation with the planned tile, so that no
    single lucky run decides. In a tie, the planned tile counts as the best.
    """
    kernel = Kernel(call)
    tiles = list(dict.fromkeys([kernel.plan, *kernel.candidates()]))
    first = {tile: min(seconds_of(partial(kernel, tile)) for _ in range(TRIES)) for tile in tiles}
    finalists = sorted(tiles, key=lambda tile: first[tile])[:FINALISTS]
    raced = {
        _name(tile): partial(rate, partial(kernel, tile), call.flops, seconds) for tile in (kernel.plan, *finalists)
    }
    rates = race(raced, rounds)
    return rates, _name(kernel.plan), best_of(rates, rates), len(tiles)


def _name(tile: Tile) -> str:
    return f"{tile.rows} x {tile.cols}"
