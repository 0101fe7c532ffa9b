"""The launches of kernels that exist for Hopper GPUs only (arch 90), which the plan puts beside its own candidates."""

from __future__ import annotations

from typing import NamedTuple

from redblue.base.integers import ceil_div
from redblue.kernels.cpu.call import Sizes
from redblue.kernels.gpu.launch import PlanOptions
from redblue.kernels.gpu.planning.card import Card
from redblue.kernels.gpu.scores import INTERPRETED
from redblue.kernels.gpu.versions import has_descriptors

HOPPER = 90
SIXTEEN_BITS = ("bfloat16", "float16")
MAX_STREAMS = 65535  # of a grid's second dimension
MAX_ROWS = 1 << 29  # of all heads with padding: twice as many numbers are counted in 32 bits
PADDING = 128  # rows: the longest tile


class Shape(NamedTuple):
    """Tiles and settings of a launch of `flash_onepass`."""

    rows: int
    cols: int
    warps: int
    stages: int
    shared_bytes: int  # as compiled by Triton 3.6


# By head dimension, as they ran on an H200: at d = 128 faster than two kernels, at d = 64 as fast
ONE_PASS: dict[int, tuple[Shape, ...]] = {
    64: (Shape(128, 128, 8, 2, 133_436), Shape(64, 128, 8, 2, 83_260)),
    128: (Shape(64, 128, 8, 2, 148_796),),
}
LEADS = (128,)  # head dimensions whose first candidate is this kernel, if it occupies the card


def one_pass_shapes(direction: str, sizes: Sizes, dtype: str, card: Card, options: PlanOptions) -> tuple[Shape, ...]:
    """The launches of `flash_onepass` for this call, the best first; () where it has no kernel."""
    takes = options.one_pass and direction == "backward" and card.arch == HOPPER and dtype in SIXTEEN_BITS
    rows = sizes.streams * sizes.group * ceil_div(sizes.n_q, PADDING) * PADDING
    if not takes or sizes.d != sizes.d_v or sizes.streams > MAX_STREAMS or rows > MAX_ROWS or not available():
        return ()
    return tuple(shape for shape in ONE_PASS.get(sizes.d, ()) if shape.shared_bytes <= card.shared_bytes)


def leads(shape: Shape, sizes: Sizes, card: Card, share: float) -> bool:
    """Whether the launch comes before all others: it has blocks for this share of the multiprocessors."""
    blocks = ceil_div(sizes.n_k, shape.cols) * sizes.streams
    return sizes.d in LEADS and blocks >= share * card.multiprocessors


def available() -> bool:
    """Whether Triton compiles these kernels. Its interpreter does not run Gluon."""
    return not INTERPRETED.value and has_descriptors()
