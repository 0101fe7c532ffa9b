"""The patterns that rules are laid as: diagonals, documents, tokens, periods, blocks and graphs."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from redblue.base.integers import ceil_div
from redblue.masks.patterns import spans
from redblue.masks.patterns.pattern import ByColumns, Pattern, below, ones

MOST_CYCLE = 1 << 16  # words of the table for a pattern that repeats


@dataclass(frozen=True, eq=False)
class Diagonal(ByColumns):
    """Query i attends keys i + first .. i + end - 1."""

    low: int
    end: int

    def outer(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        return spans.from_runs(np.arange(len(first)), first + self.low, stop - 1 + self.end, self.n_k)

    def inner(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        return spans.from_runs(np.arange(len(first)), stop - 1 + self.low, first + self.end, self.n_k)

    def queries(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return keys - self.end + 1, keys - self.low + 1


@dataclass(frozen=True, eq=False)
class FirstKeys(ByColumns):
    """Every query attends the keys below `length`."""

    length: int

    def outer(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        return spans.from_runs(np.arange(len(first)), 0 * first, np.full(len(first), self.length), self.n_k)

    inner = outer

    def queries(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return 0 * keys, np.where(keys < self.length, self.n_q, 0)


@dataclass(frozen=True, eq=False)
class Packed(ByColumns):
    """Documents one behind the other: queries starts[i] .. starts[i + 1] - 1 attend the keys of document i alike."""

    starts: np.ndarray
    key_starts: np.ndarray

    def outer(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        low, high = self._documents(first), self._documents(stop - 1)
        at, document = spans.listed(low, high - low + 1)
        some = self.starts[document] < self.starts[document + 1]  # one without queries is attended by none
        at, document = at[some], document[some]
        return spans.from_runs(at, self.key_starts[document], self.key_starts[document + 1], self.n_k)

    def inner(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        low, high = self._documents(first), self._documents(stop - 1)
        alone = low == high
        return spans.from_runs(
            np.flatnonzero(alone), self.key_starts[low[alone]], self.key_starts[low[alone] + 1], self.n_k
        )

    def _documents(self, queries: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.starts, queries, "right") - 1

    def queries(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        document = np.searchsorted(self.key_starts, keys, "right") - 1
        return self.starts[document], self.starts[document + 1]


@dataclass(frozen=True, eq=False)
class Dilated(Pattern):
    """Query i attends key j where step divides j - i and |j - i| <= reach."""

    reach: int
    step: int

    def outer(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        long = stop - first >= self.step  # every key between the first query's first and the last query's last
        if long.all():
            return spans.from_runs(np.arange(len(first)), first - self.reach, stop + self.reach, self.n_k)
        at, low = self._each(first)
        wide = np.where(long, self.step, stop - first)[at]
        # The last of a long range's runs goes on to its last query's.
        wide = wide + np.where(long[at] & np.append(at[1:] != at[:-1], True), (stop - first - self.step)[at], 0)
        return spans.from_runs(at, low, low + wide, self.n_k)

    def inner(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        if self.step == 1:
            return spans.from_runs(np.arange(len(first)), stop - 1 - self.reach, first + self.reach + 1, self.n_k)
        single = np.flatnonzero(stop - first == 1)  # two queries in a row attend no key together, nor do more
        at, low = self._each(first[single])
        return spans.from_runs(single[at], low, low + 1, self.n_k)

    def _each(self, first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For every step from the range's first query: the range, and the key."""
        steps = self.reach // self.step
        low = np.maximum(-steps, -ceil_div(first + self.step, self.step))
        high = np.minimum(steps, (self.n_k - first) // self.step + 1)
        at, step = spans.listed(low, np.maximum(0, high - low + 1))
        return at, first[at] + step * self.step

    def attends(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        away = np.asarray(k) - q
        return (away % self.step == 0) & (np.abs(away) <= self.reach)

    def words(self, rows: np.ndarray, count: int, group: int, keys: np.ndarray) -> np.ndarray:
        if self.step * group > MOST_CYCLE:
            return super().words(rows, count, group, keys)
        near = ones((keys - self.reach) * group - rows, (keys + self.reach + 1) * group - rows)
        return near & _cycle(np.arange(self.step) == 0, -1, rows, count, group, keys)


@dataclass(frozen=True, eq=False)
class Tokens(Pattern):
    """The queries marked in `queries` attend every key, and every query attends the keys marked in `keys`."""

    queries: np.ndarray
    keys: np.ndarray

    def outer(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        return self._with(self._before[stop] > self._before[first])

    def inner(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        return self._with(self._before[stop] - self._before[first] == stop - first)

    @functools.cached_property
    def _before(self) -> np.ndarray:
        return np.append(0, np.cumsum(self.queries))

    def _with(self, all_keys: np.ndarray) -> np.ndarray:
        """All keys of these ranges, and the marked ones of the others."""
        runs = spans.from_positions(np.flatnonzero(self.keys)).reshape(-1, 2)
        at, run = spans.listed(0, np.where(all_keys, 1, len(runs)))
        runs = np.append(runs, [[0, self.n_k]], axis=0)[np.where(all_keys[at], -1, run)]
        return spans.from_runs(at, runs[:, 0], runs[:, 1], self.n_k)

    def attends(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        return self.queries[q] | self.keys[k]


@dataclass(frozen=True, eq=False)
class Periodic(Pattern):
    """Query i attends key j where (i + j) mod m < n."""

    n: int
    m: int

    @property
    def exact(self) -> tuple[bool, bool]:
        return False, False

    def outer(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        return spans.everything(len(first), self.n_k)

    def inner(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        return spans.NOTHING

    def attends(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        return (np.asarray(k) + q) % self.m < self.n

    def words(self, rows: np.ndarray, count: int, group: int, keys: np.ndarray) -> np.ndarray:
        if self.m * group > MOST_CYCLE:
            return super().words(rows, count, group, keys)
        return _cycle(np.arange(self.m) < self.n, 1, rows, count, group, keys)


def _cycle(holds: np.ndarray, sign: int, rows: np.ndarray, count: int, group: int, keys: np.ndarray) -> np.ndarray:
    """Words of a pattern in which query q attends key k where holds[(k + sign q) mod m], m its length."""
    bits = np.arange(count)
    later = (np.arange(group)[:, None] + bits) // group  # queries after the first row's, by where in its group that is
    held = holds[(np.arange(len(holds))[:, None, None] + sign * later) % len(holds)]
    table = np.bitwise_or.reduce(held.astype(np.uint64) << bits.astype(np.uint64), axis=2)
    return table[(keys + sign * (rows // group)) % len(holds), rows % group]


@dataclass(frozen=True, eq=False)
class Squares(Pattern):
    """Query i attends key j where layout[i // bq, j // bk]."""

    layout: np.ndarray
    block: tuple[int, int]

    @property
    def steps(self) -> tuple[int, int]:
        return self.block

    def outer(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        return self._runs(first, stop, np.bitwise_or)

    def inner(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        return self._runs(first, stop, np.bitwise_and)

    def _runs(self, first: np.ndarray, stop: np.ndarray, op: np.ufunc) -> np.ndarray:
        """Runs of the blocks' columns where `op` over the rows of blocks that each range touches is True."""
        low, high = first // self.block[0], ceil_div(stop, self.block[0])
        beyond = len(self.layout) + 1
        codes, like = np.unique(low * beyond + high, return_inverse=True)  # many ranges touch the same rows of blocks
        low, high = codes // beyond, codes % beyond
        rows = self.layout[low] if (high - low == 1).all() else _reduced(self.layout, low, high, op)
        change = np.diff(rows, axis=1, prepend=False, append=False)
        of, col = np.nonzero(change)
        of, runs = of[::2], col.reshape(-1, 2)
        count, before = np.bincount(of, minlength=len(low)), np.searchsorted(of, np.arange(len(low)))
        at, run = spans.listed(before[like], count[like])
        runs = runs[run] * self.block[1]
        return spans.from_runs(at, runs[:, 0], runs[:, 1], self.n_k)

    def attends(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        return self.layout[np.asarray(q) // self.block[0], np.asarray(k) // self.block[1]]


def _reduced(rows: np.ndarray, low: np.ndarray, high: np.ndarray, op: np.ufunc) -> np.ndarray:
    """op over rows[low[i] : high[i]], for every i. Shape (len(low), columns)."""
    edges = np.stack([low, high], axis=1).ravel()
    closed = np.append(rows, rows[:1], axis=0)  # so that the last row has one behind it
    return op.reduceat(closed, edges, axis=0)[::2] if len(edges) else rows[:0]


@dataclass(frozen=True, eq=False)
class Graph(Pattern):
    """Query i attends the keys indices[indptr[i] : indptr[i + 1]], ascending and each once."""

    indptr: np.ndarray
    indices: np.ndarray

    @property
    def exact(self) -> tuple[bool, bool]:
        return True, False  # which keys several queries attend all is found pair by pair

    def outer(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        at, entries = self._entries(first, stop)
        positions = at * spans.stride(len(first), self.n_k) + self.indices[entries]
        return spans.from_positions(positions if (stop - first == 1).all() else np.sort(positions))

    def inner(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        single = np.flatnonzero(stop - first == 1)
        at, entries = self._entries(first[single], stop[single])
        return spans.from_positions(single[at] * spans.stride(len(first), self.n_k) + self.indices[entries])

    def _entries(self, first: np.ndarray, stop: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of every pair of the ranges' queries, in order: the range, and where its key stands."""
        return spans.listed(self.indptr[first], self.indptr[stop] - self.indptr[first])

    @functools.cached_property
    def _queries(self) -> np.ndarray:
        return np.repeat(np.arange(self.n_q), np.diff(self.indptr))

    @functools.cached_property
    def _pairs(self) -> np.ndarray:
        return self._queries * self.n_k + self.indices

    def attends(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        return _holds(self._pairs, q * self.n_k + np.asarray(k))[1]

    def words(self, rows: np.ndarray, count: int, group: int, keys: np.ndarray) -> np.ndarray:
        if not len(keys):
            return np.zeros(0, np.uint64)
        new = np.append(True, rows[1:] != rows[:-1])
        starts, panel = rows[new], np.cumsum(new) - 1
        first = starts // group
        stop = np.minimum((starts + count - 1) // group + 1, self.n_q)
        at, entries = self._entries(first, stop)
        bit = self._queries[entries] * group - starts[at]
        positions = at * self.n_k + self.indices[entries]
        order = np.argsort(positions, kind="stable")
        positions, bit = positions[order], bit[order]
        each = below(bit + group) & ~below(bit)
        begins = np.flatnonzero(np.diff(positions, prepend=-1))
        words = np.bitwise_or.reduceat(each, begins) if len(begins) else each
        where, found = _holds(positions[begins], panel * self.n_k + keys)
        result = np.zeros(len(keys), np.uint64)
        result[found] = words[where[found]]
        return result


def _holds(known: np.ndarray, asked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each number would stand among the known, ascending ones, and whether it is one of them."""
    asked = np.asarray(asked)
    if not len(known):
        return np.zeros(asked.shape, np.int64), np.zeros(asked.shape, bool)
    where = np.minimum(np.searchsorted(known, asked), len(known) - 1)
    return where, known[where] == asked
