"""The Triton kernels that each kernel's launch runs: which edges are theirs, and what a block of each holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from redblue.integers import ceil_div
from redblue.kernels.cpu import Sizes
from redblue.kernels.gpu.needs import Phase
from redblue.kernels.gpu.task import parts


class Part(NamedTuple):
    """edges: of tiles that stay, for words to decide on. phase, blocks: by tiles and sizes."""

    edges: tuple[str, ...]
    phase: Callable[[Any, Sizes], Phase]
    blocks: Callable[[Any, Sizes], int]


class Kernel(NamedTuple):
    """streams: the edges of tiles that stream by, which change no words, or hardly any."""

    streams: tuple[str, ...]
    parts: tuple[Part, ...]


def laid(sizes: Sizes) -> tuple[int, int]:
    """d and d_v as kernels that hold whole rows lay them out: in parts that are powers of two."""
    return sum(parts(sizes.d)), sum(parts(sizes.d_v))


def _rows(sizes: Sizes) -> int:
    return sizes.n_q * sizes.group


def _flash_forward(t: Any, sizes: Sizes) -> Phase:
    (d, d_v), r, c = laid(sizes), t.rows, t.cols
    return Phase(
        stay=r * d,
        stream=(c * d, c * d_v),
        exchanged=r * c,
        sums=r * d_v,
        scores=r * c,
        stored=r * d_v,
        product=(r, c, d),
    )


def _flash_dq(t: Any, sizes: Sizes) -> Phase:
    (d, d_v), r, c = laid(sizes), t.rows, t.cols
    return Phase(
        stay=r * (d + d_v),
        stream=(c * d, c * d_v),
        exchanged=r * c,
        sums=r * d,
        scores=2 * r * c,
        stored=r * d,
        product=(r, c, max(d, d_v)),
    )


def _flash_dkv(t: Any, sizes: Sizes) -> Phase:
    (d, d_v), r, c = laid(sizes), t.dkv_rows, t.dkv_cols
    return Phase(
        stay=c * (d + d_v),
        stream=(r * d, r * d_v),
        exchanged=2 * r * c,
        sums=c * (d + d_v),
        scores=2 * r * c,
        stored=c * max(d, d_v),
        product=(c, r, max(d, d_v)),
    )


def _by_rows(t: Any, sizes: Sizes) -> int:
    return ceil_div(_rows(sizes), t.rows) * sizes.streams


def _by_keys(t: Any, sizes: Sizes) -> int:
    return ceil_div(sizes.n_k, t.dkv_cols) * sizes.streams


KERNELS = {
    ("flash", "forward"): Kernel(("cols",), (Part(("rows",), _flash_forward, _by_rows),)),
    ("flash", "backward"): Kernel(
        ("cols", "dkv_rows"), (Part(("rows",), _flash_dq, _by_rows), Part(("dkv_cols",), _flash_dkv, _by_keys))
    ),
}
