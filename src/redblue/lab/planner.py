"""Plan a problem on a memory hierarchy: for each boundary, the schedule and tiles that move the fewest words.

Each boundary is a separate two-level model: M is the capacity of one instance of the fast level, and each instance
processes one stream (head) at a time. The planner picks the schedule that moves the fewest words across the boundary.
It then makes the tiles nest: each edge is a multiple of the same edge at the next inner boundary, if such tiles fit.
Nesting may cost words; `free_words` is the count of the best tiles without that constraint.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from redblue import schedules
from redblue.base.arguments import checked_arguments
from redblue.base.errors import RedblueError
from redblue.base.text import capacity
from redblue.bounds import lower_bound
from redblue.catalogue import memories
from redblue.catalogue.clusters import Cluster, cluster, is_cluster
from redblue.catalogue.memories import Boundary, Level, Memory
from redblue.lab.network_planner import network_plan
from redblue.lab.plans import LevelPlan, Plan
from redblue.paged_problem import AnyProblem
from redblue.schedules.schedule import SHAPES, TooFewWords

# The large arrays of a direction, as text and by their names in SHAPES; for forward and backward: Q, K, V and O
ARRAYS = {
    "gradient_x": ("A1, A2, A3 and E", ("a1", "a2", "a3", "e")),
    "paged": ("Q, the pages and O", ("q", "k_pages", "v_pages", "out")),
}
MIN_SAVED = 0.01  # share of the words that a variant of another schedule must save to be chosen
SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)  # shares of a level's usable words that nested tiles try to fill


def regime(d: int, words: int) -> str:
    """Name the regime of a cache of `words` words, by comparing M with the papers' d^2 and with d^2 / 4.

    The result is only a label: the planner compares exact words. For d_v != d and for backward the true limits differ
    (docs/lab/theory.md).
    """
    if words >= d * d:
        return "large-cache"
    return "between" if 4 * words >= d * d else "small-cache"


def largest_head_dimension(level: Level, bytes_per_word: int) -> int | None:
    """Return d* = sqrt(M), the largest head dimension in the large-cache regime at this level; None if M is unknown."""
    return math.isqrt(level.capacity_bytes // bytes_per_word) if level.capacity_bytes else None


@checked_arguments
def plan(problem: AnyProblem, memory: str | os.PathLike[str] | Memory | Cluster = "this-machine") -> Plan:
    """Plan `problem` on a memory: a name of the catalogue, the path of a TOML file, or a Memory.

    A cluster is given as "8x h100-sxm over infiniband-ndr", or as a Cluster: the plan then also has a schedule for the
    network, and its levels plan the part of the busiest process on one machine.

    A boundary at which no schedule fits is no error: its LevelPlan has no schedule and a reason.
    Raises UnknownName for an unknown memory or link, RedblueError for sizes beyond the tile search and, on a cluster,
    for problems without a network schedule and for fewer tokens than processes.
    """
    if isinstance(memory, str) and is_cluster(memory):
        memory = cluster(memory)
    if isinstance(memory, Cluster):
        return _plan_on_cluster(problem, memory)
    machine = memories.memory(memory)
    boundaries = [boundary for boundary in machine.boundaries if boundary.capacity_bytes]
    best = [_best(problem, boundary, machine.tile_multiple) for boundary in boundaries]
    nested = nest(problem, best, machine.tile_multiple)
    levels = [_level(problem, boundary, *choice) for boundary, choice in zip(boundaries, nested, strict=True)]
    if not levels:
        raise RedblueError(f"memory {machine.name!r} has no level of known capacity: nothing to plan")
    flops = next((level.flops for level in levels if level.flops), None)  # the innermost schedule does the arithmetic
    # A machine without arithmetic in a 16-bit or narrower type converts the words to float32.
    dtypes = (problem.dtype,) if problem.bytes_per_word > 4 else (problem.dtype, "float32")
    rates = [dtype for dtype in dtypes if dtype in machine.peak_flops_per_second]
    dtype = rates[0] if rates and flops else None
    seconds = flops / machine.peak_flops_per_second[dtype] if dtype and flops else None
    return Plan(problem, machine.name, tuple(levels), seconds, dtype, _note(problem, machine))


def _plan_on_cluster(problem: AnyProblem, machines: Cluster) -> Plan:
    """Plan the network, then one machine for the attention of the busiest process."""
    network, local = network_plan(problem, machines)
    if local is None:  # no pair attends: nothing is computed
        return Plan(problem, machines.name, (), None, None, "no pair attends", network)
    note = ""
    slowest, held = machines.memory.levels[-1], network.peak * problem.bytes_per_word
    if slowest.capacity_bytes is not None and held > slowest.capacity_bytes:
        note = f"a process holds up to {capacity(held)}, and {slowest.name} holds {capacity(slowest.capacity_bytes)}"
    own = plan(local, machines.memory)
    return replace(own, problem=problem, memory=machines.name, note=note or own.note, network=network)


def _note(problem: AnyProblem, machine: Memory) -> str:
    """Return a warning if the arrays do not fit into the slowest memory, else ""."""
    slowest, stream = machine.levels[-1], problem.one_stream()
    text, names = ARRAYS.get(problem.direction, ("Q, K, V and O", ("q", "k", "v", "out")))
    words = sum(math.prod(getattr(stream, size) for size in SHAPES[name]) for name in names)
    size = problem.streams * words * problem.bytes_per_word
    if slowest.capacity_bytes is None or size <= slowest.capacity_bytes:
        return ""
    return f"{text} alone take {capacity(size)}, and {slowest.name} holds {capacity(slowest.capacity_bytes)}"


def capacity_words(boundary: Boundary, problem: AnyProblem) -> int:
    """Return M: the capacity of one instance of the boundary's fast level, in words of the problem's dtype."""
    return max(1, (boundary.capacity_bytes or 0) // problem.bytes_per_word)


@dataclass(frozen=True)
class Best:
    """The schedules that fit at one boundary, without nesting.

    words: fewest words of each schedule that fits. reasons: for each other schedule, the reason why it does not fit.
    """

    capacity_words: int
    usable_words: int
    words: dict[str, int]
    reasons: tuple[str, ...]

    @property
    def schedule(self) -> str | None:
        """Name of the schedule that moves the fewest words; None if no schedule fits."""
        return min(self.words, key=self.words.__getitem__) if self.words else None

    def plain(self) -> Best:
        """Return a Best without variants of schedules; itself if no other schedule fits."""
        words = {name: moved for name, moved in self.words.items() if not schedules.get(name).variant}
        return replace(self, words=words) if words else self

    def choices(self) -> tuple[Best, ...]:
        """Return itself and, if the best schedule is a variant, the Best without variants."""
        return (self, self.plain()) if self.schedule and schedules.get(self.schedule).variant else (self,)


def _best(problem: AnyProblem, boundary: Boundary, step: int) -> Best:
    """Search every schedule's tiles at one boundary. step: all tile edges are multiples of it."""
    capacity = capacity_words(boundary, problem)
    usable, fewest, reasons = max(1, int(capacity * boundary.fast.usable_share)), {}, []
    for schedule in map(schedules.get, schedules.covering(problem)):
        if schedule.drop_in:
            try:
                tiles = schedule.tiles(problem, usable, dict.fromkeys(schedule.direction(problem).edges, step))
                fewest[schedule.name] = schedule.words(problem, tiles)
            except TooFewWords as error:
                reasons.append(str(error))
    best = Best(capacity, usable, fewest, tuple(reasons))
    plain = best.plain()
    saves = not plain.schedule or min(fewest.values()) <= (1 - MIN_SAVED) * plain.words[plain.schedule]
    return best if saves else plain


