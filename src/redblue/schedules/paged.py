"""Paged attention: keys and values lie in pages, and keys that several sequences share stream by once for all of them.

The page tables form a trie (paged_nodes.py). A node is a run of keys that several sequences read from the same pages,
or the remaining keys of one sequence; these sequences are the members of the node. The queries of all members are rows
of one attention: a block of rows stays, and the node's keys stream by, as in `flash`. The keys of a node may be cut
into pieces, so that few rows occupy many processors. A row whose keys are divided, into nodes or pieces, stores a
partial result for each part: its maximum, its sum and its weighted values, d_v + 2 words, which are merged at the end.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from redblue.base.integers import ceil_div
from redblue.machine import Machine, Slow, Tile
from redblue.paged_problem import PagedProblem
from redblue.schedules.paged_cost import forward_cost, search, words
from redblue.schedules.paged_nodes import Part, Tiles, parts_of, rows_of
from redblue.schedules.schedule import Pass, Schedule, blocks, overlap, within
from redblue.schedules.softmax import LOWEST, online_softmax, rescale, store_rows

__all__ = ["Tiles", "schedule", "words"]


class Cache(NamedTuple):
    """The arrays of a paged cache in slow memory. Row r of page p is row p * page + r of k and v."""

    k: Slow
    v: Slow
    table: Slow  # (sequences, most pages)


def forward(
    m: Machine,
    problem: PagedProblem,
    t: Tiles,
    q: Slow,
    k_pages: Slow,
    v_pages: Slow,
    page_table: Slow,
    out: Slow,
    lse: Slow,
) -> None:
    parts, cache = parts_of(problem, t), Cache(k_pages, v_pages, page_table)
    stored = sum(part.walks * len(part.rows) for part in parts if part.partials is not None)
    widths = {"part_out": (problem.d_v,), "part_max": (), "part_sum": ()}
    partials = [m.scratch(name, (stored, *width)) for name, width in widths.items() if stored]
    walks: list[list[tuple[Part, int]]] = [[] for _ in problem.keys]  # per sequence: (part, number of the piece)
    for part in parts:
        for number, keys in enumerate(part.pieces):
            for i in blocks(part.rows, t.rows):
                results = _walk(m, problem, part, i, keys, t.cols, q, cache)
                if part.partials is None:
                    store_rows(m, *results, out[i], lse[i])
                else:
                    for array, tile in zip(partials, results, strict=True):
                        m.store(array[part.stored(number, i)], tile)
                m.free(*results)
            for b in part.node.members if part.partials is not None else ():
                walks[b].append((part, number))
    for rows, of_sequence in zip(rows_of(problem), walks, strict=True):
        for i in blocks(rows if of_sequence else 0, t.rows):
            _merge(m, [part.stored(number, i) for part, number in of_sequence], partials, out, lse, i)


def _walk(
    m: Machine, problem: PagedProblem, part: Part, i: range, keys: range, cols: int, q: Slow, cache: Cache
) -> tuple[Tile, Tile, Tile]:
    """Attend from rows i to the keys. Return tiles of the weighted values, the maxima and the sums of the rows."""
    scale, q_i, rows = problem.d**-0.5, m.load(q[i]), part.band_rows(i)
    out_i = m.zeros("out_i", len(i), problem.d_v)
    row_max, row_sum = m.full("row_max", (len(i),), LOWEST), m.zeros("row_sum", len(i))
    live = (keys,) if part.band is None else overlap(keys, m.cols_of(part.band, rows))
    entries: dict[int, Tile] = {}  # entries of the page table, by place
    for j in blocks(live, cols):
        cells = _cells_of(m, problem, part.node.members[0], j, cache.table, entries)
        s, held = m.zeros("s", len(i), len(j)), []
        for run, columns in cells:
            k_j = m.load(cache.k[run])
            s[:, columns] = q_i @ k_j.T * scale
            if problem.v_in_k:
                held.append(k_j)
            else:
                m.free(k_j)
        if part.band is not None and not m.holds(part.band, rows, j):
            s[...] = m.where(part.band, rows, j, s, -np.inf)
        online_softmax(m, s, out_i, row_max, row_sum)
        for run, columns in cells:
            v_j = held.pop(0) if problem.v_in_k else m.load(cache.v[run])
            out_i += s[:, columns] @ v_j[:, : problem.d_v]
            m.free(v_j)
        m.free(s)
    m.free(q_i, *entries.values())
    return out_i, row_max, row_sum


def _cells_of(
    m: Machine, problem: PagedProblem, sequence: int, j: range, table: Slow, entries: dict[int, Tile]
) -> list[tuple[range, slice]]:
    """Return the rows of pages that hold the keys j, in contiguous runs, each with its place among the keys.

    Loads the entries of the page table that are not in the cache yet, and frees the entries of earlier pages.
    """
    page, cells = problem.page, []
    places = range(j.start // page, ceil_div(j.stop, page))
    m.free(*(entries.pop(place) for place in list(entries) if place < places.start))
    for place in places:
        if place not in entries:
            entries[place] = m.load(table[range(sequence, sequence + 1), range(place, place + 1)])
        number = m.address(entries[place], problem.table[sequence][place])
        keys = range(max(j.start, place * page), min(j.stop, (place + 1) * page))
        shift = (number - place) * page
        cells.append((range(keys.start + shift, keys.stop + shift), within(keys, j)))
    return cells


def _merge(m: Machine, stored: list[range], partials: list[Slow], out: Slow, lse: Slow, i: range) -> None:
    """Merge the partial results of rows i. stored: their rows in the arrays of partial results."""
    part_out, part_max, part_sum = partials
    out_i = m.zeros("out_i", len(i), out.shape[1])
    row_max, row_sum = m.full("row_max", (len(i),), LOWEST), m.zeros("row_sum", len(i))
    for rows in stored:
        share = m.load(part_max[rows])
        rescale(m, share, out_i, row_max, row_sum)
        partial_sum = m.load(part_sum[rows])
        row_sum += share * partial_sum
        m.free(partial_sum)
        partial = m.load(part_out[rows])
        out_i += share[:, None] * partial
        m.free(share, partial)
    store_rows(m, out_i, row_max, row_sum, out[i], lse[i])
    m.free(out_i, row_max, row_sum)


schedule = Schedule(
    name="paged",
    title="Paged attention: keys that sequences share stream by once; partial results are merged",
    source="derived for redblue: FlashAttention's order on the trie of page tables, split and merged as in decoding",
    passes={"paged": Pass(forward, Tiles, forward_cost, search)},
)
