"""Peers in processes of their own: what the parent asks, what the child answers, and how either fails."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from benchmarks.common import child, timing
from benchmarks.common.failures import PeerFailed, Refused
from benchmarks.common.other_process import LIBRARIES, NEWEST_PYTORCH, VLLM, ZENTORCH, Other, raced, started
from benchmarks.common.timing import rate, second_and_looped
from benchmarks.cpu.calls import Call, inputs, pytorch

GRID = "benchmarks.cpu.models.others"
CALL = Call(8, n_q=5, n_k=5, heads=2, causal=True)


def script(tmp_path, text):
    """A Python that is a shell script."""
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\n{text}\n")
    fake.chmod(0o755)
    return fake


def test_a_process_gives_the_results_and_both_times_of_a_call():
    other = Other(NEWEST_PYTORCH, GRID, Path(sys.executable))
    try:
        (out,) = other.load(CALL.to_json())
        assert torch.equal(out, pytorch(CALL, inputs(CALL))()[0])
        second, looped = other.time(second_and_looped)
        assert second > 0
        assert looped > 0
        assert other.time(rate, 1.0, 1e-3) > 0
        other.drop()
        assert other.version == torch.__version__
    finally:
        other.close()


def test_the_clock_runs_in_the_child(tmp_path, monkeypatch):
    calls = []
    server = child.Server(lambda call: lambda: calls.append(call) or [torch.ones(call["n"])])
    results = tmp_path / "results.pt"
    assert server.answer({"do": "load", "call": {"n": 3}, "results": str(results)}) == {}
    assert torch.load(results)[0].tolist() == [1, 1, 1]
    monkeypatch.setattr(timing, "seconds_of", lambda run: len(run()))
    assert server.answer({"do": "time", "how": "second_and_looped", "arguments": []}) == {"result": (1, 1)}
    assert calls == [{"n": 3}] * 3
    assert server.answer({"do": "drop"}) == {}
    assert server.run is None


@pytest.mark.parametrize(
    ("failure", "answer"),
    [
        (Refused("it is Monday"), {"refused": "it is Monday"}),
        (ValueError("bad\nvery bad"), {"failed": "ValueError: bad"}),
        (ValueError(), {"failed": "ValueError"}),
    ],
)
def test_a_call_that_does_not_run_has_a_reason(failure, answer):
    def make(call):
        raise failure

    assert child.Server(make).answer({"do": "load", "call": {}, "results": ""}) == answer


@pytest.mark.parametrize(("kind", "error"), [("refused", Refused), ("failed", PeerFailed)])
def test_another_python_is_asked_by_lines(tmp_path, kind, error):
    answers = r"{\"version\": \"1 on torch 2\"}" + rf"\n{{\"{kind}\": \"it is Monday\"}}\n"
    other = Other(VLLM, GRID, script(tmp_path, f'echo "$@" > {tmp_path}/given\nprintf "{answers}"\ncat > /dev/null'))
    with pytest.raises(error, match="it is Monday"):
        other.load(CALL.to_json())
    other.close()
    assert other.version == "1 on torch 2"
    assert (tmp_path / "given").read_text().split() == ["-m", "benchmarks.common.child", GRID, "vLLM"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("echo 'no such op' >&2", "no such op"),
        ("kill -ILL $$", "Illegal instruction"),
        ("exit 1", "it said nothing"),
    ],
)
def test_a_process_that_ends_says_why(tmp_path, text, reason):
    with pytest.raises(PeerFailed, match=f"its process ended: {reason}"):
        Other(VLLM, GRID, script(tmp_path, text)).load(CALL.to_json())


@pytest.mark.thorough
def test_peers_that_do_not_start_are_absent_with_the_reason(tmp_path):
    broken = script(tmp_path, "echo 'ImportError: AVX512 is missing' >&2")
    others, absent = started({VLLM: tmp_path / "nosuch", ZENTORCH: broken, NEWEST_PYTORCH: Path(sys.executable)}, GRID)
    try:
        assert [other.peer for other in others] == [NEWEST_PYTORCH]
        assert absent.keys() == {VLLM, ZENTORCH}
        assert "nosuch (make bench-peers)" in absent[VLLM]
        assert absent[ZENTORCH] == "its process ended: ImportError: AVX512 is missing"
    finally:
        for other in others:
            other.close()


def test_the_makefile_installs_every_peer():
    makefile = (Path(__file__).parents[3] / "Makefile").read_text(encoding="utf-8")
    for library in LIBRARIES.values():
        assert f":= {library.python.parents[1].name}\n" in makefile


def test_a_race_goes_on_without_a_peer_that_fails():
    turns = []

    def fail():
        raise PeerFailed("b", "its process ended")

    notes = {}
    assert raced({"a": lambda: turns.append("a") or 1.0, "b": fail}, 2, notes, warm_ups=0) == {"a": [1.0, 1.0]}
    assert notes == {"b": "its process ended"}
