"""Search for tile edges over integers, vectorised over all candidates.

Full mask: the words depend on an edge only through the number of blocks into which it cuts its axis. Among all edges
with the same number of blocks only the shortest is a candidate, which leaves about 2 sqrt(n) candidates. A longer edge
never moves more words, so each length of one edge is paired only with the longest other edge that fits. The search is
exact.

Mask with a diagonal: the position of tiles relative to the diagonal also matters, and a longer tile may contain more
masked pairs. The search tries every edge up to EDGES_TRIED, and every pair of edges if there are at most PAIRS_TRIED of
them. It is therefore exact for n <= 128 (for a single edge, n <= 8192). For larger n it tries PAIRS_TRIED pairs, spread
evenly over the logarithms of the edges, and the pairs that fill the cache.

Block layout: tiles aligned with the layout's blocks touch the fewest other blocks. Multiples and divisors of the block
edges are therefore candidates too, and make up at most half of the edges tried in pairs. The time grows with the number
of blocks in the layout: half a second for 64 x 64 blocks, half a minute for 1024 x 1024.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from redblue.masks import Pairs
from redblue.paged_problem import AnyProblem

# Edges that default to the whole axis. A shorter "chunk" saves slow memory; a shorter "span" or "piece" adds
# parallelism.
WHOLE = {"chunk": "n_q", "span": "n_k", "piece": "n_k"}
PAIRS_TRIED = 1 << 14  # about 50 ms on a banded mask
EDGES_TRIED = 1 << 13


class Moved(Protocol):
    """The part of a Cost (schedule.py) that the search compares: words moved, and words held at most."""

    @property
    def words(self) -> Any: ...
    @property
    def peak(self) -> Any: ...


class Searched(Protocol):
    """The part of a Pass (schedule.py) that `search_grid` calls."""

    @property
    def edges(self) -> tuple[str, ...]: ...
    @property
    def tile_type(self) -> Callable[..., Any]: ...
    @property
    def cost(self) -> Callable[[Any, Any], Moved]: ...


@lru_cache(maxsize=64)
def edges(length: int, multiple: int = 1, every: bool = False) -> np.ndarray:
    """Return candidate edges of an axis, ascending: the shortest multiple of `multiple` for each number of blocks.

    every: return all multiples instead, if there are at most EDGES_TRIED.
    """
    if every and length <= EDGES_TRIED * multiple:
        return np.unique(np.minimum(length, np.arange(multiple, length + multiple, multiple)))
    root = int(np.sqrt(length)) + 1
    shortest = np.concatenate([np.arange(1, root + 1), -(-length // np.arange(1, root + 1))])
    return np.unique(np.minimum(length, -(-shortest // multiple) * multiple))


def longest(candidates: np.ndarray, fits: Callable[[np.ndarray], np.ndarray], like: np.ndarray) -> np.ndarray:
    """Return, per element of `like`, the index of the longest candidate that fits (-1: none), by bisection.

    fits: maps an array of candidates, one per element, to booleans.
    """
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
    """Return the pairs of edges to try, as two arrays: the longest row edge that fits for each column edge.

    On a mask, shorter row edges are tried too. peak(rows, cols): words that the tiles hold, at most `words`.
    """
    steps = [step for step in {*pairs.steps} if step > 1 and not pairs.is_full]
    rows, cols = (np.union1d(axis, multiples(axis, steps)) for axis in (rows, cols)) if steps else (rows, cols)
    index = longest(rows, lambda r: peak(r, cols) <= words, cols)
    filling = rows[index[index >= 0]], cols[index >= 0]
    if pairs.is_full:
        return filling
    if len(rows) * len(cols) > PAIRS_TRIED:
        side = math.isqrt(PAIRS_TRIED)
        rows, cols = (
            spread(rows, max(side, PAIRS_TRIED // len(cols)), steps),
            spread(cols, max(side, PAIRS_TRIED // len(rows)), steps),
        )
    r, c = (x.ravel() for x in np.meshgrid(rows, cols, indexing="ij"))
    fit = peak(r, c) <= words
    return np.concatenate([filling[0], r[fit]]), np.concatenate([filling[1], c[fit]])


def multiples(candidates: np.ndarray, steps: Sequence[int]) -> np.ndarray:
    """Return the edges that are multiples of a step and, like all candidates, of the shortest candidate."""
    shortest, length = int(candidates[0]), int(candidates[-1])
    aligned = [np.arange(common, length + 1, common) for common in (math.lcm(shortest, step) for step in steps)]
    return np.concatenate([spread(lengths, EDGES_TRIED) for lengths in aligned])


def spread(candidates: np.ndarray, limit: int, steps: Sequence[int] = ()) -> np.ndarray:
    """Return at most `limit` of the candidates, evenly spread over their logarithms and including the longest.

    steps: up to half of the result are multiples or divisors of these.
    """
    if len(candidates) <= limit:
        return candidates
    if steps:
        is_aligned = np.any([(candidates % step == 0) | (step % candidates == 0) for step in steps], axis=0)
        aligned = spread(candidates[is_aligned], limit // 2)
        return np.union1d(aligned, spread(candidates, limit - len(aligned)))
    targets = np.geomspace(candidates[0], candidates[-1], limit).astype(np.int64)
    return candidates[np.unique(np.searchsorted(candidates, targets))]


def cheapest(cost: Moved, candidates: Sequence[np.ndarray | int], words: int) -> tuple[int, ...] | None:
    """Return the candidate that fits and moves the fewest words, with ties broken by the peak; None if none fits.

    cost: the cost of every candidate. candidates: one array per edge, or the one length that all candidates have.
    """
    moved, peak, *lengths = np.broadcast_arrays(cost.words, cost.peak, *candidates)
    fit = np.flatnonzero(peak <= words)
    if not len(fit):
        return None
    best = fit[np.lexsort((peak.flat[fit], moved.flat[fit]))[0]]
    return tuple(int(x.flat[best]) for x in lengths)


def search_grid(one_pass: Searched, problem: AnyProblem, words: int, multiple: Mapping[str, int]) -> Any:
    """Return the tiles that move the fewest words among a grid of edges, then among the edges of one axis at a time.

    This is the search of a pass without a search of its own. An edge whose name ends in "rows" or "cols" is at most n_q
    or n_k long, any other edge at most the longest axis; edges of WHOLE span their axis, and "depth" is as short as it
    may be. With one edge to choose, or with two on a full mask of at most 4096 x 4096, every edge that can be the best
    is tried; otherwise the tiles may not be the very best.
    """
    axes = [_candidates(edge, problem, multiple[edge]) for edge in one_pass.edges]
    chosen = sum(len(axis) > 1 for axis in axes)
    per_axis = max(2, int(PAIRS_TRIED ** (1 / max(1, chosen))))

    def best_of(candidates: Sequence[np.ndarray]) -> tuple[int, ...] | None:
        grid = [axis.ravel() for axis in np.meshgrid(*candidates, indexing="ij")]
        tiles = [tried if len(axis) > 1 else int(axis[0]) for axis, tried in zip(candidates, grid, strict=True)]
        return cheapest(one_pass.cost(problem, one_pass.tile_type(*tiles)), tiles, words)

    # If none fits, try the shortest edges alone: `spread` may have dropped the edges that fit.
    best = best_of([spread(axis, per_axis) for axis in axes]) or best_of([axis[:1] for axis in axes])
    for i, axis in enumerate(axes):
        if best is not None:
            best = best_of([axis if j == i else np.array([edge]) for j, edge in enumerate(best)])
    return None if best is None else one_pass.tile_type(*best)


def _candidates(edge: str, problem: AnyProblem, multiple: int) -> np.ndarray:
    """Return the edges of one axis that `search_grid` tries."""
    if edge in WHOLE:
        return np.array([getattr(problem, WHOLE[edge])])
    if edge == "depth":
        return np.array([multiple])
    longest_axis = max(problem.n_q, problem.n_k, problem.d, problem.d_v)
    length = {"rows": problem.n_q, "cols": problem.n_k}.get(edge[-4:], longest_axis)
    return edges(length, multiple, not problem.mask.on(problem.n_q, problem.n_k).is_full)
