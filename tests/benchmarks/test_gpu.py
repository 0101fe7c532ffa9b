"""The GPU benchmark's script from end to end without a GPU: tiny, interpreted calls, whose times mean nothing."""

import contextlib
import importlib
import io
import itertools
import json
import math
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import redblue as rb

LENGTHS = (1024, 2048, 4096, 8192, 16384)
ROOT = Path(__file__).parents[2]


def run(script, *options):
    """Run a benchmark with these options in this process, which has the fast interpreter, and return its output."""
    module = importlib.import_module(f"benchmarks.{script}")
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(), contextlib.redirect_stdout(printed):
        patch.setattr(sys, "argv", [script, *map(str, options)])
        warnings.simplefilter("ignore", RuntimeWarning)
        module.main()
    return printed.getvalue()


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
def modules():
    from benchmarks.gpu import attention as gpu
    from benchmarks.gpu import calls as gpu_calls
    from benchmarks.gpu import points as gpu_points

    return gpu, gpu_calls, gpu_points


@pytest.mark.thorough
def test_limits_and_figure_of_made_up_times(modules, tmp_path):
    from benchmarks.gpu import figure
    from benchmarks.gpu.limits import limits
    from benchmarks.gpu.report import shown

    _, calls, _ = modules
    times = {call: dict.fromkeys(names, 1.0) for call, names in calls.plan()}
    for call in times:
        seconds = call.least_bytes / 2e12 if call.decodes else call.flops / 1e15
        times[call] = dict.fromkeys((*calls.OURS, *calls.PEERS), 2.0) | {calls.TUNED: seconds}
    values = {each.what: each.value(times, 2.5e12) for each in limits()}
    assert len(values) == len(limits())
    assert None not in values.values()
    assert values["d 128 forward, causal"] == pytest.approx(1000)
    assert values["d 512 forward, over FFPA"] == pytest.approx(2e15 / calls.Call(512).flops)
    sparse = calls.Call(128, density=calls.DENSITY)
    assert sparse.flops / calls.Call(128).flops == pytest.approx(0.1, rel=0.1)
    assert values["blocks 10%, d 128 forward, over dense"] == pytest.approx(10, rel=0.1)
    assert values["d 1024 forward + backward, over the best that runs"] == pytest.approx(
        4e15 / (calls.Call(1024).flops + calls.Call(1024, "backward").flops)
    )
    assert values["decode, B 64, n_k 32768, contiguous: of the copy's bandwidth"] == pytest.approx(80)
    figure.draw({"device": "a card", "days": "2000-01-01"}, {"bfloat16": 1500.0}, times, tmp_path / "gpu.svg")
    assert "a card" in (tmp_path / "gpu.svg").read_text()
    assert shown(None, limits()[0]) == ("", "not measured")
    assert shown(1.0, limits()[0])[1] == "FAIL"


def test_bytes_of_decoding_are_those_of_its_arrays(modules):
    _, calls, _ = modules
    call = calls.Call(16, n=100, heads=4, dtype="float16", batch=2, queries=1, kv_heads=2)
    q, k, v, dout = calls.inputs(call, "cpu")
    assert call.least_bytes == sum(x.nbytes for x in (q, k, v, q))
    assert dout.numel() == 0
    assert call.flops == 4 * 2 * 4 * 100 * 16


