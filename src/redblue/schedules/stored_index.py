"""Count the words of a stored mask's index that sweeps read, by a closed form and by loading the index on a machine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from redblue.base.errors import RedblueError
from redblue.base.integers import ceil_div
from redblue.machine import Machine, MachineError, Tile
from redblue.masks.patterns.pairs import Pairs, Runs
from redblue.masks.storage.formats import Format
from redblue.problem import Problem
from redblue.schedules.schedule import Sweep

MAX_BLOCKS = 1 << 24  # blocks of a sweep in the closed form, which sums over them


def sides(problem: Problem, sweeps: Iterable[Sweep]) -> dict[str, Pairs]:
    """Return the masks that the sweeps read: "rows" (queries by keys), "cols" (its transpose), or both.

    Queries are counted once, not once per query head of a group.
    """
    stream = problem.one_stream()
    group = stream.n_q // problem.n_q
    pairs = problem.mask.on(stream.n_q // group, stream.n_k)
    return {side: pairs if side == "rows" else pairs.T for side in dict.fromkeys(sweep.side for sweep in sweeps)}


def index_words(problem: Problem, format: Format, sweeps: Iterable[Sweep]) -> int:
    """Return the words of the index that the sweeps of one stream read.

    Raises RedblueError if a sweep has more than MAX_BLOCKS blocks, or if the format cannot store the mask.
    """
    sweeps, group = tuple(sweeps), problem.group
    masks, bits = sides(problem, sweeps), 8 * problem.bytes_per_word
    total = 0
    for side, edge, times in sweeps:
        length, heads = masks[side].n_rows, group if side == "rows" else 1
        if ceil_div(length * heads, edge) > MAX_BLOCKS:
            raise RedblueError(f"a sweep over blocks of {edge} has more than {MAX_BLOCKS:,} of them: give larger tiles")
        starts = np.arange(0, length * heads, edge)
        stops = np.minimum(starts + edge, length * heads)
        format.size(masks[side], bits)  # raises if the format cannot store the mask
        total += times * format.read(masks[side], starts // heads, ceil_div(stops, heads), bits)
    return total


def index_room(problem: Problem, sweeps: Iterable[Sweep]) -> int:
    """Return the most index words that the cache holds at a time: one per row of a block, and one more."""
    lengths = {"rows": problem.group * problem.n_q, "cols": problem.n_k}
    return max((min(sweep.edge, lengths[sweep.side]) + 1 for sweep in sweeps), default=0)


class StoredIndex:
    """The mask's index in slow memory.

    Reading a block of rows loads the block's part of the index, a few words at a time. The last words loaded stay in
    the cache until the next read, which models a kernel that holds one entry per row and fetches the next entries with
    each tile.
    On a machine with numbers, the attended pairs are decoded from the loaded words.
    """

    def __init__(self, machine: Machine, problem: Problem, format: Format, sweeps: Iterable[Sweep]) -> None:
        stream, bits = problem.one_stream(), 8 * problem.bytes_per_word
        self.format, self.group = format, problem.group
        self.pairs = stream.mask.on(stream.n_q, stream.n_k)
        self.sides = sides(problem, sweeps)
        self.arrays = {side: format.arrays(pairs, bits) for side, pairs in self.sides.items()}
        self.slow = {
            side: {name: machine.input(f"{side}.{name}", array.shape, array) for name, array in arrays.items()}
            for side, arrays in self.arrays.items()
        }
        self.held: Tile | None = None
        self.last: _DecodedBlock | None = None
        self.words = 0  # words of the index read so far

    def read(self, machine: Machine, pairs: Pairs, rows: range) -> Runs:
        """Load the index of a block of rows, and return the columns that some of the rows attend."""
        side = "rows" if pairs == self.pairs else "cols" if pairs == self.pairs.T else None
        if side is None:
            return pairs.cols_of(rows)  # a matrix product that takes no mask reads no index
        if side not in self.sides:
            raise MachineError(f"the program looks up the mask by {side}, which its pass does not declare in `sweeps`")
        heads = self.group if side == "rows" else 1
        block = range(rows.start // heads, ceil_div(rows.stop, heads))
        loaded: dict[str, list[Any]] = {name: [] for name in self.arrays[side]}
        self.last = None
        for name, part in self.format.parts(self.sides[side], self.arrays[side], block):
            if self.held is not None:
                machine.free(self.held)
            self.held = machine.load(self.slow[side][name][part])
            self.words += self.held.words
            loaded[name].append(self.held.read())
        if any(not isinstance(data, np.ndarray) for parts in loaded.values() for data in parts):
            return pairs.cols_of(rows)
        # A part of a two-dimensional array is one column of words: one word per row.
        words = {
            name: np.concatenate([np.zeros(0, self.arrays[side][name].dtype), *(data.ravel() for data in parts)])
            for name, parts in loaded.items()
        }
        self.last = _DecodedBlock(side, block, self.format.decode(self.sides[side], words, block), self.group)
        return self.last.runs()

    def last_read(self, pairs: Pairs) -> Any:
        """Return the decoded block that was read last; on a machine without numbers, return the mask."""
        return pairs if self.last is None else self.last


class _DecodedBlock:
    """The decoded index of a block of queries (or keys). attends: one row of booleans per query (or key)."""

    def __init__(self, side: str, block: range, attends: np.ndarray, group: int) -> None:
        self.side, self.block, self.attends, self.group = side, block, attends, group

    def runs(self) -> Runs:
        """Return the keys (or the rows of all heads) that some row of the block attends."""
        live = np.repeat(self.attends.any(axis=0), self.group if self.side == "cols" else 1)
        change = np.flatnonzero(np.diff(live, prepend=False, append=False)).tolist()
        return tuple(range(a, b) for a, b in zip(change[::2], change[1::2], strict=True))

    def holds(self, rows: range, cols: range) -> bool:
        """Return whether all pairs of rows (of all heads) and keys attend."""
        return bool(self.dense(rows, cols).all())

    def dense(self, rows: range, cols: range) -> np.ndarray:
        """Return which pairs of rows (of all heads) and keys attend, as a boolean matrix."""
        query, key = np.asarray(rows) // self.group, np.asarray(cols)
        if self.side == "rows":
            return self.attends[np.ix_(query - self.block.start, key)]
        return self.attends[np.ix_(key - self.block.start, query)].T
