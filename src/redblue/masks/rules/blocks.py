"""The rules that need no array: documents, prefixes, dilated and strided windows, global tokens, and block patterns."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from redblue.base.errors import RedblueError
from redblue.base.integers import ceil_div
from redblue.masks.numbers import Numbers
from redblue.masks.patterns import closed, spans
from redblue.masks.patterns.composed import Coarse, Joined
from redblue.masks.patterns.pairs import Pairs
from redblue.masks.patterns.pattern import Pattern
from redblue.masks.patterns.tiles import Diagonal, Dilated, FirstKeys, Graph, Packed, Periodic, Tokens
from redblue.masks.rules.layouts import Blocks
from redblue.masks.rules.rule import Rule, Sizes, fits

MOST_TOKENS = 1 << 60  # of all documents together
MOST_BLOCKS = 1 << 31  # of a random layout, which is drawn as a whole


@dataclass(frozen=True)
class Prefix(Rule):
    """Every query attends keys 0 .. length - 1."""

    length: int

    def __repr__(self) -> str:
        return f"Mask.prefix({self.length})"

    def laid(self, n_q: int, n_k: int) -> Pattern:
        return FirstKeys(n_q, n_k, min(self.length, n_k))

    def resized(self, old: tuple[int, int], new: tuple[int, int]) -> Prefix:
        return Prefix(ceil_div(self.length * new[1], old[1]))


@dataclass(frozen=True)
class Documents(Rule):
    """Documents packed one behind the other: queries attend the keys of their own."""

    lengths: Numbers
    key_lengths: Numbers

    def __repr__(self) -> str:
        keys = "" if self.key_lengths == self.lengths else f", key_lengths={self.key_lengths!r}"
        return f"Mask.documents({self.lengths!r}{keys})"

    @property
    def sizes(self) -> Sizes:
        return int(self.lengths.array.sum()), int(self.key_lengths.array.sum())

    def laid(self, n_q: int, n_k: int) -> Pattern:
        fits("documents", self.sizes, n_q, n_k, "lengths must add up to it, padding included")
        return Packed(n_q, n_k, *(np.append(0, np.cumsum(each.array)) for each in (self.lengths, self.key_lengths)))


@dataclass(frozen=True)
class DilatedWindow(Rule):
    """Query i attends keys i + t step, for t = -window .. window."""

    window: int
    step: int

    def __repr__(self) -> str:
        return f"Mask.dilated({self.window}, step={self.step})"

    def laid(self, n_q: int, n_k: int) -> Pattern:
        window = min(self.window, (n_q + n_k) // self.step + 1)
        return Dilated(n_q, n_k, window * self.step, self.step)

    def pairs(self, n_q: int, n_k: int) -> int:
        before, after = (closed.diagonals(*n, self.step, self.window + 1) for n in ((n_q, n_k), (n_k, n_q)))
        return before + after - min(n_q, n_k)

    def resized(self, old: tuple[int, int], new: tuple[int, int]) -> DilatedWindow:
        return DilatedWindow(ceil_div(self.window * new[1], old[1]), self.step)


@dataclass(frozen=True)
class Strided(Rule):
    """Query i attends keys i - stride .. i, and every stride-th key before."""

    stride: int

    def __repr__(self) -> str:
        return f"Mask.strided({self.stride})"

    def laid(self, n_q: int, n_k: int) -> Pattern:
        most = n_q + n_k
        stride = max(1, min(self.stride, most))
        every = Dilated(n_q, n_k, (most // stride + 1) * stride, stride)
        before = Joined(n_q, n_k, every, Diagonal(n_q, n_k, -most, 1), np.bitwise_and)
        return _NearAndFar(n_q, n_k, Diagonal(n_q, n_k, -stride, 1), before, np.bitwise_or)

    def pairs(self, n_q: int, n_k: int) -> int:
        near, far = ((1, self.stride + 1), (self.stride, n_q + 2))  # the first two of the far ones are near
        first, every, twice = (closed.diagonals(n_q, n_k, *of) for of in (near, far, (self.stride, 2)))
        return first + every - twice


class _NearAndFar(Joined):
    """What Strided is laid as: its outer set is exact, since keys before all queries of a range need no diagonal."""

    @property
    def exact(self) -> tuple[bool, bool]:
        return True, super().exact[1]


@dataclass(frozen=True)
class GlobalTokens(Rule):
    """The tokens at `indices` attend every key, and every query attends them."""

    indices: Numbers

    def __repr__(self) -> str:
        return f"Mask.global_tokens({self.indices!r})"

    @property
    def takes_any(self) -> bool:
        return not len(self.indices)

    def laid(self, n_q: int, n_k: int) -> Pattern:
        beyond = np.flatnonzero(self.indices.array >= max(n_q, n_k))
        if len(beyond) and max(n_q, n_k):  # of no tokens at all, none is missed
            raise RedblueError(
                f"indices[{beyond[0]}] of the global tokens is {self.indices.array[beyond[0]]:,}, but there are only "
                f"{n_q:,} queries and {n_k:,} keys: leave it out"
            )
        return _tokens(self.indices.array, n_q, n_k)

    def resized(self, old: tuple[int, int], new: tuple[int, int]) -> GlobalTokens:
        before, after = max(old), max(new)
        return GlobalTokens(Numbers(np.unique(self.indices.array * after // before)))


def _tokens(indices: np.ndarray, n_q: int, n_k: int) -> Tokens:
    queries, keys = spans.numbered(n_q) < 0, spans.numbered(n_k) < 0
    queries[indices[indices < n_q]] = True
    keys[indices[indices < n_k]] = True
    return Tokens(n_q, n_k, queries, keys)


@dataclass(frozen=True)
class NOfM(Rule):
    """Of every m keys in a row each query attends n: those j where (i + j) mod m < n."""

    n: int
    m: int

    def __repr__(self) -> str:
        return f"Mask.n_of_m({self.n}, {self.m})"

    @property
    def is_full(self) -> bool:
        return self.n == self.m

    def laid(self, n_q: int, n_k: int) -> Pattern:
        return Periodic(n_q, n_k, self.n, self.m)

    def pairs(self, n_q: int, n_k: int) -> int:
        return closed.periodic(n_q, n_k, self.n, self.m)


@dataclass(frozen=True)
class Butterfly(Rule):
    """Block i of queries attends block i of keys, and those whose numbers differ from i in one binary digit."""

    block: tuple[int, int]

    def __repr__(self) -> str:
        return f"Mask.butterfly(block={self.block})"

    def laid(self, n_q: int, n_k: int) -> Pattern:
        rows, cols = ceil_div(n_q, self.block[0]), ceil_div(n_k, self.block[1])
        flips = np.append(0, 1 << np.arange(max(rows, cols).bit_length()))
        block, flip = np.divmod(spans.numbered(rows * len(flips)), len(flips))
        return Coarse(n_q, n_k, _graph((block ^ flips[flip]).reshape(rows, len(flips)), cols), self.block)


@dataclass(frozen=True)
class BigBird(Rule):
    """Blocks of a window around the diagonal, the first blocks as global tokens, and random ones for each row."""

    block: tuple[int, int]
    window: int
    first: int
    random: int
    seed: int

    def __repr__(self) -> str:
        return (
            f"Mask.bigbird(block={self.block}, window={self.window}, first={self.first}, random={self.random}, "
            f"seed={self.seed})"
        )

    def laid(self, n_q: int, n_k: int) -> Pattern:
        return _bigbird(self, n_q, n_k)


@functools.lru_cache(maxsize=64)
def _bigbird(rule: BigBird, n_q: int, n_k: int) -> Pattern:
    rows, cols = ceil_div(n_q, rule.block[0]), ceil_div(n_k, rule.block[1])
    side = min(rule.window // 2, rows + cols)
    window = Diagonal(rows, cols, -side, side + 1)
    tokens = _tokens(np.arange(min(rule.first, max(rows, cols))), rows, cols)
    drawn = _graph(_drawn(rows, cols, min(rule.random, cols), np.random.default_rng(rule.seed)), cols)
    known = Joined(rows, cols, window, tokens, np.bitwise_or)
    return Coarse(n_q, n_k, Joined(rows, cols, known, drawn, np.bitwise_or), rule.block)


def _drawn(rows: int, cols: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """`count` different columns for each row, each such set alike likely (Floyd's algorithm). Shape (rows, count)."""
    drawn = np.full_like(spans.numbered(rows * count), -1).reshape(rows, count)
    for i, last in enumerate(range(cols - count, cols)):
        new = rng.integers(0, last + 1, rows)
        drawn[:, i] = np.where((drawn == new[:, None]).any(axis=1), last, new)
    return drawn


def _graph(partners: np.ndarray, n_k: int) -> Graph:
    """Row i attends the columns partners[i], of which those beyond n_k do not exist."""
    partners = np.sort(partners, axis=1)
    there = partners < n_k
    return Graph(len(partners), n_k, np.append(0, np.cumsum(there.sum(axis=1))), partners[there])


@dataclass(frozen=True)
class RandomBlocks(Rule):
    """Each block of queries and keys attends with probability `density`."""

    density: float
    seed: int
    block: tuple[int, int]

    def __repr__(self) -> str:
        return f"Mask.random_blocks({self.density}, seed={self.seed}, block={self.block})"

    def laid(self, n_q: int, n_k: int) -> Pattern:
        return _layout(self, n_q, n_k).laid(n_q, n_k)

    def on(self, n_rows: int, n_cols: int, group: int) -> Pairs:
        return _layout(self, n_rows // group, n_cols).on(n_rows, n_cols, group)


@functools.lru_cache(maxsize=64)
def _layout(rule: RandomBlocks, n_q: int, n_k: int) -> Blocks:
    shape = ceil_div(n_q, rule.block[0]), ceil_div(n_k, rule.block[1])
    if shape[0] * shape[1] > MOST_BLOCKS:
        raise RedblueError(
            f"n_q = {n_q:,} and n_k = {n_k:,} have {shape[0]:,} x {shape[1]:,} blocks of {rule.block}, more than can "
            f"be drawn ({MOST_BLOCKS:,}): give larger blocks"
        )
    layout = np.random.default_rng(rule.seed).random(shape, np.float32) < rule.density
    return Blocks(np.packbits(layout).tobytes(), shape, rule.block)