def _level(problem: AnyProblem, boundary: Boundary, best: Best, tiles: Any) -> LevelPlan:
    """Assemble the plan of one boundary. tiles: of the best schedule; unused if no schedule fits."""
    common: dict[str, Any] = {
        "boundary": boundary.name,
        "capacity_words": best.capacity_words,
        "usable_words": best.usable_words,
        "regime": regime(problem.d, best.capacity_words),
        "bound": lower_bound(problem, best.capacity_words),
        "candidates": best.words,
    }
    if best.schedule is None:
        unset = dict.fromkeys(("schedule", "words", "free_words", "bytes", "peak", "flops", "seconds"))
        return LevelPlan(**common, **unset, tiles={}, why="; ".join(best.reasons))
    cost = schedules.get(best.schedule).cost(problem, tiles)
    moved = cost.words * problem.bytes_per_word
    bandwidth = boundary.bandwidth_bytes_per_second
    return LevelPlan(
        **common,
        schedule=best.schedule,
        tiles=tiles._asdict(),
        words=cost.words,
        free_words=best.words[best.schedule],
        bytes=moved,
        peak=cost.peak,
        flops=cost.flops,
        seconds=moved / bandwidth if bandwidth else None,
        own=schedules.is_users(best.schedule),
    )


# For edges that an inner schedule may lack: the edge with the same meaning, the queries or keys of a tile.
SAME_MEANING = {"dkv_rows": "rows", "dkv_cols": "cols", "grad_rows": "rows", "grad_cols": "cols"}


