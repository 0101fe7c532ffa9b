"""Calls the compiled core's attention: chooses the instruction set and the tiles, and fills a _core.Call.

This module depends neither on NumPy nor on PyTorch. An Array is an address and the strides, in elements, of an array
(lead..., heads, rows, columns); a stride is 0 where the array is broadcast. Callers must have checked everything,
because the core reads and writes at these addresses.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, NamedTuple

from redblue import schedules
from redblue.base.dtypes import BYTES_PER_WORD, DTYPE_CODES, sum_dtype
from redblue.base.errors import RedblueError
from redblue.compiled import _core
from redblue.kernels.cpu import cache_fit
from redblue.kernels.cpu.plan import SpillTile, Tile, TwoPassTile, plan
from redblue.kernels.sizes import Sizes, magnitude
from redblue.kernels.table import tiled_kernels
from redblue.problem import Problem

# Schedules that write P to memory
SPILLED = tuple(name for name in tiled_kernels("cpu", "forward") if schedules.get(name).spills)
MAX_LEAD = 8  # leading dimensions, before the heads
MAX_D = 4096  # the largest d and d_v

Array = _core.Array
AnyTile = Tile | SpillTile | TwoPassTile


class Pattern(NamedTuple):
    """The fields of _core.Pattern: addresses of a lowered mask's arrays (redblue.masks.lowered), and its planes."""

    starts: int  # 0: there are no runs, and only `planes` is read, for Edges
    runs: int
    bits: int
    planes: Array | None  # int64 (lead..., key/value heads, 1, 1); None: one plane for all
    panel: int  # stacked rows of a panel
    panels: int
    planes_count: int
    scattered: bool  # whether runs are short


class Edges(NamedTuple):
    """The fields of _core.Edges: addresses of the attending pairs as lists, by query and by key.

    Starts are int64, keys and queries int32.
    """

    query_starts: int
    keys: int
    key_starts: int
    queries: int


class Attended(NamedTuple):
    """The keys that queries attend: query i attends the keys of the pattern among keys i + first .. i + end - 1.

    pattern: None if there is only the band. by_query: the same pattern for unstacked queries, which the gradient of a
    bias needs. edges: the pairs that attend, if pairs are gathered. held: the arrays that the addresses point into.
    """

    first: int
    end: int
    pattern: Pattern | None = None
    by_query: Pattern | None = None
    edges: Edges | None = None
    held: object = None


@cache
def isa() -> _core.Isa:
    """The instruction set of this process: the one that REDBLUE_ISA names, else the best that this CPU can run.

    Raises RedblueError, which lists the names, if the named one is unknown or this CPU lacks it.
    """
    try:
        return _core.choose_isa()
    except ValueError as error:
        raise RedblueError(str(error)) from error


def plan_tile(direction: str, sizes: Sizes, dtype: str, sparse: bool = False, cores: int = 0) -> Tile:
    """The plan's tile for this call. Lengths are rounded up to powers of two, so that few tiles are planned.

    cores: the number of cores that the tasks occupy; 0: this machine's cores.
    """
    return _planned(direction, sizes, dtype, isa(), sparse, cores)


@lru_cache(maxsize=1024)
def _planned(direction: str, sizes: Sizes, dtype: str, row: _core.Isa, sparse: bool, cores: int) -> Tile:
    number = DTYPE_CODES[dtype]
    rows, streams = sizes.n_q * sizes.group, sizes.streams
    return plan(
        direction,
        magnitude(rows),
        magnitude(sizes.n_k),
        sizes.d,
        sizes.d_v,
        magnitude(streams),
        row.lanes(number),
        row.packed_bytes(number),
        sparse,
        cores,
    )


def plan_spill_tile(schedule: str, direction: str, sizes: Sizes, dtype: str) -> SpillTile:
    """The plan's tiles for a schedule that writes P to memory."""
    lengths = magnitude(sizes.n_q * sizes.group), magnitude(sizes.n_k)
    streams, row = magnitude(sizes.streams), row_of(isa(), dtype)
    return cache_fit.plan_spilled(schedule, direction, *lengths, sizes.d, sizes.d_v, streams, row)


