"""Paged attention: keys and values lie in pages, and keys that several sequences share stream by once for all of them.

The page tables form a trie (paged_nodes.py). The queries of all members of a node are rows of one attention: a block of
rows stays, and the node's keys stream by, as in `flash`. The keys of a node may be cut into pieces, so that few rows
occupy many processors. A row whose keys are divided, into nodes or pieces, stores a partial result for each part: its
maximum, its sum and its weighted values, d_v + 2 words, which are merged at the end.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from redblue.base.integers import LARGEST, ceil_div
from redblue.machine import Machine, Slow, Tile, exp, maximum
from redblue.masks.patterns.band import Band
from redblue.paged_problem import PagedProblem
from redblue.schedules.paged_nodes import LEAST_SHARED, Node, shared_nodes
from redblue.schedules.schedule import Cost, Pass, Schedule, blocks, overlap, within
from redblue.schedules.search import edges, spread
from redblue.schedules.softmax import LOWEST, online_softmax, store_rows

ROWS_TRIED = 8  # edges of a search, where masked blocks make shorter ones worthwhile


class Tiles(NamedTuple):
    rows: Any  # rows of a node (queries times query heads per key/value head) that stay
    cols: Any = 1  # keys that stream by together
    piece: Any = LARGEST  # keys of a node that a block of rows walks through; the results of several walks are merged
    shared: Any = LEAST_SHARED  # fewest keys of a run that sequences share
    few: Any = LARGEST  # a node with more rows than this is not cut into pieces

    SMALLEST = MappingProxyType({"shared": LARGEST, "few": LARGEST})  # sharing takes a merge


class Part(NamedTuple):
    """A node on its way through the schedule.

    rows: of the stream. piece: keys of a piece. partials: first row of its partial results, which lie piece after
    piece; None if its results are final. band: the mask of a single member; None if all rows attend all keys.
    """

    node: Node
    rows: range
    piece: int
    partials: int | None
    band: Band | None

    @property
    def walks(self) -> int:
        """Number of pieces, each walked through by itself. A node without keys has one piece without keys."""
        return max(1, ceil_div(self.node.stop - self.node.first, self.piece))

    @property
    def keys(self) -> range:
        """The keys of the node."""
        return range(self.node.first, self.node.stop)

    @property
    def pieces(self) -> list[range]:
        """The keys of each piece."""
        return list(blocks(self.keys, self.piece)) or [self.keys]

    def band_rows(self, i: range) -> range:
        """Return rows of the stream as rows of the band."""
        return range(i.start - self.rows.start, i.stop - self.rows.start)

    def stored(self, piece: int, i: range) -> range:
        """Return the rows of the arrays of partial results in which the rows i of a piece are stored."""
        assert self.partials is not None
        shift = self.partials + piece * len(self.rows) - self.rows.start
        return range(i.start + shift, i.stop + shift)


def parts_of(p: PagedProblem, t: Tiles, nodes: tuple[Node, ...] | None = None) -> list[Part]:
    """Return the parts of a stream, whose sequences are in the order of their pages (PagedProblem.one_stream).

    nodes: those of the stream; None: the nodes that share runs of at least t.shared keys.
    """
    nodes = shared_nodes(p, t.shared) if nodes is None else nodes
    rows, nodes_of = rows_of(p), Counter(b for node in nodes for b in node.members)
    parts, stored = [], 0
    for node in nodes:
        first, alone = node.members[0], len(node.members) == 1
        part_rows = range(rows[first].start, rows[node.members[-1]].stop)
        piece = max(1, min(node.stop - node.first, LARGEST if len(part_rows) > t.few else t.piece))
        part = Part(node, part_rows, piece, stored, p.band(first) if alone else None)
        if alone and part.walks == 1 and nodes_of[first] == 1:
            part = part._replace(partials=None)
        else:
            stored += part.walks * len(part_rows)
        parts.append(part)
    return parts


def rows_of(p: PagedProblem) -> list[range]:
    """Return the rows of each sequence in the arrays of one stream."""
    ends = np.cumsum([0, *(p.group * n for n in p.queries)]).tolist()
    return [range(a, b) for a, b in pairwise(ends)]


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
    walks: list[list[tuple[Part, int]]] = [[] for _ in problem.keys]  # of each sequence: parts, numbers of pieces
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
    entries: dict[int, Tile] = {}  # of the page table, by place
    for j in blocks(live, cols):
        cells = _cells_of(m, problem, part.node.members[0], j, cache.table, entries)
        s, held = m.zeros("s", len(i), len(j)), []
        for run, at in cells:
            k_j = m.load(cache.k[run])
            s[:, at] = q_i @ k_j.T * scale
            if problem.v_in_k:
                held.append(k_j)
            else:
                m.free(k_j)
        if part.band is not None and not m.holds(part.band, rows, j):
            s[...] = m.where(part.band, rows, j, s, -np.inf)
        online_softmax(m, s, out_i, row_max, row_sum)
        for run, at in cells:
            v_j = held.pop(0) if problem.v_in_k else m.load(cache.v[run])
            out_i += s[:, at] @ v_j[:, : problem.d_v]
            m.free(v_j)
        m.free(s)
    m.free(q_i, *entries.values())
    return out_i, row_max, row_sum


def _cells_of(
    m: Machine, problem: PagedProblem, sequence: int, j: range, table: Slow, entries: dict[int, Tile]
) -> list[tuple[range, slice]]:
    """Return the rows of pages that hold the keys j, in contiguous runs, each with its place among the keys.

    Loads the entries of the page table that are not in the cache yet, and frees those of the pages before.
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
        new_max = m.new("new_max", maximum(row_max, share))
        row_max[...] = exp(row_max - new_max)
        share[...] = exp(share - new_max)
        row_sum *= row_max
        out_i *= row_max[:, None]
        row_max[...] = new_max
        m.free(new_max)
        partial_sum = m.load(part_sum[rows])
        row_sum += share * partial_sum
        m.free(partial_sum)
        partial = m.load(part_out[rows])
        out_i += share[:, None] * partial
        m.free(share, partial)
    store_rows(m, out_i, row_max, row_sum, out[i], lse[i])
    m.free(out_i, row_max, row_sum)