def nest(problem: AnyProblem, best: Sequence[Best], step: int) -> list[tuple[Best, Any]]:
    """Return each boundary's candidates and the nesting tiles of the best one, innermost first.

    The tiles are None where no schedule fits, and do not nest where no multiples of the inner edges fit. Tiles that
    fill one level may fit the next outer level badly. Each level therefore also tries tiles that fill only a share of
    its capacity, and takes the tiles with the smallest product of words here and words one boundary further out. A
    variant of a schedule is dropped if its tiles nest worse.
    """
    nested: list[tuple[Best, Any]] = []
    inner: dict[str, int] = {}
    for level, outer in zip(best, (*best[1:], None), strict=True):
        options = {}  # (index of the choice, tiles) -> rank; in descending order of the share filled
        for number, choice in enumerate(level.choices()):
            for share in SHARES if outer else SHARES[:1]:
                tiles, nests = _multiples(problem, choice, step, inner, share)
                if tiles is not None and (number, tiles) not in options:
                    further = _rank(problem, outer, step, inner | tiles._asdict())
                    rank = further[0] + (not nests), further[1] * _words(problem, choice, tiles)
                    options[number, tiles] = rank
        number, tiles = min(options, key=options.__getitem__) if options else (0, None)
        nested.append((level.choices()[number], tiles))
        inner |= tiles._asdict() if tiles is not None else {}
    return nested


def _rank(problem: AnyProblem, best: Best | None, step: int, inner: dict[str, int]) -> tuple[int, int]:
    """Return (1 if no tiles of the boundary nest, its fewest words), for min; (0, 1) if there is no boundary."""
    if best is None:
        return 0, 1
    ranks = []
    for choice in best.choices():
        tiles, nests = _multiples(problem, choice, step, inner)
        ranks.append((int(not nests), _words(problem, choice, tiles)))
    return min(ranks)


def _words(problem: AnyProblem, best: Best | None, tiles: Any) -> int:
    """Return the words of the boundary's best schedule with these tiles; 1 if there is no boundary or nothing fits."""
    return schedules.get(best.schedule).words(problem, tiles) if best and best.schedule and tiles else 1


def _multiples(
    problem: AnyProblem, best: Best, step: int, inner: dict[str, int], share: float = 1.0
) -> tuple[Any, bool]:
    """Return the best tiles whose edges are multiples of the inner edges, and whether there are such tiles.

    If no such tiles fit, return tiles with multiples of `step` for the full share, and None for a smaller one.
    """
    if best.schedule is None:
        return None, False
    schedule = schedules.get(best.schedule)
    edges = schedule.direction(problem).edges
    multiple = {edge: inner.get(edge, inner.get(SAME_MEANING.get(edge, edge), step)) for edge in edges}
    try:
        return schedule.tiles(problem, int(best.usable_words * share), multiple), True
    except TooFewWords:
        free = dict.fromkeys(edges, step)
        return (schedule.tiles(problem, best.usable_words, free) if share == 1 else None), False
