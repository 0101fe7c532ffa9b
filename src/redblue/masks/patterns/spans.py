"""Sets of keys for many ranges of queries at once, stored as sorted edges.

A *position* numbers a key of a range: key k of range i has position i * (n_k + 1) + k. The extra place per range keeps
the sets of neighbouring ranges from touching. A set of positions is the sorted int64 array of its *edges*, the
positions at which membership changes: first[0], stop[0], first[1], stop[1], ... of its maximal runs. Combining two sets
takes time proportional to their runs, however many keys the runs hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from redblue.base.errors import RedblueError

MAX_POSITION = 1 << 62  # fits 64-bit integers, with room for sums
MAX_LISTED = 1 << 28  # runs, keys or pairs in one explicit list: 2 GiB
MAX_RANGES = 1 << 26  # ranges of queries in one set
CHUNK = 1 << 21  # positions per step of `chunks`
EMPTY = np.zeros(0, np.int64)


def stride(ranges: int, n_k: int) -> int:
    """Return the distance between the positions of one range and the next, n_k + 1.

    Raises RedblueError if the positions of all ranges do not fit 64-bit integers.
    """
    if (ranges + 1) * (n_k + 1) > MAX_POSITION:
        raise RedblueError(
            f"{ranges:,} ranges of queries times n_k = {n_k:,} keys are too many to list tile by tile: give smaller "
            "sizes, or a mask that is a band or a layout of blocks alone"
        )
    return n_k + 1


def arange(count: int) -> np.ndarray:
    """Return 0 .. count - 1, as np.arange. Raises RedblueError for more than MAX_RANGES numbers."""
    if count > MAX_RANGES:
        raise RedblueError(
            f"the mask needs a list of {count:,} entries, of at most {MAX_RANGES:,}: give smaller sizes, or a mask "
            "that is a band or a layout of blocks alone"
        )
    return np.arange(count)


def from_runs(ranges: np.ndarray, first: np.ndarray, stop: np.ndarray, n_k: int) -> np.ndarray:
    """Return the edges of the runs of keys first[i] .. stop[i] - 1 in range ranges[i].

    Runs come in order. They may be empty or touch, but not overlap. Keys outside 0 .. n_k - 1 are left out.
    """
    base = ranges * (n_k + 1)
    first, stop = np.maximum(first, 0), np.minimum(stop, n_k)
    nonempty = first < stop
    first, stop = (base + first)[nonempty], (base + stop)[nonempty]
    begins, ends = np.ones(len(first), bool), np.ones(len(first), bool)
    begins[1:] = ends[:-1] = first[1:] != stop[:-1]  # merge runs that touch
    return np.stack([first[begins], stop[ends]], axis=1).ravel()


def from_unsorted_runs(first: np.ndarray, stop: np.ndarray) -> np.ndarray:
    """Return the edges of the union of runs of positions, in any order. Runs may overlap; none is empty."""
    points = np.concatenate([first, stop])
    order = np.argsort(points, kind="stable")  # at equal points, starts sort before ends: touching runs merge
    depth = np.cumsum(np.where(order < len(first), 1, -1))
    return points[order][(depth == 0) | (np.r_[0, depth[:-1]] == 0)]


def from_positions(positions: np.ndarray) -> np.ndarray:
    """Return the edges of a set given by its positions, ascending; repeated positions count once."""
    if not len(positions):
        return EMPTY
    gaps = np.flatnonzero(np.diff(positions) > 1)
    first, last = positions[np.r_[0, gaps + 1]], positions[np.r_[gaps, len(positions) - 1]]
    return np.stack([first, last + 1], axis=1).ravel()


def expand(first: np.ndarray | int, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """List the numbers first[i] .. first[i] + count[i] - 1 for every i, in order.

    Returns (i of each number, the numbers). Raises RedblueError for more than MAX_LISTED numbers.
    """
    ends = np.cumsum(count)
    total = int(ends[-1]) if len(ends) else 0
    if total > MAX_LISTED:
        raise RedblueError(
            f"the mask has {total:,} runs or keys, and at most {MAX_LISTED:,} can be listed: give smaller sizes, or a "
            "sparser mask"
        )
    index = np.repeat(np.arange(len(ends)), count)
    return index, np.arange(total) + np.repeat(first - ends + count, count)


def positions(edges: np.ndarray) -> np.ndarray:
    """List every position of the set, ascending."""
    return expand(edges[::2], edges[1::2] - edges[::2])[1]


def chunks(edges: np.ndarray) -> Iterator[np.ndarray]:
    """Yield every position of the set, ascending, in arrays of about CHUNK positions."""
    ends = np.cumsum(edges[1::2] - edges[::2])
    begin = 0
    while begin < len(ends):
        done = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, done + CHUNK, "right")))
        if end > begin + 1:
            yield positions(edges[2 * begin : 2 * end])
        else:  # a single run may exceed a chunk
            first, stop = edges[2 * begin : 2 * end].tolist()
            yield from (np.arange(low, min(low + CHUNK, stop)) for low in range(first, stop, CHUNK))
        begin = end


def all_keys(ranges: int, n_k: int) -> np.ndarray:
    """Return the set of all keys of every range."""
    first = np.arange(ranges) * stride(ranges, n_k)
    return np.stack([first, first + n_k], axis=1).ravel() if n_k else EMPTY


def combine(op: Callable[[np.ndarray, np.ndarray], np.ndarray], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the positions at which op(x, y) is 1; x and y say (by 0 or 1) whether `a` and `b` contain the position.

    op(0, 0) must be 0.
    """
    points = np.concatenate([a, b])
    order = np.argsort(points, kind="stable")  # linear time: each half is sorted
    points, of_a = points[order], order < len(a)
    inside = op(np.cumsum(of_a) & 1, np.cumsum(~of_a) & 1).astype(bool)
    if not len(points):
        return EMPTY
    last = np.append(points[1:] != points[:-1], True)  # at equal points, the membership after all of them counts
    points, inside = points[last], inside[last]
    return points[np.diff(inside, prepend=False)]


def union(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a if not len(b) else b if not len(a) else combine(np.bitwise_or, a, b)


def intersection(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return combine(np.bitwise_and, a, b) if len(a) and len(b) else EMPTY


def difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return combine(lambda x, y: x & (1 - y), a, b) if len(a) and len(b) else a
