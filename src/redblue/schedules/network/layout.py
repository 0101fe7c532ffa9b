"""The layout of a distributed call: a grid of processes, the tokens that they hold, and the rows that they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from redblue.base.errors import RedblueError
from redblue.machine.network import Shape
from redblue.masks import Mask
from redblue.masks.rules.selected import attended_keys, attending_queries
from redblue.problem import Problem
from redblue.schedules.network.placement import Placement, numbers_below


class Grid(NamedTuple):
    """A grid of processes: each has a row, a column, and a part of the heads.

    The number of a process is (row * cols + column) * head_parts + part.
    A process computes the queries of its row with the keys of its column, for its part of the heads. The processes of
    one row and column are a node, which exchanges heads for tokens.
    """

    head_parts: int
    rows: int
    cols: int

    @property
    def processes(self) -> int:
        return self.head_parts * self.rows * self.cols

    def divides(self, problem: Problem) -> bool:
        """Whether the problem's heads can be divided into the parts."""
        parts, heads, kv_heads = self.head_parts, problem.heads, problem.kv_heads
        return heads % parts == 0 and (kv_heads % parts == 0 or parts % kv_heads == 0)

    def at(self, row: int, col: int, part: int) -> int:
        """The process at this place; rows wrap around."""
        return (row % self.rows * self.cols + col) * self.head_parts + part

    def place(self, process: int) -> tuple[int, int, int]:
        """(row, column, part of the heads) of a process."""
        node, part = divmod(process, self.head_parts)
        return *divmod(node, self.cols), part

    def node(self, row: int, col: int) -> tuple[int, ...]:
        """The processes at this place, whose tokens make one unit of queries and one unit of keys."""
        return tuple(self.at(row, col, part) for part in range(self.head_parts))


class Part(NamedTuple):
    """The name of a block: an array's rows of one shard, for one part of the heads.

    array: "q", "k", ... shard: the process that owns the rows. part: the part of the key heads for k and v, and of the
    query heads for all other arrays, also for partial results of dk and dv; WHOLE for all heads. maker: the process
    that computed a partial result; WHOLE for a whole result.
    """

    array: str
    shard: int
    part: int
    maker: int = -1


WHOLE = -1


