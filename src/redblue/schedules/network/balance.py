"""Balance of a mask's pairs over processes: the pairs and the missing keys of each process, and the best placement.

A process computes the rows of its own tokens. It must receive the keys that its rows attend and that it does not
hold: no schedule that leaves rows in place moves fewer keys. For a mask whose outer sets of single rows are not exact,
such as the complement of an n:m pattern, the count of missing keys may be too large.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from redblue.base.arguments import checked_arguments
from redblue.base.errors import RedblueError
from redblue.base.integers import whole_number
from redblue.masks import Mask
from redblue.masks.rules.selected import attended_keys
from redblue.masks.storage.pair_lists import degrees
from redblue.schedules.network.placement import PLACEMENTS, Placement, placement_of

TOLERANCE = 0.02  # a placement counts as balanced if its busiest process has at most 2 % more pairs than the best one's
MAX_TOKENS = 4 / 3  # most tokens of one process, over the mean: other layers' work is proportional to tokens
BLOCKS_PER_PROCESS = (2, 4, 8, 16, 64)  # numbers of blocks that are tried


class Balance(NamedTuple):
    """The work of a placement. pairs, missing_keys: of each process, int64 (world_size,)."""

    placement: Placement
    pairs: np.ndarray
    missing_keys: np.ndarray

    @property
    def share(self) -> float:
        """The pairs of the busiest process over the mean; 1 is balanced."""
        return float(self.pairs.max() / self.pairs.mean()) if self.pairs.any() else 1.0

    @property
    def words(self) -> int:
        """Missing keys of all processes."""
        return int(self.missing_keys.sum())


@checked_arguments
def balance(mask: Mask, n: int, placement: str | Placement, world_size: int) -> Balance:
    """Count the attended pairs and the missing keys of each process, for n queries and as many keys.

    Raises RedblueError if the mask does not fit n, or the placement does not fit n and the processes.
    """
    world_size = whole_number("world_size", world_size)
    placed = placement_of(placement, whole_number("n", n), world_size)
    return _balance(mask, row_pairs(mask, n), placed)


def row_pairs(mask: Mask, n: int) -> np.ndarray:
    """Return the attended pairs of each of n queries with n keys, int64 (n,), over all planes of the mask."""
    planes = Counter(mask.plane(i) for i in range(math.prod(mask.lead))) if mask.lead else {mask: 1}
    return sum((times * degrees(plane.on(n, n)) for plane, times in planes.items()), np.zeros(n, np.int64))


def _balance(mask: Mask, pairs: np.ndarray, placement: Placement) -> Balance:
    return Balance(
        placement,
        np.array([pairs[own].sum() for own in placement.positions]),
        np.array([len(_missing(mask, placement.n, own)) for own in placement.positions]),
    )


def _missing(mask: Mask, n: int, own: np.ndarray) -> np.ndarray:
    return np.setdiff1d(attended_keys(mask.rule, own, n, n), own, assume_unique=True)


@checked_arguments
def best_placement(mask: Mask, n: int, world_size: int) -> Placement:
    """Return the placement of n tokens on `world_size` processes that balances the pairs with the fewest missing keys.

    The candidates are the named placements, blocks dealt in turn, blocks dealt heaviest first to the process with the
    fewest pairs, and consecutive parts with the same number of pairs. Among the candidates within 2 % of the best
    balance, the one with the fewest missing keys is chosen. No process gets more tokens than 4/3 of their mean number,
    or than the mean rounded up if that is larger.
    Raises RedblueError if the mask does not fit n queries and keys, or n is less than `world_size`.
    """
    n, world_size = whole_number("n", n), whole_number("world_size", world_size)
    if n < world_size:
        raise RedblueError(f"n ({n:,}) must be at least world_size ({world_size:,}): each process holds a token")
    if mask.is_full:
        return placement_of("contiguous", n, world_size)
    pairs = row_pairs(mask, n)
    candidates = [
        (_share(pairs, placement), number, placement) for number, placement in enumerate(_candidates(pairs, world_size))
    ]
    most = min(share for share, _, _ in candidates) * (1 + TOLERANCE)
    balanced = [(number, placement) for share, number, placement in candidates if share <= most]
    if len(balanced) == 1:
        return balanced[0][1]
    missing = [
        (sum(len(_missing(mask, n, own)) for own in candidate.positions), number) for number, candidate in balanced
    ]
    return dict(balanced)[min(missing)[1]]


def _share(pairs: np.ndarray, placement: Placement) -> float:
    """The pairs of the busiest process over the mean."""
    return max(float(pairs[own].sum()) for own in placement.positions) * placement.world_size / max(1, pairs.sum())


def _candidates(pairs: np.ndarray, world_size: int) -> Iterator[Placement]:
    """Yield the placements that give no process too many tokens; the first of equally good ones is chosen."""
    mean = len(pairs) / world_size
    tokens = max(MAX_TOKENS * mean, math.ceil(mean))
    yield from (placement for placement in _placements(pairs, world_size) if max(placement.lengths) <= tokens)


def _placements(pairs: np.ndarray, world_size: int) -> Iterator[Placement]:
    """Yield every kind of placement that is tried."""
    n = len(pairs)
    yield from (placement_of(name, n, world_size) for name in PLACEMENTS)
    yield weighted_contiguous(pairs, world_size)
    for blocks in BLOCKS_PER_PROCESS:
        if blocks * world_size <= n:
            yield heaviest_first(pairs, world_size, blocks)
            yield block_cyclic(n, world_size, blocks)


def weighted_contiguous(pairs: np.ndarray, world_size: int) -> Placement:
    """Consecutive parts with as equal numbers of pairs as whole rows allow; at least one row each."""
    n, before = len(pairs), np.append(0, np.cumsum(pairs))
    cuts = np.searchsorted(before, before[-1] * np.arange(1, world_size) / world_size)
    least, most = np.arange(1, world_size), n - np.arange(world_size - 1, 0, -1)
    cuts = np.clip(np.maximum.accumulate(np.maximum(cuts, least) - least) + least, least, most)
    return Placement("weighted contiguous", tuple(np.split(np.arange(n, dtype=np.int64), cuts)))


def block_cyclic(n: int, world_size: int, per_process: int) -> Placement:
    """Blocks of equal length, `per_process` for every process, dealt in turn."""
    blocks = np.array_split(np.arange(n, dtype=np.int64), per_process * world_size)
    return Placement(
        f"block-cyclic of {per_process}", tuple(np.concatenate(blocks[p::world_size]) for p in range(world_size))
    )


def heaviest_first(pairs: np.ndarray, world_size: int, per_process: int) -> Placement:
    """Blocks of equal length, `per_process` for every process: the heaviest goes to the process with fewest pairs."""
    blocks = np.array_split(np.arange(len(pairs), dtype=np.int64), per_process * world_size)
    weights = np.array([pairs[block].sum() for block in blocks])
    loads, owned = np.zeros(world_size), [[] for _ in range(world_size)]
    for block in np.argsort(-weights, kind="stable"):
        free = [p for p in range(world_size) if len(owned[p]) < per_process]
        lightest = min(free, key=lambda p: (loads[p], p))
        loads[lightest] += weights[block]
        owned[lightest].append(int(block))
    parts = [np.concatenate([blocks[block] for block in sorted(mine)]) for mine in owned]
    return Placement(f"heaviest first of {per_process}", tuple(parts))
