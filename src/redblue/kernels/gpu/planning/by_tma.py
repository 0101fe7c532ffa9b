"""Plan the spilling kernels that load by TMA (spilled/tma): their tiles, and the heads whose P is in memory at once.

They run `small_cache` with the tiles of ordinary matrix products. They support calls in 16 bits under no mask or a
causal band, on cards with TMA. Options must not change the scores (`is_plain` of scores.py), and there must be neither
sinks nor dropout. The other kernels of the schedules run all other calls.
"""

from __future__ import annotations

from typing import NamedTuple

from redblue.base.dtypes import SIXTEEN_BITS
from redblue.base.integers import ceil_div
from redblue.kernels.gpu.planning.card import Card
from redblue.kernels.gpu.planning.footprints import MAX_SPILLED
from redblue.kernels.gpu.versions import has_descriptors
from redblue.kernels.sizes import Sizes

ARCHITECTURE = 9  # compute capability 9; later ones multiply in tensor memory, which these kernels do not use
SEVERAL = 3  # tiles of a sum per multiprocessor, so that few multiprocessors are idle at the end
PIECE = 512  # queries: P of a long sequence is cut into pieces of a multiple of this, so that tiles are whole
SLACK = 1024  # bytes of shared memory, for barriers


class Tile(NamedTuple):
    """The tiling of a product: rows x cols of the result, in slices of depth, and Triton's settings."""

    rows: int = 128
    cols: int = 256
    depth: int = 64
    warps: int = 8
    stages: int = 3
    parts: int = 2  # pieces in which a tile of P or dS is stored
    resident: int = 1  # persistent programs per multiprocessor; 0: a program for each tile
    early: bool = False  # whether P, from which dS is computed, is loaded into registers before the product

    def shared_bytes(self, pieces: int) -> int:
        """Shared memory of a program: prefetched slices, and `pieces` pieces of 16-bit results."""
        slices = self.stages * (self.rows + self.cols) * self.depth
        return 2 * (slices + pieces * (self.rows * self.cols // self.parts)) + SLACK


SCORES = Tile(cols=128, warps=4, resident=2)
SCORES_WIDE = Tile()
GRADIENTS = Tile(cols=128, warps=4, parts=4, resident=0)
GRADIENTS_EARLY = Tile(cols=128, warps=4, resident=0, early=True)
SUMS_WIDE, SUMS = Tile(stages=4), Tile(cols=128, warps=4)
WORTH = 0.95  # narrow sums are chosen if their padded features are at most this share of the wide sums' features


class Choice(NamedTuple):
    """The tiles of each product, and the heads whose P is in memory at once."""

    p: Tile = SCORES
    ds: Tile | None = GRADIENTS  # None: one kernel computes P and dS, in the tiles of p
    row: Tile = SUMS_WIDE  # P V, or dS K
    key: Tile = SUMS_WIDE  # P^T dO and dS^T Q
    streams: int = 4
    queries: int = 0  # queries of a head whose P is in memory at once; 0: all
    multiprocessors: int = 132


CHOICES = {
    "forward": (Choice(), Choice(p=SCORES_WIDE)),
    "backward": (Choice(), Choice(ds=GRADIENTS_EARLY), Choice(p=SCORES_WIDE, ds=SCORES_WIDE)),
}
MIN_D = {"forward": 257, "backward": 193}  # for smaller d, flash is faster
MIN_LENGTH = 256  # queries of a head or of a piece, and keys: fewer make too few tiles


def choices(direction: str, sizes: Sizes, dtype: str, card: Card) -> tuple[Choice, ...]:
    """The choices for a call, the best first; none where the other kernels are faster, or these do not fit."""
    most, queries = _memory(direction, sizes)
    if (
        not has_descriptors()
        or card.arch // 10 != ARCHITECTURE
        or dtype not in SIXTEEN_BITS
        or max(sizes.d, sizes.d_v) < MIN_D[direction]
        or min(sizes.n_q, sizes.n_k, queries) < MIN_LENGTH
    ):
        return ()
    sums = _sums(sizes)
    made = (
        x._replace(
            row=sums,
            key=sums,
            streams=min(most, ceil_div(max(x.streams, _enough(sizes, card, sums)), sizes.group) * sizes.group),
            queries=0 if queries >= sizes.n_q else queries,
            multiprocessors=card.multiprocessors,
        )
        for x in CHOICES[direction]
    )
    return tuple(x for x in made if largest_bytes(x) <= card.shared_bytes)


def _memory(direction: str, sizes: Sizes) -> tuple[int, int]:
    """The number of heads, and of queries of each head, whose P and dS fit into MAX_SPILLED.

    At least the heads that share a key head, with fewer queries if necessary.
    """
    arrays = 1 if direction == "forward" else 2
    of_query = 2 * arrays * max(1, sizes.n_k)
    heads = MAX_SPILLED // (of_query * max(1, sizes.n_q)) // sizes.group * sizes.group
    if heads:
        return heads, sizes.n_q
    return sizes.group, MAX_SPILLED // (of_query * sizes.group) // PIECE * PIECE


def _sums(sizes: Sizes) -> Tile:
    """The tile of sums for d and d_v: the wide tile is faster, unless it pads the features much more."""
    padded = [sum(ceil_div(f, t.cols) * t.cols for f in (sizes.d, sizes.d_v)) for t in (SUMS, SUMS_WIDE)]
    return SUMS if padded[0] < WORTH * padded[1] else SUMS_WIDE


def _enough(sizes: Sizes, card: Card, sums: Tile) -> int:
    """The number of heads that gives each multiprocessor several tiles of a sum.

    It is rounded up to a power of two, which divides the number of heads of most calls.
    """
    tiles = ceil_div(sizes.n_q, sums.rows) * ceil_div(max(sizes.d, sizes.d_v), sums.cols)
    return 1 << (ceil_div(SEVERAL * card.multiprocessors, max(1, tiles)) - 1).bit_length()


def largest_bytes(choice: Choice) -> int:
    """The most shared memory that a kernel of the choice takes.

    Beside its slices, a kernel holds one 16-bit piece of P, or two pieces to compute dS from P. Sums pass through the
    memory of the slices.
    """
    scores = choice.p.shared_bytes(1), (choice.ds or choice.p).shared_bytes(2)
    return max(*scores, choice.row.shared_bytes(0), choice.key.shared_bytes(0))
