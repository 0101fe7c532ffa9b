"""The timer of the GPU benchmarks, on a stand-in for the device: which operations are queued, and which are timed."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from benchmarks.gpu import timing


@pytest.fixture
def device(clock, monkeypatch):
    monkeypatch.setattr(timing.Device, "__init__", lambda self: None)
    device = timing.Device()
    device.flushed = SimpleNamespace(zero_=lambda: clock.log.append("flush"))
    return device


def test_contenders_alternate_on_a_flushed_cache(clock, device):
    long, short = 0.05, 1e-3
    times = device.in_turns({"long": clock.call("long", long), "short": clock.call("short", short)})
    assert times["long"] == pytest.approx([long] * timing.MIN_COUNT)
    assert times["short"] == pytest.approx([short] * timing.MAX_COUNT)
    flushed, asleep = ["flush", "event"], ["flush", "sleep", "event"]
    warm = ["long", "short", *flushed, "long", "event", *flushed, "short", "event", "wait"]
    assert clock.log[: len(warm)] == warm
    a, b = [*flushed, "long", "event"], [*asleep, "short", "event"]
    both = timing.MIN_COUNT
    turns = [*a, *b, *b, *a] * (both // 2) + [*a, *b] * (both % 2) + b * (timing.MAX_COUNT - both)
    assert clock.log[len(warm) :] == [*turns, "wait"]


@pytest.mark.parametrize(
    ("settings", "turn"),
    [
        ({}, ["event", "a", "event"]),
        ({"ahead": timing.sleep_ahead}, ["sleep", "event", "a", "event"]),
        (
            {"ahead": timing.call_ahead, "calls": 3, "queue_all": False},
            ["a", "event", "a", "a", "a", "event", "wait"],
        ),
    ],
    ids=["wide", "hopper_backward", "hopper"],
)
def test_variants_are_repeated_as_their_benchmark_asks(clock, settings, turn):
    times = timing.in_rounds({"a": clock.call("a", 0.5), "b": clock.call("b", 0.25)}, 2, **settings)
    assert times == {"a": [0.5, 0.5], "b": [0.25, 0.25]}
    other = ["b" if each == "a" else each for each in turn]
    assert clock.log == ["a", "b", *[*turn, *other] * 2, *["wait"] * settings.get("queue_all", True)]
