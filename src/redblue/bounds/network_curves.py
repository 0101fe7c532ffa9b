"""The words that a process of a network lacks for its share of the pairs: curves over the number of pairs.

Proofs: docs/lab/network.md. A process that works on z pairs of one stream needs words of rows and of keys. The words
that it neither holds at the start nor keeps at the end must cross the network. For one stream, the number of these
words is 0 up to some number of pairs, and concave from there on. Over the streams of a problem and over the processes,
such functions have their minimum at extreme points, so the minimum over all distributions of work has a closed form.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from redblue.bounds.table import certified
from redblue.masks import Mask
from redblue.masks.patterns.band import Band
from redblue.problem import Problem

BISECTIONS = 80  # steps of a bisection over numbers of pairs: more than the 53 bits of a float


class Sizes(NamedTuple):
    """The sizes of one stream of a problem that bounds on network words depend on.

    pairs: attended pairs. rows, keys: rows and keys with an attended pair.
    row_words: words of a row (forward: of q and o; backward: of q, dO and dQ).
    key_words: words of a key (forward: of k and v; backward: of k, v, dK and dV).
    held_rows, held_keys: the most that one process holds, with shares "tokens". group: rows of a query.
    """

    pairs: int
    row_words: int
    key_words: int
    rows: int
    keys: int
    held_rows: int
    held_keys: int
    group: int

    @property
    def held_words(self) -> int:
        """The most words of this stream that one process holds, with shares "tokens"."""
        return self.held_rows * self.row_words + self.held_keys * self.key_words

    @property
    def words(self) -> int:
        """The words of the stream that some pair needs, each counted once."""
        return self.rows * self.row_words + self.keys * self.key_words


def sizes(problem: Problem, world_size: int, most_tokens: int | None = None) -> Sizes:
    """Return the sizes of one stream of the problem. most_tokens: held by one process; None: ceil(n / world_size)."""
    pairs = problem.one_stream().mask.on(problem.group * problem.n_q, problem.n_k)
    rows, keys = pairs.rows_of(range(pairs.n_cols)), pairs.cols_of(range(pairs.n_rows))
    d, d_v, more = problem.d, problem.d_v, problem.direction == "backward"
    return Sizes(
        pairs=pairs.nnz,
        row_words=d + d_v + more * d,
        key_words=(d + d_v) * (1 + more),
        rows=sum(map(len, rows)),
        keys=sum(map(len, keys)),
        held_rows=problem.group * (most_tokens or -(-problem.n_q // world_size)),
        held_keys=most_tokens or -(-problem.n_k // world_size),
        group=problem.group,
    )


@dataclass(frozen=True)
class Curve:
    """A lower bound of the words that one process lacks, over its pairs of all streams.

    lack(z): words for z pairs of one stream; 0 up to `free` pairs, concave from there to the stream's `pairs`.
    less: words to subtract from the sum over the streams.
    """

    lack: Callable[[float], float]
    free: float
    pairs: float
    streams: int
    less: float = 0.0

    def words(self, pairs: float) -> float:
        """The fewest words for `pairs` pairs: all streams but one are used whole or not at all."""
        return max(0.0, self._needed(pairs) - self.less)

    def _needed(self, pairs: float) -> float:
        left, span = pairs - self.streams * self.free, self.pairs - self.free
        if left <= 0 or span <= 0:
            return 0.0
        whole, rest = divmod(left, span)
        return whole * self.lack(self.pairs) + self.lack(self.free + rest)

    def mean_words(self, mean: float, most: float) -> float:
        """The least average of words per process, if processes work on `mean` pairs on average and at most on `most`.

        This is the value at `mean` of the largest convex function below `words` on 0 .. most. That function is
        piecewise linear. Its corners are the end of the free pairs, the ends of the first and of the last whole stream,
        and `most`. Between the two ends of streams it is one line, because every whole stream costs the same.
        """
        start, span = min(most, self._start), self.pairs - self.free
        if mean <= start or span <= 0:
            return 0.0
        origin = self.streams * self.free
        ends = [origin + span * steps for steps in (math.ceil((start - origin) / span), (most - origin) // span)]
        points = sorted({start, most, *(end for end in ends if start < end < most)})
        return float(np.interp(mean, points, [0.0, *(self.words(point) for point in points[1:])]))

    @functools.cached_property
    def _start(self) -> float:
        """The largest number of pairs that costs no words."""
        low, high = self.streams * self.free, self.streams * self.pairs
        if not self.less or self._needed(high) <= self.less:
            return low if self._needed(high) > self.less else math.inf
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._needed(middle) <= self.less else (low, middle)
        return low


Lack = tuple[Callable[[float], float], float]  # `lack` and `free` of a curve


def rectangles(process: Sizes, tokens: bool, same: bool) -> Lack:
    """Return `lack` and `free`: r rows and c keys hold at most r c pairs (Loomis and Whitney).

    tokens: the process holds the rows and keys of its tokens. same: it holds keys of the same tokens as rows, and no
    query attends a later key, so that fewer pairs lie between its own rows and keys.
    """
    held = (process.held_rows, process.held_keys) if tokens else (0, 0)
    missing = (held[0] * held[1] - process.held_rows * (process.held_keys + 1) // 2) if same and tokens else 0
    a, b = process.row_words, process.key_words
    # A limit on the rows or keys that is reached before a r = b c would make the function convex there. Such a limit is
    # dropped here; one_side bounds the words by each limit alone.
    max_rows = max(process.rows, held[0]) if a * process.rows >= b * held[1] else math.inf
    max_keys = max(process.keys, held[1]) if b * process.keys >= a * held[0] else math.inf

    def lack(pairs: float) -> float:
        area = pairs + missing
        if area <= held[0] * held[1]:
            return 0.0
        rows = math.sqrt(b * area / a)
        rows = max(held[0], area / max_keys, min(rows, max_rows, area / held[1] if held[1] else math.inf))
        return a * (rows - held[0]) + b * (area / rows - held[1])

    return lack, held[0] * held[1] - missing


def one_side(process: Sizes, tokens: bool) -> list[Lack]:
    """Return `lack` and `free`, twice: z pairs lie in at least z / keys rows, and in at least z / rows keys."""
    held_rows, held_keys = (process.held_rows, process.held_keys) if tokens else (0, 0)
    return [
        (lambda z: process.row_words * max(0.0, z / process.keys - held_rows), held_rows * process.keys),
        (lambda z: process.key_words * max(0.0, z / process.rows - held_keys), held_keys * process.rows),
    ]


def band_corners(process: Sizes, band: Band) -> Lack:
    """Return `lack` and `free`: r queries and c keys of a band hold at most h (r + c - h) pairs, h half its width."""
    half = -(-(band.end - band.first) // 2)
    wide = min(process.held_rows // process.group, process.held_keys) >= half
    free = half * (process.held_rows + process.group - 1 + process.group * (process.held_keys - half * wide))
    rate = min(process.row_words / half, process.key_words / (process.group * half))
    return lambda pairs: max(0.0, pairs - free) * rate, free


def band_degrees(process: Sizes, band: Band) -> Lack:
    """Return `lack` and `free`: for keys of the same tokens, a further row or key adds at most the band's width."""
    width, held = band.end - band.first, process.held_keys
    free = process.group * (_triangle(held, -band.first) + _triangle(held, band.end - 1) + held)
    rate = min(process.row_words / width, process.key_words / (process.group * width))
    return lambda pairs: max(0.0, pairs - free) * rate, free


