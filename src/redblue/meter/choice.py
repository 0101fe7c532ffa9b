"""Measure a problem with the meter of that name, or with the best one that works here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from redblue.bounds import lower_bound
from redblue.errors import RedblueError, UnknownName
from redblue.machine import CacheLevel
from redblue.meter import cachegrind, probe, valgrind
from redblue.meter.calls import KernelCall, kernel_call
from redblue.meter.record import Measurement, now
from redblue.planner import describe
from redblue.problem import Problem


@dataclass(frozen=True)
class Request:
    """What is to be measured; see `measure`."""

    problem: Problem
    cache: CacheLevel
    inner: CacheLevel | None
    schedule: str | None
    tiles: Mapping[str, int] | None
    plan_words: int


@dataclass(frozen=True)
class Meter:
    """A meter of problems. needs: raises RedblueError, with the remedy, where it cannot work here."""

    name: str
    measures: str
    needs: Callable[[], object]
    measure: Callable[[Request], Measurement]


def measure(
    problem: Problem,
    *,
    words: int,
    using: str = "auto",
    schedule: str | None = None,
    tiles: Mapping[str, int] | None = None,
    plan_words: int | None = None,
    line_bytes: int = 64,
    ways: int | None = None,
    inner: CacheLevel | None = None,
) -> Measurement:
    """What a compiled kernel really moves between a fast memory of `words` words and the slow one.

    using: a meter ("probe", "cachegrind"), or "auto": the best that works here. schedule: what the kernel follows
    ("flash", "flash_onepass", "gather"). tiles: its edges, by name; if None, tiles for plan_words (`words` if None).
    line_bytes, ways (None: full), inner: of cachegrind: the cache's lines and associativity, and a cache nearer to the
    core, which sees every access first. Raises RedblueError, for a meter that cannot work here with the remedy.
    """
    if isinstance(words, bool) or not isinstance(words, int) or words < 1:
        raise RedblueError(f"words must be a whole number of at least 1, got {words!r}")
    meter = chosen(using)
    cache = CacheLevel("cache", words * problem.bytes_per_word, line_bytes, ways)
    return meter.measure(Request(problem, cache, inner, schedule, tiles, plan_words or words))


def chosen(using: str) -> Meter:
    """The meter of that name, which works here; of "auto", the first that does. Raises RedblueError."""
    if using == "auto":
        return next(meter for meter in METERS.values() if why_not(meter) is None)
    if using not in METERS:
        raise UnknownName("meter", using, [*METERS, "auto"])
    METERS[using].needs()
    return METERS[using]


def why_not(meter: Meter) -> str | None:
    """Why it cannot work here; None if it can."""
    try:
        meter.needs()
    except RedblueError as error:
        return str(error)
    return None


def _by_probe(request: Request) -> Measurement:
    call = kernel_call(request.problem, request.plan_words, request.schedule, request.tiles)
    reads, writes = probe.moved(call)
    each = request.problem.bytes_per_word
    return _record(
        request,
        call,
        bytes_read=reads * each,
        bytes_written=writes * each,
        meter="probe",
        how="the kernel counts the words that it moves between its tiles and the arrays",
        tool=f"redblue {version('redblue')}",
    )


def _by_cachegrind(request: Request) -> Measurement:
    call = kernel_call(request.problem, request.plan_words, request.schedule, request.tiles, cachegrind.isa())
    lines, _ = cachegrind.measure_call(call, request.cache, request.inner)
    line = request.cache.line_bytes
    return _record(
        request,
        call,
        bytes_read=line * (lines["read_miss_lines"] + lines["write_allocate_lines"]),
        bytes_written=line * (lines["written_back_lines"] + lines["outputs_left_lines"]),
        meter="cachegrind",
        how=f"lines of {line} bytes, {_shape(request.cache)}, LRU, write-back"
        + (f", behind {request.inner.capacity_bytes:,} bytes, {_shape(request.inner)}" if request.inner else ""),
        tool=valgrind.find()[1],
        parts=lines,
    )


def _shape(cache: CacheLevel) -> str:
    return f"{cache.ways} ways" if cache.ways else "fully associative"


def _record(request: Request, call: KernelCall, **found: Any) -> Measurement:
    problem, cache = request.problem, request.cache
    words = cache.capacity_bytes // problem.bytes_per_word
    return Measurement(
        problem=describe(problem),
        kernel=call.kernel,
        schedule=call.schedule,
        tiles=call.tiles,
        boundary=f"fast memory of {cache.capacity_bytes:,} bytes/slow memory",
        capacity_bytes=cache.capacity_bytes,
        bytes_per_word=problem.bytes_per_word,
        counted_words=call.counted_words(),
        bound_words=lower_bound(problem, words).words,
        date=now(),
        **found,
    )


# The best first
METERS = {
    meter.name: meter
    for meter in (
        Meter("cachegrind", "cache lines of the CPU kernel, simulated by valgrind", valgrind.find, _by_cachegrind),
        Meter("probe", "words of the CPU kernel, as it counts them itself", lambda: None, _by_probe),
    )
}
