"""Timing side by side: contenders take turns, and what is reported are medians and quartiles over the rounds.

A busy host slows all that run in the same second, so ratios are taken within each round. Everything here is a rate
(work per second, more is better).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

THREADS = 2  # of every contender
LONG_SECONDS = 0.5
LEAST_ROUNDS, LONGEST_SECONDS = 7, 30.0


class Spread(NamedTuple):
    """The median and the quartiles."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, low, high)


def rate(call: Callable[[], object], work: float, seconds: float) -> float:
    """Work per second, of calls that take at least `seconds` together.

    One more call comes before, untimed: while it runs, threads that the previous contender left spinning go to sleep.
    If that one takes so long that a few milliseconds of spinning are nothing to it, it is the measurement.
    """
    start = time.perf_counter()
    call()
    taken = time.perf_counter() - start
    if taken >= max(seconds, LONG_SECONDS):
        return work / taken
    count, start = 0, time.perf_counter()
    while True:
        call()
        count += 1
        taken = time.perf_counter() - start
        if taken >= seconds:
            return work * count / taken


def race(contenders: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """The rates of each contender, one per round; a round before, to warm up, does not count.

    Rounds end early, but not before LEAST_ROUNDS, where they have taken LONGEST_SECONDS.
    """
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    start = time.perf_counter()
    for number in range(rounds + 1):
        if number > LEAST_ROUNDS and time.perf_counter() - start > LONGEST_SECONDS:
            break
        for name, measured in contenders.items():
            value = measured()
            if number:
                rates[name].append(value)
    return rates


def ratio(rates: Mapping[str, Sequence[float]], ours: str, theirs: str) -> Spread:
    """Ours over theirs, paired by round."""
    return spread([a / b for a, b in zip(rates[ours], rates[theirs], strict=True)])


def fastest(calls: Sequence[Callable[[], object]], tries: int = 3) -> Callable[[], object]:
    """Of several ways to do the same, the one whose best call is fastest."""
    if len(calls) == 1:
        return calls[0]
    best = [max(rate(call, 1, 0) for _ in range(tries)) for call in calls]
    return calls[best.index(max(best))]