def _triangle(tokens: int, reach: int) -> int:
    """The sum of tokens - offset over the offsets 1 .. reach that are below `tokens`."""
    reach = min(reach, tokens)
    return reach * tokens - reach * (reach + 1) // 2


def pairs_of_tokens(problem: Problem) -> tuple[Band | None, bool]:
    """Return the band of a windowed mask (else None), and whether n_q = n_k and no query attends a later key."""
    pairs = problem.mask.on(problem.n_q, problem.n_k)
    if isinstance(pairs, Band):
        narrow = pairs.first <= 0 < pairs.end and pairs.end - pairs.first < problem.n_k
        return (pairs if narrow else None), problem.n_q == problem.n_k and pairs.end <= 1
    square = problem.n_q == problem.n_k
    return None, square and not (problem.mask & ~Mask.causal()).nnz(problem.n_q, problem.n_k)


def any_algorithm(problem: Problem) -> list[Callable[[float], float]]:
    """Return concave functions, each a lower bound of the words that products of z pairs touch, however divided.

    Forward: the optimum of Theorem 1's program. Backward: one function for each row of the certified table.
    """
    d, d_v = problem.d, problem.d_v
    if problem.direction == "forward":
        delta = d + d_v if d_v <= d else 2 * math.sqrt(d * d_v)

        def touched(pairs: float) -> float:
            spread = 3 * (d_v * pairs) ** (2 / 3) if pairs <= d_v**2 else pairs + 2 * d_v * math.sqrt(pairs)
            return min(2 * delta * math.sqrt(pairs), spread)

        return [touched]
    xi, xi_v, gains = certified(problem.direction)
    reach = np.minimum((d / xi) ** 2, (d_v / xi_v) ** 2)
    order = np.lexsort((gains, -reach))
    # Drop rows for which a row of larger reach has a smaller gain
    useful = order[gains[order] <= np.minimum.accumulate(gains[order])]
    return [
        lambda pairs, gain=gain, most=most: min(most, pairs / gain)
        for gain, most in zip(gains[useful].tolist(), reach[useful].tolist(), strict=True)
    ]


def without(touched: Callable[[float], float], held: float, pairs: float) -> Lack:
    """Return `lack` and `free` of a function of words touched, of which a process holds `held`."""
    low, high = 0.0, pairs
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if touched(middle) <= held else (low, middle)
    return lambda z: max(0.0, touched(z) - held), (low if held else 0.0)
