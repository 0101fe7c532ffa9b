"""The GPU benchmark's script from end to end, without a GPU: tiny calls, interpreted, no times worth reading."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def run(script, *options, **more):
    command = [sys.executable, "-W", "ignore::RuntimeWarning", BENCHMARKS / script, *options]
    return subprocess.run(command, capture_output=True, text=True, **more)


@pytest.fixture(scope="module")
def dry(tmp_path_factory):
    """A whole run, and where it is kept."""
    path = tmp_path_factory.mktemp("gpu") / "gpu.json"
    found = run("gpu.py", "--dry", "--json", path)
    assert found.returncode == 0, found.stderr
    return path, found.stdout


def test_every_call_is_checked_and_kept(dry):
    path, said = dry
    kept = json.loads(path.read_text())
    assert kept["about"]["dry"]
    assert set(kept["peaks"]) == {"float16", "float32"}
    assert len(kept["points"]) == 5
    for point in kept["points"]:
        assert point["seconds"], point["refused"]
        assert 0 < max(point["errors"]) < 1e-2
    assert "d 512 forward, over the best SDPA backend" in said


def test_what_is_kept_is_not_measured_again(dry):
    path, _ = dry
    before = json.loads(path.read_text())["points"]
    path.write_text(path.read_text().replace('"forward", "causal": true', '"forward", "causal": false', 1))
    run("gpu.py", "--dry", "--json", path, check=True)
    after = json.loads(path.read_text())["points"]
    assert after[1:-1] == before[1:]
    assert after[-1]["call"] == before[0]["call"]


def test_without_a_gpu_it_says_so():
    found = run("gpu.py", env=os.environ | {"CUDA_VISIBLE_DEVICES": ""})
    assert found.returncode == 1
    assert "no GPU that PyTorch sees" in found.stderr


@pytest.fixture
def modules(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu
    import gpu_calls
    import gpu_figure

    return gpu, gpu_calls, gpu_figure


def test_limits_and_figure_of_made_up_times(modules, tmp_path):
    gpu, calls, figure = modules
    times = {call: dict.fromkeys(names, 1.0) for call, names in calls.plan()}
    for call in times:
        times[call] = dict.fromkeys((*calls.OURS, *calls.PEERS), 2.0) | {calls.TUNED: call.flops / 1e15}
    values = {each.what: each.value(times) for each in calls.limits()}
    assert None not in values.values()
    assert values["d 512 forward"] == pytest.approx(1000)
    sparse = calls.Call(128, density=calls.DENSITY)
    assert sparse.flops / calls.Call(128).flops == pytest.approx(0.1, rel=0.1)
    assert values["blocks 10%, d 128 forward, over density x dense time"] == pytest.approx(1)
    assert values["d 1024 forward + backward, over the best that runs"] == pytest.approx(
        4e15 / (calls.Call(1024).flops + calls.Call(1024, "backward").flops)
    )
    figure.draw({"device": "a card", "date": "2000-01-01"}, {"bfloat16": 1500.0}, times, tmp_path / "gpu.svg")
    assert "a card" in (tmp_path / "gpu.svg").read_text()
    assert gpu.shown(None, calls.limits()[0]) == ("", "not measured")
    assert gpu.shown(1.0, calls.limits()[0])[1] == "FAIL"


def test_the_most_important_calls_come_first_and_none_twice(modules):
    _, calls, _ = modules
    planned = list(calls.plan())
    pairs = [(call, name) for call, names in planned for name in names]
    assert len(pairs) == len(set(pairs))
    assert planned[0][0] == calls.Call(512)
    first = {call for call, names in planned[:14] if calls.PLANNED in names}
    assert all(calls.Call(d, way) in first for d in (64, 128, 256, 512, 1024) for way in ("forward", "backward"))


def test_small_caches_are_counted_without_a_gpu(tmp_path):
    path = tmp_path / "small_cache.json"
    found = run("small_cache.py", "--dry", "--json", path, check=True)
    assert "fewer words" in found.stdout
    assert "fewer seconds" not in found.stdout
    rows = json.loads(path.read_text())["rows"]
    assert all("seconds" not in row for row in rows)
    assert all(row["bound_words"] <= row["words"] <= row.get("tensor_core_words", row["words"]) for row in rows)
    assert path.with_suffix(".svg").read_text().startswith("<svg")


def test_a_crossing_lies_where_the_ratio_is_one(modules):
    import small_cache

    def row(d, schedule, words):
        return small_cache.Row("forward", d, 64, schedule, words=words)

    rows = [row(64, "flash", 1), row(64, "hybrid", 2), row(128, "flash", 3), row(128, "hybrid", 2)]
    assert small_cache.crossing(rows, "flash", "hybrid", "words") == pytest.approx(96**2 / 32768)
    assert small_cache.crossing(rows[:2], "flash", "hybrid", "words") is None
