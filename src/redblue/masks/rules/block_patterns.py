"""Rules whose block layout follows from the sizes: butterfly, BigBird and random blocks."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from redblue.base.errors import RedblueError
from redblue.base.integers import ceil_div
from redblue.masks.patterns import spans
from redblue.masks.patterns.composed import Coarse, Joined
from redblue.masks.patterns.diagonals import Diagonal
from redblue.masks.patterns.graph import Graph
from redblue.masks.patterns.pairs import Pairs
from redblue.masks.patterns.pattern import Pattern
from redblue.masks.patterns.tokens import Tokens
from redblue.masks.rules.layouts import Blocks
from redblue.masks.rules.rule import Rule

MAX_BLOCKS = 1 << 31  # blocks of a random layout, which is drawn as a whole
DRAWN = 1 << 20  # blocks that are drawn at once, a multiple of 8


@dataclass(frozen=True)
class Butterfly(Rule):
    """Block i of queries attends block i of keys and the blocks whose numbers differ from i in one binary digit."""

    block: tuple[int, int]

    def __repr__(self) -> str:
        return f"Mask.butterfly(block={self.block})"

    def pattern(self, n_q: int, n_k: int) -> Pattern:
        rows, cols = ceil_div(n_q, self.block[0]), ceil_div(n_k, self.block[1])
        flips = np.append(0, 1 << np.arange(max(rows, cols).bit_length()))
        block, flip = np.divmod(spans.arange(rows * len(flips)), len(flips))
        partners = (block ^ flips[flip]).reshape(rows, len(flips))
        return Coarse(n_q, n_k, Graph.of_partners(partners, cols), self.block)


@dataclass(frozen=True)
class BigBird(Rule):
    """A block attends the blocks of a window around the diagonal, the first blocks, and random ones.

    window: blocks, an odd number. first: number of blocks at the start that attend, and are attended by, all blocks.
    random: blocks drawn for each row of blocks, from all blocks. seed: the seed of the draw.
    """

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

    def pattern(self, n_q: int, n_k: int) -> Pattern:
        return _bigbird(self, n_q, n_k)


@functools.lru_cache(maxsize=64)
def _bigbird(rule: BigBird, n_q: int, n_k: int) -> Pattern:
    rows, cols = ceil_div(n_q, rule.block[0]), ceil_div(n_k, rule.block[1])
    side = min(rule.window // 2, rows + cols)
    window = Diagonal(rows, cols, -side, side + 1)
    tokens = Tokens.of_indices(np.arange(min(rule.first, max(rows, cols))), rows, cols)
    partners = _draw_distinct(rows, cols, min(rule.random, cols), np.random.default_rng(rule.seed))
    drawn = Graph.of_partners(partners, cols)
    blocks = Joined(rows, cols, (window, tokens, np.bitwise_or, drawn, np.bitwise_or))
    return Coarse(n_q, n_k, blocks, rule.block)


def _draw_distinct(rows: int, cols: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw `count` distinct columns for each row, every such set with the same probability (Floyd's algorithm).

    Returns shape (rows, count).
    """
    drawn = np.full_like(spans.arange(rows * count), -1).reshape(rows, count)
    for i, last in enumerate(range(cols - count, cols)):
        new = rng.integers(0, last + 1, rows)
        drawn[:, i] = np.where((drawn == new[:, None]).any(axis=1), last, new)
    return drawn


@dataclass(frozen=True)
class RandomBlocks(Rule):
    """Each block of queries and keys attends with probability `density`. seed: the seed of the draw."""

    density: float
    seed: int
    block: tuple[int, int]

    def __repr__(self) -> str:
        return f"Mask.random_blocks({self.density}, seed={self.seed}, block={self.block})"

    def pattern(self, n_q: int, n_k: int) -> Pattern:
        return _draw_layout(self, n_q, n_k).pattern(n_q, n_k)

    def on(self, n_rows: int, n_cols: int, group: int) -> Pairs:
        return _draw_layout(self, n_rows // group, n_cols).on(n_rows, n_cols, group)


@functools.lru_cache(maxsize=64)
def _draw_layout(rule: RandomBlocks, n_q: int, n_k: int) -> Blocks:
    shape = ceil_div(n_q, rule.block[0]), ceil_div(n_k, rule.block[1])
    if shape[0] * shape[1] > MAX_BLOCKS:
        raise RedblueError(
            f"n_q = {n_q:,} and n_k = {n_k:,} have {shape[0]:,} x {shape[1]:,} blocks of {rule.block}, more than can "
            f"be drawn ({MAX_BLOCKS:,}): give larger blocks"
        )
    rng, blocks = np.random.default_rng(rule.seed), shape[0] * shape[1]
    pieces = (min(DRAWN, blocks - first) for first in range(0, blocks, DRAWN))
    bits = (np.packbits(rng.random(count, np.float32) < rule.density).tobytes() for count in pieces)
    return Blocks(b"".join(bits), shape, rule.block)
