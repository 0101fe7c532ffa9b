"""Waits for messages: their ends, and the memory that they hold."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from redblue.distributed import failures
from redblue.distributed.groups import device_of
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


def test_waits_on_other_backends():
    processes = Processes(2)
    try:
        assert processes.run(calls.other_backends) == [["cpu:gloo", "gloo"]] * 2
    finally:
        processes.close()


def group(kinds, bound=None) -> Any:
    """The parts of a process group that `device_of` reads."""
    return SimpleNamespace(_device_types=kinds, bound_device_id=bound)


def test_the_device_of_the_agreement_comes_from_the_group():
    cpu, gpu, meta = torch.device("cpu"), torch.device("cuda"), torch.device("meta")
    x, of_cpu = torch.ones(1, device="meta"), torch.ones(1)
    assert device_of(group([gpu, cpu]), x) == device_of(group([cpu]), None) == cpu
    assert device_of(group([meta]), x) == meta
    assert device_of(group([gpu]), of_cpu) == device_of(group([gpu]), [1.0]) == gpu
    assert device_of(group([gpu], torch.device("cuda:1")), of_cpu) == torch.device("cuda:1")


@pytest.mark.thorough
def test_sent_tensors_are_freed_while_a_ring_runs():
    processes = Processes(5)
    try:
        for alive, sent in processes.run(calls.leaving_tensors):
            assert sent > 20
            assert alive <= 4  # two exchanges of two tensors
    finally:
        processes.close()