# The closed form ----------------------------------------------------------------------------------


def forward_cost(p: PagedProblem, t: Tiles) -> Cost:
    return cost_of(p, t, parts_of(p, t))


def words(problem: PagedProblem, tiles: Tiles, prefix_pages: int | None = None) -> tuple[int, int]:
    """Return the words read and written for all key/value heads; `count` states them, too.

    prefix_pages: as for `shared_nodes`; such a prefix is a choice of the caller, which plans do not make.
    """
    stream = problem.one_stream()
    nodes = shared_nodes(stream, tiles.shared, prefix_pages)
    cost = cost_of(stream, tiles, parts_of(stream, tiles, nodes))
    return problem.streams * cost.reads, problem.streams * cost.writes


def cost_of(p: PagedProblem, t: Tiles, parts: list[Part]) -> Cost:
    """Return the cost of the parts of a stream, and of merging their partial results."""
    total, merged = Cost(0, 0, 0, 0), _merged(p, parts)
    for part in parts:
        total += _walk_cost(p, t, part)
    partial_rows = sum(part.walks * len(part.rows) for part in parts if part.partials is not None)
    return total + Cost(partial_rows * (p.d_v + 2), sum(merged) * (p.d_v + 1), _merge_peak(p, t, merged), 0)


class Blocks(NamedTuple):
    """Blocks of rows of a part, those with equal keys together: arrays of equal length.

    times: number of blocks. rows: their rows. low, high: the keys that they attend, low .. high - 1.
    """

    times: np.ndarray
    rows: np.ndarray
    low: np.ndarray
    high: np.ndarray


