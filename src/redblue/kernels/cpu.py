"""The compiled core's face: picks the instruction set and the plan's tiles, passes addresses and strides.

It knows neither NumPy nor PyTorch. An array is (address, *strides): strides in elements, of (lead..., heads, rows,
columns), 0 where it is broadcast. Everything must have been checked: the core reads and writes where it is told.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import NamedTuple

from redblue import _core, memories, schedules
from redblue.errors import RedblueError
from redblue.problem import BYTES_PER_WORD, Problem
from redblue.schedules import TooFewWords

NUMBERS = {"float32": 0, "float64": 1, "bfloat16": 2, "float16": 3, "bool": 4}
MOST_LEAD = 8  # leading dimensions, before the heads
MOST_D = 4096  # of d and d_v

Array = tuple[int, ...]

# Row blocks (forward) or key blocks (backward) over all heads: so many, where there are rows enough, that cores finish
# together, however many they are. Not a function of the threads, so that results are not either.
LEAST_TASKS = 32
LEAST_PIECE = 1024  # keys


class Sizes(NamedTuple):
    """Of one call. A key head's `group` query heads share it."""

    lead: tuple[int, ...]
    kv_heads: int
    group: int
    n_q: int
    n_k: int
    d: int
    d_v: int

    @property
    def streams(self) -> int:
        count = self.kv_heads
        for size in self.lead:
            count *= size
        return count


class Tile(NamedTuple):
    """What the core is told.

    rows, cols: queries (stacked) and keys of a tile. depth: features that a product takes at once. pieces: that the
    keys are cut into, forward, where there are too few rows for all cores.
    """

    rows: int
    cols: int
    depth: int = 1 << 30
    pieces: int = 1


@cache
def isa() -> _core.Isa:
    """The instruction set of this process: the one that REDBLUE_ISA names, else the best that this CPU can run.

    Raises RedblueError, listing the names, for one that is unknown or that this CPU lacks.
    """
    try:
        return _core.choose_isa()
    except ValueError as error:
        raise RedblueError(str(error)) from error


@cache
def cache_bytes() -> tuple[int, int]:
    """Capacities of this machine's first two cache levels, as one core sees them."""
    known = [level.capacity_bytes for level in memories.this_machine().levels if level.capacity_bytes]
    first = known[0] if known else 32 << 10
    return first, known[1] if len(known) > 2 else 8 * first


def plan_tile(direction: str, sizes: Sizes, dtype: str) -> Tile:
    """The plan's tile for this call; the same for all sequence lengths of one magnitude."""
    rows, keys = sizes.n_q * sizes.group, sizes.n_k
    return _tile(direction, _magnitude(rows), _magnitude(keys), sizes.d, sizes.d_v, _magnitude(sizes.streams), dtype, isa())


def _magnitude(count: int) -> int:
    return 1 << max(0, count - 1).bit_length()


@lru_cache(maxsize=4096)
def _tile(direction: str, rows: int, keys: int, d: int, d_v: int, streams: int, dtype: str, row: _core.Isa) -> Tile:
    lanes, name = row.lanes(NUMBERS[dtype]), {"forward": "flash", "backward": "flash_onepass"}[direction]
    packed_bytes = row.packed_bytes(NUMBERS[dtype])
    as_packed = {8: "float64", 4: "float32", 2: "bfloat16"}[packed_bytes]
    problem = Problem(n_q=rows, n_k=keys, d=d, d_v=d_v, dtype=as_packed, direction=direction)
    words = cache_bytes()[1] // BYTES_PER_WORD[as_packed]
    multiple = {"rows": lanes, "cols": 48}
    try:
        best = schedules.get(name).tiles(problem, words, multiple)
    except TooFewWords:
        best = schedules.get(name).make_tiles(problem, {"rows": lanes, "cols": 48})
    most = max(1, rows if direction == "forward" else keys) * streams // LEAST_TASKS
    if direction == "forward":
        tile_rows = max(lanes, min(best.rows, most // lanes * lanes))
        tasks = streams * -(-rows // tile_rows)
        pieces = max(1, min(LEAST_TASKS // tasks, keys // LEAST_PIECE))
        return Tile(tile_rows, max(best.cols, 96), pieces=pieces)
    return Tile(lanes, max(48, min(best.cols, most // 48 * 48)))


def forward(
    sizes: Sizes,
    dtype: str,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    *,
    band: tuple[int, int],
    scale: float,
    softcap: float = 0.0,
    bias: Array | None = None,
    bias_dtype: str = "float32",
    sinks: Array | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    threads: int = 1,
    tile: Tile | None = None,
    row: _core.Isa | None = None,
) -> tuple[int, int]:
    """Write out and lse. Returns the words read and written between tiles and arrays.

    band: query i attends keys i + first .. i + end - 1. lse and sinks: float64 for float64 arrays, else float32.
    """
    return _core.attention_forward(
        row or isa(),
        NUMBERS[dtype],
        (*sizes.lead, *sizes[1:]),
        (q, k, v, out, lse, bias, sinks),
        band,
        scale,
        softcap,
        NUMBERS[bias_dtype],
        dropout,
        seed,
        (*(tile or plan_tile("forward", sizes, dtype)), threads),
    )


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
    band: tuple[int, int],
    scale: float,
    softcap: float = 0.0,
    bias: Array | None = None,
    bias_dtype: str = "float32",
    dbias: Array | None = None,
    dlse: Array | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    threads: int = 1,
    tile: Tile | None = None,
    row: _core.Isa | None = None,
) -> tuple[int, int]:
    """Write dq, dk, dv, delta (row sums of dout * out, less dlse; as lse) and, if given, dbias (of lse's type).

    Returns the words read and written between tiles and arrays, without those of dbias.
    """
    return _core.attention_backward(
        row or isa(),
        NUMBERS[dtype],
        (*sizes.lead, *sizes[1:]),
        (q, k, v, out, lse, bias, None, dout, dq, dk, dv, dlse, delta, dbias),
        band,
        scale,
        softcap,
        NUMBERS[bias_dtype],
        dropout,
        seed,
        (*(tile or plan_tile("backward", sizes, dtype)), threads),
    )
