"""One call of the compiled core as data: its function, its memory and its arguments.

The same call can then run in this process, for its probe, or in a child process under valgrind. The call's memory is
a list of regions; an argument that is an address is stored as a Region.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from redblue.base.dtypes import BYTES_PER_WORD, COMPUTED, DTYPE_CODES
from redblue.base.errors import RedblueError
from redblue.compiled import _core
from redblue.kernels.cpu import call as cpu
from redblue.kernels.cpu.arrays import dense_strides
from redblue.kernels.cpu.mask_form import in_pairs, in_tiles
from redblue.kernels.mask_planes import check_lead
from redblue.kernels.sizes import WRITTEN, Sizes, array_forms
from redblue.kernels.table import kernels
from redblue.lab import counts
from redblue.masks.rules.bands import Window
from redblue.problem import Problem
from redblue.schedules import TooFewWords

KEYS = 6  # keys that the micro-kernel processes at once
CODE_WORDS = 832  # part of the cache that code occupies (measured under valgrind)


@dataclass(frozen=True)
class Region:
    """The address of a call's memory, by its index in KernelCall.regions."""

    index: int


@dataclass(frozen=True)
class Struct:
    """A struct of the compiled core, by its name and fields: arguments are data until the call is made."""

    name: str
    fields: dict[str, Any]


@dataclass(frozen=True)
class KernelCall:
    """A call of `function` of the compiled core with `isa` and `arguments`.

    regions: for each region its size in bytes, for memory of zeros, or its content. outputs: the indices of the regions
    that the kernel writes. schedule, tiles: the schedule and tiles that the kernel follows, by redblue.count's names.
    """

    problem: Problem
    schedule: str
    tiles: Mapping[str, int]
    isa: str
    function: str
    regions: tuple[int | bytes, ...]
    outputs: tuple[int, ...]
    arguments: tuple[Any, ...]

    @property
    def kernel(self) -> str:
        return f"{self.schedule} {self.problem.direction}, {self.isa}"


