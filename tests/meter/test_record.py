"""The record: quantities of the same boundary and unit can be divided; others are refused by name."""

import dataclasses
import operator

import pytest

from redblue.base.errors import RedblueError
from redblue.meter import Amount, Measurement

ONE = Measurement(
    problem={"n_q": 4},
    kernel="flash forward, avx2",
    schedule="flash",
    tiles={"rows": 2},
    boundary="L1d/L2",
    capacity_bytes=1024,
    bytes_read=600,
    bytes_written=200,
    bytes_per_word=4,
    counted_words=100,
    bound_words=80,
    meter="cachegrind",
    how="lines",
    tool="valgrind-3.19.0",
    date="2026-01-01",
    parts={"read_miss_lines": 9},
)


def test_words_and_ratios():
    assert ONE.measured_words == 200
    assert (ONE.over_counted, ONE.over_bound) == (2.0, 2.5)
    assert ONE.measured / ONE.bound == 2.5
    assert ONE.measured > ONE.counted >= ONE.bound
    assert not ONE.measured < ONE.counted
    assert ONE.counted <= ONE.measured
    assert (ONE.measured - ONE.counted + ONE.bound).value == 180
    odd = dataclasses.replace(ONE, bytes_read=602)
    assert odd.measured_words == 200.5


def test_json_and_back():
    assert Measurement.from_json(ONE.to_json()) == ONE
    data = ONE.to_dict()
    assert (data["measured_words"], data["counted_words"], data["bound_words"]) == (200, 100, 80)
    del data["kernel"], data["date"]
    with pytest.raises(RedblueError, match="it has no kernel, date"):
        Measurement.from_dict(data)
    for text in ("[1]", "{"):
        with pytest.raises(RedblueError, match="no measurement"):
            Measurement.from_json(text)


@pytest.mark.parametrize(
    "work",
    [operator.truediv, operator.add, operator.sub, operator.lt, operator.le, operator.gt, operator.ge],
)
def test_other_boundaries_and_units_are_refused(work):
    nearer = dataclasses.replace(ONE, boundary="L2/L3").measured
    narrow = dataclasses.replace(ONE, bytes_per_word=2).measured
    with pytest.raises(RedblueError, match=r"boundary of one is L1d/L2, of the other L2/L3"):
        work(ONE.measured, nearer)
    with pytest.raises(RedblueError, match=r"unit of one is words of 4 bytes, of the other words of 2 bytes"):
        work(ONE.measured, narrow)
    with pytest.raises(RedblueError, match="only be compared with an Amount, got 3"):
        work(ONE.measured, 3)


def test_what_nobody_said():
    bare = dataclasses.replace(ONE, counted_words=None, bound_words=None)
    assert bare.over_counted is None
    assert bare.over_bound is None
    with pytest.raises(RedblueError, match="the counted words of flash forward, avx2 are not known"):
        _ = bare.counted
    with pytest.raises(RedblueError, match="the divisor must not be 0"):
        _ = ONE.measured / Amount(0, ONE.unit, ONE.boundary)
