"""The measures of the benchmark: each makes the inputs of its calls once, checks all contenders, then times them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks.common.gate import REDBLUE, Gate, Results, correct
from benchmarks.common.other_process import Other, raced
from benchmarks.common.results import Figure, Limit, Row
from benchmarks.common.roof import OVER_LAST_CACHE, last_cache_bytes
from benchmarks.common.timing import THREADS, best_of, race, rate, ratio
from benchmarks.cpu.calls import SHORT, on_threads
from benchmarks.cpu.paged.calls import HEADS_OUTSIDE, ROWS_OUTSIDE, Call, Inputs, inputs
from benchmarks.cpu.paged.contenders import (
    CONTIGUOUS,
    GATHERED,
    MAKERS,
    PRODUCTS,
    READS,
    TRANSFORMERS,
    products,
    reads,
    redblue,
)
from benchmarks.cpu.paged.gate import gate
from benchmarks.cpu.paged.gathered import Run

READ_SHARE = Limit(0.85)
CONTIGUOUS_SHARE = Limit(0.95)
OVER_GATHER, OVER_GATHER_MLA, OVER_OTHERS = Limit(2), Limit(3), Limit(1.2)
SKEW, SCALING, SHARING, MLA_ROOF = Limit(1.15), Limit(1.9), Limit(6), Limit(1.3)
MAX_FLOPS_PER_BYTE = 4  # of calls that are bound by reads
OVER_ROOF = "time / max(read, multiply-add)"

Contenders = dict[str, Callable[[], float]]


@dataclass
class Settings:
    """How to measure. others: peers in separate processes. absent: the reasons why peers are missing from all rows."""

    rounds: int = 7
    seconds: float = 0.05  # of each contender in each round
    alone: bool = False
    others: list[Other] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Measure:
    """One row of the results. calls: the calls of redblue that it times, by name. quick: part of a quick run."""

    name: str
    calls: dict[str, Call]
    run: Callable[[Measure, Settings], Row]
    quick: bool = False
    limits: Mapping[str, Limit] = field(default_factory=dict)

    @property
    def call(self) -> Call:
        return next(iter(self.calls.values()))

    @property
    def title(self) -> str:
        return f"{self.name}, {SHORT[self.call.dtype]}, {self.call.title}"

    def row(self, figures: list[Figure], rates: dict[str, list[float]], unit: str, note: str = "") -> Row:
        parameters: dict[str, Any] = {"bytes": self.call.bytes, "flops": self.call.flops, "dtype": self.call.dtype}
        return Row(f"{self.name}, {SHORT[self.call.dtype]}", self.call.title, figures, rates, unit, note, parameters)


def work_of(call: Call) -> tuple[float, str]:
    """The work of a call, and the unit of its rate: bytes if reads bound the time, otherwise FLOPs."""
    return (call.bytes / 1e9, "GB/s") if read_bound(call) else (call.flops / 1e9, "GFLOP/s")


def read_bound(call: Call) -> bool:
    return call.flops <= MAX_FLOPS_PER_BYTE * call.bytes


def checked(run: Run, known: Gate) -> Run:
    """Return a run of redblue after a check. Raises Red if its result is wrong."""
    known.check(REDBLUE, [run()])
    return run


def timed(run: Run, work: float, settings: Settings) -> Callable[[], float]:
    return partial(rate, run, work, settings.seconds)


def compared(measure: Measure, settings: Settings) -> Row:
    """Time redblue, all peers and both rooflines in alternation."""
    call, (work, unit) = measure.call, work_of(measure.call)
    x = inputs(call)
    known = gate(call, x)
    contenders: Contenders = {REDBLUE: timed(checked(redblue(call, x), known), work, settings)}
    notes: dict[str, str] = {}
    if not settings.alone:
        contenders |= _peers(call, x, known, settings, notes)
    contenders |= roofs(call, work, settings)
    rates = raced(contenders, settings.rounds, notes)
    for other in settings.others:
        other.drop()
    figures = roof_figures(call, rates, measure.limits) + peer_figures(rates, measure.limits)
    return measure.row(figures, rates, unit, "; ".join(f"{name}: {reason}" for name, reason in notes.items()))


def _peers(call: Call, x: Inputs, known: Gate, settings: Settings, notes: dict[str, str]) -> Contenders:
    """The peers with correct results. Adds the reasons why others are missing to `notes`."""
    work, _ = work_of(call)
    by_rows = x
    if call.layout == HEADS_OUTSIDE:  # the peers gather from the layout that suits them
        k = x.k.contiguous()
        by_rows = x._replace(k=k, v=k[..., : call.d_v] if call.d_v else x.v.contiguous())

    def here(make: Callable[[Call, Inputs], Run]) -> tuple[Results, Callable[[], float]]:
        run = make(call, by_rows)
        return [run()], timed(run, work, settings)

    def elsewhere(other: Other) -> tuple[Results, Callable[[], float]]:
        return [other.load(call.to_json())], partial(other.time, rate, work, settings.seconds)

    prepared = {name: partial(here, make) for name, make in MAKERS.items()}
    prepared |= {other.peer: partial(elsewhere, other) for other in settings.others}
    return correct(known, prepared, notes)


def roofs(call: Call, work: float, settings: Settings) -> Contenders:
    """Both rooflines as contenders."""
    return {READS: reads(call, work, settings.seconds), PRODUCTS: products(call, work, settings.seconds)}


def slower_roof(rates: dict[str, list[float]]) -> list[float]:
    """The rate of the slower roofline in each round."""
    return [min(pair) for pair in zip(rates[READS], rates[PRODUCTS], strict=True)]


def roof_figures(call: Call, rates: dict[str, list[float]], limits: Mapping[str, Limit]) -> list[Figure]:
    """The share of the read rate if reads bound the time; otherwise the time over the slower roofline's time."""
    if read_bound(call):
        level = "DRAM" if call.bytes >= OVER_LAST_CACHE * last_cache_bytes() else "cache"
        bar = READ_SHARE if call.dtype != "float16" else Limit()
        return [Figure(f"of {READS}, {level}", ratio(rates, REDBLUE, READS), limits.get(READS, bar), "%")]
    over = ratio(rates | {"roof": slower_roof(rates)}, "roof", REDBLUE)
    return [Figure(OVER_ROOF, over, limits.get(OVER_ROOF, Limit()), at_most=True)]


