"""From a plan to a kernel's tile: what stays in the last cache, and a tile of scores no larger than the first.

The kernels run `flash` forward and `flash_onepass` backward as written in redblue.schedules; how many queries (forward)
or keys (backward) stay is what those schedules' own search finds for what is usable of a core's share of the last
cache, at the boundary to main memory. Nearer boundaries are passed at the speed of arithmetic: the panels of what stays
stream by.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import NamedTuple

from redblue import schedules
from redblue.catalogue.detect import detect_cpu
from redblue.catalogue.memories import USABLE_SHARE
from redblue.problem import Problem
from redblue.schedules import TooFewWords

# So many tasks over all heads for each of the machine's cores, where there are rows enough, that cores finish together.
# Not a function of the number of threads, so that results are not either.
TASKS_PER_CORE = 8
LEAST_PIECE = 1024  # keys, where they are cut into pieces because there are too few rows

# Beyond this, what is saved no longer shows, and there is less to share out (measured, Zen 5, d 64 to 2048).
MOST_ROWS, MOST_KEYS = 512, 384
MOST_SPARSE_KEYS = 768  # where rows skip some of a block's keys: then fewer of its rows are needed at once

KEYS_STEP = 48  # a multiple of every micro-kernel's rows
MOST_SCORE_KEYS = 192
FEW_ROWS = 8  # at most these, and a vector of them: forward.h's run_few, which needs no panels
# Of a tile of scores for so few rows: K and V are read in turns, and each turn begins anew to read memory ahead
# (decoding gained a tenth over turns of 96 keys; Zen 5).
FEW_ROWS_KEYS = 768

ALL = 2**40  # queries: more than there are

DTYPES = {8: "float64", 4: "float32", 2: "bfloat16"}  # by bytes of a packed number


class Tile(NamedTuple):
    """What the core is told.

    rows, cols: queries (stacked) and keys of a tile. pieces: that the keys are cut into, forward, where there are too
    few rows for all cores.
    """

    rows: int
    cols: int
    pieces: int = 1

    def edges(self, direction: str) -> dict[str, int]:
        """As the schedule calls them."""
        return {"rows": self.rows, "cols": self.cols}


class TwoPassTile(NamedTuple):
    """The same for `flash` backward: rows, cols of the pass of dQ, dkv_rows, dkv_cols of that of dK and dV.

    dkv_rows: what the kernel computes at once.
    """

    rows: int
    cols: int
    dkv_rows: int
    dkv_cols: int

    def edges(self, direction: str) -> dict[str, int]:
        """As the schedule calls them."""
        return self._asdict()


class SpillTile(NamedTuple):
    """The same for a schedule that writes P: its own edges. out_rows and out_cols are those of dQ, too.

    stays: the queries, while P is computed (`hybrid`). chunk: queries of P kept at once. Walks span all keys.
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
        """From the tiles of `hybrid` or `small_cache`, of either pass."""
        edges = {name.replace("dq_", "out_"): edge for name, edge in tiles.items() if name != "span"}
        return SpillTile(schedule == "hybrid", **edges)

    def edges(self, direction: str) -> dict[str, int]:
        """As the schedule calls them."""
        edges = {
            name.replace("out_", "dq_" if direction == "backward" else "out_"): x for name, x in self._asdict().items()
        }
        own = schedules.get("hybrid" if self.stays else "small_cache").passes[direction].edges
        return {name: edges[name] for name in own if name in edges}


@cache
def cache_bytes() -> tuple[int, int]:
    """This machine's first cache and a core's share of its last, in bytes; modest ones where it does not say."""
    cpu = detect_cpu()
    if not cpu.caches:
        return 32 << 10, 1 << 20
    first, last = cpu.caches[0], cpu.caches[-1]
    sharers = max(1, -(-cpu.cores // max(1, last.count)))
    return first.capacity_bytes, last.capacity_bytes // sharers


@cache
def least_tasks() -> int:
    return TASKS_PER_CORE * detect_cpu().cores


@lru_cache(maxsize=4096)
def plan(
    direction: str, rows: int, keys: int, d: int, d_v: int, streams: int, lanes: int, packed_bytes: int, sparse: bool
) -> Tile:
    """The tile for `streams` streams of `rows` stacked queries and `keys` keys.

    sparse: whether the mask is one of listed runs. lanes: queries that the kernel computes at once. packed_bytes: of a
    number in its panels.
    """
    first, last = cache_bytes()
    # A tile of scores, which are sums, fills the first cache at most: what has gone to the second comes back in time.
    first, last = first // max(packed_bytes, 4), int(last * USABLE_SHARE) // packed_bytes
    score_keys = max(KEYS_STEP, min(MOST_SCORE_KEYS, first // lanes // KEYS_STEP * KEYS_STEP))
    if rows <= FEW_ROWS:
        score_keys = FEW_ROWS_KEYS
    forward = direction == "forward"
    schedule = schedules.get("flash" if forward else "flash_onepass")
    problem = Problem(n_q=max(1, rows), n_k=max(1, keys), d=d, d_v=d_v, dtype=DTYPES[packed_bytes], direction=direction)
    multiple = {"rows": lanes, "cols": score_keys if forward else KEYS_STEP}
    try:
        best = schedule.tiles(problem, last, multiple)
    except TooFewWords:
        best = schedule.make_tiles(problem, multiple)
    share = max(1, rows if forward else keys) * streams // least_tasks()
    if not forward:
        return Tile(lanes, step(min(best.cols, share, MOST_SPARSE_KEYS if sparse else MOST_KEYS), KEYS_STEP))
    stay = step(min(best.rows, share, MOST_ROWS), lanes)
    tasks = max(1, streams * -(-rows // stay))
    return Tile(stay, score_keys, pieces=max(1, min(least_tasks() // tasks, keys // LEAST_PIECE)))


def step(count: int, multiple: int) -> int:
    return max(multiple, count // multiple * multiple)
