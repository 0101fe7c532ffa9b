"""A schedule on caches as hardware builds them: what every level really moves, beside what the model counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from redblue import schedules
from redblue.base.errors import RedblueError
from redblue.catalogue.memories import Memory, memory
from redblue.lab import counts
from redblue.machine import Cached, CacheLevel, LevelTraffic, caches_of
from redblue.machine.hierarchy import checked_levels
from redblue.problem import Problem

MOST_ACCESSES = 2_000_000_000  # of one stream: about a minute


@dataclass(frozen=True)
class Simulation:
    """What a schedule moves through caches, over all streams of its problem, each from empty caches.

    count: the same schedule and tiles in the model. levels: what each level moved, nearest first.
    """

    count: counts.Count
    levels: tuple[LevelTraffic, ...]

    @property
    def ratios(self) -> tuple[float, ...]:
        """For each level, the words that it moved over the words counted."""
        return tuple(level.words / self.count.words for level in self.levels)


def simulate(
    schedule: str,
    problem: Problem,
    caches: str | Memory | Sequence[CacheLevel],
    *,
    words: int | None = None,
    tiles: Mapping[str, int] | None = None,
    packed: bool = False,
    leading: Mapping[str, int] | None = None,
    fetch_on_write: bool = False,
) -> Simulation:
    """Play `schedule` through caches: the levels given, nearest first, or those of a machine or its name.

    words: the capacity that the tiles are chosen for (default: all of the nearest level, if no tiles are given); or
    give `tiles` by name, as for `count`. packed, leading (words between the rows of an array, by its name) and
    fetch_on_write: see redblue.machine.Cached. A word takes the bytes of the problem's dtype.
    Raises UnknownName, TooFewWords, RedblueError; the latter too for a run of more than MOST_ACCESSES accesses.
    """
    if not isinstance(caches, str | Memory | Sequence):
        raise RedblueError(
            f"caches must be a machine's name, a Memory, or a list of CacheLevel, nearest first; got {caches!r}"
        )
    if leading is not None and not isinstance(leading, Mapping):
        raise RedblueError(
            f'leading must map arrays to words between their rows, such as {{"q": 128}}; got {leading!r}'
        )
    levels = caches_of(memory(caches)) if isinstance(caches, str | Memory) else checked_levels(caches)
    if words is None and tiles is None:
        words = levels[0].capacity_bytes // problem.bytes_per_word
    counted = counts.count(schedule, problem, words=words, tiles=tiles)
    found = schedules.get(schedule)
    machine = Cached(
        levels,
        problem.bytes_per_word,
        packed=packed,
        leading=leading,
        fetch_on_write=fetch_on_write,
        max_accesses=MOST_ACCESSES,
    )
    counts.execute(found, problem, found.make_tiles(problem, counted.tiles), machine)
    return Simulation(counted, tuple(level.times(problem.streams) for level in machine.traffic))
