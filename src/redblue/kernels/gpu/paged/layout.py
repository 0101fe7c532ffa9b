"""The layout of a call's work on paged caches: pieces of keys, programs, and the places of partial results.

The layout depends only on the call's lengths and shapes. So a sequence's result depends neither on other work of the
device nor on the other sequences of the call, unless it shares pages with them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from redblue.base.errors import RedblueError
from redblue.kernels.gpu.paged.nodes import Nodes
from redblue.kernels.gpu.planning.footprints import MIN_EDGE, MIN_SPAN

MAX_ROWS = 128  # stacked rows of the largest class of nodes
MAX_KEYS = 1 << 30  # keys of a sequence: sums of positions and sides of windows must fit 32 bits
MERGED_SHARE = 0.25  # most bytes of partial results, written and read, over the bytes of keys and values
NODE, MEMBER, ITEM = 8, 4, 3  # numbers of fields


class Layout(NamedTuple):
    """The work as arrays: int32, but `pieces` and `classes`, which no kernel reads, are int64.

    nodes (nodes, NODE): sequence, first key, stop key, keys of a piece, number of the first piece, first member, number
    of stacked rows, and the row of its first partial result, or -1 if its only piece gives the final result.
    members (members, MEMBER): the packed query, its sequence, its position among the keys, and its sequence's keys.
    pieces (nodes,): the number of pieces of each node.
    classes (nodes,): the stacked rows of a block that suits the node.
    merged: queries that have partial results. The partial results of merged query i are parts[starts[i]] ..
    parts[starts[i + 1] - 1]; each is the row of the query's first head.
    """

    nodes: np.ndarray
    members: np.ndarray
    pieces: np.ndarray
    classes: np.ndarray
    merged: np.ndarray
    starts: np.ndarray
    parts: np.ndarray
    partial_rows: int

    def items(self, of_class: int, rows: int) -> np.ndarray:
        """The programs of a class of nodes, for tiles of `rows` stacked rows: (items, ITEM), node, first row, piece."""
        chosen = np.flatnonzero(self.classes == of_class)
        pieces = self.pieces[chosen]
        counts = pieces * -(-self.nodes[chosen, 6].astype(np.int64) // rows)
        i = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        per_block = np.repeat(pieces, counts)
        return np.stack([np.repeat(chosen, counts), i // per_block * rows, i % per_block], 1).astype(np.int32)


def layout_of(
    nodes: Nodes,
    starts: np.ndarray,
    lengths: np.ndarray,
    group: int,
    window: tuple[int | None, int | None],
    span_per_row: float,
) -> Layout:
    """The layout of the nodes' work.

    group: heads that share a key head. window: a query at position i attends keys i + first .. i + end - 1; None: no
    limit. span_per_row: fewest keys of a piece per stacked row (`span_per_row`).
    """
    sequences = np.repeat(np.arange(len(lengths)), np.diff(starts))
    positions = np.arange(len(sequences)) + (lengths - starts[1:])[sequences]
    begin, members = nodes.starts[:-1], nodes.queries
    first, stop = nodes.first.copy(), nodes.stop.copy()
    if len(begin):
        if window[0] is not None:
            first = np.maximum(first, np.minimum.reduceat(positions[members], begin) + window[0])
        if window[1] is not None:
            stop = np.minimum(stop, np.maximum.reduceat(positions[members], begin) + window[1])
    stop = np.maximum(first, stop)
    counts = np.diff(nodes.starts)
    rows = counts * group
    span = np.maximum(MIN_SPAN, 2 ** np.ceil(np.log2(np.maximum(1, rows * span_per_row)))).astype(np.int64)
    span = np.minimum(span, MAX_KEYS)
    pieces = np.maximum(1, -(-stop // span) - first // span)
    of_query = np.bincount(members, np.repeat(pieces, counts), len(sequences)).astype(np.int64)
    direct = np.maximum.reduceat(of_query[members], begin) == 1 if len(begin) else np.zeros(0, bool)
    needed = np.where(direct, 0, rows * pieces)
    base = np.where(direct, -1, np.cumsum(needed) - needed)
    if needed.sum() >= 2**31 or rows.sum() >= 2**31 or lengths.max(initial=0) > MAX_KEYS:
        raise RedblueError(
            f"attention_paged on a GPU takes fewer than 2^31 rows and partial results, and sequences of at most "
            f"{MAX_KEYS:,} keys; got {rows.sum():,} rows, {needed.sum():,} partial results and "
            f"{lengths.max(initial=0):,} keys: split the batch"
        )
    nodes_array = np.stack([nodes.sequence, first, stop, span, first // span, begin, rows, base], 1)
    of_member = np.stack([members, sequences[members], positions[members], lengths[sequences[members]]], 1)
    merged, part_starts, parts = _parts(nodes, pieces, base, rows, group)
    classes = np.clip(2 ** np.ceil(np.log2(np.maximum(1, rows))), MIN_EDGE, MAX_ROWS).astype(np.int64)
    nodes_array, of_member = (np.ascontiguousarray(x, np.int32) for x in (nodes_array, of_member))
    return Layout(nodes_array, of_member, pieces, classes, merged, part_starts, parts, int(needed.sum()))


def _parts(
    nodes: Nodes, pieces: np.ndarray, base: np.ndarray, rows: np.ndarray, group: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The queries that have partial results, and the first row of each of their parts, in the order of merging."""
    node = np.repeat(np.arange(len(pieces)), np.diff(nodes.starts))
    member = np.flatnonzero(base[node] >= 0)
    counts = pieces[node[member]]
    piece = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    member = np.repeat(member, counts)
    node = node[member]
    row = base[node] + piece * rows[node] + (member - nodes.starts[node]) * group
    order = np.argsort(nodes.queries[member], kind="stable")
    merged, first = np.unique(nodes.queries[member][order], return_index=True)
    return merged.astype(np.int32), np.append(first, len(order)).astype(np.int32), row[order].astype(np.int32)


def span_per_row(key_bytes: int, result_bytes: int) -> float:
    """The fewest keys of a piece, per stacked row, with which partial results stay within MERGED_SHARE.

    key_bytes: bytes of one key and its value. result_bytes: bytes of the partial result of a row, which moves twice.
    """
    return 2 * result_bytes / (MERGED_SHARE * key_bytes)