def kernel_call(
    problem: Problem,
    words: int,
    schedule: str | None = None,
    tiles: Mapping[str, int] | None = None,
    isa: _core.Isa | None = None,
) -> KernelCall:
    """Make the call of the compiled kernel for a problem.

    words: the fast memory that tiles are chosen for, if `tiles` is None. schedule: "flash" (also backward, in two
    kernels), "flash_onepass" (backward), "hybrid", "small_cache" or "gather"; None for "flash" forward and
    "flash_onepass" backward. isa: the instruction set; None for the best one. Raises RedblueError if no kernel does
    this, TooFewWords if no tiles fit.
    """
    isa = isa or cpu.isa()
    if problem.direction not in ("forward", "backward"):
        raise RedblueError(f"kernels are measured forward and backward, got direction {problem.direction!r}")
    if problem.dtype not in COMPUTED:
        raise RedblueError(f"no compiled kernel computes in {problem.dtype}: take {', '.join(COMPUTED)}")
    schedule = schedule or ("flash" if problem.direction == "forward" else "flash_onepass")
    known = kernels("cpu", problem.direction)
    if schedule not in known:
        raise RedblueError(
            f"no compiled kernel follows {schedule!r} {problem.direction}: give one of {', '.join(known)}"
        )
    if schedule == "gather":
        if tiles:
            raise RedblueError(f"the kernel of gather has no tiles, got {dict(tiles)}: leave tiles out")
        return _call(problem, schedule, {}, isa, cpu.Tile(isa.lanes(DTYPE_CODES[problem.dtype]), KEYS))
    if tiles is None:
        try:
            tile = cpu.tiles_for(schedule, problem, words - min(CODE_WORDS, words // 5), isa)
        except TooFewWords:
            tile = cpu.tiles_for(schedule, problem, words, isa)
    else:
        tile = _tile_of(problem, schedule, tiles, isa)
    return _call(problem, schedule, tile.edges(problem.direction), isa, tile)


def _tile_of(problem: Problem, schedule: str, tiles: Mapping[str, int], isa: _core.Isa) -> cpu.AnyTile:
    """The kernel's tile with these edges. Raises RedblueError for edges that the kernel does not support."""
    edges, lanes = counts.count(schedule, problem, tiles=tiles).tiles, isa.lanes(DTYPE_CODES[problem.dtype])
    if schedule in cpu.SPILLED:
        return cpu.SpillTile.of(schedule, edges)
    row_edge = "dkv_rows" if schedule == "flash" else "rows"
    if problem.direction == "backward" and edges[row_edge] != lanes:
        raise RedblueError(f"backward, {row_edge} must be {lanes}, the queries of one vector, got {edges[row_edge]}")
    if problem.direction == "backward" and schedule == "flash":
        return cpu.TwoPassTile(**edges)
    return cpu.Tile(edges["rows"], edges["cols"])


def _call(problem: Problem, schedule: str, tiles: Mapping[str, int], isa: _core.Isa, tile: cpu.AnyTile) -> KernelCall:
    p, number = problem, DTYPE_CODES[problem.dtype]
    sizes = Sizes((p.batch,), p.kv_heads, p.group, p.n_q, p.n_k, p.d, p.d_v)
    regions: list[int | bytes] = []

    arrays = {}
    for name, (shape, dtype) in array_forms(sizes, p.dtype, p.direction).items():
        arrays[name] = Struct("Array", {"address": Region(len(regions)), "strides": dense_strides(shape)})
        regions.append(math.prod(shape) * BYTES_PER_WORD[dtype])
    call = Struct(
        "Call",
        {
            "number": number,
            "sizes": Struct("Sizes", sizes._asdict()),
            "tiles": _tiles(tile),
            "threads": 1,
            "scale": p.d**-0.5,
            **_mask(problem, sizes, isa.lanes(number), schedule, regions),
            **arrays,
        },
    )
    written = tuple(arrays[name].fields["address"].index for name in WRITTEN[p.direction])
    return KernelCall(p, schedule, tiles, isa.name, f"attention_{p.direction}", tuple(regions), written, (call,))


def _mask(problem: Problem, sizes: Sizes, lanes: int, schedule: str, regions: list[int | bytes]) -> dict[str, Any]:
    """The mask's fields of a _core.Call; the arrays that it points to become regions."""
    mask = problem.mask
    check_lead(mask, sizes)
    if schedule == "gather":
        form = in_pairs(mask, sizes)
    elif isinstance(mask.rule, Window):
        band = mask.rule.on(sizes.n_q, sizes.n_k, 1)
        return {"first": band.first, "end": band.end}
    else:
        form = in_tiles(mask, sizes, lanes, False)
    region_of = {}  # address -> region
    for array in _arrays(form.held):
        region_of[array.ctypes.data] = Region(len(regions))
        regions.append(array.tobytes())

    def relocated(value: Any) -> Any:
        if isinstance(value, cpu.Pattern | cpu.Edges):
            return Struct(type(value).__name__, {name: relocated(field) for name, field in value._asdict().items()})
        if isinstance(value, cpu.Array):
            return Struct("Array", {"address": relocated(value.address), "strides": value.strides})
        return region_of.get(value, value) if type(value) is int else value

    return {name: relocated(getattr(form, name)) for name in ("first", "end", "pattern", "by_query", "edges")}


def _tiles(tile: cpu.AnyTile) -> Struct:
    tiles, spilled = cpu.tile_fields(tile)
    return Struct("Tiles", tiles | ({"spilled": Struct("SpillTiles", spilled)} if spilled else {}))


def _arrays(value: Any) -> Iterator[np.ndarray]:
    """Yield the arrays in nested tuples and lists."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, tuple | list):
        for element in value:
            yield from _arrays(element)
