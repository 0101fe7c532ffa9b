"""The benchmark's script from end to end without a GPU: tiny, interpreted calls, whose times mean nothing."""

import json
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from rich.console import Console

from benchmarks.gpu import attention, calls, points, report
from support.benchmark_scripts import run


@pytest.fixture(scope="module")
def dry(tmp_path_factory):
    """A whole run, and the folder of its results."""
    path = tmp_path_factory.mktemp("gpu") / "gpu.json"
    return path, run("gpu.attention", "--dry", "--json", path)


@pytest.mark.thorough
def test_every_call_is_checked_and_kept(dry):
    path, said = dry
    kept = json.loads(path.read_text())
    assert kept["about"]["dry"]
    assert "date" not in kept["about"]
    assert set(kept["peaks"]) == {"float16", "float32"}
    assert len(kept["points"]) == 9
    assert kept["copy"] > 0
    for point in kept["points"]:
        assert point["seconds"], point["refused"]
        assert 0 < max(point["errors"]) < 1e-2
    assert "d 512 forward, over the best SDPA backend" in said


@pytest.mark.thorough
def test_what_is_kept_is_not_measured_again(dry):
    path, _ = dry
    before = json.loads(path.read_text())["points"]
    (place,) = (
        i for i, point in enumerate(before) if (point["call"]["d"], point["call"]["direction"]) == (40, "forward")
    )
    old = '"d": 40, "direction": "forward", "causal": false'
    path.write_text(path.read_text().replace(old, old.replace("false", "true")))
    run("gpu.attention", "--dry", "--json", path)
    *after, last = json.loads(path.read_text())["points"]
    assert after[:place] + after[place + 1 :] == before[:place] + before[place + 1 :]
    assert last["call"] == before[place]["call"]


def test_without_a_gpu_it_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="no GPU that PyTorch sees"):  # Python prints the message and exits with 1
        run("gpu.attention")


@pytest.fixture
def asked():
    """The default arguments of the command line, which request everything."""
    return SimpleNamespace(dry=False, alone=False, planned=False, only=None)


def test_what_failed_in_passing_is_tried_again_after_all_else(asked):
    call, names = next(calls.plan())
    kept = points.Kept({})
    kept.add(points.Point(call, names[0], refused="TimeoutError", passing=True))
    kept.add(points.Point(call, names[1], refused="no block-sparse masks"))
    first, *_, last = attention.left(kept, asked)
    assert first == (call, [*names[2:]])
    assert last == (call, [names[0]])
    kept.add(points.Point(call, names[0], [1.0]))
    assert attention.left(kept, asked)[-1] != last
    assert [point.contender for point in kept.points] == [names[1], names[0]]


def test_peers_are_timed_again_beside_new_kernels(asked):
    call, names = next(calls.plan())
    kept = points.Kept({})
    kept.add(points.Point(call, calls.FLASH, [1.0]))
    kept.add(points.Point(call, calls.CUDNN, refused="no"))
    assert attention.left(kept, asked)[0] == (call, [x for x in names if x != calls.CUDNN])
    for name in calls.OURS:
        kept.add(points.Point(call, name, [1.0]))
    assert attention.left(kept, asked)[0][0] != call


def test_what_would_be_measured_is_listed():
    said = run("gpu.attention", "--list", "--alone", "--only", "d 512, n 8192")
    assert said.splitlines()[0] == "bfloat16 forward, d 512, n 8192, H 32: redblue, as planned, redblue, tuned"
    assert said.splitlines()[-1] == "12 points of 6 calls"


def test_what_is_left_out_is_said(capsys):
    report.say_left([(calls.Call(64), [calls.FLEX, calls.MATH]), (calls.Call(128), [calls.FLEX])], Console(width=100))
    said = capsys.readouterr().out
    assert "n 8192: FlexAttention" in said
    assert "2" in said
