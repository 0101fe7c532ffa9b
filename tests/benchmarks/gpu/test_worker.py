"""Contenders run in a worker process: one that fails, crashes or hangs costs only its own results."""

import time
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from rich.console import Console

import redblue as rb
from benchmarks.common.failures import Refused
from benchmarks.gpu import attention, calls, points
from benchmarks.gpu.worker import Failed, Here, Late, Lost, Worker


class Scripted:
    """Replaces the worker: answers from a script of failures by (method, contender), and records its requests."""

    def __init__(self, **failures):
        self.failures, self.asked = failures, []

    def ask(self, method, *arguments, seconds):
        self.asked.append((method, *arguments))
        name = arguments[0] if method == "check" else "+".join(arguments[0]) if method == "time" else ""
        failure = self.failures.pop(f"{method} {name}".strip(), None)
        if failure:
            raise failure
        return {
            "check": [1e-3],
            "peak": 900.0,
            "time": {x: [1.0] for x in arguments[0]} if method == "time" else 0,
        }.get(method)

    def end(self):
        pass


def raced(tmp_path, names=("a", "b", "c"), **failures):
    worker = Scripted(**failures)
    kept = points.Kept({"dry": True})
    tmp_path.mkdir(exist_ok=True)
    runner = attention.Runner(kept, tmp_path / "gpu.json", worker, time.monotonic() + 60, Console(quiet=True))
    runner.measure(calls.Call(64), list(names))
    return {point.contender: point for point in points.Kept.read(tmp_path / "gpu.json").points}, worker.asked


def test_contenders_are_checked_one_by_one_and_timed_in_turns(tmp_path):
    results, asked = raced(tmp_path)
    assert [x[0] for x in asked] == ["peak", "open", "check", "check", "check", "time"]
    assert asked[-1] == ("time", ["a", "b", "c"])
    assert all(point.seconds == [1.0] for point in results.values())


def test_a_crash_costs_one_result(tmp_path):
    crashed = {"check b": Lost("the process ended with status -11")}
    results, asked = raced(tmp_path, **crashed)
    assert (results["b"].passing, results["b"].refused) == (True, "the process ended with status -11")
    assert results["a"].seconds == results["c"].seconds == [1.0]
    assert [x[0] for x in asked].count("open") == 2
    assert asked[-1] == ("time", ["a", "c"])

    results, asked = raced(tmp_path / "other", **{"time a+b+c": Lost("took longer than 75 s"), "time b": Lost("x")})
    assert [results[x].refused for x in "abc"] == ["", "x", ""]
    wrong = {"check a": Failed("Red: errors", wrong=True), "check c": Failed("Refused: no", passing=False)}
    results, asked = raced(tmp_path / "wrong", **wrong)
    assert (results["a"].wrong, results["a"].seconds, results["c"].wrong) == (True, [], False)
    assert asked[-1] == ("time", ["b"])


@pytest.mark.thorough
def test_a_worker_is_replaced_after_a_crash_or_a_hang():
    from support.worker import Made

    worker = Worker(Made)
    assert worker.ask("right", 1, seconds=60) == 2
    process = worker.process.pid
    with pytest.raises(Failed, match="flash does not fit") as refused:
        worker.ask("refuse", seconds=60)
    assert not refused.value.passing
    assert worker.process.pid == process
    with pytest.raises(Lost, match="status 3") as crash:
        worker.ask("crash", seconds=60)
    assert not isinstance(crash.value, Late)
    assert worker.ask("right", 2, seconds=60) == 3
    with pytest.raises(Late, match="took longer than 0 s"):
        worker.ask("hang", seconds=0.1)
    worker.end()


def test_only_refusals_are_final():
    from triton import OutOfResources

    for failure, passing in (
        (TimeoutError("took longer than 75 s"), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 64.00 GiB"), True),
        (RuntimeError("CUDA error: unspecified launch failure"), True),
        (KeyError("some"), True),
        (Refused("no block-sparse masks"), False),
        (rb.RedblueError("flash does not fit"), False),
        (OutOfResources(300_000, 232_448, "shared memory"), False),
        (RuntimeError("No available kernel. Aborting execution."), False),
        (ValueError("head dimension 1024 is not supported"), False),
        (NotImplementedError(), False),
    ):

        def fail(failure=failure):
            raise failure

        with pytest.raises(Failed) as failed:
            Here(lambda fail=fail: SimpleNamespace(check=fail)).ask("check", seconds=1)
        assert (failed.value.passing, bool(str(failed.value))) == (passing, True), failure
