"""Chunks of rows whose probabilities are in memory at once, and how kernels find their way in what is spilled.

A chunk is a piece of one stream's rows, or all rows of some streams. What is spilled of a row lies at its place within
the chunk.
"""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from redblue.base.integers import ceil_div
from redblue.kernels.gpu.launch import Task
from redblue.kernels.gpu.planning.footprints import ON_ONE_GRID
from redblue.kernels.gpu.planning.plan import Launch

ALIGNED = 16  # numbers: rows of what is spilled start at multiples, for the widest loads

PLACE = ("stream", "row", "rows")  # arguments that change from chunk to chunk: no kernel is compiled for their values


class Chunk(NamedTuple):
    """`rows` rows from `row` on of each of `streams` streams from `stream` on."""

    stream: int
    streams: int
    row: int
    rows: int

    @property
    def place(self) -> dict[str, int]:
        """The arguments of PLACE."""
        return {"stream": self.stream, "row": self.row, "rows": self.rows}


class Spilled(NamedTuple):
    """An array of a chunk as kernels take it: (streams, rows, columns), or (streams, columns, rows)."""

    at: Any
    stream: int  # numbers from one to the next
    line: int


def prepared(task: Task, launch: Launch) -> Launch:
    """With a chunk; and, for a listed mask, with all tiles on one grid: what is spilled is read as it was written."""
    t = launch.tiles
    t = t._replace(depth=min(t.depth, t.rows, t.cols))  # a slice lies in one tile
    if task.mask is not None:
        t = t._replace(**{edge: getattr(t, own) for edge, own in ON_ONE_GRID.items() if edge in t._fields})
    return launch._replace(tiles=t, chunk=launch.chunk or task.rows)


def chunks(task: Task, most: int) -> Iterator[Chunk]:
    """most: rows of a chunk, over all its streams; at least 1."""
    if most < task.rows:
        for stream in range(task.streams):
            for row in range(0, task.rows, most):
                yield Chunk(stream, 1, row, min(most, task.rows - row))
    else:
        together = most // task.rows
        for stream in range(0, task.streams, together):
            yield Chunk(stream, min(together, task.streams - stream), 0, task.rows)


def whole(task: Task, length: int, edge: int, depth: int) -> bool:
    """Whether an axis is whole slices of `depth`: of all of it, or of every listed tile of `edge`."""
    return length % (depth if task.mask is None else edge) == 0


def widest(features: int, width: int) -> int:
    """The widest slice of features that takes no more room than slices of `width`.

    Of a sum over several slices, Triton waits for each on sm_90.
    """
    while ceil_div(features, 2 * width) * 2 * width == ceil_div(features, width) * width:
        width *= 2
    return width


def by_row(task: Task, most: int, columns: int, dtype: torch.dtype) -> Spilled:
    """Room for (streams, rows, columns) of any one of the chunks."""
    streams, rows = _most(task, most)
    return _room(task, streams, rows, columns, dtype)


def by_column(task: Task, most: int, columns: int, dtype: torch.dtype) -> Spilled:
    """Room for (streams, columns, rows) of any one of the chunks."""
    streams, rows = _most(task, most)
    return _room(task, streams, columns, rows, dtype)


def _most(task: Task, most: int) -> tuple[int, int]:
    return max(1, min(task.streams, most // task.rows)), min(most, task.rows)


def _room(task: Task, streams: int, lines: int, length: int, dtype: torch.dtype) -> Spilled:
    pitch = -(-length // ALIGNED) * ALIGNED
    return Spilled(task.q.new_empty((streams, lines, pitch), dtype=dtype), lines * pitch, pitch)


@triton.jit
def line_at(x, local, i_line):
    """Where lines of a Spilled begin. local: the stream, counted from the chunk's first."""
    return x.at + tl.cast(local, tl.int64) * x.stream + tl.cast(i_line, tl.int64) * x.line
