"""Integer search for tiles, over whole arrays of candidates at once.

A tile edge matters through the number of blocks it cuts its axis into, so of all edges that give the same
number only the shortest is a candidate: about 2 sqrt(n) of them, not n. And a longer edge never moves more words,
so for each length of one edge only the longest other edge that fits is tried. On a full mask this is exact.

On a mask with a diagonal, where a tile meets the diagonal matters too, and a longer tile may hold more pairs that do
not attend: there every edge is tried up to EDGES_TRIED, and every pair of edges while there are at most PAIRS_TRIED.
So the search is exact there for n <= 128 (in one edge alone: 8192). Beyond that it tries PAIRS_TRIED pairs spread
evenly over the logarithms of the edges, and those that fill the cache.

A tile that covers whole blocks of a block layout, or parts of one, touches fewest others. So on a layout the multiples
and divisors of the blocks' edges are candidates too, and up to half of the edges that are tried in pairs. Sums over a
layout cost time in its number of blocks: with 64 x 64 a search takes half a second, with 1024 x 1024 half a minute.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from redblue.masks import Pairs
from redblue.schedules.schedule import Cost

PAIRS_TRIED = 1 << 14  # on a band more would take longer than 50 ms
EDGES_TRIED = 1 << 13


def edges(length: int, multiple: int = 1, every: bool = False) -> np.ndarray:
    """Candidate edges of an axis, ascending: the shortest multiple of `multiple` for each number of blocks.

    every: all multiples, while there are few.
    """
    if every and length <= EDGES_TRIED * multiple:
        return np.unique(np.minimum(length, np.arange(multiple, length + multiple, multiple)))
    root = int(np.sqrt(length)) + 1
    shortest = np.concatenate([np.arange(1, root + 1), -(-length // np.arange(1, root + 1))])
    return np.unique(np.minimum(length, -(-shortest // multiple) * multiple))


def longest(candidates: np.ndarray, fits: Callable[[np.ndarray], np.ndarray], like: np.ndarray) -> np.ndarray:
    """For each element of `like`, the index of the longest candidate that fits (-1: none), by bisection."""
    index = np.full(like.shape, -1)
    for bit in reversed(range(len(candidates).bit_length())):
        trial = index + (1 << bit)
        inside = trial < len(candidates)
        fit = fits(candidates[np.minimum(trial, len(candidates) - 1)])
        index = np.where(inside & fit, trial, index)
    return index


def pair_edges(
    rows: np.ndarray, cols: np.ndarray, peak: Callable[[Any, Any], Any], words: int, pairs: Pairs
) -> tuple[np.ndarray, np.ndarray]:
    """The pairs of edges worth trying: for each col edge the longest row edge; on a mask, shorter ones too."""
    steps = [step for step in {*pairs.steps} if step > 1 and not pairs.is_full]
    rows, cols = (np.union1d(each, multiples(each, steps)) for each in (rows, cols)) if steps else (rows, cols)
    index = longest(rows, lambda r: peak(r, cols) <= words, cols)
    filling = rows[index[index >= 0]], cols[index >= 0]
    if pairs.is_full:
        return filling
    if len(rows) * len(cols) > PAIRS_TRIED:
        most = math.isqrt(PAIRS_TRIED)
        rows, cols = (
            spread(rows, max(most, PAIRS_TRIED // len(cols)), steps),
            spread(cols, max(most, PAIRS_TRIED // len(rows)), steps),
        )
    r, c = (x.ravel() for x in np.meshgrid(rows, cols, indexing="ij"))
    fit = peak(r, c) <= words
    return np.concatenate([filling[0], r[fit]]), np.concatenate([filling[1], c[fit]])


def multiples(candidates: np.ndarray, steps: Sequence[int]) -> np.ndarray:
    """The lengths that are multiples both of a step and, as all candidates, of the shortest candidate."""
    shortest, length = int(candidates[0]), int(candidates[-1])
    found = [np.arange(both, length + 1, both) for both in (math.lcm(shortest, step) for step in steps)]
    return np.concatenate([spread(each, EDGES_TRIED) for each in found])


def spread(candidates: np.ndarray, most: int, steps: Sequence[int] = ()) -> np.ndarray:
    """At most `most` of the candidates, evenly over their logarithms, the longest included.

    steps: up to half of them are multiples or divisors of these, while there are such.
    """
    if len(candidates) <= most:
        return candidates
    if steps:
        whole = np.any([(candidates % step == 0) | (step % candidates == 0) for step in steps], axis=0)
        aligned = spread(candidates[whole], most // 2)
        return np.union1d(aligned, spread(candidates, most - len(aligned)))
    wanted = np.geomspace(candidates[0], candidates[-1], most).astype(np.int64)
    return candidates[np.unique(np.searchsorted(candidates, wanted))]


def cheapest(cost: Cost, candidates: Sequence[np.ndarray], words: int) -> tuple[int, ...] | None:
    """The candidate of fewest words that fits, and of those the one that holds fewest; None if none fits."""
    moved, peak = np.broadcast_arrays(cost.words, cost.peak)
    fit = np.flatnonzero(peak <= words)
    if not len(fit):
        return None
    best = fit[np.lexsort((peak.flat[fit], moved.flat[fit]))[0]]
    return tuple(int(np.broadcast_to(x, moved.shape).flat[best]) for x in candidates)