def peer_figures(rates: dict[str, list[float]], limits: Mapping[str, Limit]) -> list[Figure]:
    """redblue over each peer. The limit for the peers that gather applies to the faster one."""
    gathering = [name for name in (TRANSFORMERS, GATHERED) if name in rates]
    faster = best_of(rates, gathering)
    bars = {faster: limits.get(GATHERED, OVER_GATHER), CONTIGUOUS: CONTIGUOUS_SHARE}
    figures = []
    for name in rates:
        if name in (REDBLUE, READS, PRODUCTS):
            continue
        bar = bars.get(name, Limit() if name in gathering else OVER_OTHERS)
        what, unit = (f"of {name}", "%") if name == CONTIGUOUS else (f"over {name}", "x")
        figures.append(Figure(what, ratio(rates, REDBLUE, name), bar, unit))
    return figures


def skewed(measure: Measure, settings: Settings) -> Row:
    """Compare two calls on the same bytes: sequences of equal lengths, and one long sequence among short ones."""
    contenders: Contenders = {}
    for name, call in measure.calls.items():
        x = inputs(call)
        run = checked(redblue(call, x), gate(call, x))
        contenders[name] = timed(run, call.bytes / 1e9, settings)
    rates = race(contenders, settings.rounds)
    over = ratio(rates, "balanced", "skewed")
    return measure.row([Figure("time per byte over balanced", over, SKEW, at_most=True)], rates, "GB/s")


def scaling(measure: Measure, settings: Settings) -> Row:
    """Compare one thread with all threads; the read rates show what the memory allows."""
    call = measure.call
    x, work = inputs(call), call.bytes / 1e9
    run = checked(redblue(call, x), gate(call, x))
    contenders: Contenders = {}
    for threads in (1, THREADS):
        contenders[f"{REDBLUE}, {threads}"] = partial(on_threads, threads, timed(run, work, settings))
        contenders[f"{READS}, {threads}"] = reads(call, work, settings.seconds, threads)
    rates = race(contenders, settings.rounds)
    figures = [
        Figure(f"{THREADS} threads over 1", ratio(rates, f"{REDBLUE}, {THREADS}", f"{REDBLUE}, 1"), SCALING),
        Figure(f"{READS}, {THREADS} threads over 1", ratio(rates, f"{READS}, {THREADS}", f"{READS}, 1"), Limit()),
    ]
    return measure.row(figures, rates, "GB/s")


def sharing(measure: Measure, settings: Settings) -> Row:
    """Compare calls that find and use a shared prefix with calls that do not."""
    call = measure.call
    x, work = inputs(call), call.flops / 1e9
    known = gate(call, x)
    contenders: Contenders = {}
    for name, pages in (("found", None), ("named", call.shared // call.page), ("no sharing", 0)):
        contenders[name] = timed(checked(redblue(call, x, pages), known), work, settings)
    contenders |= roofs(call, work, settings)
    rates = race(contenders, settings.rounds)
    figures = [
        Figure("over no sharing", ratio(rates, "found", "no sharing"), SHARING),
        Figure("named over found", ratio(rates, "named", "found"), Limit()),
        Figure(OVER_ROOF, ratio(rates | {"roof": slower_roof(rates)}, "roof", "found"), Limit(), at_most=True),
    ]
    return measure.row(figures, rates, "GFLOP/s")


def layouts(measure: Measure, settings: Settings) -> Row:
    """Compare a call on both layouts of pages."""
    contenders: Contenders = {}
    for name, call in measure.calls.items():
        x = inputs(call)
        contenders[name] = timed(checked(redblue(call, x), gate(call, x)), call.bytes / 1e9, settings)
    rates = race(contenders, settings.rounds)
    return measure.row(
        [Figure(f"{HEADS_OUTSIDE} over {ROWS_OUTSIDE}", ratio(rates, HEADS_OUTSIDE, ROWS_OUTSIDE), Limit())],
        rates,
        "GB/s",
    )