def _blocks(part: Part, rows: int) -> Blocks:
    """Return the blocks of `rows` rows of a part."""
    total, node, band = len(part.rows), part.node, part.band
    if band is None or total == band.group:  # all rows attend the same keys
        keys = (part.keys,) if band is None else overlap(part.keys, band.cols_of(range(total)))
        low, high = (keys[0].start, keys[0].stop) if keys else (node.first, node.first)
        return Blocks(*(np.array([x]) for x in (ceil_div(total, rows), total, low, high)))
    starts = np.arange(0, total, rows)
    stops = np.minimum(starts + rows, total)
    low = np.maximum(node.first, starts // band.group + band.first)
    high = np.minimum(node.stop, (stops - 1) // band.group + band.end)
    return Blocks(np.ones(len(starts), np.int64), stops - starts, low, np.maximum(low, high))


def _walk_cost(p: PagedProblem, t: Tiles, part: Part) -> Cost:
    """Return the cost of all walks of one part, without the merge."""
    rows, of_part = len(part.rows), _blocks(part, t.rows)
    keys = of_part.high - of_part.low
    reads = part.walks * rows * p.d + p.key_words * int(of_part.times @ keys)
    reads += int(of_part.times @ _entries(p, part, of_part))
    writes = rows * (p.d_v + 1) if part.partials is None else part.walks * rows * (p.d_v + 2)
    flops = 2 * (p.d + p.d_v) * int(of_part.rows @ keys)
    return Cost(reads, writes, _walk_peak(p, t, part, of_part), flops)


def _entries(p: PagedProblem, part: Part, of_part: Blocks) -> np.ndarray:
    """Return the entries of the page table that one of each kind of blocks reads."""
    low, high = of_part.low, of_part.high
    pages = (high - 1) // p.page - low // p.page + 1
    if part.walks > 1:
        # A page that lies in two pieces is read for both. The node starts at a page, so cut c lies inside a page unless
        # c * piece is a multiple of the page.
        first_cut = (low - part.node.first) // part.piece + 1
        last_cut = -((part.node.first - high) // part.piece) - 1
        period = p.page // math.gcd(p.page, part.piece)
        pages += last_cut - last_cut // period - (first_cut - 1) + (first_cut - 1) // period
    return np.where(high > low, pages, 0)


def _walk_peak(p: PagedProblem, t: Tiles, part: Part, of_part: Blocks) -> int:
    """Return the most words that a walk holds. If rows attend different keys, it is an upper bound."""
    r, live = min(t.rows, len(part.rows)), int((of_part.high - of_part.low).max())
    statistics = r * (p.d + p.d_v + 2)
    if not live:
        return statistics
    c = min(t.cols, part.piece, live)
    whole_pages = (c == live or t.cols % p.page == 0) and (part.walks == 1 or part.piece % p.page == 0)
    aligned = whole_pages and not (of_part.low % p.page).any()
    entries = ceil_div(c, p.page) if aligned else (c + p.page - 2) // p.page + 1
    held = c * p.d + r if p.v_in_k else max(min(c, p.page) * max(p.d, p.d_v), r)
    return statistics + entries + r * c + held


def _merge_peak(p: PagedProblem, t: Tiles, merged: list[int]) -> int:
    """Return the most words that a merge holds. merged: rows of each sequence with partial results."""
    return min(t.rows, max(merged, default=0)) * (2 * p.d_v + 3)


def _merged(p: PagedProblem, parts: list[Part]) -> list[int]:
    """Return the rows of each sequence with partial results."""
    rows = rows_of(p)
    return [len(rows[b]) for b in {b for part in parts if part.partials is not None for b in part.node.members}]


# The search ---------------------------------------------------------------------------------------


def search(p: PagedProblem, words: int, multiple: Mapping[str, int]) -> Tiles | None:
    """Return the tiles that move the fewest words: of several lengths of shared runs, with the most rows that fit.

    Under a mask, shorter blocks of rows are tried, too. Keys are not cut into pieces, which would only move more words,
    and stream by in the smallest tiles, which leave most room for rows.
    """
    cols, found = min(multiple["cols"], max(1, p.n_k)), []
    for shared, nodes in _ways_to_share(p):
        tiles = Tiles(1, cols, max(1, p.n_k), shared, max(1, p.n_q))
        parts = parts_of(p, tiles, nodes)
        fitting = _fitting_rows(p, tiles, parts, words, multiple["rows"])
        if len(fitting):
            found.append((*_rated(p, tiles._replace(rows=int(fitting[-1])), parts), parts, fitting))
    if not found:
        return None
    *_, best, parts, fitting = min(found, key=lambda option: option[:2])
    if p.mask.is_full or max(p.queries) <= 1:  # all rows of a sequence attend the same keys
        return best
    tried = (_rated(p, best._replace(rows=rows), parts) for rows in spread(fitting, ROWS_TRIED).tolist())
    return min(tried, key=lambda option: option[:2])[-1]


def _rated(p: PagedProblem, t: Tiles, parts: list[Part]) -> tuple[int, int, Tiles]:
    """Return the words moved and the words held with these tiles, and the tiles."""
    cost = cost_of(p, t, parts)
    return cost.words, cost.peak, t


@lru_cache(maxsize=8)
def _ways_to_share(p: PagedProblem) -> list[tuple[int, tuple[Node, ...]]]:
    """Return the lengths of shared runs that lead to different nodes, the kernel's first, and these nodes."""
    ways: dict[tuple[Node, ...], int] = {}
    for shared in (LEAST_SHARED, *(1 << i for i in range(p.n_k.bit_length() + 1))):
        ways.setdefault(shared_nodes(p, shared), shared)
    return [(shared, nodes) for nodes, shared in ways.items()]


def _fitting_rows(p: PagedProblem, t: Tiles, parts: list[Part], words: int, multiple: int) -> np.ndarray:
    """Return the lengths of blocks of rows that fit, ascending."""
    candidates = edges(max([1, *(len(part.rows) for part in parts)]), multiple, every=True)
    shapes = {(len(part.rows), part.keys, part.band): part for part in parts}  # parts of one shape hold the same words
    merged = _merged(p, parts)

    def fits(index: int) -> bool:
        tiles = t._replace(rows=int(candidates[index]))
        peaks = (_walk_peak(p, tiles, part, _blocks(part, tiles.rows)) for part in shapes.values())
        return max([_merge_peak(p, tiles, merged), *peaks]) <= words

    return candidates[: bisect(range(len(candidates)), False, key=lambda index: not fits(index))]


schedule = Schedule(
    name="paged",
    title="Paged attention: keys that sequences share stream by once; partial results are merged",
    source="derived for redblue: FlashAttention's order on the trie of page tables, split and merged as in decoding",
    passes={"paged": Pass(forward, Tiles, forward_cost, search)},
)
