"""Chunks of rows whose probabilities are in memory at once, and the addresses of a chunk's spilled arrays.

A chunk is a piece of one stream's rows, or all rows of several streams.
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
from redblue.kernels.gpu.planning.footprints import MAX_SPILLED, ON_ONE_GRID
from redblue.kernels.gpu.planning.plan import Launch

ALIGNED = 16  # rows of spilled arrays start at multiples of this number of elements, for the widest loads
PLACE = ("stream", "row", "rows")  # arguments that change from chunk to chunk; no kernel is specialized on their values


class Chunk(NamedTuple):
    """Rows row .. row + rows - 1 of each of the streams stream .. stream + streams - 1."""

    stream: int
    streams: int
    row: int
    rows: int

    @property
    def place(self) -> dict[str, int]:
        """The arguments of PLACE."""
        return {"stream": self.stream, "row": self.row, "rows": self.rows}


class Spilled(NamedTuple):
    """An array of a chunk in the form for kernels: (streams, rows, columns), or (streams, columns, rows)."""

    pointer: Any
    stream: int  # elements from one stream to the next
    line: int


def with_chunk(task: Task, launch: Launch, spilled: int) -> Launch:
    """The launch with a chunk, and with slices no longer than a tile. spilled: the number of spilled arrays.

    Under a listed mask, spilled tiles are read on the grid on which they were written, so all tiles use this grid.
    """
    t = launch.tiles
    t = t._replace(depth=min(t.depth, t.rows, t.cols))
    chunk = launch.chunk or task.rows
    if task.mask is not None:
        t = t._replace(**{edge: getattr(t, own) for edge, own in ON_ONE_GRID.items() if edge in t._fields})
        row_bytes = spilled * task.q.itemsize * max(1, task.sizes.n_k)
        times = min(1 / _density(task, t), MAX_SPILLED / (row_bytes * chunk))
        chunk = _equal(task, chunk, max(1, int(times)))
    return launch._replace(tiles=t, chunk=chunk)


def _equal(task: Task, chunk: int, times: int) -> int:
    """At most `times` times the rows of a chunk, so that the last chunk is about as large as the others."""
    most = times * chunk
    if most < task.rows:
        pieces = ceil_div(task.rows, most)
        return ceil_div(ceil_div(task.rows, pieces), chunk) * chunk
    pieces = ceil_div(task.streams, most // task.rows)
    return ceil_div(task.streams, pieces) * task.rows


def _density(task: Task, tiles: Any) -> float:
    """The share of tiles that are listed. The fewer they are, the more rows a chunk needs to occupy the GPU."""
    lists = task.lists(tiles.rows, tiles.cols, "rows")
    assert lists is not None
    blocks = len(lists.full_starts) - 1
    every = blocks * ceil_div(task.sizes.n_k, tiles.cols)
    return max(1, len(lists.full) + len(lists.partial)) / max(1, every)


def chunks(task: Task, max_rows: int) -> Iterator[Chunk]:
    """The chunks of at most max_rows rows, counted over all streams of a chunk. max_rows: at least 1."""
    if max_rows < task.rows:
        for stream in range(task.streams):
            for row in range(0, task.rows, max_rows):
                yield Chunk(stream, 1, row, min(max_rows, task.rows - row))
    else:
        together = max_rows // task.rows
        for stream in range(0, task.streams, together):
            yield Chunk(stream, min(together, task.streams - stream), 0, task.rows)


def whole_slices(task: Task, length: int, edge: int, depth: int) -> bool:
    """Whether an axis is cut into whole slices of `depth`; listed tiles of `edge` must be whole, too."""
    return length % (depth if task.mask is None else edge) == 0


def widest_slice(features: int, width: int) -> int:
    """The widest slice of features with which a padded row is no longer than with slices of `width` features.

    On sm_90 Triton waits for each product of a sum over several slices, so fewer slices are faster.
    """
    while ceil_div(features, 2 * width) * 2 * width == ceil_div(features, width) * width:
        width *= 2
    return width


def by_row(task: Task, max_rows: int, columns: int, dtype: torch.dtype) -> Spilled:
    """Memory for (streams, rows, columns) of any chunk of at most max_rows rows."""
    streams, rows = _most(task, max_rows)
    return _memory(task, streams, rows, columns, dtype)


def by_column(task: Task, max_rows: int, columns: int, dtype: torch.dtype) -> Spilled:
    """Memory for (streams, columns, rows) of any chunk of at most max_rows rows."""
    streams, rows = _most(task, max_rows)
    return _memory(task, streams, columns, rows, dtype)


def _most(task: Task, max_rows: int) -> tuple[int, int]:
    """The most streams of a chunk, and the most rows of a stream in it."""
    return max(1, min(task.streams, max_rows // task.rows)), min(max_rows, task.rows)


def _memory(task: Task, streams: int, lines: int, length: int, dtype: torch.dtype) -> Spilled:
    pitch = ceil_div(length, ALIGNED) * ALIGNED
    return Spilled(task.q.new_empty((streams, lines, pitch), dtype=dtype), lines * pitch, pitch)


@triton.jit
def line_at(x, local, i_line):
    """Pointers to lines of a Spilled. local: the index of the stream in the chunk."""
    return x.pointer + tl.cast(local, tl.int64) * x.stream + tl.cast(i_line, tl.int64) * x.line
