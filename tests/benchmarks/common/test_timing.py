"""Races of contenders, and the interval of a median."""

import random

from benchmarks.common import timing
from benchmarks.common.timing import median_interval, race, second_and_looped, shown_ratio


def test_every_second_round_runs_in_the_opposite_order():
    turns = []

    def contender(name):
        return lambda: turns.append(name) or 1.0

    rates = race({name: contender(name) for name in "abc"}, rounds=3)
    assert "".join(turns) == "cba" + "abc" + "cba" + "abc"  # the first round is the warm-up
    assert rates == {name: [1.0] * 3 for name in "abc"}


def test_a_race_without_warm_up_reports_every_round():
    turns = []
    times = race({name: lambda name=name: turns.append(name) or (len(turns), 0) for name in "ab"}, 2, warm_ups=0)
    assert "".join(turns) == "ab" + "ba"
    assert times == {"a": [(1, 0), (4, 0)], "b": [(2, 0), (3, 0)]}


def test_the_second_call_after_idle_time_and_the_median_of_a_loop(monkeypatch):
    seconds = iter([0.005, 0.004, 0.001, 0.003, 0.002, 0.001])
    monkeypatch.setattr(timing, "seconds_of", lambda call: next(seconds))
    assert second_and_looped(lambda: None) == (0.004, 0.002)


def test_a_long_call_is_not_repeated(monkeypatch):
    seconds = iter([0.5, 0.4])
    monkeypatch.setattr(timing, "seconds_of", lambda call: next(seconds))
    assert second_and_looped(lambda: None) == (0.4, 0.4)


def test_few_values_hold_no_interval():
    assert median_interval([]) is None
    assert median_interval([1.0] * 5) is None
    assert median_interval([3.0, 1.0, 2.0, 6.0, 5.0, 4.0]) == (1.0, 6.0)


def test_the_interval_holds_the_median_in_at_least_95_of_100_samples():
    draw = random.Random(0)
    for n, least in [(7, 0.95), (24, 0.95), (60, 0.95)]:
        held = 0
        for _ in range(2000):
            low, high = median_interval([draw.random() for _ in range(n)])
            held += low <= 0.5 <= high
        assert least - 0.01 < held / 2000 < 0.995


def test_a_ratio_is_shown_with_its_interval_where_there_is_one():
    ours, theirs = [2.0] * 6 + [3.0], [1.0] * 7
    assert shown_ratio({"a": ours, "b": theirs}, "a", "b") == "2.00 (2.00 to 3.00)"
    assert shown_ratio({"a": ours[:2], "b": theirs[:2]}, "a", "b") == "2.00"