def test_the_most_important_calls_come_first_and_none_twice(modules):
    _, calls, _ = modules
    planned = list(calls.plan())
    pairs = [(call, name) for call, names in planned for name in names]
    assert len(pairs) == len(set(pairs))
    assert planned[0][0] == calls.Call(128)
    assert tuple(call for call, _ in planned[: len(calls.MUST)]) == calls.MUST
    for call, names in planned[: len(calls.MUST)]:  # planned and tuned redblue, and the peers
        assert calls.PLANNED in names
        assert calls.TUNED in names or call.page
        assert (calls.FFPA in names) == (256 < call.d < 1024 and call.density == 1)
    wanted = itertools.product((64, 128, 256, 512, 576, 1024), ("forward", "backward"), (False, True), LENGTHS)
    every = {calls.Call(d, way, causal, n, 512 if d == 576 else 0) for d, way, causal, n in wanted}
    names = {*calls.OURS, calls.FLASH, calls.CUDNN, calls.FLEX, calls.UNFUSED}
    assert {(call, name) for call in every for name in names} <= set(pairs)
    rest = {call for call, _ in pairs} - every
    assert {call for call in rest if not call.decodes} == {
        calls.Call(d, way, density=0.1) for d in (128, 512) for way in ("forward", "backward")
    }
    assert {(call.batch, call.page) for call in rest if call.decodes} == {(64, 0), (16, 0), (64, 64), (16, 64)}


def test_what_must_be_reached_needs_nothing_but_the_first_calls(modules):
    """The limits have their values before other lengths are timed."""
    from benchmarks.gpu.limits import limits

    _, calls, _ = modules
    times = {}
    for call, names in list(calls.plan())[: len(calls.MUST)]:
        times.setdefault(call, {}).update(dict.fromkeys(names, 1.0))
    assert all(each.value(times, 1.0) is not None for each in limits())


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


def raced(modules, tmp_path, names=("a", "b", "c"), **failures):
    gpu, calls, points = modules
    worker = Scripted(**failures)
    kept = points.Kept({"dry": True})
    tmp_path.mkdir(exist_ok=True)
    bench = gpu.Bench(kept, tmp_path / "gpu.json", worker, time.monotonic() + 60, gpu.Console(quiet=True))
    bench.measure(calls.Call(64), list(names))
    return {point.contender: point for point in points.Kept.read(tmp_path / "gpu.json").points}, worker.asked


def test_contenders_are_checked_one_by_one_and_timed_in_turns(modules, tmp_path):
    found, asked = raced(modules, tmp_path)
    assert [x[0] for x in asked] == ["peak", "open", "check", "check", "check", "time"]
    assert asked[-1] == ("time", ["a", "b", "c"])
    assert all(point.seconds == [1.0] for point in found.values())


def test_a_crash_costs_one_result(modules, tmp_path):
    from benchmarks.gpu.worker import Failed, Lost

    crashed = {"check b": Lost("the process ended with status -11")}
    found, asked = raced(modules, tmp_path, **crashed)
    assert (found["b"].passing, found["b"].refused) == (True, "the process ended with status -11")
    assert found["a"].seconds == found["c"].seconds == [1.0]
    assert [x[0] for x in asked].count("open") == 2
    assert asked[-1] == ("time", ["a", "c"])

    found, asked = raced(
        modules, tmp_path / "other", **{"time a+b+c": Lost("took longer than 75 s"), "time b": Lost("x")}
    )
    assert [found[x].refused for x in "abc"] == ["", "x", ""]
    wrong = {"check a": Failed("Red: errors", wrong=True), "check c": Failed("Refused: no", passing=False)}
    found, asked = raced(modules, tmp_path / "wrong", **wrong)
    assert (found["a"].wrong, found["a"].seconds, found["c"].wrong) == (True, [], False)
    assert asked[-1] == ("time", ["b"])


@pytest.mark.thorough
def test_a_worker_is_replaced_after_a_crash_or_a_hang():
    from benchmarks.gpu.worker import Failed, Lost, Worker
    from support.worker import Made

    worker = Worker(Made)
    assert worker.ask("right", 1, seconds=60) == 2
    process = worker.process.pid
    with pytest.raises(Failed, match="flash does not fit") as refused:
        worker.ask("refuse", seconds=60)
    assert not refused.value.passing
    assert worker.process.pid == process
    with pytest.raises(Lost, match="status 3"):
        worker.ask("crash", seconds=60)
    assert worker.ask("right", 2, seconds=60) == 3
    with pytest.raises(Lost, match="took longer than 0 s"):
        worker.ask("hang", seconds=0.1)
    worker.end()


