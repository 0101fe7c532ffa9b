"""Placements: which process holds which tokens of a sequence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from redblue.base.errors import RedblueError, UnknownName

LAYOUTS_KEPT = 8  # layouts in a cache: each takes up to tens of bytes per token of the whole sequences


@dataclass(frozen=True, eq=False)
class Placement:
    """The tokens of each process.

    name: for messages. positions: for each process, the positions of its tokens in the sequence, int64, ascending;
    every position 0 .. n - 1 occurs once.
    """

    name: str
    positions: tuple[np.ndarray, ...]

    @property
    def n(self) -> int:
        """Length of the sequence."""
        return sum(len(own) for own in self.positions)

    @property
    def world_size(self) -> int:
        return len(self.positions)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Number of tokens of each process."""
        return tuple(len(own) for own in self.positions)


def contiguous(n: int, world_size: int) -> Placement:
    """Process p holds the p-th of `world_size` consecutive parts; the first n mod world_size are one token longer."""
    return Placement("contiguous", tuple(_parts(n, world_size)))


def zigzag(n: int, world_size: int) -> Placement:
    """Process p holds parts p and 2 world_size - 1 - p of 2 world_size parts.

    Under a causal mask, all processes then have about the same number of pairs.
    """
    parts = _parts(n, 2 * world_size)
    return Placement("zigzag", tuple(np.append(parts[p], parts[-1 - p]) for p in range(world_size)))


def striped(n: int, world_size: int) -> Placement:
    """Process p holds the tokens p, p + world_size, p + 2 world_size, ..."""
    return Placement("striped", tuple(np.arange(p, n, world_size, dtype=np.int64) for p in range(world_size)))


PLACEMENTS: dict[str, Callable[[int, int], Placement]] = {
    "contiguous": lru_cache(LAYOUTS_KEPT)(contiguous),
    "zigzag": lru_cache(LAYOUTS_KEPT)(zigzag),
    "striped": lru_cache(LAYOUTS_KEPT)(striped),
}


def placement_of(placement: Any, n: int, world_size: int) -> Placement:
    """The placement of that name, or `placement` itself. Raises RedblueError unless it fits n tokens and processes."""
    if isinstance(placement, str):
        if placement not in PLACEMENTS:
            raise UnknownName("placement", placement, PLACEMENTS)
        return PLACEMENTS[placement](n, world_size)
    if not isinstance(placement, Placement):
        names = ", ".join(PLACEMENTS)
        raise RedblueError(f"placement must be {names}, or the result of best_placement, got {placement!r}")
    if placement.world_size != world_size:
        raise RedblueError(
            f"the placement is for {placement.world_size} processes, but there are {world_size}: give a placement for "
            f"{world_size}"
        )
    if placement.n != n:
        raise RedblueError(
            f"the placement is for {placement.n:,} tokens, but there are {n:,}: give a placement for {n:,}"
        )
    return placement


def _parts(n: int, count: int) -> list[np.ndarray]:
    return np.array_split(numbers_below(n), count)


@lru_cache(LAYOUTS_KEPT)
def numbers_below(n: int) -> np.ndarray:
    """0 .. n - 1, in memory that placements and layouts share: nobody may write to it."""
    return np.arange(n, dtype=np.int64)  # not read-only, because torch.from_numpy warns of such arrays
