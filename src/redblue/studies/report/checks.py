"""Check every schedule that a plan chose: run it on numbers, at a small size, against its closed form and float64."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from redblue import schedules
from redblue.base.errors import RedblueError
from redblue.lab.counts import check
from redblue.lab.plans import Plan
from redblue.problem import Problem
from redblue.schedules import TooFewWords

TOLERANCE = 1e-10  # largest relative error against the float64 reference that passes
TOKENS, HEAD_DIMENSION, GROUP = 31, 20, 3  # the largest sizes of a check, except that keys may be TOKENS + 2


@dataclass(frozen=True)
class Check:
    """The check of one schedule on one small stream.

    chosen_for: the shape and the boundary whose plan chose the schedule. capacity_words: the size of the cache in which
    it ran. expected_words, expected_peak: from the closed form; with a mask the run's peak may be smaller.
    counted_words, counted_peak, error: from the run, or None if the run was aborted; error is relative to the float64
    reference. failure: the reason why the check failed, "" if it passed.
    """

    schedule: str
    problem: Problem
    chosen_for: str
    capacity_words: int
    expected_words: int
    expected_peak: int
    counted_words: int | None
    counted_peak: int | None
    error: float | None
    failure: str

    @property
    def passed(self) -> bool:
        return not self.failure


def chosen(plans: Iterable[tuple[str, Plan]]) -> Iterator[tuple[str, Problem, int, str]]:
    """Yield the arguments of `run` for every schedule on every kind of problem for which a plan chose it.

    A schedule that several boundaries chose is checked at the boundary of largest d / sqrt(M). plans: (label, plan);
    the label names the shape.
    """
    tightest: dict[tuple[str, Problem], tuple[float, str]] = {}
    for label, plan in plans:
        for level in plan.levels:
            if level.schedule is not None and isinstance(plan.problem, Problem):  # models have no paged problems
                key = (level.schedule, small(plan.problem))
                position = (
                    plan.problem.d / math.sqrt(level.capacity_words),
                    f"{label}, {level.boundary} of {plan.memory}",
                )
                tightest[key] = max(position, tightest.get(key, position), key=lambda place: place[0])
    for (schedule, problem), (x, place) in tightest.items():
        yield schedule, problem, _capacity(schedule, problem, round((problem.d / x) ** 2)), place


def small(problem: Problem) -> Problem:
    """Shrink a problem to one stream of few tokens and features, with its mask resized."""
    n_q, n_k = min(problem.n_q, TOKENS), min(problem.n_k, TOKENS + 2)
    shrink = HEAD_DIMENSION / max(HEAD_DIMENSION, problem.d, problem.d_v)
    d, d_v = (max(1, round(size * shrink)) for size in (problem.d, problem.d_v))
    heads = min(problem.group, GROUP)
    return Problem(
        n_q=n_q,
        n_k=n_k,
        d=d,
        d_v=d_v,
        heads=heads,
        kv_heads=1,
        dtype="float64",
        mask=problem.mask.resized((problem.n_q, problem.n_k), (n_q, n_k)),
        direction=problem.direction,
    )


def _capacity(schedule: str, problem: Problem, words: int) -> int:
    """Double `words` until the schedule fits."""
    try:
        schedules.get(schedule).tiles(problem, words)
    except TooFewWords:
        return _capacity(schedule, problem, max(1, 2 * words))
    return words


def run(schedule: str, problem: Problem, words: int, chosen_for: str) -> Check:
    """Run the schedule in a cache of `words` words; compare with its closed form and the float64 reference."""
    rules = schedules.get(schedule)
    cost = rules.cost(problem, rules.tiles(problem, words))
    about = (schedule, problem, chosen_for, words, cost.words, cost.peak)
    try:
        result = check(schedule, problem, words=words)
    except RedblueError as error:
        return Check(*about, None, None, None, f"the run broke a rule: {error}")
    counted = result.count
    failures = []
    if (counted.reads, counted.writes) != (cost.reads, cost.writes):
        failures.append(f"the closed form has {cost.words} words, the run moved {counted.words}")
    if counted.peak > cost.peak:
        failures.append(f"the closed form has a peak of {cost.peak} words, the run held {counted.peak}")
    if not result.error <= TOLERANCE:
        failures.append(f"the relative error is {result.error:.1e}, at most {TOLERANCE:.0e} is allowed")
    error = result.error if math.isfinite(result.error) else None
    return Check(*about, counted.words, counted.peak, error, "; ".join(failures))
