"""The plan: at each boundary of a memory hierarchy, which schedule and tiles move the fewest words, at what cost.

Each boundary is a two-level model of its own: M is what one instance of its fast side holds, and streams (heads) are
taken one at a time per instance. The schedule is the one that moves the fewest words there. Its tiles are then made to
nest: each edge is a multiple of the same edge one boundary further in, where such tiles fit. That may cost words;
`free_words` says what the best tiles would move that need not nest.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redblue import schedules
from redblue.base.errors import RedblueError
from redblue.base.text import capacity
from redblue.bounds import lower_bound
from redblue.catalogue import memories
from redblue.catalogue.memories import Boundary, Level, Memory
from redblue.lab.plans import LevelPlan, Plan
from redblue.problem import Problem
from redblue.schedules.schedule import SHAPES, TooFewWords

SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)  # of what is usable of a level, that its tiles may try to fill


def regime(d: int, words: int) -> str:
    """Which algorithm's territory a cache of `words` words is, by the papers' M against d^2, and d^2 / 4.

    A label, not the choice: that goes by exact words. The limits move where d_v != d and backward (docs/theory.md).
    """
    if words >= d * d:
        return "large-cache"
    return "between" if 4 * words >= d * d else "small-cache"


def largest_head_dimension(level: Level, bytes_per_word: int) -> int | None:
    """d* = sqrt(M): the largest head dimension that is in the large-cache regime at this level."""
    return math.isqrt(level.capacity_bytes // bytes_per_word) if level.capacity_bytes else None


def plan(problem: Problem, memory: str | os.PathLike[str] | Memory = "this-machine") -> Plan:
    """The plan of `problem` on a memory: a catalogue name, a path of a TOML file, or a Memory.

    Raises UnknownName (the memory) and RedblueError (sizes beyond the tile search), but not for a boundary where
    nothing fits: its level says so.
    """
    machine = memories.memory(memory)
    boundaries = [each for each in machine.boundaries if each.capacity_bytes]
    best = [_best(problem, each, machine.tile_multiple) for each in boundaries]
    nested = nest(problem, best, machine.tile_multiple)
    levels = [_level(problem, *each) for each in zip(boundaries, best, nested, strict=True)]
    if not levels:
        raise RedblueError(f"memory {machine.name!r} has no level of known capacity: nothing to plan")
    flops = next((level.flops for level in levels if level.flops), None)  # of the innermost schedule: what is executed
    # Where a machine has no arithmetic in the problem's type, narrow words are widened to float32 first.
    usable = (problem.dtype,) if problem.bytes_per_word > 4 else (problem.dtype, "float32")
    rates = [dtype for dtype in usable if dtype in machine.peak_flops_per_second]
    dtype = rates[0] if rates and flops else None
    seconds = flops / machine.peak_flops_per_second[dtype] if dtype and flops else None
    return Plan(problem, machine.name, tuple(levels), seconds, dtype, _note(problem, machine))


def _note(problem: Problem, machine: Memory) -> str:
    slowest, stream = machine.levels[-1], problem.one_stream()
    names = ("a1", "a2", "a3", "e") if problem.direction == "gradient_x" else ("q", "k", "v", "out")
    words = sum(math.prod(getattr(stream, size) for size in SHAPES[name]) for name in names)
    size = problem.streams * words * problem.bytes_per_word
    if slowest.capacity_bytes is None or size <= slowest.capacity_bytes:
        return ""
    arrays = "A1, A2, A3 and E" if problem.direction == "gradient_x" else "Q, K, V and O"
    return f"{arrays} alone take {capacity(size)}, and {slowest.name} holds {capacity(slowest.capacity_bytes)}"


def capacity_words(boundary: Boundary, problem: Problem) -> int:
    """M: what one instance of the boundary's fast side holds, in words of the problem."""
    return max(1, (boundary.capacity_bytes or 0) // problem.bytes_per_word)


@dataclass(frozen=True)
class Best:
    """What fits at one boundary by itself: fewest words of each schedule, and why the others do not fit."""

    capacity_words: int
    usable_words: int
    words: dict[str, int]
    reasons: tuple[str, ...]

    @property
    def schedule(self) -> str | None:
        return min(self.words, key=self.words.__getitem__) if self.words else None


def _best(problem: Problem, boundary: Boundary, step: int) -> Best:
    capacity = capacity_words(boundary, problem)
    words, found, reasons = max(1, int(capacity * boundary.fast.usable_share)), {}, []
    for schedule in map(schedules.get, schedules.covering(problem)):
        if schedule.drop_in:
            try:
                tiles = schedule.tiles(problem, words, dict.fromkeys(schedule.direction(problem).edges, step))
                found[schedule.name] = schedule.words(problem, tiles)
            except TooFewWords as error:
                reasons.append(str(error))
    return Best(capacity, words, found, tuple(reasons))


def _level(problem: Problem, boundary: Boundary, best: Best, tiles: Any) -> LevelPlan:
    common: dict[str, Any] = {
        "boundary": boundary.name,
        "capacity_words": best.capacity_words,
        "usable_words": best.usable_words,
        "regime": regime(problem.d, best.capacity_words),
        "bound": lower_bound(problem, best.capacity_words),
        "candidates": best.words,
    }
    if best.schedule is None:
        nothing = dict.fromkeys(("schedule", "words", "free_words", "bytes", "peak", "flops", "seconds"))
        return LevelPlan(**common, **nothing, tiles={}, why="; ".join(best.reasons))
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
    )


# Where a schedule lacks an edge, the edge of the same meaning: which queries, and which keys, a tile holds.
MEANS = {"dkv_rows": "rows", "dkv_cols": "cols", "grad_rows": "rows", "grad_cols": "cols"}


def nest(problem: Problem, best: Sequence[Best], step: int) -> list[Any]:
    """Tiles for each boundary's best schedule, innermost first, that nest (None where no schedule fits).

    Tiles that fill a level may fit the next one badly, so each level also tries to fill only a share of its capacity,
    and takes what makes words here times words one boundary further out the least.
    """
    nested: list[Any] = []
    inner: dict[str, int] = {}
    for here, beyond in zip(best, (*best[1:], None), strict=True):
        options = {}  # tiles -> words here times words beyond; the fullest first
        for share in SHARES if beyond else SHARES[:1]:
            tiles = _multiples(problem, here, step, inner, share)
            if tiles is not None and tiles not in options:
                outer = _multiples(problem, beyond, step, inner | tiles._asdict()) if beyond else None
                options[tiles] = _words(problem, here, tiles) * _words(problem, beyond, outer)
        nested.append(min(options, key=options.__getitem__) if options else None)
        inner |= nested[-1]._asdict() if options else {}
    return nested


def _words(problem: Problem, best: Best | None, tiles: Any) -> int:
    return schedules.get(best.schedule).words(problem, tiles) if best and best.schedule and tiles else 1


def _multiples(problem: Problem, best: Best, step: int, inner: dict[str, int], share: float = 1.0) -> Any:
    """The best tiles whose edges are multiples of the inner ones; of `step` alone where none such fit at all."""
    if best.schedule is None:
        return None
    schedule = schedules.get(best.schedule)
    edges = schedule.direction(problem).edges
    multiple = {edge: inner.get(edge, inner.get(MEANS.get(edge, edge), step)) for edge in edges}
    try:
        return schedule.tiles(problem, int(best.usable_words * share), multiple)
    except TooFewWords:
        return schedule.tiles(problem, best.usable_words, dict.fromkeys(edges, step)) if share == 1 else None
