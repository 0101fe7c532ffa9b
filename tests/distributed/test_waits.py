"""Waits for messages: their ends, and the memory that they hold."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

torch = pytest.importorskip("torch")

from redblue.distributed import failures
from support import distributed_calls as calls
from support.processes import Processes


class Late(Future):
    """A future that gets its result at the end of a wait for it."""

    def result(self, timeout=None):
        if timeout is not None and not self.done():
            self.set_result(None)
            raise TimeoutError
        return super().result(timeout)


def test_a_message_that_arrives_at_the_end_of_a_tick_is_no_timeout(monkeypatch):
    monkeypatch.setattr(failures, "TICK_SECONDS", 0.05)
    monkeypatch.setattr(failures.Failures, "_look", lambda self, rank: True)
    monkeypatch.setattr(failures.Failures, "_key", lambda self, rank: "")
    waits, late = object.__new__(failures.Failures), Late()
    waits.rank = 0
    timer = threading.Timer(0.2, lambda: late.done() or late.set_result(None))
    timer.start()
    waits._watch(late, 1)
    timer.join()
    assert late.done()


def test_sent_tensors_are_freed_while_a_ring_runs():
    processes = Processes(5)
    try:
        for alive, sent in processes.run(calls.leaving_tensors):
            assert sent > 20
            assert alive <= 4  # two exchanges of two tensors
    finally:
        processes.close()
