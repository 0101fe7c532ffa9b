"""A stand-in for a GPU and its clock, on which benchmarks can measure without a GPU."""

import pytest


class Clock:
    """Stands in for the device: calls advance its time, and `log` has the names of all operations in order.

    tick: the seconds that each event takes, so that other calls have a time as well.
    """

    def __init__(self):
        self.log, self.seconds, self.tick = [], 0.0, 0.0

    def call(self, name, seconds):
        """A function that takes the device this long."""

        def run():
            self.log.append(name)
            self.seconds += seconds

        return run

    def event(self, enable_timing):
        assert enable_timing
        return Event(self)


class Event:
    def __init__(self, clock):
        self.clock = clock

    def record(self):
        self.clock.log.append("event")
        self.seconds = self.clock.seconds
        self.clock.seconds += self.clock.tick

    def elapsed_time(self, end):
        assert self.clock.log[-1] == "wait", "the device may not have reached the events"
        return 1e3 * (end.seconds - self.seconds)


@pytest.fixture
def clock(monkeypatch):
    """A clock that replaces PyTorch's events, sleeps and waits."""
    import torch

    clock = Clock()
    monkeypatch.setattr(torch.cuda, "Event", clock.event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: clock.log.append("sleep"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: clock.log.append("wait"))
    return clock
