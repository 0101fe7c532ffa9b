"""The closed form of paged attention, and the search for its tiles."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from redblue.base.integers import ceil_div
from redblue.paged_problem import PagedProblem
from redblue.schedules.paged_nodes import MIN_SHARED_KEYS, Node, Part, Tiles, parts_of, rows_of, shared_nodes
from redblue.schedules.schedule import Cost, overlap
from redblue.schedules.search import edges, spread

ROWS_TRIED = 8  # edges that the search tries where a mask makes shorter blocks worthwhile


def forward_cost(p: PagedProblem, t: Tiles) -> Cost:
    return cost_of(p, t, parts_of(p, t))


def words(problem: PagedProblem, tiles: Tiles, prefix_pages: int | None = None) -> tuple[int, int]:
    """Return the words read and written for all key/value heads; `count` returns them, too.

    prefix_pages: as for `shared_nodes`. Only callers choose such a prefix; plans do not.
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
    """Blocks of rows of a part, grouped by the keys that they attend: arrays of equal length.

    times: number of blocks of a group. rows: rows of all blocks of the group together. low, high: each block of the
    group attends the keys low .. high - 1.
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
    """Return, for each group of blocks, the entries of the page table that one block reads."""
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
    """Return the most words that a merge holds. merged: number of rows of each sequence with partial results."""
    return min(t.rows, max(merged, default=0)) * (2 * p.d_v + 3)


def _merged(p: PagedProblem, parts: list[Part]) -> list[int]:
    """Return the number of rows of each sequence with partial results."""
    rows = rows_of(p)
    return [len(rows[b]) for b in {b for part in parts if part.partials is not None for b in part.node.members}]


# The search ---------------------------------------------------------------------------------------


def search(p: PagedProblem, words: int, multiple: Mapping[str, int]) -> Tiles | None:
    """Return the tiles that move the fewest words.

    For every minimum length of shared runs, the search tries the most rows that fit; under a mask, also shorter blocks
    of rows for the best of these lengths. Keys are not cut into pieces, because pieces only move more words. Keys
    stream by in the smallest tiles, because these leave the most words for rows.
    """
    cols, options = min(multiple["cols"], max(1, p.n_k)), []
    for shared, nodes in _ways_to_share(p):
        tiles = Tiles(1, cols, max(1, p.n_k), shared, max(1, p.n_q))
        parts = parts_of(p, tiles, nodes)
        fitting = _fitting_rows(p, tiles, parts, words, multiple["rows"])
        if len(fitting):
            options.append((*_rated(p, tiles._replace(rows=int(fitting[-1])), parts), parts, fitting))
    if not options:
        return None
    *_, best, parts, fitting = min(options, key=lambda option: option[:2])
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
    """Return (minimum length of shared runs, nodes), one entry for each different set of nodes.

    The first entry is that of MIN_SHARED_KEYS, the minimum length in the kernels.
    """
    ways: dict[tuple[Node, ...], int] = {}
    for shared in (MIN_SHARED_KEYS, *(1 << i for i in range(p.n_k.bit_length() + 1))):
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
