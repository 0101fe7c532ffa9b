"""Caches as hardware builds them: lines, sets, several levels; and Belady's replacement, which knows the future.

A level is write-back and write-allocate, and replaces the least recently used line of a set; line l belongs to set
l modulo the number of sets. Each level sees the misses and the write-backs of the level before it and nothing else
(neither inclusive nor exclusive): on a miss the next level is asked for the line, then the victim is written back. A
line that is written back is whole, so the next level takes it without reading it from farther away.

fetch_on_write: what the nearest level does when all words of a line that it does not hold are written. False: it
takes the line as it is (a full-line or streaming store), so that a stored word moves once, as in the model. True: it
reads the line first (an ordinary store), so that it moves twice. Partly written lines are always read first.

What no level models: prefetching, physical addresses (beyond a page they need not follow the virtual ones),
replacement that only resembles LRU, and other cores that share a level.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from redblue.base.errors import RedblueError
from redblue.base.integers import whole_number
from redblue.compiled import _core

if TYPE_CHECKING:
    from redblue.catalogue.memories import Memory

MOST_LINES = (
    2**28
)  # of a level, and of all memory: the simulator's tables take a few bytes for each (cpp/simulator/cache.h)
READ, WRITE, OVERWRITE, DISCARD = range(4)  # kinds of access; a discard is none: it says that a line's content is dead


@dataclass(frozen=True)
class CacheLevel:
    """The geometry of one level. ways: lines per set; None: one set of all lines (fully associative).

    Raises RedblueError unless the capacity is a whole number of lines and of sets, and at most 2^28 lines.
    """

    name: str
    capacity_bytes: int
    line_bytes: int = 64
    ways: int | None = None

    def __post_init__(self) -> None:
        for what in ("capacity_bytes", "line_bytes", "ways"):
            value = getattr(self, what)
            if what == "ways" and value is None:
                continue
            whole_number(f"{what} of {self.name}", value, most=math.inf)
        if self.capacity_bytes % self.line_bytes:
            raise RedblueError(
                f"{self.name} holds {self.capacity_bytes} bytes, which is no multiple of its lines of "
                f"{self.line_bytes} bytes: give a whole number of lines"
            )
        if self.lines > MOST_LINES:
            raise RedblueError(
                f"{self.name} holds {self.lines:,} lines, but at most {MOST_LINES:,} are simulated: give fewer bytes"
            )
        if self.lines % (self.ways or 1):
            raise RedblueError(
                f"{self.name} holds {self.lines} lines, which is no multiple of its {self.ways} ways: every set must "
                f"have all its ways"
            )

    @property
    def lines(self) -> int:
        return self.capacity_bytes // self.line_bytes

    @property
    def sets(self) -> int:
        return self.lines // self.ways if self.ways else 1


@dataclass(frozen=True)
class LevelTraffic:
    """What one level did, in lines, and what moved between it and the next.

    hits, misses: accesses that found their line, or did not. fills: lines read from the next level (a miss that
    overwrites its whole line may need none). write_backs: dirty lines written to the next level; dead_write_backs:
    those of them that nothing will read (tiles given up).
    """

    name: str
    line_words: int
    hits: int
    misses: int
    fills: int
    write_backs: int
    dead_write_backs: int

    @property
    def accesses(self) -> int:
        return self.hits + self.misses

    @property
    def reads(self) -> int:
        """Words read from the next level."""
        return self.fills * self.line_words

    @property
    def writes(self) -> int:
        """Words written to the next level."""
        return self.write_backs * self.line_words

    @property
    def dead_writes(self) -> int:
        """Words of `writes` that nothing will read."""
        return self.dead_write_backs * self.line_words

    @property
    def words(self) -> int:
        """The level's I/O: all words that moved between it and the next level."""
        return self.reads + self.writes

    def times(self, n: int) -> LevelTraffic:
        """The traffic of n such runs, each from an empty cache."""
        figures = (self.hits, self.misses, self.fills, self.write_backs, self.dead_write_backs)
        return LevelTraffic(self.name, self.line_words, *(n * x for x in figures))


