"""The Triton kernels of the schedules: the edges of their tiles, and the elements that a block holds on chip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from redblue.base.integers import ceil_div
from redblue.kernels.gpu.launch import PlanOptions, parts
from redblue.kernels.gpu.planning.resources import Footprint
from redblue.kernels.sizes import Sizes

MIN_EDGE = 16  # the shortest edge of a tile that a tensor core takes
SHORT_EDGE = 64  # sm_100 keeps a second copy of tiles that have a shorter edge and are also multiplied transposed
WIDE_PART = 64  # if the second part of d is at least this wide, operands of the first part wait in registers
# Under a listed mask, spilled tiles are read on the grid on which they were written, so these edges are equal
ON_ONE_GRID = {"out_rows": "rows", "dq_rows": "rows", "dk_rows": "cols", "dv_rows": "cols"}
COUNTED_AS = {"paged": "forward"}  # directions whose words are counted by another pass of their schedule
MIN_SPAN = 512  # keys: merging the outputs of shorter spans costs more than it gains
MAX_SPILLED = 1 << 31  # bytes of all spilled arrays (P, and backward also dS) that are in memory at once


class Part(NamedTuple):
    """A Triton kernel. edges: the edges of the tiles that stay, which are chosen by the words moved.

    footprint: the footprint of a block, a function of tiles, sizes and options. blocks: the number of blocks, a
    function of tiles and sizes.
    """

    edges: tuple[str, ...]
    footprint: Callable[[Any, Sizes, PlanOptions], Footprint]
    blocks: Callable[[Any, Sizes], int]


class Kernel(NamedTuple):
    """The Triton kernels of one schedule and direction.

    streams: edges of the tiles that stream by, which hardly affect the words moved. max_edges: upper limits to try for
    all other edges. spilled: arrays of (rows of a chunk, all keys) that are in memory at once.
    """

    streams: tuple[str, ...]
    parts: tuple[Part, ...]
    max_edges: tuple[int, ...]
    spilled: int = 0


def padded(sizes: Sizes) -> tuple[int, int]:
    """d and d_v, padded to the two tiles in which the flash kernels hold a row."""
    return sum(parts(sizes.d)), sum(parts(sizes.d_v))


def _padded_to_32(features: int) -> int:
    """Features, padded to tiles of at least 32: without tensor cores a tile of 16 takes as many registers."""
    return sum(max(part, 32) for part in parts(features) if part)


def _rows(sizes: Sizes) -> int:
    return sizes.n_q * sizes.group


def _score_tiles(own: int, options: PlanOptions) -> int:
    """Number of tiles of scores that registers hold: the kernel's own, a bias with its addresses, dropout's factors."""
    return max(own, 4 * options.bias) + options.dropout


def _flash_forward(t: Any, sizes: Sizes, options: PlanOptions) -> Footprint:
    (d, d_v), r, c = padded(sizes), t.rows, t.cols
    return Footprint(
        stay=r * d,
        stream=(c * d, c * d_v),
        exchanged=2 * r * c,  # P, and with a bias or dropout the tile that is added to it
        sums=r * d_v,
        scores=_score_tiles(1, options) * r * c,
        stored=r * d_v,
        product=(r, c, d),
        tall=_tall(r, options),
    )


def _tall(rows: int, options: PlanOptions) -> int:
    """Footprint.tall, which is 0 with a bias or dropout: their tiles are loaded in other registers and exchanged."""
    return 0 if options.bias or options.dropout else rows


def _paged(t: Any, sizes: Sizes, options: PlanOptions) -> Footprint:
    """Like _flash_forward, except that values which are a slice of the keys do not stream by separately."""
    footprint = _flash_forward(t, sizes, options)._replace(tall=0)
    return footprint._replace(stream=footprint.stream[:1]) if options.aliased else footprint


def _flash_dq(t: Any, sizes: Sizes, options: PlanOptions) -> Footprint:
    (d, d_v), r, c = padded(sizes), t.rows, t.cols
    return Footprint(
        stay=r * (d + d_v),
        stream=(c * d, c * d_v),
        exchanged=r * c,
        sums=r * d,
        scores=_score_tiles(2, options) * r * c,
        stored=r * d,
        product=(r, c, max(d, d_v)),
        added=r * c * (options.bias or options.dropout),
        transposed=c * d * (c < SHORT_EDGE),
        all_at_once=True,
        tall=_tall(r, options),
    )


def _flash_dkv(t: Any, sizes: Sizes, options: PlanOptions) -> Footprint:
    (d, d_v), r, c = padded(sizes), t.dkv_rows, t.dkv_cols
    length, inner = max(d, d_v), max(_padded_to_32(sizes.d), _padded_to_32(sizes.d_v))
    return Footprint(
        stay=c * (d + d_v),
        stream=(r * d, r * d_v),
        exchanged=2 * r * c,
        sums=c * (d + d_v),
        scores=_score_tiles(2, options) * r * c,
        stored=c * length,
        product=max((c, r, inner), (c, length, r), key=lambda edges: (edges[0] + edges[1]) * edges[2]),
        added=r * c * (options.bias or options.dropout),
        transposed=r * (d + d_v) * (r < SHORT_EDGE),
        waiting=2 * r * (d + d_v) * (min(parts(sizes.d)[1], parts(sizes.d_v)[1]) >= WIDE_PART),
        all_at_once=True,
        tall=_tall(c, options),
    )


def _spill(t: Any, sizes: Sizes, options: PlanOptions) -> Footprint:
    """small_cache: slices of queries and keys stream by; a tile is stored while the next slices arrive."""
    r, c, w = t.rows, t.cols, t.depth
    return Footprint(0, (r * w, c * w), r * c // 2, r * c, r * c * (options.bias or options.dropout), r * c, (r, c, w))


def _spill_held(t: Any, sizes: Sizes, options: PlanOptions) -> Footprint:
    """hybrid: queries stay; whole keys stream by, since the loop over their slices is unrolled."""
    r, c, w = t.rows, t.cols, t.depth
    held = ceil_div(sizes.d, w) * w
    return Footprint(r * held, (c * held,), r * c, r * c, 0, r * c, (r, c, held), added=r * c * options.bias)


def _output(t: Any, sizes: Sizes, options: PlanOptions) -> Footprint:
    r, c, w = t.out_rows, t.out_cols, t.depth
    return Footprint(0, (r * w, w * c), r * w, r * c, r * w, r * c, (r, c, w))


def _spill_ds(t: Any, sizes: Sizes, options: PlanOptions) -> Footprint:
    """small_cache: dS of a tile, from P, which another, smaller kernel has spilled."""
    r, c, w = t.rows, t.cols, t.depth
    return Footprint(0, (r * w, c * w), r * c, r * c, r * c, r * c, (r, c, w))


def _spill_p_held(t: Any, sizes: Sizes, options: PlanOptions) -> Footprint:
    """hybrid: queries stay, `depth` whole keys stream by."""
    r, w, held = t.rows, t.depth, ceil_div(sizes.d, MIN_EDGE) * MIN_EDGE
    return Footprint(r * held, (w * held,), r * w, r * w, 0, r * w, (r, w, held), added=r * w * options.bias)


def _dv_and_ds(t: Any, sizes: Sizes, options: PlanOptions) -> Footprint:
    """hybrid: V and dV of a block of keys stay, `depth` rows of dO and P stream by; registers hold all slices."""
    c, w, held = t.cols, t.depth, ceil_div(sizes.d_v, MIN_EDGE) * MIN_EDGE
    return Footprint(c * held, (w * held, w * c), 2 * w * c, (2 * c + w) * held, 2 * w * c, c * held, (c, w, held))


def _sum_of(rows: str, cols: str, name: str) -> Part:
    """dQ, dK or dV: a tile stays, slices of P or dS and of the other factor stream by."""

    def footprint(t: Any, sizes: Sizes, options: PlanOptions) -> Footprint:
        r, c, w = getattr(t, rows), getattr(t, cols), t.depth
        # Stored as sums, which have at most twice the bytes of the operands
        return Footprint(0, (r * w, w * c), r * w, r * c, 0, 2 * r * c, (r, c, w))

    def blocks(t: Any, sizes: Sizes) -> int:
        length = _rows(sizes) if name == "dq" else sizes.n_k
        features = sizes.d_v if name == "dv" else sizes.d
        return ceil_div(length, getattr(t, rows)) * ceil_div(features, getattr(t, cols)) * sizes.streams

    return Part((rows, cols), footprint, blocks)


# Numbers of blocks of a kernel -------------------------------------------------------------------------------------


def _by_cols(t: Any, sizes: Sizes) -> int:
    return ceil_div(sizes.n_k, t.cols) * sizes.streams


def _by_tiles(t: Any, sizes: Sizes) -> int:
    return _by_rows(t, sizes) * ceil_div(sizes.n_k, t.cols)  # each span of keys is a separate block


def _by_out(t: Any, sizes: Sizes) -> int:
    return ceil_div(_rows(sizes), t.out_rows) * ceil_div(sizes.d_v, t.out_cols) * sizes.streams


def _by_rows(t: Any, sizes: Sizes) -> int:
    return ceil_div(_rows(sizes), t.rows) * sizes.streams


def _by_spans(t: Any, sizes: Sizes) -> int:
    return _by_rows(t, sizes) * ceil_div(sizes.n_k, MIN_SPAN)


def _by_keys(t: Any, sizes: Sizes) -> int:
    return ceil_div(sizes.n_k, t.dkv_cols) * sizes.streams


DQ, DK, DV = (_sum_of(f"{name}_rows", f"{name}_cols", name) for name in ("dq", "dk", "dv"))
FLASH, SPILLED = (128, 64), (256, 128, 64)  # longer edges gain nothing measurable, and give fewer blocks
OUT = Part(("out_rows", "out_cols"), _output, _by_out)
KERNELS = {
    ("flash", "forward"): Kernel(("cols",), (Part(("rows",), _flash_forward, _by_spans),), FLASH),
    ("flash", "paged"): Kernel(("cols",), (Part(("rows",), _paged, _by_spans),), FLASH),
    ("flash", "backward"): Kernel(
        ("cols", "dkv_rows"), (Part(("rows",), _flash_dq, _by_rows), Part(("dkv_cols",), _flash_dkv, _by_keys)), FLASH
    ),
    ("hybrid", "forward"): Kernel(("depth",), (Part(("rows", "cols"), _spill_held, _by_tiles), OUT), SPILLED, 1),
    ("small_cache", "forward"): Kernel(("depth",), (Part(("rows", "cols"), _spill, _by_tiles), OUT), SPILLED, 1),
    ("hybrid", "backward"): Kernel(
        ("depth",),
        (Part(("rows",), _spill_p_held, _by_rows), Part(("cols",), _dv_and_ds, _by_cols), DQ, DK),
        SPILLED,
        2,
    ),
    ("small_cache", "backward"): Kernel(
        ("depth",), (Part(("rows", "cols"), _spill_ds, _by_tiles), DQ, DK, DV), SPILLED, 2
    ),
}
