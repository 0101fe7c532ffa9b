"""Processes that die or stall: every other process names them within the timeout, and nothing is left behind."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch")

from support import distributed_faults as faults
from support.processes import Processes

TIMEOUT_SECONDS = 2.0
SLACK_SECONDS = 30.0  # of a busy computer


@contextmanager
def group(size=4, store="file", timeout_seconds=TIMEOUT_SECONDS):
    """Connected processes, all of which must be gone at the end."""
    processes = Processes(size, timeout_seconds, store)
    try:
        processes.run(faults.call)
        yield processes
    finally:
        processes.close()


def check_fault(victim, how, when, store, schedule="ring"):
    with group(store=store) as processes:
        processes.start(faults.fail, victim, how, when, schedule)
        others = [c for rank, c in enumerate(processes.connections) if rank != victim]
        results = processes.finish(120.0, others)
    for result in results:
        assert result is not None
        succeeded, details = result
        assert succeeded, details
        seconds, named = details
        assert named == victim, results
        assert seconds < TIMEOUT_SECONDS + SLACK_SECONDS, results


FAULTS = [
    (0, "kill", "before", "tcp"),
    # The others wait for connections or for the group's timeout.
    pytest.param(2, "kill", "within", "tcp", marks=pytest.mark.thorough),
    pytest.param(0, "stop", "within", "tcp", marks=pytest.mark.thorough),
    pytest.param(3, "stop", "before", "file", marks=pytest.mark.thorough),
    pytest.param(1, "sleep", "backward", "file", marks=pytest.mark.thorough),
]


@pytest.mark.parametrize(("victim", "how", "when", "store"), FAULTS)
def test_every_other_rank_names_the_one_that_failed(victim, how, when, store):
    check_fault(victim, how, when, store)


@pytest.mark.thorough
def test_gather_names_the_rank_that_failed():
    with group(size=3) as processes:
        processes.start(faults.fail_before_gradients_of_gather, 2)
        results = processes.finish(120.0, processes.connections[:2])
    assert results == [(True, 2)] * 2


@pytest.mark.thorough
@pytest.mark.parametrize("repetition", range(12))
def test_faults_of_all_kinds(repetition):
    how, when = ("kill", "stop")[repetition % 2], ("before", "within", "backward")[repetition % 3]
    store, schedule = ("file", "tcp")[repetition // 2 % 2], ("ring", "mesh", "all_gather")[repetition // 4 % 3]
    check_fault(repetition % 4, how, when, store, schedule)


@pytest.mark.thorough
def test_failed_calls_leave_no_memory():
    calls = 300
    with group(2) as processes:
        processes.start(faults.memory_of_failed_calls, calls)
        (outcome,) = processes.finish(120.0, processes.connections[:1])
    assert outcome is not None
    succeeded, sizes = outcome
    assert succeeded, sizes
    assert sizes[1] - sizes[0] < calls, "more than 1.5 KiB per call"


@pytest.mark.thorough
def test_interrupt_ends_a_wait():
    with group(3, timeout_seconds=60.0) as processes:
        processes.start(faults.wait_for_interrupt)
        outcomes = processes.finish()
    assert all(outcome is not None and outcome[0] for outcome in outcomes), outcomes
    assert all(0 < seconds < 30 for _, seconds in outcomes[1:]), outcomes