def row_of(row: _core.Isa, dtype: str) -> cache_fit.Row:
    """The widths of the instruction set's kernels for one number type."""
    number, sum_bytes = DTYPE_CODES[dtype], BYTES_PER_WORD[sum_dtype(dtype)]
    return cache_fit.Row(row.lanes(number), row.vector_bytes // sum_bytes, row.packed_bytes(number))


def tiles_for(schedule: str, problem: Problem, words: int, row: _core.Isa | None = None) -> AnyTile:
    """The tiles of this schedule's kernel for a cache of `words` words: see redblue.kernels.cpu.cache_fit."""
    widths = row_of(row or isa(), problem.dtype)
    return cache_fit.tiles_for(schedule, problem, words * problem.bytes_per_word // widths.packed_bytes, widths)


@lru_cache(maxsize=1024)
def pack_sizes(sizes: Sizes) -> _core.Sizes:
    """Pack the sizes into the struct that the core reads."""
    return _core.Sizes(**sizes._asdict())


@lru_cache(maxsize=1024)
def pack_tile(tile: AnyTile) -> _core.Tiles:
    """Pack the tile sizes into the struct that the core reads."""
    tiles, spilled = tile_fields(tile)
    return _core.Tiles(**tiles, spilled=_core.SpillTiles(**spilled) if spilled else None)


def tile_fields(tile: AnyTile) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of _core.Tiles, and the fields of its SpillTiles: empty for a schedule that does not write P."""
    if isinstance(tile, TwoPassTile):
        return {"rows": tile.rows, "cols": tile.dkv_cols, "dq_cols": tile.cols}, {}
    if isinstance(tile, SpillTile):
        return {}, tile._asdict()
    return tile._asdict(), {}


@lru_cache(maxsize=64)
def _packed_pattern(pattern: Pattern) -> _core.Pattern:
    return _core.Pattern(**pattern._asdict())


@lru_cache(maxsize=64)
def _packed_edges(edges: Edges) -> _core.Edges:
    return _core.Edges(**edges._asdict())


def _tile(direction: str, sizes: Sizes, dtype: str, mask: Attended, schedule: str) -> Tile | SpillTile:
    if schedule in SPILLED:
        return plan_spill_tile(schedule, direction, sizes, dtype)
    return plan_tile(direction, sizes, dtype, mask.pattern is not None)


def forward(
    sizes: Sizes,
    dtype: str,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    *,
    mask: Attended,
    scale: float,
    threads: int = 1,
    schedule: str = "auto",
    tile: Tile | SpillTile | None = None,
    row: _core.Isa | None = None,
    **options: Any,
) -> tuple[int, int]:
    """Write `out` and `lse`. Returns the words read and written between tiles and arrays.

    lse has the type of sums: float64 for float64 arrays, else float32. Arrays in `options` also have this type, unless
    another option gives their type. schedule: "hybrid" and "small_cache" write P to memory that the core allocates; any
    other name runs `flash`, or gathers if the mask is given as pairs. options: keyword arguments of _core.Call, which
    refuses unknown names.
    """
    call = _core.Call(
        DTYPE_CODES[dtype],
        pack_sizes(sizes),
        pack_tile(tile or _tile("forward", sizes, dtype, mask, schedule)),
        threads,
        mask.first,
        mask.end,
        q,
        k,
        v,
        out,
        lse,
        pattern=mask.pattern and _packed_pattern(mask.pattern),
        edges=mask.edges and _packed_edges(mask.edges),
        scale=scale,
        **options,
    )
    return _core.attention_forward(row or isa(), call)


def backward(
    sizes: Sizes,
    dtype: str,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    dout: Array,
    dq: Array,
    dk: Array,
    dv: Array,
    delta: Array,
    *,
    mask: Attended,
    scale: float,
    threads: int = 1,
    schedule: str = "auto",
    tile: AnyTile | None = None,
    row: _core.Isa | None = None,
    **options: Any,
) -> tuple[int, int]:
    """Write `dq`, `dk`, `dv`, `delta` and, if given, `dbias`.

    Returns the words read and written between tiles and arrays.
    delta: the row sums of dout * out, minus dlse; shaped like lse. dbias has lse's type; its words are not counted.
    schedule: as in forward, except that `flash_onepass` runs instead of `flash`. Give a TwoPassTile as `tile` to run
    `flash`, in two passes. options: as in forward, and dlse and dbias.
    """
    call = _core.Call(
        DTYPE_CODES[dtype],
        pack_sizes(sizes),
        pack_tile(tile or _tile("backward", sizes, dtype, mask, schedule)),
        threads,
        mask.first,
        mask.end,
        q,
        k,
        v,
        out,
        lse,
        dout,
        dq,
        dk,
        dv,
        delta,
        pattern=mask.pattern and _packed_pattern(mask.pattern),
        by_query=mask.by_query and _packed_pattern(mask.by_query),
        edges=mask.edges and _packed_edges(mask.edges),
        scale=scale,
        **options,
    )
    return _core.attention_backward(row or isa(), call)