@dataclass(frozen=True, eq=False)
class Layout:
    """A problem on a grid.

    queries, keys: the placements of the two sequences. per_head: a mask with planes for batch entries and heads that
    replaces the problem's mask. travel: the way in which the keys of other rows of the grid reach a process.
        "ring": the process of the previous row passes them on, one unit after another.
        "direct": their owners send them, one unit after another.
        "gather": their owners send them all at once, and they stay.

    Raises RedblueError if the heads cannot be divided into the parts, and for the direction gradient_x.
    """

    problem: Problem
    grid: Grid
    queries: Placement
    keys: Placement
    travel: str
    per_head: Mask | None = None

    def __post_init__(self) -> None:
        direction = self.problem.direction
        if direction not in ("forward", "backward"):
            raise RedblueError(f"network schedules have the directions forward and backward, not {direction}")
        if not self.grid.divides(self.problem):
            parts, heads, kv_heads = self.grid.head_parts, self.problem.heads, self.problem.kv_heads
            raise RedblueError(
                f"{heads} heads with {kv_heads} key heads cannot be divided among {parts} processes: the heads must be "
                f"a multiple of {parts}, and the key heads a multiple or a divisor of {parts}"
            )

    # Heads ------------------------------------------------------------------------------------
    def part(self, process: int) -> int:
        """The part of the query heads that a process computes."""
        return self.grid.place(process)[2]

    def kv_part(self, process: int) -> int:
        """The part of the key heads that a process computes with."""
        return self.part(process) * self.kv_parts // self.grid.head_parts

    @cached_property
    def kv_parts(self) -> int:
        """Number of parts of the key heads."""
        return min(self.grid.head_parts, self.problem.kv_heads)

    def width(self, array: str, parts: int) -> int:
        """Words per row of a block of one of `parts` parts of the heads."""
        p = self.problem
        heads = p.kv_heads if array in KEY_ARRAYS else p.heads
        columns = {"d": p.d, "d_v": p.d_v, "1": 1}[COLUMNS[array]]
        return p.batch * (heads // parts) * columns

    def shape(self, name: Part, rows: np.ndarray) -> Shape:
        """The shape of a block with these rows."""
        parts = 1 if name.part == WHOLE else self.kv_parts if name.array in KEY_ARRAYS else self.grid.head_parts
        return Shape(rows, self.width(name.array, parts))

    # Units of tokens --------------------------------------------------------------------------
    @property
    def steps(self) -> int:
        """Number of times that keys arrive at a process, its own keys included."""
        return 1 if self.travel == "gather" else self.grid.rows

    def keys_at(self, process: int, step: int) -> tuple[int, ...]:
        """The shards whose keys a process computes with in a step."""
        row, col, _ = self.grid.place(process)
        if self.travel == "gather":
            return tuple(shard for i in range(self.grid.rows) for shard in self.grid.node(i, col))
        return self.grid.node((row - step) % self.grid.rows, col)

    def own_queries(self, process: int) -> list[tuple[int, ...]]:
        """The one unit of queries of the process's node, as a list like that of other_queries."""
        row, col, _ = self.grid.place(process)
        return [self.grid.node(row, col)]

    def other_queries(self, process: int) -> list[tuple[int, ...]]:
        """The units of queries of the process's row without its own, nearest first."""
        row, col, _ = self.grid.place(process)
        return [self.grid.node(row, (col + i) % self.grid.cols) for i in range(1, self.grid.cols)]

    def query_makers(self, process: int) -> list[int]:
        """The processes that compute with the queries of a process: the processes of its row."""
        row, _, _ = self.grid.place(process)
        return [maker for col in range(self.grid.cols) for maker in self.grid.node(row, col)]

    def key_makers(self, process: int, step: int) -> list[int]:
        """The processes that compute with the keys of a process in a step."""
        row, col, _ = self.grid.place(process)
        rows = range(self.grid.rows) if self.travel == "gather" else [(row + step) % self.grid.rows]
        return [maker for i in rows for maker in self.grid.node(i, col)]

    def neighbour(self, process: int, step: int) -> int:
        """The process `step` rows further on, with the same part of the heads."""
        row, col, part = self.grid.place(process)
        return self.grid.at(row + step, col, part)

    @property
    def whole_queries(self) -> bool:
        """Whether one process computes the whole result of a query and head."""
        return self.grid.cols == 1

    @property
    def whole_keys(self) -> bool:
        """Whether one process computes, or a ring adds up, the whole gradient of a key and head."""
        return (self.grid.rows == 1 or self.travel == "ring") and self.grid.head_parts <= self.problem.kv_heads

    def all_rows(self, shard: int, keys: bool) -> np.ndarray:
        """The numbers of all rows of a shard."""
        return (self._all_keys if keys else self._all_queries)[shard]

    @cached_property
    def _all_queries(self) -> list[np.ndarray]:
        return [numbers_below(self.problem.n_q)[:n] for n in self.queries.lengths]

    @cached_property
    def _all_keys(self) -> list[np.ndarray]:
        return [numbers_below(self.problem.n_k)[:n] for n in self.keys.lengths]

    def forget_rows(self) -> None:
        """Free all arrays of row numbers; they are computed again when they are needed."""
        for name in [name for name in self.__dict__ if name.startswith("_")]:
            del self.__dict__[name]

    # Needed rows ------------------------------------------------------------------------------
    def needed_keys(self, process: int, shard: int) -> np.ndarray:
        """The rows of a shard of keys that some query of the process's row attends."""
        if self.mask.is_full:
            return self.all_rows(shard, True)
        cache, key = self._needed_keys, (self.grid.place(process)[0], shard)
        if key not in cache:
            cache[key] = _compact(_among(self.keys.positions[shard], self._keys_of_row(key[0])), self.problem.n_k)
        return cache[key]

    def needed_queries(self, process: int, shard: int) -> np.ndarray:
        """The rows of a shard of queries that attend some key of the process's column."""
        if self.mask.is_full:
            return self.all_rows(shard, False)
        cache, key = self._needed_queries, (self.grid.place(process)[1], shard)
        if key not in cache:
            own, keys = self.queries.positions[shard], self._keys_of_col(key[0])
            live = attending_queries(self.mask.rule, own, keys, self.problem.n_q, self.problem.n_k)
            cache[key] = _compact(_among(own, live), self.problem.n_q)
        return cache[key]

    def query_rows(self, process: int, shard: int) -> np.ndarray:
        """The rows of a shard of queries that a process computes with: all rows of its own shard, else needed rows."""
        return self.all_rows(shard, False) if shard == process else self.needed_queries(process, shard)

    def passed_keys(self, process: int, step: int, shard: int) -> np.ndarray:
        """The rows of a shard of keys that a ring passes to a process in a step, for it and for the later processes."""
        needs = [self.needed_keys(self.neighbour(process, t), shard) for t in range(self.grid.rows - step)]
        return self.union(needs, shard)

    def summed_keys(self, process: int, step: int, shard: int) -> np.ndarray:
        """The rows of a shard of keys whose gradients a ring has added up when they leave a process after a step."""
        needs = [self.needed_keys(self.neighbour(process, -t), shard) for t in range(step)]
        return self.union(needs, shard)

    def union(self, needs: list[np.ndarray], shard: int) -> np.ndarray:
        """The rows of a shard of keys that are in at least one of the arrays `needs`."""
        whole = self.all_rows(shard, True)
        if any(len(rows) == len(whole) for rows in needs):
            return whole
        return _compact(np.unique(np.concatenate(needs)), self.problem.n_k) if len(needs) > 1 else needs[0]

    @property
    def mask(self) -> Mask:
        return self.problem.mask if self.per_head is None else self.per_head

    def _keys_of_row(self, row: int) -> np.ndarray:
        if row not in self._row_keys:
            nodes = [self.grid.node(row, col) for col in range(self.grid.cols)]
            queries = _together(self.queries, [shard for node in nodes for shard in node])
            attended = attended_keys(self.mask.rule, queries, self.problem.n_q, self.problem.n_k)
            self._row_keys[row] = _compact(attended, self.problem.n_k)
        return self._row_keys[row]

    def _keys_of_col(self, col: int) -> np.ndarray:
        if col not in self._col_keys:
            nodes = [self.grid.node(row, col) for row in range(self.grid.rows)]
            keys = _together(self.keys, [shard for node in nodes for shard in node])
            self._col_keys[col] = _compact(keys, self.problem.n_k)
        return self._col_keys[col]

    @cached_property
    def _needed_keys(self) -> dict[tuple[int, int], np.ndarray]:
        return {}

    @cached_property
    def _needed_queries(self) -> dict[tuple[int, int], np.ndarray]:
        return {}

    @cached_property
    def _row_keys(self) -> dict[int, np.ndarray]:
        return {}

    @cached_property
    def _col_keys(self) -> dict[int, np.ndarray]:
        return {}


# The columns of each array, and the arrays that have key heads. "_sum": a partial result in the type of sums.
COLUMNS = {
    **dict.fromkeys(("q", "dq", "dq_sum"), "d"),
    **dict.fromkeys(("k", "dk", "dk_sum"), "d"),
    **dict.fromkeys(("v", "dv", "dv_sum"), "d_v"),
    **dict.fromkeys(("out", "out_sum", "dout"), "d_v"),
    **dict.fromkeys(("lse", "delta", "dlse"), "1"),
}
KEY_SUMS = ("dk_sum", "dv_sum")
KEY_ARRAYS = ("k", "v", "dk", "dv", *KEY_SUMS)
SUMS = ("out_sum", "dq_sum", *KEY_SUMS, "lse", "delta", "dlse")


def _together(placement: Placement, shards: Sequence[int]) -> np.ndarray:
    """The positions of several shards, ascending."""
    return np.sort(np.concatenate([placement.positions[shard] for shard in shards]))


def _among(positions: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The rows of a shard with these positions that are among the wanted positions."""
    if not len(wanted):
        return np.zeros(0, np.int64)
    place = np.minimum(np.searchsorted(wanted, positions), len(wanted) - 1)
    return np.flatnonzero(wanted[place] == positions)


def _compact(rows: np.ndarray, n: int) -> np.ndarray:
    """The same rows, ascending and below n; consecutive rows are a view of the array that all layouts share."""
    if not len(rows) or rows[-1] - rows[0] + 1 != len(rows):
        return rows
    return numbers_below(n)[rows[0] : rows[-1] + 1]