@pytest.fixture
def asked():
    """The default arguments of the command line, which request everything."""
    return SimpleNamespace(dry=False, alone=False, only=None)


def test_what_failed_in_passing_is_tried_again_after_all_else(modules, asked):
    gpu, calls, _ = modules
    call, names = next(calls.plan())
    kept = gpu.Kept({})
    kept.add(gpu.Point(call, names[0], refused="TimeoutError", passing=True))
    kept.add(gpu.Point(call, names[1], refused="no block-sparse masks"))
    first, *_, last = gpu.left(kept, asked)
    assert first == (call, [*names[2:]])
    assert last == (call, [names[0]])
    kept.add(gpu.Point(call, names[0], [1.0]))
    assert gpu.left(kept, asked)[-1] != last
    assert [point.contender for point in kept.points] == [names[1], names[0]]


def test_peers_are_timed_again_beside_new_kernels(modules, asked):
    gpu, calls, points = modules
    call, names = next(calls.plan())
    kept = points.Kept({})
    kept.add(points.Point(call, calls.FLASH, [1.0]))
    kept.add(points.Point(call, calls.CUDNN, refused="no"))
    assert gpu.left(kept, asked)[0] == (call, [x for x in names if x != calls.CUDNN])
    for name in calls.OURS:
        kept.add(points.Point(call, name, [1.0]))
    assert gpu.left(kept, asked)[0][0] != call


def test_only_refusals_are_final(modules):
    from triton import OutOfResources

    from benchmarks.gpu.peers import Refused
    from benchmarks.gpu.worker import Failed, Here

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


