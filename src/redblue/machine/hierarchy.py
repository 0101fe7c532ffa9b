"""Simulation of hardware caches (lines, sets, several levels), and of Belady's optimal replacement.

A level is write-back and write-allocate, and replaces the least recently used line of a set; line l belongs to set
l modulo the number of sets. Levels are neither inclusive nor exclusive: each level sees only the misses and the
write-backs of the level before it. On a miss the line is requested from the next level, then the victim is written
back. A written-back line is complete, so the next level takes it without reading the line from farther away.

fetch_on_write concerns a write of a whole line that the nearest level does not hold. If False, the level takes the line
without reading it (a full-line or streaming store): a stored word moves once, as in the model. If True, it reads the
line first (an ordinary store): a stored word moves twice. Lines written in part are always read first.

Not modelled: prefetching, physical addresses (which differ from virtual addresses beyond a page), replacement that only
approximates LRU, and other cores that share a level.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from redblue.base.errors import RedblueError
from redblue.base.integers import integer_array, whole_number
from redblue.compiled import _core

if TYPE_CHECKING:
    from redblue.catalogue.memories import Level, Memory

MAX_LINES = 2**28  # most lines of a level, and of all memory: the simulator's tables take a few bytes per line
READ, WRITE, OVERWRITE, DISCARD = range(4)  # kinds of access; DISCARD accesses nothing, it marks the content as dead


@dataclass(frozen=True)
class CacheLevel:
    """The geometry of one level of cache.

    name: for messages. capacity_bytes: size of the level. line_bytes: size of a line. ways: lines per set; None: one
    set of all lines (fully associative).
    Raises RedblueError unless the capacity is a whole number of lines and of sets, and at most 2^28 lines.
    """

    name: str
    capacity_bytes: int
    line_bytes: int = 64
    ways: int | None = None

    def __post_init__(self) -> None:
        for field in ("capacity_bytes", "line_bytes", "ways"):
            value = getattr(self, field)
            if field == "ways" and value is None:
                continue
            whole_number(f"{field} of {self.name}", value, most=math.inf)
        if self.capacity_bytes % self.line_bytes:
            raise RedblueError(
                f"{self.name} holds {self.capacity_bytes} bytes, which is no multiple of its lines of "
                f"{self.line_bytes} bytes: give a whole number of lines"
            )
        if self.lines > MAX_LINES:
            raise RedblueError(
                f"{self.name} holds {self.lines:,} lines, but at most {MAX_LINES:,} are simulated: give fewer bytes"
            )
        if self.lines % (self.ways or 1):
            raise RedblueError(
                f"{self.name} holds {self.lines} lines, which is no multiple of its {self.ways} ways: give another "
                f"capacity or other ways"
            )

    @property
    def lines(self) -> int:
        return self.capacity_bytes // self.line_bytes

    @property
    def sets(self) -> int:
        return self.lines // self.ways if self.ways else 1


@dataclass(frozen=True)
class LevelTraffic:
    """Counts of one level, in lines, and the words moved between this level and the next.

    hits, misses: accesses whose line was, or was not, in the level. fills: lines read from the next level; a miss that
    overwrites its whole line may need none. write_backs: dirty lines written to the next level. dead_write_backs:
    write-backs of content that will never be read, because its tile was freed.
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
        """Words of `writes` that will never be read."""
        return self.dead_write_backs * self.line_words

    @property
    def words(self) -> int:
        """The I/O of the level: all words moved between it and the next level."""
        return self.reads + self.writes

    def times(self, n: int) -> LevelTraffic:
        """Return the traffic of n such runs that each start with an empty cache."""
        counts = (self.hits, self.misses, self.fills, self.write_backs, self.dead_write_backs)
        return LevelTraffic(self.name, self.line_words, *(n * x for x in counts))


@dataclass(frozen=True)
class Trace:
    """A sequence of accesses.

    lines: line numbers from 0 to 2^28 - 1, int64. kinds: READ, WRITE (changes part of the line), OVERWRITE (writes all
    of the line) or DISCARD (the current content will never be read), int8.
    """

    lines: np.ndarray
    kinds: np.ndarray

    @classmethod
    def of(cls, lines: Sequence[int] | np.ndarray, kinds: int | Sequence[int] | np.ndarray = READ) -> Trace:
        """Build a trace. kinds: one per line, or one for all. Raises RedblueError for invalid lines and kinds."""
        numbers, line_kinds = integer_array("lines", lines), integer_array("kinds", kinds)
        if numbers.ndim != 1 or np.any(numbers < 0) or np.any(numbers >= MAX_LINES):
            raise RedblueError(
                f"lines must be one row of line numbers from 0 to 2^28 - 1, got shape {numbers.shape}"
                + (f" with numbers from {numbers.min()} to {numbers.max()}" if numbers.size else "")
            )
        if line_kinds.shape not in ((), (1,), numbers.shape):
            raise RedblueError(
                f"kinds must be one kind, or one per line, got shape {line_kinds.shape} for {len(numbers)} lines"
            )
        if np.any((line_kinds < READ) | (line_kinds > DISCARD)):
            raise RedblueError(
                "kinds must be READ (0), WRITE (1), OVERWRITE (2) or DISCARD (3), "
                f"got numbers from {line_kinds.min()} to {line_kinds.max()}"
            )
        every = np.broadcast_to(line_kinds.astype(np.int8), numbers.shape)
        return cls(np.ascontiguousarray(numbers, np.int64), np.ascontiguousarray(every))

    def __len__(self) -> int:
        return len(self.lines)


