"""Patterns: masks laid on queries and keys, as the algebra asks them.

For ranges of queries, a pattern knows without looking at pairs an *outer* set of keys (every key that some query of the
range attends, and maybe more) and an *inner* set (only keys that all of them attend, maybe not all such). What lies
between is asked pair by pair. `&` intersects both sets, `|` unites both, `~` exchanges and complements them: so every
composition costs what its tiles cost, and nothing of size n_q x n_k is built.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from redblue.base.errors import RedblueError
from redblue.masks.patterns import spans

MOST_ROWS = 64  # of a tile whose pairs are looked at: as many as a word has bits
MOST_WORDS = 1 << 28  # that one tiling may keep: 2 GiB
MOST_LOOKED = 1 << 32  # keys of ranges that one tiling looks at
BELOW = np.array([(1 << bit) - 1 for bit in range(MOST_ROWS + 1)], np.uint64)


@dataclass(frozen=True, eq=False)
class Pattern(ABC):
    """A mask on n_q queries and n_k keys. Ranges are two arrays of queries, first .. stop - 1, none of them empty."""

    n_q: int
    n_k: int

    @property
    def exact(self) -> tuple[bool, bool]:
        """Whether `outer` holds no other keys than some query attends, and `inner` all that every query attends."""
        return True, True

    @property
    def steps(self) -> tuple[int, int]:
        """Along queries and along keys, the edge of the blocks that it is made of."""
        return 1, 1

    @abstractmethod
    def outer(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        """Edges (see spans) of a set that holds every key that some query of the range attends."""

    @abstractmethod
    def inner(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        """Edges of a set of keys that all queries of the range attend; part of `outer`."""

    @abstractmethod
    def attends(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        """Whether query q attends key k, elementwise, broadcast."""

    def words(self, rows: np.ndarray, count: int, group: int, keys: np.ndarray) -> np.ndarray:
        """Bit b of each word: whether row rows + b attends the key; rows of one query follow one another in `group`s.

        rows, keys: alike, ascending together. Bits beyond `count`, and of rows beyond the last, may be anything.
        """
        found = np.zeros(len(keys), np.uint64)
        query = bit = None
        for b in range(count):
            now = np.minimum((rows + b) // group, self.n_q - 1)
            if query is None or not np.array_equal(now, query):
                query, bit = now, self.attends(now, keys).astype(np.uint64)
            assert bit is not None
            found |= bit << np.uint64(b)
        return found


class ByColumns(Pattern):
    """A pattern in which the queries that attend a key follow one another."""

    @abstractmethod
    def queries(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of each key the first query that attends it, and the one beyond the last (no less)."""

    def attends(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        first, stop = self.queries(np.asarray(k))
        return (first <= q) & (q < stop)

    def words(self, rows: np.ndarray, count: int, group: int, keys: np.ndarray) -> np.ndarray:
        first, stop = self.queries(keys)
        return ones(first * group - rows, stop * group - rows)


def ones(first: np.ndarray, stop: np.ndarray) -> np.ndarray:
    """Words whose bits first .. stop - 1 are set, of those that a word has."""
    return below(stop) & ~below(first)


def below(bit: np.ndarray) -> np.ndarray:
    """Words whose bits below `bit` are set: none for 0 and less, all for 64 and more."""
    return BELOW[np.clip(bit, 0, MOST_ROWS)]


def popcount(words: np.ndarray) -> np.ndarray:
    """Bits that are set in each word."""
    if hasattr(np, "bitwise_count"):  # NumPy 2
        return np.bitwise_count(words).astype(np.int64)
    return np.unpackbits(words.view(np.uint8).reshape(-1, 8), axis=1).sum(axis=1, dtype=np.int64)


class Tiling(NamedTuple):
    """The pairs of ranges of rows, exactly: keys that all rows of the range attend, and words for what only some do.

    full: edges. at: the other positions where some row attends, ascending. words: bit b, whether row b of the range
    attends the key (all bits may be set). lengths: rows of each range.
    """

    full: np.ndarray
    at: np.ndarray
    words: np.ndarray
    lengths: np.ndarray


def tiling(pattern: Pattern, first: np.ndarray, stop: np.ndarray, group: int) -> Tiling:
    """The tiling of the ranges of rows first .. stop - 1, of at most 64 rows each, `group` of which are one query's.

    Raises RedblueError for more keys than can be looked at: a pattern that is partly attended nearly everywhere.
    """
    queries = first // group, (stop - 1) // group + 1
    outer, full = pattern.outer(*queries), pattern.inner(*queries)
    partial = spans.difference(outer, full)
    lengths, count = stop - first, int((stop - first).max(initial=0))
    width, valid = spans.stride(len(first), pattern.n_k), below(lengths)
    looked = int((partial[1::2] - partial[::2]).sum())
    # Where `outer` is exact, each of these keeps a word: what is too much is known before any is looked at.
    if looked > (MOST_WORDS if pattern.exact[0] else MOST_LOOKED):
        raise _too_many(pattern)
    kept = 0
    at: list[np.ndarray] = [spans.NOTHING]
    words: list[np.ndarray] = [np.zeros(0, np.uint64)]
    for positions in spans.pieces(partial):
        i = positions // width
        found = pattern.words(first[i], count, group, positions - i * width) & valid[i]
        some = found != 0
        at.append(positions[some])
        words.append(found[some])
        kept += len(at[-1])
        if kept > MOST_WORDS:
            raise _too_many(pattern)
    return Tiling(full, np.concatenate(at), np.concatenate(words), lengths)


def _too_many(pattern: Pattern) -> RedblueError:
    return RedblueError(
        f"the mask is attended in part nearly everywhere: n_q = {pattern.n_q:,} and n_k = {pattern.n_k:,} take more "
        f"than {MOST_WORDS:,} words of bits; give smaller sizes, or a mask that keeps less"
    )
