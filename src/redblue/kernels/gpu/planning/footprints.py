"""The Triton kernels that each kernel's launch runs: which edges are theirs, and what a block of each holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from redblue.base.integers import ceil_div
from redblue.kernels.cpu.call import Sizes
from redblue.kernels.gpu.launch import Options, parts
from redblue.kernels.gpu.planning.needs import Phase

LEAST = 16  # the shortest edge of a tile that a tensor core takes
SHORT = 64  # tiles with a shorter edge are laid out twice on sm_100 where they are multiplied turned, too
WIDE = 64  # second parts of d from which on the first's operands wait for theirs
# Of a listed mask what is spilled is read in the tiles that it was written in, so these edges equal those
ON_ONE_GRID = {"out_rows": "rows", "dq_rows": "rows", "dk_rows": "cols", "dv_rows": "cols"}
LEAST_SPAN = 512  # keys of a walk: shorter ones leave more to merge than they find


class Part(NamedTuple):
    """edges: of tiles that stay, for words to decide on. phase, blocks: by tiles and sizes, phase by options, too."""

    edges: tuple[str, ...]
    phase: Callable[[Any, Sizes, Options], Phase]
    blocks: Callable[[Any, Sizes], int]


class Kernel(NamedTuple):
    """streams: the edges of tiles that stream by, which change no words, or hardly any. most: the longest other edges
    that are tried. spilled: arrays of a chunk of rows by all keys that are in memory at once.
    """

    streams: tuple[str, ...]
    parts: tuple[Part, ...]
    most: tuple[int, ...]
    spilled: int = 0


def laid(sizes: Sizes) -> tuple[int, int]:
    """d and d_v as kernels that hold whole rows lay them out: in parts that are powers of two."""
    return sum(parts(sizes.d)), sum(parts(sizes.d_v))


def _read(features: int) -> int:
    """As laid, but no part shorter than 32: one of 16 takes as many registers, where products are made one by one."""
    return sum(max(part, 32) for part in parts(features) if part)


def _rows(sizes: Sizes) -> int:
    return sizes.n_q * sizes.group


def _score_tiles(own: int, options: Options) -> int:
    """How many tiles of scores lie in registers: the kernel's own, a bias with its addresses, and what is kept."""
    return max(own, 4 * options.bias) + options.dropout


def _flash_forward(t: Any, sizes: Sizes, options: Options) -> Phase:
    (d, d_v), r, c = laid(sizes), t.rows, t.cols
    return Phase(
        stay=r * d,
        stream=(c * d, c * d_v),
        exchanged=2 * r * c,  # P; with a bias or dropout, what is added to it, too
        sums=r * d_v,
        scores=_score_tiles(1, options) * r * c,
        stored=r * d_v,
        product=(r, c, d),
    )


def _flash_dq(t: Any, sizes: Sizes, options: Options) -> Phase:
    (d, d_v), r, c = laid(sizes), t.rows, t.cols
    return Phase(
        stay=r * (d + d_v),
        stream=(c * d, c * d_v),
        exchanged=r * c,
        sums=r * d,
        scores=_score_tiles(2, options) * r * c,
        stored=r * d,
        product=(r, c, max(d, d_v)),
        added=r * c * (options.bias or options.dropout),
        both_ways=c * d * (c < SHORT),
        together=True,
    )


def _flash_dkv(t: Any, sizes: Sizes, options: Options) -> Phase:
    (d, d_v), r, c = laid(sizes), t.dkv_rows, t.dkv_cols
    length, inner = max(d, d_v), max(_read(sizes.d), _read(sizes.d_v))
    return Phase(
        stay=c * (d + d_v),
        stream=(r * d, r * d_v),
        exchanged=2 * r * c,
        sums=c * (d + d_v),
        scores=_score_tiles(2, options) * r * c,
        stored=c * length,
        product=max((c, r, inner), (c, length, r), key=lambda edges: (edges[0] + edges[1]) * edges[2]),
        added=r * c * (options.bias or options.dropout),
        both_ways=r * (d + d_v) * (r < SHORT),
        waiting=2 * r * (d + d_v) * (min(parts(sizes.d)[1], parts(sizes.d_v)[1]) >= WIDE),
        together=True,
    )


