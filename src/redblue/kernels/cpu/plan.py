"""Plan the tiles of the CPU kernels for this machine's caches.

The kernels run `flash` forward and `flash_onepass` backward, as defined in redblue.schedules. The queries (forward) or
keys (backward) of a tile stay in cache. The schedule's own search chooses their number, which minimizes the words moved
between main memory and the usable part of a core's share of the last cache. A tile of scores fits the first cache.
Traffic between the caches needs no plan, because it keeps up with the arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import NamedTuple

from redblue import schedules
from redblue.base.dtypes import DTYPE_OF_BYTES
from redblue.catalogue.detect import detect_cpu
from redblue.catalogue.memories import USABLE_SHARE
from redblue.problem import Problem
from redblue.schedules import TooFewWords

# Tasks per core, over all heads, if there are enough rows. With several tasks per core, all cores finish at about the
# same time. Depends on the machine's cores, not on the number of threads: results must not depend on the threads.
TASKS_PER_CORE = 8
MIN_PIECE = 1024  # the fewest keys of a piece, if keys are cut into pieces because there are too few rows

# The most rows (forward) and keys (backward) of a tile. The gain of larger tiles is not measurable, and fewer tiles
# are harder to distribute over the cores (measured on Zen 5 with d from 64 to 2048).
MAX_ROWS, MAX_KEYS = 512, 384
MAX_SPARSE_KEYS = 768  # instead of MAX_KEYS with a listed mask: rows skip keys, so a block of keys needs fewer rows

KEYS_STEP = 48  # a multiple of the number of rows of every micro-kernel
MAX_SCORE_KEYS = 192  # the most keys of a tile of scores
FEW_ROWS = 8  # calls with at most FEW_ROWS rows, and at most one vector of rows, run without panels: run_few, forward.h
# Keys of a tile of scores in calls with few rows. The kernel alternates between K and V; the hardware prefetcher starts
# again at each change, so long tiles pay (decoding is a tenth faster than with 96 keys; measured on Zen 5).
FEW_ROWS_KEYS = 768

ALL = 2**40  # more than the number of queries of any call


class Tile(NamedTuple):
    """The tile of `flash` forward, or of `flash_onepass` backward.

    rows, cols: stacked queries and keys of a tile. pieces: the number of pieces into which forward cuts the keys. It is
    above 1 if there are too few rows for all cores.
    """

    rows: int
    cols: int
    pieces: int = 1

    def edges(self, direction: str) -> dict[str, int]:
        """The tile's edges by the names that the schedule gives them."""
        return {"rows": self.rows, "cols": self.cols}


class TwoPassTile(NamedTuple):
    """The tiles of the two passes of `flash` backward.

    rows, cols: the tile of the pass that computes dQ. dkv_rows, dkv_cols: the tile of the pass that computes dK and dV.
    dkv_rows is the number of queries that the kernel computes at once, one panel.
    """

    rows: int
    cols: int
    dkv_rows: int
    dkv_cols: int

    def edges(self, direction: str) -> dict[str, int]:
        """The tile's edges by the names that the schedule gives them."""
        return self._asdict()


class SpillTile(NamedTuple):
    """The tiles of a schedule that writes P to memory, `hybrid` or `small_cache`, with the edges of its closed form.

    out_rows, out_cols: the tile of the output; backward, the tile of dQ. stays: whether queries stay in cache while P
    is computed, as in `hybrid`. chunk: queries whose P is in memory at once. The schedule's span is always all keys.
    """

    stays: bool
    rows: int
    cols: int
    depth: int
    out_rows: int
    out_cols: int
    dk_rows: int = 1
    dk_cols: int = 1
    dv_rows: int = 1
    dv_cols: int = 1
    chunk: int = ALL

    @staticmethod
    def of(schedule: str, tiles: Mapping[str, int]) -> SpillTile:
        """Convert the schedule's tiles, of `hybrid` or `small_cache`, forward or backward."""
        edges = {name.replace("dq_", "out_"): edge for name, edge in tiles.items() if name != "span"}
        return SpillTile(schedule == "hybrid", **edges)

    def edges(self, direction: str) -> dict[str, int]:
        """The tile's edges by the names that the schedule gives them."""
        edges = {
            name.replace("out_", "dq_" if direction == "backward" else "out_"): edge
            for name, edge in self._asdict().items()
        }
        names = schedules.get("hybrid" if self.stays else "small_cache").passes[direction].edges
        return {name: edges[name] for name in names if name in edges}


@cache
def cache_bytes() -> tuple[int, int]:
    """The sizes, in bytes, of this machine's first cache and of a core's share of its last cache.

    Small sizes are assumed if the machine does not report its caches.
    """
    cpu = detect_cpu()
    if not cpu.caches:
        return 32 << 10, 1 << 20
    first, last = cpu.caches[0], cpu.caches[-1]
    sharers = max(1, -(-cpu.cores // max(1, last.count)))
    return first.capacity_bytes, last.capacity_bytes // sharers


@cache
def least_tasks(cores: int = 0) -> int:
    """The fewest tasks that occupy all cores evenly. cores: 0 for this machine's."""
    return TASKS_PER_CORE * (cores or detect_cpu().cores)


@lru_cache(maxsize=4096)
def plan(
    direction: str,
    rows: int,
    keys: int,
    d: int,
    d_v: int,
    streams: int,
    lanes: int,
    packed_bytes: int,
    sparse: bool,
    cores: int = 0,
) -> Tile:
    """The tile for `streams` streams of `rows` stacked queries and `keys` keys.

    lanes: queries that the kernel computes at once. packed_bytes: bytes of a number in the kernel's panels. sparse:
    whether the mask is a list of runs rather than a band. cores: the number of cores that the tasks occupy; 0: this
    machine's cores.
    """
    first, last = cache_bytes()
    # A tile of scores fills at most the first cache; scores have the type of sums, of at least 4 bytes. Panels may be
    # evicted to the second cache, because they are fetched back in time.
    first, last = first // max(packed_bytes, 4), int(last * USABLE_SHARE) // packed_bytes
    score_keys = max(KEYS_STEP, min(MAX_SCORE_KEYS, first // lanes // KEYS_STEP * KEYS_STEP))
    if rows <= FEW_ROWS:
        score_keys = FEW_ROWS_KEYS
    forward = direction == "forward"
    schedule = schedules.get("flash" if forward else "flash_onepass")
    problem = Problem(
        n_q=max(1, rows), n_k=max(1, keys), d=d, d_v=d_v, dtype=DTYPE_OF_BYTES[packed_bytes], direction=direction
    )
    multiple = {"rows": lanes, "cols": score_keys if forward else KEYS_STEP}
    try:
        best = schedule.tiles(problem, last, multiple)
    except TooFewWords:
        best = schedule.make_tiles(problem, multiple)
    share = max(1, rows if forward else keys) * streams // least_tasks(cores)
    if not forward:
        return Tile(lanes, step(min(best.cols, share, MAX_SPARSE_KEYS if sparse else MAX_KEYS), KEYS_STEP))
    stay = step(min(best.rows, share, MAX_ROWS), lanes)
    tasks = max(1, streams * -(-rows // stay))
    return Tile(stay, score_keys, pieces=max(1, min(least_tasks(cores) // tasks, keys // MIN_PIECE)))


def step(count: int, multiple: int) -> int:
    """The count rounded down to a multiple, but at least one multiple."""
    return max(multiple, count // multiple * multiple)
