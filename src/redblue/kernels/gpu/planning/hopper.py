"""The launches of kernels that exist for Hopper GPUs only (arch 90), which the plan puts beside its own candidates."""

from __future__ import annotations

from typing import Any, NamedTuple

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
    """Tiles and settings of a launch of `flash_onepass`. warps: 4 for the kernel `apart`, 8 for `in_step`."""

    rows: int
    cols: int
    warps: int
    stages: int
    shared_bytes: int  # as compiled by Triton 3.6


# By head dimension, the fastest on an H200 first
ONE_PASS: dict[int, tuple[Shape, ...]] = {
    64: (Shape(64, 128, 4, 2, 99_816), Shape(128, 128, 8, 2, 133_436)),
    128: (Shape(64, 128, 8, 2, 148_796), Shape(64, 128, 8, 3, 182_124)),
    256: (Shape(64, 64, 8, 2, 214_332),),
}


def one_pass_shapes(direction: str, sizes: Sizes, dtype: str, card: Card, options: PlanOptions) -> tuple[Shape, ...]:
    """The launches of `flash_onepass` for this call, the best first; () where it has no kernel."""
    takes = options.one_pass and direction == "backward" and card.arch == HOPPER and dtype in SIXTEEN_BITS
    rows = sizes.streams * sizes.group * ceil_div(sizes.n_q, PADDING) * PADDING
    if not takes or sizes.d != sizes.d_v or sizes.streams > MAX_STREAMS or rows > MAX_ROWS or not available():
        return ()
    return tuple(shape for shape in ONE_PASS.get(sizes.d, ()) if shape.shared_bytes <= card.shared_bytes)


def occupies(shape: Any, sizes: Sizes, card: Card, share: float) -> bool:
    """Whether the launch has blocks for this share of the multiprocessors."""
    return ceil_div(sizes.n_k, shape.cols) * sizes.streams >= share * card.multiprocessors


def available() -> bool:
    """Whether Triton compiles these kernels. Its interpreter does not run Gluon."""
    return not INTERPRETED.value and has_descriptors()
