"""The index of a stored mask on a machine: what a sweep reads of it, counted in closed form and by loading it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from redblue.base.errors import RedblueError
from redblue.base.integers import ceil_div
from redblue.machine import Machine, Tile
from redblue.masks.patterns.pairs import Pairs, Runs
from redblue.masks.storage.formats import Format
from redblue.problem import Problem
from redblue.schedules.schedule import Sweep

MOST_BLOCKS = 1 << 24  # of a sweep, whose index words are added up


def sides(problem: Problem, sweeps: Iterable[Sweep]) -> dict[str, Pairs]:
    """The sides of the mask that sweeps go over, laid on queries (not on the rows of all heads of a group) and keys."""
    stream = problem.one_stream()
    group = stream.n_q // problem.n_q
    pairs = problem.mask.on(stream.n_q // group, stream.n_k)
    return {side: pairs if side == "rows" else pairs.T for side in dict.fromkeys(sweep.side for sweep in sweeps)}


def index_words(problem: Problem, format: Format, sweeps: Iterable[Sweep]) -> int:
    """Words of the index that the sweeps of one stream read."""
    sweeps, group = tuple(sweeps), problem.group
    found, bits = sides(problem, sweeps), 8 * problem.bytes_per_word
    total = 0
    for side, edge, times in sweeps:
        length, heads = found[side].n_rows, group if side == "rows" else 1
        if ceil_div(length * heads, edge) > MOST_BLOCKS:
            raise RedblueError(
                f"a sweep over blocks of {edge} has more than {MOST_BLOCKS:,} of them: give larger tiles"
            )
        starts = np.arange(0, length * heads, edge)
        stops = np.minimum(starts + edge, length * heads)
        format.size(found[side], bits)  # raises where the mask cannot be stored so
        total += times * format.read(found[side], starts // heads, ceil_div(stops, heads), bits)
    return total


def index_room(problem: Problem, sweeps: Iterable[Sweep]) -> int:
    """Most words of the index that are in the cache at a time: one for each row of a block, and one more."""
    lengths = {"rows": problem.group * problem.n_q, "cols": problem.n_k}
    return max((min(sweep.edge, lengths[sweep.side]) + 1 for sweep in sweeps), default=0)


class StoredIndex:
    """The index in slow memory. Reading a block of rows loads all of it that is about these, a few words at a time.

    The last words stay until the next block is asked for: so there is room for one entry of each row, where a kernel
    reads on as its tiles go by. On a machine with numbers, what attends is decoded from what was loaded.
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
        self.last: _Found | None = None
        self.words = 0  # read so far

    def read(self, machine: Machine, pairs: Pairs, rows: range) -> Runs:
        side = "rows" if pairs == self.pairs else "cols" if pairs == self.pairs.T else None
        if side is None:
            return pairs.cols_of(rows)  # of another product: everything
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
        if any(not isinstance(data, np.ndarray) for found in loaded.values() for data in found):
            return pairs.cols_of(rows)
        # Words side by side in a part belong to rows one below the other.
        whole = {
            name: np.concatenate([np.zeros(0, self.arrays[side][name].dtype), *(data.ravel() for data in found)])
            for name, found in loaded.items()
        }
        self.last = _Found(side, block, self.format.decode(self.sides[side], whole, block), self.group)
        return self.last.runs()

    def last_read(self, pairs: Pairs) -> Any:
        """What was read last, as `holds` and `dense` answer it; the mask itself on machines without numbers."""
        return pairs if self.last is None else self.last


class _Found:
    """A block of queries (or keys) as it was decoded: attends has a row for each."""

    def __init__(self, side: str, block: range, attends: np.ndarray, group: int) -> None:
        self.side, self.block, self.attends, self.group = side, block, attends, group

    def runs(self) -> Runs:
        """The keys (or rows of all heads) that some of the block attends."""
        live = np.repeat(self.attends.any(axis=0), self.group if self.side == "cols" else 1)
        change = np.flatnonzero(np.diff(live, prepend=False, append=False)).tolist()
        return tuple(range(a, b) for a, b in zip(change[::2], change[1::2], strict=True))

    def holds(self, rows: range, cols: range) -> bool:
        return bool(self.dense(rows, cols).all())

    def dense(self, rows: range, cols: range) -> np.ndarray:
        query, key = np.asarray(rows) // self.group, np.asarray(cols)
        if self.side == "rows":
            return self.attends[np.ix_(query - self.block.start, key)]
        return self.attends[np.ix_(key - self.block.start, query)].T
