"""Simulate a schedule on hardware caches (sets, lines, LRU), to compare their traffic with the model's count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from redblue import schedules
from redblue.base.arguments import checked_arguments
from redblue.catalogue.memories import Memory, memory
from redblue.lab import counts
from redblue.machine import Cached, CacheLevel, LevelTraffic, caches_of
from redblue.machine.hierarchy import checked_levels
from redblue.paged_problem import AnyProblem

MAX_ACCESSES = 2_000_000_000  # limit of one stream: about a minute


@dataclass(frozen=True)
class Simulation:
    """The traffic of a schedule through caches, summed over all streams; each stream starts with empty caches.

    count: the model's count for the same schedule and tiles. levels: the traffic of each level, nearest first.
    """

    count: counts.Count
    levels: tuple[LevelTraffic, ...]

    @property
    def ratios(self) -> tuple[float, ...]:
        """For each level, the ratio of words moved to words counted by the model."""
        return tuple(level.words / self.count.words for level in self.levels)


@checked_arguments
def simulate(
    schedule: str,
    problem: AnyProblem,
    caches: str | Memory | Sequence[CacheLevel],
    *,
    words: int | None = None,
    tiles: Mapping[str, int] | None = None,
    packed: bool = False,
    leading: Mapping[str, int] | None = None,
    fetch_on_write: bool = False,
) -> Simulation:
    """Run `schedule` through simulated caches.

    caches: a list of levels, nearest first, or a Memory or its name, whose caches are simulated.
    words: the capacity in words of the problem's dtype that the tiles are searched for. Default: the capacity of the
    nearest level, unless `tiles` are given.
    tiles: tile edges by name, as for `count`.
    packed: whether loads copy a tile into dense words. leading: words from row to row of an array, by its name.
    fetch_on_write: whether a write of a whole line reads it first (redblue.machine.Cached has the details).

    Raises UnknownName (schedule or memory), TooFewWords, NotCovered, and RedblueError for invalid arguments and for
    runs of more than 2 x 10^9 accesses.
    """
    levels = caches_of(memory(caches)) if isinstance(caches, str | Memory) else checked_levels(caches)
    if words is None and tiles is None:
        words = levels[0].capacity_bytes // problem.bytes_per_word
    counted = counts.count(schedule, problem, words=words, tiles=tiles)
    algorithm = schedules.get(schedule)
    machine = Cached(
        levels,
        problem.bytes_per_word,
        packed=packed,
        leading=leading,
        fetch_on_write=fetch_on_write,
        max_accesses=MAX_ACCESSES,
    )
    counts.execute(algorithm, problem, algorithm.make_tiles(problem, counted.tiles), machine)
    return Simulation(counted, tuple(level.times(problem.streams) for level in machine.traffic))
