"""Patterns along the diagonal: windows, dilated windows and periodic patterns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from redblue.base.integers import ceil_div
from redblue.masks.patterns import spans
from redblue.masks.patterns.bit_words import between
from redblue.masks.patterns.pattern import OneRunPerKey, Pattern

MAX_CYCLE = 1 << 16  # words in the table of a periodic pattern


@dataclass(frozen=True, eq=False)
class Diagonal(OneRunPerKey):
    """Query i attends keys i + low .. i + end - 1."""

    low: int
    end: int

    def outer(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        return spans.from_runs(np.arange(len(first)), first + self.low, stop - 1 + self.end, self.n_k)

    def inner(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        return spans.from_runs(np.arange(len(first)), stop - 1 + self.low, first + self.end, self.n_k)

    def queries(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return keys - self.end + 1, keys - self.low + 1


@dataclass(frozen=True, eq=False)
class Dilated(Pattern):
    """Query i attends key j where step divides j - i and |j - i| <= reach."""

    reach: int
    step: int

    def outer(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        # `step` consecutive queries leave no gap: they attend every key from the first key of the first query to the
        # last key of the last query.
        gapless = stop - first >= self.step
        if gapless.all():
            return spans.from_runs(np.arange(len(first)), first - self.reach, stop + self.reach, self.n_k)
        ranges, low = self._keys_of_first_query(first)
        width = np.where(gapless, self.step, stop - first)[ranges]
        # The last run of a gapless range extends to its last query's last key.
        is_last = gapless[ranges] & np.append(ranges[1:] != ranges[:-1], True)
        width = width + np.where(is_last, (stop - first - self.step)[ranges], 0)
        return spans.from_runs(ranges, low, low + width, self.n_k)

    def inner(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        if self.step == 1:
            return spans.from_runs(np.arange(len(first)), stop - 1 - self.reach, first + self.reach + 1, self.n_k)
        single = np.flatnonzero(stop - first == 1)  # neighbouring queries have no key in common if step > 1
        ranges, low = self._keys_of_first_query(first[single])
        return spans.from_runs(single[ranges], low, low + 1, self.n_k)

    def _keys_of_first_query(self, first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """List (range, key) for the keys that the first query of each range attends; a few lie outside 0 .. n_k - 1."""
        steps = self.reach // self.step
        low = np.maximum(-steps, -ceil_div(first + self.step, self.step))
        high = np.minimum(steps, (self.n_k - first) // self.step + 1)
        ranges, step = spans.expand(low, np.maximum(0, high - low + 1))
        return ranges, first[ranges] + step * self.step

    def attends(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        distance = np.asarray(k) - q
        return (distance % self.step == 0) & (np.abs(distance) <= self.reach)

    def words(self, rows: np.ndarray, count: int, group: int, keys: np.ndarray) -> np.ndarray:
        if self.step * group > MAX_CYCLE:
            return super().words(rows, count, group, keys)
        near = between((keys - self.reach) * group - rows, (keys + self.reach + 1) * group - rows)
        return near & _periodic_words(np.arange(self.step) == 0, -1, rows, count, group, keys)


@dataclass(frozen=True, eq=False)
class Periodic(Pattern):
    """Query i attends key j where (i + j) mod m < n."""

    n: int
    m: int

    @property
    def exact(self) -> tuple[bool, bool]:
        return False, False

    def outer(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        return spans.all_keys(len(first), self.n_k)

    def inner(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        return spans.EMPTY

    def attends(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        return (np.asarray(k) + q) % self.m < self.n

    def words(self, rows: np.ndarray, count: int, group: int, keys: np.ndarray) -> np.ndarray:
        if self.m * group > MAX_CYCLE:
            return super().words(rows, count, group, keys)
        return _periodic_words(np.arange(self.m) < self.n, 1, rows, count, group, keys)


def _periodic_words(
    holds: np.ndarray, sign: int, rows: np.ndarray, count: int, group: int, keys: np.ndarray
) -> np.ndarray:
    """Pattern.words for the pattern in which query q attends key k where holds[(k + sign q) mod len(holds)].

    The words are looked up in a table by (k + sign q) mod len(holds) and by the row's place in its group.
    """
    bits = np.arange(count)
    later = (np.arange(group)[:, None] + bits) // group  # (group, count): bit b's query minus the first row's query
    attended = holds[(np.arange(len(holds))[:, None, None] + sign * later) % len(holds)]
    table = np.bitwise_or.reduce(attended.astype(np.uint64) << bits.astype(np.uint64), axis=2)
    return table[(keys + sign * (rows // group)) % len(holds), rows % group]