def test_the_first_and_the_last_head_are_checked(modules):
    from benchmarks.common.gate import Red
    from benchmarks.gpu.gate import Gate

    _, calls, _ = modules
    for call in (
        calls.Call(16, "backward", n=20, heads=3, dtype="float32"),
        calls.Call(16, n=20, heads=4, kv_heads=2, batch=2, queries=1, dtype="float32"),
    ):
        arrays = calls.inputs(call, "cpu")
        gate = Gate(call, arrays)
        q, k, v = (x.double().requires_grad_() for x in arrays[:3])
        k, v = (x.repeat_interleave(call.heads // call.key_heads, 1) for x in (k, v))
        out = (q @ k.mT * 0.25).softmax(-1) @ v
        right = (
            [out.detach()]
            if call.direction == "forward"
            else list(torch.autograd.grad(out, (q, k, v), arrays[3].double()))
        )
        assert max(gate.check(calls.PLANNED, right)) < 1e-12
        for head in (0, -1):
            wrong = [x.clone() for x in right]
            wrong[-1][head, head, 0, 0] += 1
            with pytest.raises(Red):
                gate.check(calls.PLANNED, wrong)


def test_measurements_of_other_kernels_and_versions_are_made_anew(modules, tmp_path, capsys):
    gpu, calls, _ = modules
    facts = {"device": "a card", "torch": "2", "triton": "3", "kernels": "abc"}
    call, console = calls.Call(64), gpu.Console(width=200)
    old = gpu.Kept(facts, {"bfloat16": 900.0})
    for name in (calls.TUNED, calls.FLEX):
        old.add(gpu.Point(call, name, [1.0], date="2000-01-02T03:04:05+00:00"))
    path = tmp_path / "gpu.json"
    old.write(path)
    assert gpu.resumed([path], facts, console) == old
    assert gpu.resumed([tmp_path / "none"], facts, console) == gpu.Kept(facts)
    assert capsys.readouterr().out == ""

    theirs = gpu.resumed([tmp_path / "none", path], facts | {"kernels": "def"}, console)
    assert theirs == gpu.Kept(facts | {"kernels": "def"}, old.peaks, old.points[1:])
    assert capsys.readouterr().out == "measured again: 1 points, because kernels changed\n"
    theirs.add(gpu.Point(call, calls.TUNED, [1.0], date="2000-02-03T03:04:05+00:00"))
    assert theirs.days == "2000-01-02 to 2000-02-03"

    other = facts | {"torch": "2.1", "kernels": "def"}
    assert gpu.resumed([path], other, console) == gpu.Kept(other)
    assert capsys.readouterr().out == "measured again: 2 points, because torch, kernels changed\n"


def test_a_fingerprint_is_of_versions_and_sources(modules, tmp_path):
    import triton

    from benchmarks.common import kept as gpu_kept

    found = gpu_kept.fingerprint("a card")
    assert found | {"kernels": ""} == {
        "device": "a card",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "kernels": "",
    }
    assert found["kernels"] == gpu_kept.hashed(gpu_kept.KERNELS)
    seen = {gpu_kept.hashed(tmp_path)}
    for name, text in (("a.py", "x"), ("a.py", "y"), ("b.py", "y"), ("notes.txt", "z")):
        (tmp_path / name).write_text(text)
        seen.add(gpu_kept.hashed(tmp_path))
    assert len(seen) == 4
    assert gpu_kept.days([]) == ""
    assert gpu_kept.days(["2000-01-02T03", "2000-01-02T04", ""]) == "2000-01-02"


def test_small_caches_of_other_kernels_are_measured_anew(modules, tmp_path, capsys):
    from benchmarks.small_cache import crossing as small_cache
    from benchmarks.small_cache import device as small_cache_device

    console, path = modules[0].Console(width=200), tmp_path / "small_cache.json"
    facts = small_cache.about() | {"device": "a card", "torch": "2", "triton": "3", "kernels": "abc"}
    timed = small_cache.Row("forward", 64, 24, "flash", launch="one", seconds=1.0, date="2000-01-02")
    passing = small_cache.Row("forward", 64, 24, "hybrid", why="OutOfMemoryError: CUDA out of memory")
    small_cache.write(path, facts, [timed, passing])
    again = small_cache_device._kept(path, facts | {"date": "2000-03-04"}, console)
    assert again == {small_cache_device._place(timed): timed}
    assert capsys.readouterr().out == ""
    for name in ("device", "torch", "triton", "kernels"):
        assert small_cache_device._kept(path, facts | {name: "other"}, console) == {}
        assert capsys.readouterr().out == f"measured again: 1 launches, because {name} changed\n"
    small_cache.show(facts, [timed, passing], console)
    assert "a card, 2000-01-02" in capsys.readouterr().out


def test_what_is_left_out_is_said(modules, capsys):
    gpu, calls, _ = modules
    gpu.say_left([(calls.Call(64), [calls.FLEX, calls.MATH]), (calls.Call(128), [calls.FLEX])], gpu.Console(width=100))
    said = capsys.readouterr().out
    assert "n 8192: FlexAttention" in said
    assert "2" in said


@pytest.mark.thorough
def test_the_whole_hour_runs_dry(tmp_path):
    environment = os.environ | {"PYTHON": sys.executable, "OUT": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run([ROOT / ".ci" / "gpu", "--dry"], env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    steps = "once", "bench", "ncu", "test", "small-cache"
    assert [line.split()[1].strip(":") for line in found.stdout.splitlines() if line.startswith("== ")][:-1] == [*steps]
    assert {path.name for path in tmp_path.glob("*.json")} == {
        *("once.json", "gpu_attention.json", "counters.json", "small_cache.json")
    }


def test_the_hour_refuses_unknown_steps_and_options():
    for arguments, said in (
        ([], "give steps"),
        (["bensch"], "unknown step bensch"),
        (["--dri"], "unknown option --dri"),
    ):
        found = subprocess.run([ROOT / ".ci" / "gpu", *arguments], capture_output=True, text=True)
        assert found.returncode == 2
        assert said in found.stderr


def test_counted_bytes_stand_beside_the_closed_forms(modules, monkeypatch, tmp_path):
    from benchmarks.gpu import counters
    from redblue.base.errors import RedblueError
    from redblue.kernels.gpu.planning.card import Card

    def bytes_of(places):
        ((direction, d, _, schedule),) = places
        assert schedule == "auto"
        if (direction, d) == ("backward", 128):
            raise RedblueError("no counters here")
        return [(300 << 20, 10 << 20)]

    monkeypatch.setattr(counters, "bytes_of", bytes_of)
    monkeypatch.setattr(counters, "card_of", lambda device: Card())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(sys, "argv", ["counters", "--json", str(tmp_path / "counters.json")])
    with pytest.raises(SystemExit) as ended:
        counters.main()
    assert ended.value.code
    rows = json.loads((tmp_path / "counters.json").read_text())
    assert [row["failure"] for row in rows] == ["", "no counters here", "", ""]
    assert [row["l1_l2_bytes"] for row in rows] == [300 << 20, None, 300 << 20, 300 << 20]
    assert all(row["closed_form_bytes"] > row["l2_bound_bytes"] > 0 for row in rows)


@pytest.fixture
def once():
    from benchmarks.gpu import once

    return once


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_kernel_is_among_the_cases_that_run_once(once):
    """The kernels for both widths of flash, for spilling, pages and options."""
    from redblue.kernels.gpu.launch import Run

    launched, launch = set(), Run.__call__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "__call__", lambda run: (launched.add(run.kernel.__name__), launch(run))[0])
        cases = once.Cases("cpu")
        every = [once.smaller(case) for case in once.cases() if case.d == 64]
        for case in every:
            errors = cases.make(case)
            assert max(errors.values()) > 0
    assert launched >= {
        *("flash_forward", "flash_dq", "flash_dkv", "bias_gradient", "paged_forward", "paged_merge"),
        *("spill", "spilled_output", "spill_p", "spill_ds", "row_gradient", "key_gradient"),
    }


def test_a_wrong_head_and_a_wrong_gradient_are_found(once):
    exact = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    for place in ((0, 0), (-1, -1)):
        wrong = exact.clone()
        wrong[place][0, 0] += 1
        assert once.worst_error("out", wrong, exact) > 0.1
    assert once.worst_error("dbias", exact[0, 0], exact[0, 0]) == 0


def test_faults_that_the_sanitizer_prints_belong_to_their_case(once, monkeypatch, tmp_path):
    """A script imitates the sanitizer's output, with a fault in the second case and a crash in the third."""
    todo = list(once.cases())[:4]
    script = tmp_path / "watched.py"
    script.write_text(
        "import os\n"
        'done = \'DONE {"errors": {"out": 0.001}, "failure": ""}\'\n'
        "print('========= COMPUTE-SANITIZER')\n"
        "for i in range(4):\n"
        "    print('CASE', i, flush=True)\n"
        "    if i == 1: print('========= Invalid __global__ read of size 2 bytes')\n"
        "    if i == 2: print('dying', flush=True); os._exit(1)\n"
        "    print(done, flush=True)\n"
    )
    kept = once.Kept(tmp_path / "once.json", once.Console(quiet=True))
    began = once._followed([sys.executable, str(script)], todo, time.monotonic() + 60, kept)
    assert began == 3
    assert [(x.case, x.right) for x in kept.outcomes] == [(todo[0], True), (todo[1], False), (todo[2], False)]
    assert kept.outcomes[1].faults == ["Invalid __global__ read of size 2 bytes"]
    assert kept.outcomes[2].failure == "the process ended: dying"
    silent = ["sh", "-c", "echo CASE 3; exec sleep 60"]
    assert once._followed(silent, todo, time.monotonic() + 1, kept) == 1
    assert len(kept.outcomes) == 3  # an unfinished case is not wrong
    monkeypatch.setattr(once, "SILENT_SECONDS", 0.5)
    assert once._followed(silent, todo, time.monotonic() + 60, kept) == 1
    assert kept.outcomes[-1].failure == "silent for 0.5 s"
    assert len(json.loads((tmp_path / "once.json").read_text())) == 4


@pytest.mark.thorough
def test_kernels_are_compiled_ahead_in_other_processes(tmp_path):
    """Every candidate of the plan is compiled for an H100, without such a GPU, into Triton's cache."""
    command = [sys.executable, "-m", "benchmarks.gpu.ahead", "--jobs", "1", "--only", "B 16, n_q 1"]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
        "TRITON_CACHE_DIR": str(tmp_path),
        "TRITON_INTERPRET": "0",
    }
    found = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    assert found.returncode == 0, found.stderr
    compiled = {path.stem for path in tmp_path.rglob("*.cubin")}
    assert compiled >= {"flash_forward", "paged_forward", "paged_merge"}
    assert "compiled ahead" in found.stdout


def test_what_would_be_measured_is_listed():
    said = run("gpu.attention", "--list", "--alone", "--only", "d 512, n 8192")
    assert said.splitlines()[0] == "bfloat16 forward, d 512, n 8192, H 32: redblue, as planned, redblue, tuned"
    assert said.splitlines()[-1] == "12 points of 6 calls"


def test_small_caches_are_counted_without_a_gpu(tmp_path):
    path = tmp_path / "small_cache.json"
    said = run("small_cache.crossing", "--dry", "--json", path)
    assert "fewer words" in said
    assert "fewer seconds" not in said
    from benchmarks.small_cache import crossing as small_cache

    facts, rows = small_cache.read(path)
    assert not any(row.seconds for row in rows)
    assert all(row.bound_words <= row.words <= (row.tensor_core_words or row.words) for row in rows)
    assert path.with_suffix(".svg").read_text().startswith("<svg")
    rows[0].launch = "one"
    small_cache.write(path, facts, rows)
    measured = path.read_text()
    with pytest.raises(SystemExit, match="give another --json"):
        run("small_cache.crossing", "--dry", "--json", path)
    assert path.read_text() == measured


def test_bytes_of_each_launch_are_kept_beside_their_bounds(modules, monkeypatch, capsys):
    from benchmarks.small_cache import crossing as small_cache
    from benchmarks.small_cache import device as small_cache_device

    rows = [small_cache.Row("backward", 512, kb, "flash", launch="one", seconds=1.0) for kb in (99, 227)]
    rows += [small_cache.Row("forward", 64, 24, "hybrid", launch="two", seconds=1.0)]
    rows += [small_cache.Row("forward", 64, 24, "flash", launch="none")]
    asked = []

    def bytes_of(places):
        asked.append(places)
        return [(100 * len(asked) + i, i) for i in range(len(places))]

    console = modules[0].Console(width=200)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(L2_cache_size=50 << 20))
    monkeypatch.setattr(small_cache_device, "bytes_of", bytes_of)
    small_cache_device._count_bytes(rows, math.inf, lambda: None, console)
    assert asked == [[("backward", 512, 99, "flash")], [("forward", 64, 24, "hybrid")]] or asked == [
        [("backward", 512, 227, "flash")],
        [("forward", 64, 24, "hybrid")],
    ]
    assert [row.l1_l2_bytes for row in rows] == [100, 100, 200, None]
    words = rb.lower_bound(small_cache.problem("forward", 64), words=25 << 20).words
    assert rows[2].l2_dram_bound_bytes == 2 * words
    small_cache_device._count_bytes(rows, math.inf, lambda: None, console)
    assert len(asked) == 2

    def refused(places):
        raise rb.RedblueError("no counters here")

    rows[0].l1_l2_bytes = None
    monkeypatch.setattr(small_cache_device, "bytes_of", refused)
    small_cache_device._count_bytes(rows, math.inf, lambda: None, console)
    assert "no bytes: no counters here" in capsys.readouterr().out


def test_a_launch_that_the_card_refuses_is_not_timed_as_another(modules, monkeypatch):
    import warnings

    from benchmarks.small_cache import crossing as small_cache
    from benchmarks.small_cache import device as small_cache_device
    from redblue.kernels.gpu.planning.card import Card

    class Device:
        def seconds(self, run):
            return [2.0]

    def replaced(row, given):
        def run():
            if row.d == 512:
                warnings.warn("flash does not fit; hybrid runs instead", stacklevel=1)

        return run

    gate = SimpleNamespace(check=lambda name, found: [])
    monkeypatch.setattr(small_cache_device, "_call", replaced)
    for d, seconds in ((512, None), (64, 2.0)):
        row = small_cache.Row("forward", d, 227, "flash")
        card = Card(arch=90, shared_bytes=227 << 10)
        small_cache_device._time_one(row, None, [], gate, card, Device(), {})
        assert row.seconds == seconds
        assert ("hybrid runs instead" in row.why) == (seconds is None)
        assert row.launch == "none" if seconds is None else row.launch
        assert row.date


def test_a_launch_that_fails_in_passing_is_left_to_the_next_run(modules, monkeypatch):
    from benchmarks.small_cache import crossing as small_cache
    from benchmarks.small_cache import device as small_cache_device
    from redblue.kernels.gpu.planning.card import Card

    def full(row, given):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(small_cache_device, "_call", full)
    row = small_cache.Row("forward", 64, 227, "flash")
    small_cache_device._time_one(row, None, [], None, Card(arch=90, shared_bytes=227 << 10), None, {})
    assert (row.launch, row.seconds, row.why) == ("", None, "OutOfMemoryError: CUDA out of memory")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_only_the_kernels_of_the_second_run_are_counted(modules, monkeypatch, tmp_path):
    from benchmarks.small_cache import bytes as small_cache_bytes
    from benchmarks.small_cache import crossing as small_cache
    from benchmarks.small_cache import device as small_cache_device
    from redblue.kernels.gpu.planning.card import Card
    from redblue.meter.interpreter import counting

    for module in (small_cache, small_cache_device):
        monkeypatch.setattr(module, "N", 40)
    monkeypatch.setattr(small_cache_device, "HEADS", 1)
    monkeypatch.setattr(small_cache_device, "card_with", lambda kb: Card(arch=80, shared_bytes=kb << 10))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    said = []
    with counting() as tally:
        profiler = SimpleNamespace(
            start=lambda: said.append(tally.launches.total()), stop=lambda: said.append(tally.launches.total())
        )
        places = [("forward", 24, 48, "flash"), ("backward", 24, 48, "small_cache")]
        small_cache_bytes.main(places, tmp_path / "kernels", profiler, "cpu")
    kernels = json.loads((tmp_path / "kernels").read_text())
    assert [said[1] - said[0], said[3] - said[2]] == kernels
    assert said[0] == kernels[0]
    assert kernels[1] >= 5


def test_the_figure_has_times_bytes_and_crossings(modules, tmp_path):
    from benchmarks.small_cache import crossing as small_cache

    facts, rows = small_cache.read(small_cache.KEPT)
    assert {each["what"] for each in small_cache.crossings(rows)} == {"words"}
    for row in rows:
        row.seconds = row.tensor_core_words and row.tensor_core_words / 1e12
        row.l1_l2_bytes = row.l2_dram_bytes = row.tensor_core_words and 2.0 * row.tensor_core_words
        row.l2_dram_bound_bytes = float(row.bound_words)
    assert {each["what"] for each in small_cache.crossings(rows)} == {"words", "seconds"}
    small_cache.draw(tmp_path / "all.svg", facts, rows)
    drawn = (tmp_path / "all.svg").read_text()
    for title in ("words, counted", "time", "bytes, shared memory and L1 to L2", "bytes, L2 to memory"):
        assert f"forward: {title}" in drawn
        assert f"backward: {title}" in drawn


def test_a_crossing_lies_where_the_ratio_is_one(modules):
    from benchmarks.small_cache import crossing as small_cache

    def row(d, schedule, words):
        return small_cache.Row("forward", d, 64, schedule, words=words)

    rows = [row(64, "flash", 1), row(64, "hybrid", 2), row(128, "flash", 3), row(128, "hybrid", 2)]
    assert small_cache.crossing(rows, "flash", "hybrid", "words") == pytest.approx(96**2 / 32768)
    assert small_cache.crossing(rows[:2], "flash", "hybrid", "words") is None
