"""The tasks of a call on a machine with any number of cores, as the compiled core lists them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from redblue.base.dtypes import DTYPE_CODES
from redblue.compiled import _core
from redblue.kernels.cpu.call import Array, Attended, isa, pack_sizes, pack_tile, plan_tile
from redblue.kernels.cpu.mask_form import attended
from redblue.kernels.cpu.plan import Tile
from redblue.kernels.sizes import Sizes, array_forms
from redblue.problem import Problem
from redblue.schedules import NotCovered


class TaskList(NamedTuple):
    """The tasks of a call, in the order in which threads take them.

    stream, start, size, piece (tasks,): a task computes `size` stacked rows (forward) or keys (backward) of a stream
    from `start` on; forward, with one piece of the keys. tile: the plan's tile. lanes: rows of a panel, which the
    kernel computes at once. mask: the band of keys that a query attends.
    """

    stream: np.ndarray
    start: np.ndarray
    size: np.ndarray
    piece: np.ndarray
    tile: Tile
    lanes: int
    mask: Attended


def list_tasks(problem: Problem, threads: int, cores: int = 0) -> TaskList:
    """The tasks of `flash` forward, or of `flash_onepass` backward, on `threads` threads.

    cores: number of cores that the tile is planned for, each with this machine's caches; 0: this machine's. Raises
    NotCovered for a mask other than a band, and for the direction gradient_x, which no kernel computes.
    """
    direction = problem.direction
    if direction not in ("forward", "backward"):
        raise NotCovered(f"the kernels run forward and backward, not {direction}")
    sizes = Sizes((problem.batch,), problem.kv_heads, problem.group, problem.n_q, problem.n_k, problem.d, problem.d_v)
    mask, number = attended(problem.mask, sizes, problem.dtype, direction, schedule="flash"), DTYPE_CODES[problem.dtype]
    if mask.pattern:
        raise NotCovered(f"tasks are listed for bands (full, causal, sliding windows), not for {problem.mask!r}")
    tile = plan_tile(direction, sizes, problem.dtype, cores=cores)
    unread = Array(0, (0, 0, 0, 1))
    arrays: dict[str, Any] = dict.fromkeys(array_forms(sizes, problem.dtype, direction), unread)
    call = _core.Call(number, pack_sizes(sizes), pack_tile(tile), threads, mask.first, mask.end, **arrays, scale=1.0)
    stream, start, size, piece = _core.list_tasks(isa(), call, direction == "backward").reshape(-1, 4).T
    return TaskList(stream, start, size, piece, tile, isa().lanes(number), mask)
