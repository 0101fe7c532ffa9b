"""Chooses the tiles with which a compiled kernel moves the fewest words through a hardware cache of a given size.

A schedule's own search assumes a cache that the program controls word by word. A hardware cache works in lines and
evicts the least recently used one. Until a tile's line is used again, every line touched in between must fit beside it,
including slices that have already streamed by. So a Phase of a kernel gives the number of words touched between two
uses of a tile's line, and the search chooses among the tiles for which this number is at most the cache's size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from redblue import schedules
from redblue.base.dtypes import DTYPE_OF_BYTES
from redblue.base.errors import RedblueError
from redblue.catalogue.memories import USABLE_SHARE
from redblue.kernels.cpu.plan import (
    FEW_ROWS,
    KEYS_STEP,
    SpillTile,
    Tile,
    TwoPassTile,
    cache_bytes,
    least_tasks,
    step,
)
from redblue.kernels.table import tiled_kernels
from redblue.problem import Problem
from redblue.schedules import Cost, TooFewWords
from redblue.schedules.search import cheapest, edges

AXES = {"rows": "n_q", "cols": "n_k", "out_rows": "n_q", "out_cols": "d_v", "dq_rows": "n_q", "dq_cols": "d"}
AXES |= {"dkv_cols": "n_k", "dk_rows": "n_k", "dk_cols": "d", "dv_rows": "n_k", "dv_cols": "d_v"}
LINE_BYTES = 64
P_BYTES = 64 << 20  # most bytes of P in memory at once if the plan chooses the tile; one block of rows may take more
# Keys of a tile of scores: FEW_KEYS in calls with few rows, else SCORE_KEYS, the number of rows of a micro-kernel.
FEW_KEYS, SCORE_KEYS = 4, 6
NEVER = 2**62  # words, more than any cache has: excludes a tile
OTHER = 320  # words that any phase touches in addition: the stack, row statistics, the map of slices


class Row(NamedTuple):
    """The widths of the core's kernels for one instruction set and one number type: a row of the core's table.

    lanes: queries that the kernels compute at once. vector: lanes of one vector register. packed_bytes: bytes of a
    number in a panel.
    """

    lanes: int
    vector: int
    packed_bytes: int

    @property
    def line(self) -> int:
        """Numbers in a cache line."""
        return LINE_BYTES // self.packed_bytes


class Phase(NamedTuple):
    """One phase of a kernel.

    edges: the edges of tiles that this phase uses. held: the words that the phase touches between two uses of a tile's
    line, as a function of the tiles.
    """

    edges: tuple[str, ...]
    held: Callable[[Any], Any]


@lru_cache(maxsize=256)
def tiles_for(schedule: str, problem: Problem, words: int, row: Row) -> Tile | SpillTile | TwoPassTile:
    """The tiles with which the kernel of this schedule moves the fewest words through a cache of `words` words.

    Raises RedblueError if the schedule has no kernel, and TooFewWords if no tiles fit. The message of TooFewWords names
    the smallest cache that works.
    """
    known = tiled_kernels("cpu", problem.direction)
    if schedule not in known:
        raise RedblueError(
            f"no compiled kernel runs {schedule} {problem.direction}; schedules with a kernel: "
            f"{', '.join(known) or 'none'}"
        )
    definition, ways = schedules.get(schedule), list(_ways(schedule, problem, row))
    least = [
        max(int(phase.held(definition.make_tiles(problem, multiple))) for phase in phases) for phases, multiple in ways
    ]
    if words < min(least):
        raise TooFewWords(
            f"the kernel of {schedule} {problem.direction} with d = {problem.d}, d_v = {problem.d_v} needs a cache of "
            f"at least {min(least)} words of {row.packed_bytes} bytes, got {words}"
        )
    fitting = [way for way, least_words in zip(ways, least, strict=True) if least_words <= words]
    choices = [_fill(definition, problem, words, *way) for way in fitting]
    best = min(choices, key=lambda tiles: definition.words(problem, tiles))
    if schedule == "flash" and problem.direction == "backward":
        return TwoPassTile(*best)
    if schedule.startswith("flash"):
        return Tile(best.rows, best.cols)
    return SpillTile.of(schedule, best._asdict())


def plan_spilled(
    schedule: str, direction: str, rows: int, keys: int, d: int, d_v: int, streams: int, row: Row
) -> SpillTile:
    """The tile of `hybrid` or `small_cache` for `streams` streams of `rows` stacked queries on this machine.

    The tile fits a core's share of the last cache. A chunk has as many rows of P as fit in P_BYTES.
    """
    problem = Problem(
        n_q=max(1, rows), n_k=max(1, keys), d=d, d_v=d_v, dtype=DTYPE_OF_BYTES[row.packed_bytes], direction=direction
    )
    whole = Row(row.lanes, row.lanes, row.packed_bytes)  # vectors as wide as a panel, so that slices are whole panels
    tile = tiles_for(schedule, problem, int(cache_bytes()[1] * USABLE_SHARE) // row.packed_bytes, whole)
    assert isinstance(tile, SpillTile)
    share = step(max(1, rows) * streams // least_tasks(), row.lanes)
    chunk = P_BYTES // (row.packed_bytes * max(1, keys))
    return tile._replace(rows=min(tile.rows, share), out_rows=min(tile.out_rows, share), chunk=max(1, chunk))


def _fill(
    definition: schedules.Schedule, problem: Problem, words: int, phases: list[Phase], multiple: Mapping[str, int]
) -> Any:
    """Choose the edges of one phase after the other: the edges that move the fewest words and hold at most `words`."""
    stream, cost = problem.one_stream(), definition.direction(problem).cost
    tiles = definition.make_tiles(problem, multiple)
    for phase in phases:
        lengths = [edges(getattr(stream, AXES[edge]), multiple[edge]) for edge in phase.edges]
        grid = [x.ravel() for x in np.meshgrid(*lengths, indexing="ij")]
        grid_tiles = tiles._replace(**dict(zip(phase.edges, grid, strict=True)))
        best = cheapest(Cost(cost(stream, grid_tiles).words, 0, phase.held(grid_tiles), 0), grid, words)
        assert best, "tiles_for has checked that the shortest edges fit"
        tiles = tiles._replace(**dict(zip(phase.edges, best, strict=True)))
    return tiles


def _ways(schedule: str, problem: Problem, row: Row) -> Iterator[tuple[list[Phase], dict[str, int]]]:
    """Yield the ways to run a kernel: its phases, and the unit of each edge of its tiles, of which it is a multiple.

    `flash` forward has one way for few rows and one for panels. Schedules that write P have one way for each depth of a
    slice.
    """
    p = problem.one_stream()
    d, d_v, lanes = p.d, p.d_v, row.lanes
    if schedule == "flash" and p.direction == "forward":
        few = min(FEW_ROWS, row.vector)

        def held(t: Any) -> Any:
            panel = np.where(t.rows <= few, few, lanes)
            return t.rows * (d + d_v + 4) + t.cols * (2 * (d + d_v) + panel) + OTHER

        def held_few(t: Any) -> Any:
            return np.where(t.rows <= few, held(t), NEVER)

        yield [Phase(("rows",), held_few)], {"rows": 1, "cols": min(FEW_KEYS, p.n_k)}
        yield [Phase(("rows",), held)], {"rows": lanes, "cols": min(SCORE_KEYS, p.n_k)}
        return
    if schedule.startswith("flash"):

        def stays(cols: Any) -> Any:
            tile = 2 * lanes * np.minimum(cols, 2 * KEYS_STEP)
            return 2 * cols * (d + d_v) + lanes * (4 * d + 4 * d_v) + tile + OTHER

        def queries(t: Any) -> Any:
            per_row = np.maximum(2 * d + d_v + t.cols + 2, 2 * d_v + 1)
            return t.rows * per_row + t.cols * (2 * (d + d_v) + 2 * lanes) + OTHER

        if schedule == "flash_onepass":
            yield [Phase(("cols",), lambda t: stays(t.cols))], {"rows": lanes, "cols": 8}
            return
        multiple = {"rows": lanes, "cols": min(SCORE_KEYS, p.n_k), "dkv_rows": lanes, "dkv_cols": 8}
        yield [Phase(("rows",), queries), Phase(("dkv_cols",), lambda t: stays(t.dkv_cols))], multiple
        return
    depths = {row.vector, row.line, lanes} if row.vector < row.line else {row.vector, lanes}
    for depth in sorted(depths):
        names = schedules.get(schedule).direction(problem).edges
        # Columns of outputs are multiples of whole lines, rows of outputs of whole vectors, edges of P of whole slices
        features = max(row.vector, row.line)
        multiple = {edge: features for edge in names if edge.endswith("_cols")}
        multiple |= {edge: row.vector for edge in names if edge.endswith("_rows")}
        multiple |= {"rows": depth, "cols": depth, "depth": depth}
        yield _spilled(schedule, p, row, depth), multiple


def _spilled(schedule: str, p: Problem, row: Row, depth: int) -> list[Phase]:
    """The phases of `hybrid` or `small_cache`. See spilled.h and spilled_backward.h for the order of their accesses."""
    d, d_v, keeps = p.d, p.d_v, schedule == "hybrid"
    slices = 2 * max(depth, row.line)  # words that a row of an array takes: the current slice and the one before it

    def streamed(t: Any) -> Any:  # a tile of scores stays; queries are packed, keys are read in place
        return t.rows * (t.cols + slices + depth + 5) + t.cols * slices + OTHER

    def output(rows: str, cols: str) -> Callable[[Any], Any]:
        def held(t: Any) -> Any:
            r, c = getattr(t, rows), getattr(t, cols)
            return r * (c + 2 * depth + 3) + 2 * depth * c + OTHER

        return held

    if p.direction == "forward":
        queries = Phase(("rows", "cols"), lambda t: t.rows * (d + 2 * t.cols + 5) + 2 * t.cols * d + OTHER)
        scores = queries if keeps else Phase(("rows", "cols"), streamed)
        return [Phase(("out_rows", "out_cols"), output("out_rows", "out_cols")), scores]
    dq = Phase(("dq_rows", "dq_cols"), output("dq_rows", "dq_cols"))
    dk = Phase(("dk_rows", "dk_cols"), output("dk_rows", "dk_cols"))
    if keeps:
        weights = Phase(("rows",), lambda t: t.rows * (d + 2 * depth + 2) + 3 * depth * d + OTHER)
        values = Phase(("cols",), lambda t: 2 * t.cols * (d_v + depth) + depth * (4 * d_v + depth) + OTHER)
        return [weights, values, dq, dk]
    tiles = Phase(("rows", "cols"), lambda t: streamed(t) + t.rows * t.cols)  # dP and P
    return [tiles, dq, dk, Phase(("dv_rows", "dv_cols"), output("dv_rows", "dv_cols"))]
