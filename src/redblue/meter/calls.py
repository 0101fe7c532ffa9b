"""One call of the compiled core, as data: which function, which memory, which arguments.

So the same call can run in this process, for its probe, or in a child under valgrind. Arrays are named regions of
memory; where an argument holds an address, the call holds a Region.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from redblue.base.errors import RedblueError
from redblue.compiled import _core
from redblue.kernels.cpu import cache_fit
from redblue.kernels.cpu import call as cpu
from redblue.kernels.cpu.arrays import contiguous
from redblue.kernels.cpu.mask_form import check_lead, in_pairs, in_tiles
from redblue.lab import counts
from redblue.masks.rules.bands import Window
from redblue.problem import Problem
from redblue.schedules import TooFewWords

KEYS = 6  # that stream by together: rows of the micro-kernel
CODE_WORDS = 832  # of a cache that code shares, what is kept for it (measured under valgrind)


@dataclass(frozen=True)
class Region:
    """Memory of a call: its place in KernelCall.regions."""

    index: int


@dataclass(frozen=True)
class Struct:
    """A struct of the compiled core, by its name and fields: arguments are data until the call is made."""

    name: str
    fields: dict[str, Any]


@dataclass(frozen=True)
class KernelCall:
    """A call of `function` of the compiled core with `isa` and `arguments`.

    regions: sizes in bytes, or the bytes themselves; memory without content is zero. outputs: which ones it writes.
    schedule, tiles: what it follows, as redblue.count names them.
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
    """The compiled kernel's call for the problem, in tiles for a fast memory of `words` words, or in these.

    schedule: "flash" forward and "flash_onepass" backward if None; or "flash" backward, "hybrid", "small_cache",
    "gather". Raises RedblueError, TooFewWords.
    """
    row = isa or cpu.isa()
    if problem.direction not in ("forward", "backward"):
        raise RedblueError(f"kernels are measured forward and backward, got direction {problem.direction!r}")
    if problem.dtype not in cpu.NUMBERS:
        raise RedblueError(f"no compiled kernel computes in {problem.dtype}: take {', '.join(list(cpu.NUMBERS)[:4])}")
    schedule = schedule or ("flash" if problem.direction == "forward" else "flash_onepass")
    known = (*cache_fit.KERNELS[problem.direction], "gather")
    if schedule not in known:
        raise RedblueError(
            f"no compiled kernel follows {schedule!r} {problem.direction}: {', '.join(known[:-1])} and {known[-1]} do"
        )
    if schedule == "gather":
        if tiles:
            raise RedblueError("gather has no tiles")
        return _call(problem, schedule, {}, row, cpu.Tile(row.lanes(cpu.NUMBERS[problem.dtype]), KEYS))
    if tiles is None:
        try:
            tile = cpu.tiles_for(schedule, problem, words - min(CODE_WORDS, words // 5), row)
        except TooFewWords:
            tile = cpu.tiles_for(schedule, problem, words, row)
    else:
        tile = _given(problem, schedule, tiles, row)
    return _call(problem, schedule, tile.edges(problem.direction), row, tile)


def _given(problem: Problem, schedule: str, tiles: Mapping[str, int], row: _core.Isa) -> cpu.AnyTile:
    found, lanes = counts.count(schedule, problem, tiles=tiles).tiles, row.lanes(cpu.NUMBERS[problem.dtype])
    if schedule in cpu.SPILLED:
        return cpu.SpillTile.of(schedule, found)
    at_once = "dkv_rows" if schedule == "flash" else "rows"
    if problem.direction == "backward" and found[at_once] != lanes:
        raise RedblueError(f"this kernel takes {at_once}={lanes} backward, a vector's queries, got {found[at_once]}")
    if problem.direction == "backward" and schedule == "flash":
        return cpu.TwoPassTile(**found)
    return cpu.Tile(found["rows"], found["cols"])


def _call(problem: Problem, schedule: str, tiles: Mapping[str, int], row: _core.Isa, tile: cpu.AnyTile) -> KernelCall:
    p, number = problem, cpu.NUMBERS[problem.dtype]
    sums = 8 if p.dtype == "float64" else 4
    sizes = cpu.Sizes((p.batch,), p.kv_heads, p.group, p.n_q, p.n_k, p.d, p.d_v)
    regions: list[int | bytes] = []

    def array(heads: int, n: int, columns: int, bytes_each: int = p.bytes_per_word) -> tuple[Any, ...]:
        shape = (p.batch, heads, n, columns)
        regions.append(math.prod(shape) * bytes_each)
        return contiguous(Region(len(regions) - 1), shape)

    arrays = {"q": array(p.heads, p.n_q, p.d), "k": array(p.kv_heads, p.n_k, p.d)}
    arrays["v"] = array(p.kv_heads, p.n_k, p.d_v)
    arrays |= {"out": array(p.heads, p.n_q, p.d_v), "lse": array(p.heads, p.n_q, 1, sums)}
    outputs = ("out", "lse")
    if p.direction == "backward":
        arrays |= {"dout": array(p.heads, p.n_q, p.d_v), "dq": array(p.heads, p.n_q, p.d)}
        arrays |= {"dk": array(p.kv_heads, p.n_k, p.d), "dv": array(p.kv_heads, p.n_k, p.d_v)}
        arrays["delta"] = array(p.heads, p.n_q, 1, sums)
        outputs = ("dq", "dk", "dv", "delta")
    call = Struct(
        "Call",
        {
            "number": number,
            "sizes": Struct("Sizes", sizes._asdict()),
            "tiles": _tiles(tile),
            "threads": 1,
            "scale": p.d**-0.5,
            **_mask(problem, sizes, row.lanes(number), schedule, regions),
            **arrays,
        },
    )
    written = tuple(arrays[name][0].index for name in outputs)
    return KernelCall(p, schedule, tiles, row.name, f"attention_{p.direction}", tuple(regions), written, (call,))


def _mask(problem: Problem, sizes: cpu.Sizes, lanes: int, schedule: str, regions: list[int | bytes]) -> dict[str, Any]:
    """The mask's fields of a _core.Call; the arrays that it points to become regions."""
    mask = problem.mask
    check_lead(mask, sizes)
    if schedule == "gather":
        found = in_pairs(mask, sizes)
    elif isinstance(mask.rule, Window):
        band = mask.rule.on(sizes.n_q, sizes.n_k, 1)
        return {"first": band.first, "end": band.end}
    else:
        found = in_tiles(mask, sizes, lanes, False)
    places = {}
    for held in _arrays(found.held):
        places[held.ctypes.data] = Region(len(regions))
        regions.append(held.tobytes())

    def moved(value: Any) -> Any:
        if isinstance(value, cpu.Pattern | cpu.Edges):
            return Struct(type(value).__name__, {name: moved(each) for name, each in value._asdict().items()})
        if isinstance(value, tuple):
            return tuple(moved(each) for each in value)
        return places.get(value, value) if type(value) is int else value

    return {name: moved(getattr(found, name)) for name in ("first", "end", "pattern", "by_query", "edges")}


def _tiles(tile: cpu.AnyTile) -> Struct:
    """The fields of redblue.kernels.cpu.call.pack_tile."""
    if isinstance(tile, cpu.TwoPassTile):
        return Struct("Tiles", {"rows": tile.rows, "cols": tile.dkv_cols, "dq_cols": tile.cols})
    if isinstance(tile, cpu.SpillTile):
        return Struct("Tiles", {"spilled": Struct("SpillTiles", tile._asdict())})
    return Struct("Tiles", tile._asdict())


def _arrays(held: Any) -> Iterator[np.ndarray]:
    if isinstance(held, np.ndarray):
        yield held
    elif isinstance(held, tuple | list):
        for each in held:
            yield from _arrays(each)
