"""Sets of keys for many ranges of queries at once, as sorted edges.

Key k of range i has the position i * (n_k + 1) + k, so no set of one range touches that of the next. A set of positions
is the sorted array of the positions at which membership changes: of every maximal run, its first and the one beyond its
last. Sets are combined in time proportional to their runs, however many keys these hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from redblue.base.errors import RedblueError

LARGEST = 1 << 62  # of positions: what 64-bit integers hold, with room for sums
MOST = 1 << 28  # runs, keys or pairs that are listed one by one: 2 GiB
MOST_RANGES = 1 << 26  # ranges of queries that are asked together
AT_ONCE = 1 << 21  # positions looked at together
NOTHING = np.zeros(0, np.int64)


def stride(ranges: int, n_k: int) -> int:
    """Positions between one range and the next. Raises RedblueError where positions would not fit 64-bit integers."""
    if (ranges + 1) * (n_k + 1) > LARGEST:
        raise RedblueError(
            f"{ranges:,} ranges of queries times n_k = {n_k:,} keys are too many to list tile by tile: give smaller "
            "sizes, or a mask that is a band or a layout of blocks alone"
        )
    return n_k + 1


def numbered(count: int) -> np.ndarray:
    """0 .. count - 1. Raises RedblueError for more than memory should hold."""
    if count > MOST_RANGES:
        raise RedblueError(
            f"the mask would be listed in {count:,} parts, of at most {MOST_RANGES:,}: give smaller sizes, or a mask "
            "that is a band or a layout of blocks alone"
        )
    return np.arange(count)


def from_runs(at: np.ndarray, first: np.ndarray, stop: np.ndarray, n_k: int) -> np.ndarray:
    """Edges of the runs first .. stop - 1 of the ranges `at`, in order; they may be empty or touch, not overlap.

    Keys outside 0 .. n_k - 1 are left out.
    """
    base = at * (n_k + 1)
    first, stop = np.maximum(first, 0), np.minimum(stop, n_k)
    some = first < stop
    first, stop = (base + first)[some], (base + stop)[some]
    begins, ends = np.ones(len(first), bool), np.ones(len(first), bool)
    begins[1:] = ends[:-1] = first[1:] != stop[:-1]  # runs that touch are one
    return np.stack([first[begins], stop[ends]], axis=1).ravel()


def from_any_runs(first: np.ndarray, stop: np.ndarray) -> np.ndarray:
    """Edges of the union of runs of positions, in any order; they may overlap, none is empty."""
    points = np.concatenate([first, stop])
    order = np.argsort(points, kind="stable")  # of equal points, those that begin come first: touching runs are one
    depth = np.cumsum(np.where(order < len(first), 1, -1))
    return points[order][(depth == 0) | (np.r_[0, depth[:-1]] == 0)]


def from_positions(positions: np.ndarray) -> np.ndarray:
    """Edges of the runs of sorted positions that follow one another; each may occur several times."""
    if not len(positions):
        return NOTHING
    apart = np.flatnonzero(np.diff(positions) > 1)
    first, last = positions[np.r_[0, apart + 1]], positions[np.r_[apart, len(positions) - 1]]
    return np.stack([first, last + 1], axis=1).ravel()


def listed(first: np.ndarray | int, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For every i the numbers first[i] .. first[i] + count[i] - 1, in order: i, and the number.

    Raises RedblueError for more than memory should hold.
    """
    ends = np.cumsum(count)
    total = int(ends[-1]) if len(ends) else 0
    if total > MOST:
        raise RedblueError(
            f"the mask keeps too much to be listed: {total:,} runs or keys, of at most {MOST:,}; give smaller sizes, "
            "or a mask that keeps less"
        )
    at = np.repeat(np.arange(len(ends)), count)
    return at, np.arange(total) + np.repeat(first - ends + count, count)


def positions(edges: np.ndarray) -> np.ndarray:
    """Every position of the set, ascending."""
    return listed(edges[::2], edges[1::2] - edges[::2])[1]


def pieces(edges: np.ndarray) -> Iterator[np.ndarray]:
    """Every position of the set, ascending, about AT_ONCE at a time."""
    ends = np.cumsum(edges[1::2] - edges[::2])
    begin = 0
    while begin < len(ends):
        done = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, done + AT_ONCE, "right")))
        if end > begin + 1:
            yield positions(edges[2 * begin : 2 * end])
        else:  # one run alone may be long
            first, stop = edges[2 * begin : 2 * end].tolist()
            yield from (np.arange(low, min(low + AT_ONCE, stop)) for low in range(first, stop, AT_ONCE))
        begin = end


def everything(ranges: int, n_k: int) -> np.ndarray:
    """All keys of every range."""
    first = np.arange(ranges) * stride(ranges, n_k)
    return np.stack([first, first + n_k], axis=1).ravel() if n_k else NOTHING


def combine(op: Callable[[np.ndarray, np.ndarray], np.ndarray], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Edges of the positions where op(in a, in b) holds; op(False, False) must be False."""
    points = np.concatenate([a, b])
    order = np.argsort(points, kind="stable")  # linear: each half is sorted
    points, of_a = points[order], order < len(a)
    inside = op(np.cumsum(of_a) & 1, np.cumsum(~of_a) & 1).astype(bool)
    if not len(points):
        return NOTHING
    last = np.append(points[1:] != points[:-1], True)  # of equal points, what holds behind them all
    points, inside = points[last], inside[last]
    return points[np.diff(inside, prepend=False)]


def union(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a if not len(b) else b if not len(a) else combine(np.bitwise_or, a, b)


def intersection(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return combine(np.bitwise_and, a, b) if len(a) and len(b) else NOTHING


def difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return combine(lambda x, y: x & (1 - y), a, b) if len(a) and len(b) else a


def size(edges: np.ndarray) -> int:
    """How many positions the set has."""
    return int((edges[1::2] - edges[::2]).sum())
