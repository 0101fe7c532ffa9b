"""Words over the capacity M for one stream: every schedule with its best tiles, and every bound."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from redblue import schedules
from redblue.base.dtypes import DTYPE_OF_BYTES
from redblue.base.style import REGIMES
from redblue.bounds import lower_bound, lower_bounds
from redblue.catalogue.memories import Memory
from redblue.lab.counts import count
from redblue.problem import Problem
from redblue.schedules import TooFewWords

POINTS = 48
BEST = "best proved bound"
GIVEN = f"{BEST} if P is given"  # the best bound for backward schedules that read P, such as standard


@dataclass(frozen=True)
class Mark:
    """The capacity of one instance of a machine's level, in words of the curve's number type: a mark on the M axis."""

    machine: str
    level: str
    capacity_words: int


@dataclass(frozen=True)
class Series:
    """One line of a figure. kind: "schedule", "bound" or "order only".

    words_per_pair: words of one stream over its attended pairs, at each capacity of the curve; None if the schedule
    does not fit, or if the bound is 0 or does not apply.
    """

    name: str
    kind: str
    words_per_pair: tuple[float | None, ...]


@dataclass(frozen=True)
class Curve:
    """All schedules and bounds of one stream, at each of `capacities` (words).

    The bound BEST holds for all schedules except those that read P. The series GIVEN is the bound for them.
    """

    stream: Problem
    pairs: int  # attended (query, key) pairs of the stream
    capacities: tuple[int, ...]
    series: tuple[Series, ...]
    marks: tuple[Mark, ...]

    @property
    def dividing_points(self) -> dict[str, float]:
        """Capacities in words at which the regime changes (planner.regime)."""
        return {"d²/4": self.stream.d**2 / 4, "d²": self.stream.d**2}

    @property
    def regimes(self) -> Iterator[tuple[str, float, float]]:
        """(regime, from, to): the range of capacities of each regime, within the curve's capacities."""
        low, high = self.capacities[0], self.capacities[-1]
        edges = [high, *(min(max(point, low), high) for point in reversed(self.dividing_points.values())), low]
        return ((regime, edges[i + 1], edges[i]) for i, regime in enumerate(REGIMES) if edges[i + 1] < edges[i])


def curve_key(problem: Problem) -> Problem:
    """Return one stream of the problem, in a number type of the same size: problems with equal keys share a curve."""
    return replace(problem.one_stream(), dtype=DTYPE_OF_BYTES[problem.bytes_per_word])


def curve(problem: Problem, memories: Iterable[Memory] = (), points: int = POINTS) -> Curve:
    """Compute the curve of one stream of `problem`, over capacities that reach past every level of `memories`."""
    stream = problem.one_stream()
    marks = tuple(
        Mark(memory.name, boundary.fast.name, max(1, boundary.capacity_bytes // stream.bytes_per_word))
        for memory in memories
        for boundary in memory.boundaries
        if boundary.capacity_bytes is not None
    )
    capacities = _capacities(stream.d, [mark.capacity_words for mark in marks], points)
    pairs = max(1, stream.mask.nnz(stream.n_q, stream.n_k))
    names = schedules.covering(stream)
    series = [
        Series(name, "schedule", tuple(_over(_words(name, stream, words), pairs) for words in capacities))
        for name in names
    ]
    p_given = any(schedules.get(name).takes_p(stream.direction) for name in names)
    return Curve(stream, pairs, capacities, (*series, *_bounds(stream, capacities, pairs, p_given)), marks)


def _capacities(d: int, marked: Sequence[int], points: int) -> tuple[int, ...]:
    """Capacities evenly spaced on a logarithmic scale, and the exact dividing points and marks among them."""
    low = max(8, min([d * d // 64, *(words // 2 for words in marked)]))
    high = max([8 * d * d, *(2 * words for words in marked)])
    even = (round(low * (high / low) ** (i / (points - 1))) for i in range(points))
    exact = [words for words in (d * d // 4, d * d, *marked) if low <= words <= high]
    return tuple(sorted({*even, *exact}))


def _words(schedule: str, stream: Problem, words: int) -> int | None:
    """Words that the schedule moves with its best tiles; None if it does not fit."""
    try:
        return count(schedule, stream, words=words).words
    except TooFewWords:
        return None


def _over(words: int | None, pairs: int) -> float | None:
    """Words per attended pair; None if there are no words."""
    return words / pairs if words else None


def _bounds(stream: Problem, capacities: Sequence[int], pairs: int, p_given: bool) -> Iterator[Series]:
    """Yield the largest proved bound at each capacity, then every bound by itself.

    p_given: also yield the largest bound for schedules that read P.
    """
    bounds = [{bound.name: bound for bound in lower_bounds(stream, words)} for words in capacities]
    yield Series(BEST, "bound", tuple(_over(next(iter(by_name.values())).words, pairs) for by_name in bounds))
    if p_given:
        given = (lower_bound(stream, words, p_given=True).words for words in capacities)
        yield Series(GIVEN, "bound", tuple(_over(words, pairs) for words in given))
    for name, bound in {name: bound for by_name in reversed(bounds) for name, bound in by_name.items()}.items():
        kind = "bound" if bound.proved else "order only"
        # Some bounds hold for some capacities only
        words = (by_name[name].words if name in by_name else None for by_name in bounds)
        yield Series(name, kind, tuple(_over(value, pairs) for value in words))
