"""One call of the compiled core, as data: which function, which memory, which arguments.

So the same call can run in this process, for its probe, or in a child under valgrind. Arrays are named regions of
memory; where an argument holds an address, the call holds a Region.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from redblue import _core, counts
from redblue.errors import RedblueError
from redblue.integers import ceil_div
from redblue.kernels import cpu
from redblue.kernels.attended import check_lead, in_pairs, in_tiles
from redblue.masks.bands import Window
from redblue.problem import Problem
from redblue.schedules import TooFewWords

KEYS = 6  # that stream by together: rows of the micro-kernel
OTHER_BYTES = 4608  # what a kernel touches besides its tiles: its stack, its arguments (measured under valgrind)


@dataclass(frozen=True)
class Region:
    """Memory of a call: its place in KernelCall.regions."""

    index: int


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

    schedule: "flash" forward and "flash_onepass" backward if None; or "gather". Raises RedblueError, TooFewWords.
    """
    row = isa or cpu.isa()
    if problem.direction not in ("forward", "backward"):
        raise RedblueError(f"kernels are measured forward and backward, got direction {problem.direction!r}")
    if problem.dtype not in cpu.NUMBERS:
        raise RedblueError(f"no compiled kernel computes in {problem.dtype}: take {', '.join(list(cpu.NUMBERS)[:4])}")
    schedule = schedule or ("flash" if problem.direction == "forward" else "flash_onepass")
    if schedule not in ("flash", "flash_onepass", "gather") or schedule == (
        "flash" if problem.direction == "backward" else "flash_onepass"
    ):
        raise RedblueError(
            f"no compiled kernel follows {schedule!r} {problem.direction}: forward flash and gather, backward "
            f"flash_onepass and gather do"
        )
    lanes = row.lanes(cpu.NUMBERS[problem.dtype])
    rows, cols = _tile(problem, words, tiles, lanes, row.packed_bytes(cpu.NUMBERS[problem.dtype]), schedule)
    named = {} if schedule == "gather" else {"rows": rows, "cols": cols}
    return _call(problem, schedule, named, row, (rows, cols, 1, 1))


def _tile(
    problem: Problem, words: int, tiles: Mapping[str, int] | None, lanes: int, packed: int, schedule: str
) -> tuple[int, int]:
    if schedule == "gather":
        if tiles:
            raise RedblueError("gather has no tiles")
        return lanes, KEYS
    if tiles is not None:
        found = counts.count(schedule, problem, tiles=tiles).tiles
        if problem.direction == "backward" and found["rows"] != lanes:
            raise RedblueError(f"this kernel takes rows={lanes} backward, a vector's queries, got {found['rows']}")
        return found["rows"], found["cols"]
    room = (words * problem.bytes_per_word - OTHER_BYTES) // packed
    d, d_v, stream = problem.d, problem.value_dim, problem.one_stream()
    if problem.direction == "forward":
        # What streams by is there twice, since a cache forgets the oldest: these keys and the next.
        cols, least = min(KEYS, stream.n_k), lanes
        stays, streams = d + d_v + 2, 2 * cols * (d + d_v) + cols * lanes
        fit = (room - streams) // stays // lanes * lanes
        rows = min(fit, ceil_div(stream.n_q, lanes) * lanes)
    else:
        rows, least = lanes, 1
        stays, streams = 2 * (d + d_v) + 2 * lanes, lanes * (4 * d + 2 * d_v)
        fit = (room - streams) // stays
        cols = min(fit, stream.n_k)
    if fit < least:
        needed = ceil_div((streams + least * stays) * packed + OTHER_BYTES, problem.bytes_per_word)
        raise TooFewWords(
            f"the kernel of {schedule} {problem.direction} with d = {d}, d_v = {d_v} needs a cache of at least "
            f"{needed} words, got {words}"
        )
    return rows, cols


def _call(
    problem: Problem, schedule: str, tiles: Mapping[str, int], row: _core.Isa, tile: tuple[int, ...]
) -> KernelCall:
    p, number = problem, cpu.NUMBERS[problem.dtype]
    sums = 8 if p.dtype == "float64" else 4
    sizes = cpu.Sizes((p.batch,), p.key_heads, p.group, p.n_q, p.n_k, p.d, p.value_dim)
    regions: list[int | bytes] = []

    def array(heads: int, n: int, columns: int, bytes_each: int = p.bytes_per_word) -> tuple[Any, ...]:
        regions.append(p.batch * heads * n * columns * bytes_each)
        return (Region(len(regions) - 1), heads * n * columns, n * columns, columns, 1)

    q, k, v = array(p.heads, p.n_q, p.d), array(p.key_heads, p.n_k, p.d), array(p.key_heads, p.n_k, p.value_dim)
    out, lse = array(p.heads, p.n_q, p.value_dim), array(p.heads, p.n_q, 1, sums)
    arrays, outputs = (q, k, v, out, lse, None, None), (out, lse)
    if p.direction == "backward":
        dout = array(p.heads, p.n_q, p.value_dim)
        outputs = (
            array(p.heads, p.n_q, p.d),
            array(p.key_heads, p.n_k, p.d),
            array(p.key_heads, p.n_k, p.value_dim),
            array(p.heads, p.n_q, 1, sums),
        )
        dq, dk, dv, delta = outputs
        arrays = (*arrays, dout, dq, dk, dv, None, delta, None)
    mask = _mask(problem, sizes, row.lanes(number), schedule, regions)
    arguments = (number, (*sizes.lead, *sizes[1:]), arrays, mask, p.d**-0.5, 0.0, 0, 0.0, 0, tile)
    written = tuple(each[0].index for each in outputs)
    return KernelCall(p, schedule, tiles, row.name, f"attention_{p.direction}", tuple(regions), written, arguments)


def _mask(problem: Problem, sizes: cpu.Sizes, lanes: int, schedule: str, regions: list[int | bytes]) -> tuple[Any, ...]:
    """The mask as the core takes it; what it points to becomes regions."""
    mask = problem.mask
    check_lead(mask, sizes)
    if schedule == "gather":
        found = in_pairs(mask, sizes)
    elif isinstance(mask.rule, Window):
        band = mask.rule.on(sizes.n_q, sizes.n_k, 1)
        return (band.first, band.end, None, None, None)
    else:
        found = in_tiles(mask, sizes, lanes, False)
    places = {}
    for held in _arrays(found.held):
        places[held.ctypes.data] = Region(len(regions))
        regions.append(held.tobytes())

    def moved(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(moved(each) for each in value)
        return places.get(value, value) if type(value) is int else value

    return moved(tuple(found[:5]))


def _arrays(held: Any) -> Iterator[np.ndarray]:
    if isinstance(held, np.ndarray):
        yield held
    elif isinstance(held, tuple | list):
        for each in held:
            yield from _arrays(each)
