"""The table of meters, and `measure`, which uses the meter of a given name or the best one that works here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from redblue.base.arguments import checked_arguments
from redblue.base.errors import RedblueError, UnknownName
from redblue.base.estimates import check_fits
from redblue.base.integers import whole_number
from redblue.machine import CacheLevel
from redblue.meter import counters, meters, ncu, valgrind
from redblue.meter.meters import Request
from redblue.meter.record import Measurement
from redblue.problem import Problem


@dataclass(frozen=True)
class Meter:
    """A meter of problems.

    measures: a description of the measured quantity. needs: raises RedblueError, with the remedy, if the meter cannot
    work here. any_words: whether it measures a fast memory of any size; the other meters measure the machine's own
    memories. flops_per_second: its approximate speed, to announce the duration of a measurement.
    """

    name: str
    measures: str
    needs: Callable[[], object]
    measure: Callable[[Request], Measurement]
    any_words: bool
    flops_per_second: float


# The best first: meters of cache lines before meters of the words that a kernel requests
METERS = {
    meter.name: meter
    for meter in (
        Meter("cachegrind", "cache lines of the CPU kernel, simulated", valgrind.find, meters.by_cachegrind, True, 2e7),
        Meter("probe", "words of the CPU kernel, counted by the kernel", lambda: None, meters.by_probe, True, 4e9),
        Meter(
            "interpreter",
            "words of the Triton kernel, interpreted",
            meters.needs_triton,
            meters.by_interpreter,
            True,
            2e6,
        ),
        Meter("counters", "lines between this CPU's memories", counters.needs, meters.by_counters, False, 1e10),
        Meter("ncu", "bytes between a GPU's memories", ncu.find, meters.by_ncu, False, 1e11),
    )
}
REAL = ("ncu", "counters")  # the meters of the machine's own memories, the best first


@checked_arguments
def measure(
    problem: Problem,
    *,
    words: int | None = None,
    using: str = "auto",
    schedule: str | None = None,
    tiles: Mapping[str, int] | None = None,
    plan_words: int | None = None,
    boundary: str | None = None,
    line_bytes: int = 64,
    ways: int | None = None,
    inner: CacheLevel | None = None,
) -> Measurement:
    """Measure the words that a compiled kernel really moves between a fast memory of `words` words and the slow one.

    using: "cachegrind", "probe", "interpreter", "counters", "ncu", or "auto" for the best that works here.
    boundary: for counters and ncu, which measure the machine's own memories: the name of a boundary, such as "L2/L3" or
    "L2/DRAM". None: counters measures at the smallest cache that holds `words`, ncu between multiprocessors and L2.
    With a boundary, "auto" chooses between counters and ncu.
    schedule: the schedule that the kernel follows ("flash", "hybrid", "small_cache", "gather", backward
    "flash_onepass" ...); None for the usual one.
    tiles: the schedule's edges by name; None for tiles that suit a fast memory of plan_words words (None: `words`).
    line_bytes, ways (None: fully associative): the lines of cachegrind's cache, and its associativity.
    inner: for cachegrind, a cache nearer to the core, which serves every access first.
    Raises UnknownName for another meter or schedule. Raises TooFewWords if no tiles fit, and for probe and interpreter
    also if the kernel's tiles need more than `words` words, for which no bound would hold. Raises RedblueError in these
    cases: the meter cannot work here (with the remedy); no kernel follows the schedule; the arguments do not fit the
    meter.
    """
    for name, value in (("words", words), ("plan_words", plan_words), ("line_bytes", line_bytes), ("ways", ways)):
        if value is not None:
            whole_number(name, value, most=math.inf)
    meter = choose(using, boundary)
    if words is None and meter.any_words:
        raise RedblueError(f"{meter.name} measures a fast memory of any size: give its words (example: words=8192)")
    if boundary is not None and meter.any_words:
        raise RedblueError(
            f"{meter.name} measures a fast memory of any size, which has no boundary by name: leave boundary out, or "
            f"measure with {' or '.join(REAL)}; got boundary {boundary!r}"
        )
    _check_fits(problem, meter)
    return meter.measure(Request(problem, words, plan_words, schedule, tiles, boundary, line_bytes, ways, inner))


def _check_fits(problem: Problem, meter: Meter) -> None:
    """Raise RedblueError if the arrays of the problem do not fit this machine; announce a long measurement."""
    p, forward = problem, problem.direction == "forward"
    words = (1 if forward else 2) * p.batch * (p.d + p.d_v) * (p.heads * p.n_q + p.kv_heads * p.n_k)
    task = f"measuring {p.n_q:,} queries and {p.n_k:,} keys with {meter.name}"
    check_fits(task, words * p.bytes_per_word)
    pairs = p.n_q * p.n_k if p.mask.lead else p.mask.on(p.n_q, p.n_k).nnz
    flops = (2 if forward else 5) * p.batch * p.heads * pairs * (p.d + p.d_v)
    check_fits(task, words * p.bytes_per_word, flops / meter.flops_per_second)


def choose(using: str, boundary: str | None = None) -> Meter:
    """Choose the meter of a name, or for "auto" the first that works here. Raises RedblueError if none works."""
    if using == "auto":
        tried = REAL if boundary else tuple(METERS)
        reasons = {name: why_not(METERS[name]) for name in tried}
        working = [name for name, reason in reasons.items() if reason is None]
        if not working:
            raise RedblueError("; ".join(f"{name}: {reason}" for name, reason in reasons.items()))
        return METERS[working[0]]
    if using not in METERS:
        raise UnknownName("meter", using, [*METERS, "auto"])
    METERS[using].needs()
    return METERS[using]


def why_not(meter: Meter) -> str | None:
    """The reason why the meter cannot work here, with the remedy; None if it can work."""
    try:
        meter.needs()
    except RedblueError as error:
        return str(error)
    return None


def others(name: str) -> dict[str, str]:
    """The reason why "auto" did not choose a meter, for every meter except `name`."""
    reasons: dict[str, Any] = {
        candidate.name: why_not(candidate) for candidate in METERS.values() if candidate.name != name
    }
    return {other: reason or f"works here, too: {METERS[other].measures}" for other, reason in reasons.items()}