@dataclass(frozen=True)
class Trace:
    """Accesses in order: int64 line numbers from 0 to 2^28 - 1, and for each READ, WRITE, OVERWRITE or DISCARD (int8).

    WRITE changes part of a line, OVERWRITE all of it. DISCARD says that nothing will read the line as it is.
    """

    lines: np.ndarray
    kinds: np.ndarray

    @classmethod
    def of(cls, lines: Sequence[int] | np.ndarray, kinds: int | Sequence[int] | np.ndarray = READ) -> Trace:
        """A trace from line numbers and their kinds, or one kind for all. Raises RedblueError for other numbers."""
        numbers = np.ascontiguousarray(lines, np.int64)
        each = np.ascontiguousarray(np.broadcast_to(np.asarray(kinds), numbers.shape))
        if numbers.ndim != 1 or np.any(numbers < 0) or np.any(numbers >= MOST_LINES):
            raise RedblueError("a trace is one row of line numbers from 0 to 2^28 - 1")
        if np.any((each < READ) | (each > DISCARD)):
            raise RedblueError("kinds of access are READ (0), WRITE (1), OVERWRITE (2) and DISCARD (3)")
        return cls(numbers, each.astype(np.int8))

    def __len__(self) -> int:
        return len(self.lines)


def checked_levels(levels: Sequence[CacheLevel]) -> tuple[CacheLevel, ...]:
    """The levels, if they can be simulated together."""
    for level in levels:
        if not isinstance(level, CacheLevel):
            raise RedblueError(f"every cache level must be a CacheLevel(name, capacity_bytes, ...), got {level!r}")
    if not levels:
        raise RedblueError("give at least one cache level")
    if len({level.line_bytes for level in levels}) > 1:
        lines = ", ".join(f"{level.name}: {level.line_bytes}" for level in levels)
        raise RedblueError(f"all levels must have lines of the same bytes, got {lines}; leave levels out")
    return tuple(levels)


def hierarchy(
    levels: Sequence[CacheLevel], line_words: int = 1, fetch_on_write: bool = False, records: bool = False
) -> _core.CacheHierarchy:
    """The simulator of these levels, nearest first, all empty. Raises RedblueError unless their lines are equal."""
    levels = checked_levels(levels)
    shapes = [(level.sets, level.ways or level.lines) for level in levels]
    return _core.CacheHierarchy(shapes, line_words, fetch_on_write, records)


def traffic(levels: Sequence[CacheLevel], caches: _core.CacheHierarchy, line_words: int) -> tuple[LevelTraffic, ...]:
    """What each level of a simulator did so far."""
    return tuple(_figures(level.name, line_words, x) for level, x in zip(levels, caches.counts(), strict=True))


def play(
    trace: Trace, levels: Sequence[CacheLevel], *, line_words: int = 1, fetch_on_write: bool = False
) -> tuple[LevelTraffic, ...]:
    """The trace through caches that are empty at first and written back at the end."""
    caches = hierarchy(levels, line_words, fetch_on_write)
    caches.play(trace.lines, trace.kinds)
    caches.flush()
    return traffic(levels, caches, line_words)


def belady(trace: Trace, lines: int, *, line_words: int = 1, fetch_on_write: bool = False) -> LevelTraffic:
    """The trace through a fully associative level of `lines` lines that evicts what is needed again last (Belady 1966).

    No replacement has fewer fills, among those that take in every line that is accessed. Write-backs are counted, not
    minimized. A line's content is not needed if it is overwritten (unless fetch_on_write) before it is read.
    Raises RedblueError unless `lines` is at least 1.
    """
    if lines < 1:
        raise RedblueError(f"a cache must hold at least 1 line, got {lines}")
    return _figures("Belady", line_words, _core.belady(trace.lines, trace.kinds, lines, fetch_on_write))


def caches_of(memory: Memory) -> tuple[CacheLevel, ...]:
    """The caches of a machine in the catalogue, nearest first, up to the first whose lines or ways are not known.

    What lies beyond that one cannot be simulated, for what reaches it is not known: of graviton2 these are L1d and L2,
    and not L3. Levels before the first with lines and ways (registers) are no caches. A level that several cores share
    is taken whole, as one core that runs alone would find it.
    Raises RedblueError if no level is left: scratchpads are no caches, and the ways of some caches are not known.
    """
    levels = itertools.dropwhile(lambda level: not (level.line_bytes and level.ways), memory.levels)
    found = []
    for level in levels:
        if not (level.capacity_bytes and level.line_bytes and level.ways):
            break
        found.append(CacheLevel(level.name, level.capacity_bytes, level.line_bytes, level.ways))
    if not found:
        raise RedblueError(
            f"{memory.name} has no level whose lines and ways are both known; give CacheLevel(...) instead"
        )
    return tuple(found)


def _figures(name: str, line_words: int, x: _core.LineCounts) -> LevelTraffic:
    return LevelTraffic(name, line_words, x.hits, x.misses, x.fills, x.write_backs, x.dead_write_backs)
