"""Measure a problem with the meter of that name, or with the best one that works here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from redblue.base.errors import RedblueError, UnknownName
from redblue.base.integers import whole_number
from redblue.machine import CacheLevel
from redblue.meter import meters, ncu, valgrind
from redblue.meter.meters import Request
from redblue.meter.record import Measurement
from redblue.problem import Problem


@dataclass(frozen=True)
class Meter:
    """A meter of problems. needs: raises RedblueError, with the remedy, where it cannot work here.

    any_words: it measures a fast memory of any size; the others those that the machine has.
    """

    name: str
    measures: str
    needs: Callable[[], object]
    measure: Callable[[Request], Measurement]
    any_words: bool


# The best first: what sees the lines of real or simulated caches before what counts the words that a kernel names
METERS = {
    meter.name: meter
    for meter in (
        Meter("cachegrind", "cache lines of the CPU kernel, simulated", valgrind.find, meters.by_cachegrind, True),
        Meter("probe", "words of the CPU kernel, as it counts them", lambda: None, meters.by_probe, True),
        Meter(
            "interpreter", "words of the Triton kernel, as it is run", meters.needs_triton, meters.by_interpreter, True
        ),
        Meter("counters", "lines between this CPU's memories", meters.needs_counters, meters.by_counters, False),
        Meter("ncu", "bytes between a GPU's memories", ncu.find, meters.by_ncu, False),
    )
}
REAL = ("ncu", "counters")  # what "auto" takes, the best first, where the machine's own memories are asked for


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
    """What a compiled kernel really moves between a fast memory of `words` words and the slow one.

    using: "cachegrind", "probe", "interpreter", "counters", "ncu", or "auto": the best that works here. counters and
    ncu measure the memories that the machine has: boundary names one, such as "L2/L3" or "L2/DRAM"; if None, that of
    the smallest which holds `words`. With a boundary, "auto" means one of these two.
    schedule: what the kernel follows ("flash", "hybrid", "small_cache", "gather", backward "flash_onepass" ...); if
    None, the usual one. tiles: its edges, by name; if None, tiles for a fast memory of plan_words (`words` if None).
    line_bytes, ways (None: full), inner: of cachegrind: the cache's lines and associativity, and a cache nearer to the
    core, which sees every access first. Raises RedblueError, for a meter that cannot work here with the remedy.
    """
    for name, value in (("words", words), ("plan_words", plan_words)):
        if value is not None:
            whole_number(name, value, most=math.inf)
    meter = chosen(using, boundary)
    if words is None and meter.any_words:
        raise RedblueError(f"{meter.name} measures a fast memory of any size: give its words (example: words=8192)")
    if boundary is not None and meter.any_words:
        raise RedblueError(f"{meter.name} measures a fast memory of so many words; a boundary is for {', '.join(REAL)}")
    cache = None if words is None else CacheLevel("cache", int(words) * problem.bytes_per_word, line_bytes, ways)
    return meter.measure(Request(problem, words, plan_words, schedule, tiles, boundary, cache, inner))


def chosen(using: str, boundary: str | None = None) -> Meter:
    """The meter of that name, which works here; of "auto", the first that does. Raises RedblueError."""
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
    """Why it cannot work here, with the remedy; None if it can."""
    try:
        meter.needs()
    except RedblueError as error:
        return str(error)
    return None


def others(name: str) -> dict[str, str]:
    """Of every other meter, why it was not taken."""
    found: dict[str, Any] = {each.name: why_not(each) for each in METERS.values() if each.name != name}
    return {each: reason or f"works here, too: {METERS[each].measures}" for each, reason in found.items()}