def _spill(t: Any, sizes: Sizes, options: Options) -> Phase:
    """small_cache: slices of queries and of keys stream by; tiles are stored while the next ones' arrive."""
    r, c, w = t.rows, t.cols, t.depth
    return Phase(0, (r * w, c * w), r * c // 2, r * c, r * c * (options.bias or options.dropout), r * c, (r, c, w))


def _spill_held(t: Any, sizes: Sizes, options: Options) -> Phase:
    """hybrid: queries stay; keys stream by whole, since the loop over their slices is unrolled."""
    r, c, w = t.rows, t.cols, t.depth
    held = ceil_div(sizes.d, w) * w
    return Phase(r * held, (c * held,), r * c, r * c, 0, r * c, (r, c, held), added=r * c * options.bias)


def _weigh(t: Any, sizes: Sizes, options: Options) -> Phase:
    r, c, w = t.out_rows, t.out_cols, t.depth
    return Phase(0, (r * w, w * c), r * w, r * c, r * w, r * c, (r, c, w))


def _spill_ds(t: Any, sizes: Sizes, options: Options) -> Phase:
    """small_cache: dS of a tile, from P, which has been spilled by less."""
    r, c, w = t.rows, t.cols, t.depth
    return Phase(0, (r * w, c * w), r * c, r * c, r * c, r * c, (r, c, w))


def _spill_p_held(t: Any, sizes: Sizes, options: Options) -> Phase:
    """hybrid: queries stay, `depth` keys stream by whole."""
    r, w, held = t.rows, t.depth, ceil_div(sizes.d, LEAST) * LEAST
    return Phase(r * held, (w * held,), r * w, r * w, 0, r * w, (r, w, held), added=r * w * options.bias)


def _turn(t: Any, sizes: Sizes, options: Options) -> Phase:
    """hybrid: V and dV of a block of keys stay, `depth` rows of dO and P stream by; registers hold slices of all."""
    c, w, held = t.cols, t.depth, ceil_div(sizes.d_v, LEAST) * LEAST
    return Phase(c * held, (w * held, w * c), 2 * w * c, (2 * c + w) * held, 2 * w * c, c * held, (c, w, held))


def _sum_of(rows: str, cols: str, name: str) -> Part:
    """dQ, dK or dV: a tile stays, slices of what was spilled stream by with those of the other factor."""

    def phase(t: Any, sizes: Sizes, options: Options) -> Phase:
        r, c, w = getattr(t, rows), getattr(t, cols), t.depth
        return Phase(0, (r * w, w * c), r * w, r * c, 0, 2 * r * c, (r, c, w))  # stored as sums, of up to 4 bytes

    def blocks(t: Any, sizes: Sizes) -> int:
        length = _rows(sizes) if name == "dq" else sizes.n_k
        features = sizes.d_v if name == "dv" else sizes.d
        return ceil_div(length, getattr(t, rows)) * ceil_div(features, getattr(t, cols)) * sizes.streams

    return Part((rows, cols), phase, blocks)


def _by_cols(t: Any, sizes: Sizes) -> int:
    return ceil_div(sizes.n_k, t.cols) * sizes.streams


def _by_tiles(t: Any, sizes: Sizes) -> int:
    return _by_rows(t, sizes) * ceil_div(sizes.n_k, t.cols)  # spans give them something to do


def _by_out(t: Any, sizes: Sizes) -> int:
    return ceil_div(_rows(sizes), t.out_rows) * ceil_div(sizes.d_v, t.out_cols) * sizes.streams


def _by_rows(t: Any, sizes: Sizes) -> int:
    return ceil_div(_rows(sizes), t.rows) * sizes.streams


def _by_walks(t: Any, sizes: Sizes) -> int:
    return _by_rows(t, sizes) * ceil_div(sizes.n_k, LEAST_SPAN)


def _by_keys(t: Any, sizes: Sizes) -> int:
    return ceil_div(sizes.n_k, t.dkv_cols) * sizes.streams


DQ, DK, DV = (_sum_of(f"{name}_rows", f"{name}_cols", name) for name in ("dq", "dk", "dv"))
FLASH, SPILLED = (128, 64), (256, 128, 64)  # longer ones save words that no longer show, and leave fewer blocks
OUT = Part(("out_rows", "out_cols"), _weigh, _by_out)
KERNELS = {
    ("flash", "forward"): Kernel(("cols",), (Part(("rows",), _flash_forward, _by_walks),), FLASH),
    ("flash", "backward"): Kernel(
        ("cols", "dkv_rows"), (Part(("rows",), _flash_dq, _by_rows), Part(("dkv_cols",), _flash_dkv, _by_keys)), FLASH
    ),
    ("hybrid", "forward"): Kernel(("depth",), (Part(("rows", "cols"), _spill_held, _by_tiles), OUT), SPILLED, 1),
    ("small_cache", "forward"): Kernel(("depth",), (Part(("rows", "cols"), _spill, _by_tiles), OUT), SPILLED, 1),
    ("hybrid", "backward"): Kernel(
        ("depth",),
        (Part(("rows",), _spill_p_held, _by_rows), Part(("cols",), _turn, _by_cols), DQ, DK),
        SPILLED,
        2,
    ),
    ("small_cache", "backward"): Kernel(
        ("depth",), (Part(("rows", "cols"), _spill_ds, _by_tiles), DQ, DK, DV), SPILLED, 2
    ),
}