def checked_levels(levels: Sequence[CacheLevel]) -> tuple[CacheLevel, ...]:
    """Return the levels. Raises RedblueError unless there is at least one and all have lines of the same length."""
    for level in levels:
        if not isinstance(level, CacheLevel):
            raise RedblueError(f"every cache level must be a CacheLevel(name, capacity_bytes, ...), got {level!r}")
    if not levels:
        raise RedblueError("give at least one cache level")
    if len({level.line_bytes for level in levels}) > 1:
        lines = ", ".join(f"{level.name}: {level.line_bytes}" for level in levels)
        raise RedblueError(f"all levels must have lines of the same length in bytes, got {lines}; leave levels out")
    return tuple(levels)


def simulator(
    levels: Sequence[CacheLevel], line_words: int = 1, fetch_on_write: bool = False, records: bool = False
) -> _core.CacheHierarchy:
    """Create a simulator of the levels, nearest first, all empty. records: whether it records the accesses.

    Raises RedblueError as checked_levels does.
    """
    levels = checked_levels(levels)
    shapes = [_core.CacheShape(level.sets, level.ways or level.lines) for level in levels]
    return _core.CacheHierarchy(shapes, line_words, fetch_on_write, records)


def traffic(levels: Sequence[CacheLevel], caches: _core.CacheHierarchy, line_words: int) -> tuple[LevelTraffic, ...]:
    """Return the counts so far of each level of a simulator."""
    return tuple(_level_traffic(level.name, line_words, x) for level, x in zip(levels, caches.counts(), strict=True))


def play(
    trace: Trace, levels: Sequence[CacheLevel], *, line_words: int = 1, fetch_on_write: bool = False
) -> tuple[LevelTraffic, ...]:
    """Play a trace through caches that start empty, and write all dirty lines back at the end."""
    caches = simulator(levels, line_words, fetch_on_write)
    caches.play(trace.lines, trace.kinds)
    caches.flush()
    return traffic(levels, caches, line_words)


def belady(trace: Trace, lines: int, *, line_words: int = 1, fetch_on_write: bool = False) -> LevelTraffic:
    """Play a trace through one fully associative level of `lines` lines with Belady's replacement (1966).

    It evicts the line whose content is needed again last. No replacement policy that caches every accessed line
    has fewer fills. Write-backs are counted, not minimized. Content that is overwritten before it is read is not
    needed, unless fetch_on_write.
    Raises RedblueError unless `lines` is a whole number of at least 1.
    """
    lines = whole_number("lines", lines)
    return _level_traffic("Belady", line_words, _core.belady(trace.lines, trace.kinds, lines, fetch_on_write))


def caches_of(memory: Memory) -> tuple[CacheLevel, ...]:
    """Return the caches of a machine in the catalogue, nearest first, until a level's lines or ways are unknown.

    Levels beyond an unknown level cannot be simulated, because the accesses that reach them are not known: graviton2
    gives L1d and L2, but not L3. Levels before the first cache, such as registers, are skipped: the catalogue states no
    lines and no ways for them, and they do not have the name of a cache. A level that several cores share has its whole
    capacity, as for one core that runs alone.
    Raises RedblueError if no level is left, as for scratchpads and for a nearest cache of unknown ways.
    """
    caches = []
    for level in itertools.dropwhile(lambda level: not _is_cache(level), memory.levels):
        if not (level.capacity_bytes and level.line_bytes and level.ways):
            break
        caches.append(CacheLevel(level.name, level.capacity_bytes, level.line_bytes, level.ways))
    if not caches:
        raise RedblueError(
            f"{memory.name} has no cache, or the lines and ways of its nearest cache are not both known; "
            f"give CacheLevel(...) instead"
        )
    return tuple(caches)


def _is_cache(level: Level) -> bool:
    """Whether a level has lines or ways, or a name by which the catalogue knows hardware-managed caches."""
    return bool(level.line_bytes or level.ways) or level.usable_share < 1


def _level_traffic(name: str, line_words: int, x: _core.LineCounts) -> LevelTraffic:
    return LevelTraffic(name, line_words, x.hits, x.misses, x.fills, x.write_backs, x.dead_write_backs)
