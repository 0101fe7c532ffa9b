"""Time contenders in alternation, and report medians and quartiles over the rounds.

A busy host slows all contenders that run in the same second, so ratios are computed within each round. All results are
rates (work per second; more is better).
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

Result = TypeVar("Result")
THREADS = 2  # of every contender
LONG_SECONDS = 0.5
MIN_ROUNDS, MAX_SECONDS = 7, 30.0
IDLE_SECONDS = 0.02
LOOP_SECONDS = 0.01  # of calls in a loop


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


def with_seconds(call: Callable[[], Result]) -> tuple[Result, float]:
    """The result of one call, and its seconds."""
    start = time.perf_counter()
    result = call()
    return result, time.perf_counter() - start


def seconds_of(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    return with_seconds(call)[1]


def rate(call: Callable[[], object], work: float, seconds: float) -> float:
    """Work per second, measured over as many calls as take at least `seconds` in total.

    A warm-up call comes first, during which spinning threads of the previous contender go to sleep. If the warm-up call
    takes so long that a few milliseconds of spinning do not matter, its time is the result.
    """
    elapsed = seconds_of(call)
    if elapsed >= max(seconds, LONG_SECONDS):
        return work / elapsed
    count, start = 0, time.perf_counter()
    while True:
        call()
        count += 1
        elapsed = time.perf_counter() - start
        if elapsed >= seconds:
            return work * count / elapsed


def second_and_looped(call: Callable[[], object]) -> tuple[float, float]:
    """Seconds of the second call after idle time, and of a call in a loop."""
    time.sleep(IDLE_SECONDS)
    first, second = seconds_of(call), seconds_of(call)
    loop = [second]
    while sum(loop) < LOOP_SECONDS and first < LOOP_SECONDS:
        loop.append(seconds_of(call))
    return second, statistics.median(loop[1:] or loop)


def race(
    contenders: Mapping[str, Callable[[], Result]], rounds: int, seconds: float = MAX_SECONDS, warm_ups: int = 1
) -> dict[str, list[Result]]:
    """The results (rates or times) of each contender, one per round, after warm-up rounds that are not reported.

    Every second round runs in the opposite order, because each contender inherits the caches and the heat of the
    previous one. The race stops early if `seconds` have passed and at least MIN_ROUNDS rounds are complete.
    """
    results: dict[str, list[Result]] = {name: [] for name in contenders}
    order = list(contenders.items())
    start = time.perf_counter()
    for number in range(-warm_ups, rounds):
        if number >= MIN_ROUNDS and time.perf_counter() - start > seconds:
            break
        for name, measured in order[::-1] if number % 2 else order:
            value = measured()
            if number >= 0:
                results[name].append(value)
    return results


def ratio(rates: Mapping[str, Sequence[float]], ours: str, theirs: str) -> Spread:
    """The ratio of the rates of `ours` to those of `theirs`, computed round by round."""
    return spread(_ratios(rates, ours, theirs))


def shown_ratio(rates: Mapping[str, Sequence[float]], ours: str, theirs: str) -> str:
    """The median of the ratio as text, with its 95 % interval if there are enough rounds."""
    values = _ratios(rates, ours, theirs)
    interval = median_interval(values)
    between = f" ({interval[0]:.2f} to {interval[1]:.2f})" if interval else ""
    return f"{statistics.median(values):.2f}{between}"


def _ratios(rates: Mapping[str, Sequence[float]], ours: str, theirs: str) -> list[float]:
    return [a / b for a, b in zip(rates[ours], rates[theirs], strict=True)]


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the median, between two of the values; None for fewer than 6 values, which are too few.

    For any distribution, a value lies above the median with probability 1/2.
    """
    n = len(values)
    tails, chance = 0, 0.0
    while (chance := chance + math.comb(n, tails) / 2**n) <= 0.025:
        tails += 1
    ordered = sorted(values)
    return (ordered[tails - 1], ordered[n - tails]) if tails else None


def best_of(rates: Mapping[str, Sequence[float]], names: Iterable[str]) -> str:
    """The name with the highest median rate, the first one in a tie; "" if there are no names."""
    return max(names, key=lambda name: spread(rates[name]).median, default="")


def fastest(calls: Sequence[Callable[[], object]], tries: int = 3) -> Callable[[], object]:
    """The call with the shortest time, out of several that compute the same result; each is tried `tries` times."""
    if len(calls) == 1:
        return calls[0]
    best = [max(rate(call, 1, 0) for _ in range(tries)) for call in calls]
    return calls[best.index(max(best))]
