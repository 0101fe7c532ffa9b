"""Plan the forward kernel of `flash` in Gluon (hopper/): its tiles, and the division of work among warps.

The kernel supports calls in 16 bits under no mask or any band, on cards of compute capability 9. Options must not
change the scores (`is_plain` of scores.py), and there must be neither sinks nor dropout. The Triton kernel of the
schedule runs all other calls, and calls with too few rows for all multiprocessors.
"""

from __future__ import annotations

from typing import NamedTuple

from redblue.base.dtypes import SIXTEEN_BITS
from redblue.base.integers import ceil_div
from redblue.kernels.gpu.planning import hopper
from redblue.kernels.gpu.planning.card import BUSY, Card
from redblue.kernels.gpu.planning.resources import WARPGROUP_ROWS
from redblue.kernels.sizes import Sizes

MAX_D = 256  # registers hold no wider rows of the output
MIN_ROWS = 128  # rows of a head: with fewer rows, stacking the heads of a group is faster
SLACK = 1024  # bytes of shared memory, for barriers


class Settings(NamedTuple):
    """The settings of a launch. Only `cols` affects results, by rounding."""

    cols: int = 128  # keys of a tile
    stages: int = 2  # tiles of keys, and of values, in shared memory
    consumers: int = 2  # warpgroups of 64 rows that multiply: 2 or 3
    ping_pong: bool = True  # whether consumers alternate in issuing products
    ordered: bool = True  # whether a tile's softmax must precede the wait for the products that overlap with it
    persistent: bool = True  # whether a program takes several blocks of rows
    pack: int = 1  # heads of a group stacked into the rows of a block
    section: int = 0  # heads in a section (block_of in row_blocks.py); 0: as many as fit the L2 cache
    multiprocessors: int = 132
    l2_bytes: int = 50 << 20

    def shared_bytes(self, d: int, d_v: int) -> int:
        """Shared memory of a program: its queries, and the prefetched tiles of keys and values."""
        rows, width, width_v = self.consumers * WARPGROUP_ROWS, padded(d), padded(d_v)
        return 2 * (rows * width + self.stages * self.cols * (width + width_v)) + SLACK


def settings(d: int, d_v: int, mask: str) -> tuple[Settings, ...]:
    """The settings for these widths, the fastest first, as measured on an H200 in turns with cuDNN.

    mask: "full" or "band".
    """
    width, full = max(padded(d), padded(d_v)), mask == "full"  # under a band, blocks take unequal times
    if width > 64:
        return (Settings(cols=128 if width == 128 else 64, persistent=full),)
    two = Settings(stages=4, persistent=full)
    return (two._replace(consumers=3, ping_pong=False), two) if full else (two,)


def choices(direction: str, sizes: Sizes, dtype: str, card: Card, mask: str) -> tuple[Settings, ...]:
    """The settings for a call, the best first; none where the kernel does not run or has too few blocks."""
    if (
        direction != "forward"
        or card.arch != hopper.HOPPER
        or dtype not in SIXTEEN_BITS
        or max(sizes.d, sizes.d_v) > MAX_D
        or sizes.n_q < MIN_ROWS
        or not sizes.n_k
        or not hopper.available()
    ):
        return ()
    heads = sizes.streams * sizes.group
    blocks = {x: ceil_div(sizes.n_q, WARPGROUP_ROWS * x.consumers) * heads for x in settings(sizes.d, sizes.d_v, mask)}
    return tuple(
        x._replace(multiprocessors=card.multiprocessors, l2_bytes=card.l2_bytes)
        for x, count in blocks.items()
        # With fewer blocks of rows, cutting keys into spans is faster
        if count >= BUSY * card.multiprocessors and x.shared_bytes(sizes.d, sizes.d_v) <= card.shared_bytes
    )


def padded(d: int) -> int:
    """Features of a tile that holds d features."""
    return max(64, 1 << (d - 1).bit_length())
