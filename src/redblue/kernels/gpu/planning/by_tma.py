"""Plans the spilling kernels that load by TMA (spilled/tma): their tiles, and the heads whose P is in memory at once.

They are `small_cache` with tiles as products of matrices have them. They take plain scores in 16 bits, under no mask or
a causal band, on cards with TMA; the other kernels of the schedules take everything else.
"""

from __future__ import annotations

from typing import NamedTuple

from redblue.base.integers import ceil_div
from redblue.kernels.cpu.call import Sizes
from redblue.kernels.gpu.planning.card import Card
from redblue.kernels.gpu.versions import has_descriptors

ARCHITECTURE = 9  # compute capability 9: later ones multiply in tensor memory, for which nothing here was compiled
DTYPES = ("float16", "bfloat16")
MAX_SPILLED = 1 << 31  # bytes of P, and of dS, that a launch keeps in memory
SLACK = 1024  # bytes of shared memory, for barriers


class Tile(NamedTuple):
    """How a product is tiled: rows x cols of the result, in slices of depth, and Triton's settings."""

    rows: int = 128
    cols: int = 256
    depth: int = 64
    warps: int = 8
    stages: int = 3
    parts: int = 2  # pieces in which a tile of P or dS is stored
    resident: int = 1  # programs of a multiprocessor that work through tiles; 0: a program for each tile

    def shared_bytes(self, pieces: int) -> int:
        """Shared memory of a program: slices that arrive ahead, and so many pieces of 16-bit results."""
        slices = self.stages * (self.rows + self.cols) * self.depth
        return 2 * (slices + pieces * (self.rows * self.cols // self.parts)) + SLACK


SCORES, SUMS = Tile(), Tile(stages=4)


class Choice(NamedTuple):
    """The tiles of each product, and the heads whose P is in memory at once."""

    p: Tile = SCORES
    ds: Tile | None = SCORES  # None: one kernel computes P and dS, in the tiles of p
    row: Tile = SUMS  # P V, or dS K
    key: Tile = SUMS  # P^T dO and dS^T Q
    streams: int = 4
    multiprocessors: int = 132


CHOICES = {"forward": (Choice(),), "backward": (Choice(), Choice(ds=None))}
LEAST_D = {"forward": 257, "backward": 193}  # below, flash is faster
LEAST_PAIRS = 1 << 18  # of a head: fewer make too few tiles


def choices(direction: str, sizes: Sizes, dtype: str, card: Card) -> tuple[Choice, ...]:
    """The choices for a call, the best first; none where the other kernels are faster, or these do not fit."""
    pairs = max(1, sizes.n_q * sizes.group * sizes.n_k)
    most = MAX_SPILLED // (2 * pairs * (1 if direction == "forward" else 2))  # heads, of 16 bits a pair
    if (
        not has_descriptors()
        or card.arch // 10 != ARCHITECTURE
        or dtype not in DTYPES
        or max(sizes.d, sizes.d_v) < LEAST_D[direction]
        or pairs < LEAST_PAIRS
        or most < 1
    ):
        return ()
    fitting = (x for x in CHOICES[direction] if largest_bytes(x) <= card.shared_bytes)
    return tuple(
        x._replace(streams=min(most, max(x.streams, _enough(sizes, card))), multiprocessors=card.multiprocessors)
        for x in fitting
    )


def _enough(sizes: Sizes, card: Card) -> int:
    """The heads that give each multiprocessor several tiles of a sum."""
    tiles = ceil_div(sizes.n_q, SUMS.rows) * ceil_div(max(sizes.d, sizes.d_v), SUMS.cols)
    return ceil_div(4 * card.multiprocessors, max(1, tiles))


def largest_bytes(choice: Choice) -> int:
    """The most shared memory that one of its kernels takes. dS is stored from pieces of P; sums reuse their slices."""
    scores = choice.p.shared_bytes(1), (choice.ds or choice.p).shared_bytes(2)
    return max(*scores, choice.row.shared_bytes(0), choice.key.shared_bytes(0))
