"""The closed form of the words that each process sends and receives under a full mask, where all keys are needed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from redblue.machine.network import Traffic
from redblue.schedules.network.layout import Layout


class Words(NamedTuple):
    """Words that each process sends and receives, int64 (processes,)."""

    sent: np.ndarray
    received: np.ndarray

    words, most_words = Traffic.words, Traffic.most_words  # these properties read only `sent` and `received`


def words(c: Layout) -> Words:
    """The words of the schedule on a layout whose mask is full; the forward or the backward pass."""
    backward = c.problem.direction == "backward"
    inputs = ("q", "dout", "lse", "delta") if backward else ("q",)
    results = ("dq",) if backward else ("out", "lse")
    own, own_keys = np.array(c.queries.lengths), np.array(c.keys.lengths)
    grid = c.grid
    row, col, _ = np.array([grid.place(p) for p in range(grid.processes)]).T
    queries = np.bincount(row, own, grid.rows).astype(np.int64)[row]  # queries of a process's row
    keys = np.bincount(col, own_keys, grid.cols).astype(np.int64)[col]  # keys of a process's column
    node = np.bincount(row * grid.cols + col, own_keys, grid.rows * grid.cols).astype(np.int64).reshape(grid.rows, -1)
    before, after = (node[(row + i) % grid.rows, col] for i in (-1, 1))
    input_width = sum(c.width(array, grid.head_parts) for array in inputs)
    result_width = sum(c.width(array, grid.head_parts) for array in results)
    key_width = sum(c.width(array, c.kv_parts) for array in ("k", "v"))
    row_makers, col_makers = grid.cols * grid.head_parts - 1, grid.rows * grid.head_parts - 1
    ring = c.travel == "ring"

    sent = own * row_makers * input_width + (queries - own) * result_width
    received = (queries - own) * input_width + own * row_makers * result_width
    # Keys reach every other process of the column once; the gradients of the keys take the same routes in reverse.
    by_ring = own_keys * (grid.head_parts - 1) + (keys - after if grid.rows > 1 else 0)
    sent = sent + (by_ring if ring else own_keys * col_makers) * key_width
    received = received + (keys - own_keys) * key_width
    if backward:
        sent = sent + (keys - own_keys) * key_width
        by_ring = own_keys * (grid.head_parts - 1) + (keys - before if grid.rows > 1 else 0)
        received = received + (by_ring if ring else own_keys * col_makers) * key_width
    return Words(sent, received)
