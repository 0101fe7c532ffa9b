"""Plan the backward kernel of `flash_onepass` in Gluon (hopper/backward_kernel.py).

It supports the calls of the forward kernel in Gluon (by_gluon.py) with d = d_v = 128, or 64 under a band, if sums may
be added in any order. Other calls run `flash`, whose two kernels are as fast for d = 64 without a mask.
"""

from __future__ import annotations

from redblue.base.dtypes import SIXTEEN_BITS
from redblue.base.integers import ceil_div
from redblue.kernels.gpu.planning import hopper
from redblue.kernels.gpu.planning.by_gluon import MIN_ROWS
from redblue.kernels.gpu.planning.card import BUSY, Card
from redblue.kernels.sizes import Sizes
from redblue.schedules.flash_onepass import BackwardTiles

TILES, STAGES = BackwardTiles(rows=64, cols=128), 2  # stages: tiles of queries, and of dout, in shared memory at once
SHARED_BYTES = {64: 83_260, 128: 148_796}  # by d, as Triton 3.6 compiles the kernel
MAX_STREAMS = 65535  # limit of a grid's second dimension
MAX_ROWS = 1 << 30  # rows of all heads, with padding: twice this number must fit 32 bits


def choices(direction: str, sizes: Sizes, dtype: str, card: Card, mask: str) -> tuple[BackwardTiles, ...]:
    """The tiles for a call; none where the kernel does not run, is not faster, or has too few blocks of keys."""
    if (
        direction != "backward"
        or card.arch != hopper.HOPPER
        or dtype not in SIXTEEN_BITS
        or sizes.d != sizes.d_v
        or sizes.d not in SHARED_BYTES
        or (sizes.d == 64 and mask == "full")
        or SHARED_BYTES[sizes.d] > card.shared_bytes
        or sizes.n_q < MIN_ROWS
        or sizes.streams > MAX_STREAMS
        or sizes.streams * sizes.group * ceil_div(sizes.n_q, TILES.rows) * TILES.rows >= MAX_ROWS
        or ceil_div(sizes.n_k, TILES.cols) * sizes.streams < BUSY * card.multiprocessors
        or not hopper.available()
    ):
        return ()
    return (TILES,)
