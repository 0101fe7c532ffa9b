"""Sweeps: their grammar, their rows against direct counts, their files, and what an interruption leaves."""

import importlib.util
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter

import joblib
import pytest
from hypothesis import given
from hypothesis import strategies as st
from joblib._parallel_backends import ThreadingBackend

import redblue as rb
from redblue import problem, sweep
from redblue.errors import RedblueError
from redblue.sweep import runner
from redblue.sweep.axes import make_axis
from redblue.sweep.journal import Journal, journal_path

SMALL = {"n": "64,100", "d": [8, 24], "words": "60,600", "mask": "full,causal"}


# The grammar


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("128", [128]),
        ("64,128,256", [64, 128, 256]),
        (" 64 , 128 ", [64, 128]),
        ("1024:8192:x2", [1024, 2048, 4096, 8192]),
        ("1000:8191:x2", [1000, 2000, 4000, 8000]),
        ("10:40:x1.5", [10, 15, 22, 34]),
        ("128:512:+64", [128, 192, 256, 320, 384, 448, 512]),
        ("1:10:+4", [1, 5, 9]),
        ("7:7:x2", [7]),
        ("3,64:256:x2,3,128", [3, 64, 128, 256]),
        ("1:6:x1.1", [1, 2, 3, 4, 5, 6]),
    ],
)
def test_numbers(text, values):
    assert list(make_axis("n", text).values) == values


@given(st.lists(st.integers(1, 10**9), min_size=1))
def test_a_list_stands_for_its_values(values):
    assert make_axis("words", ",".join(map(str, values))).values == tuple(dict.fromkeys(values))
    assert make_axis("words", values).values == tuple(dict.fromkeys(values))


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(1000, 10**6))
def test_a_range_with_a_step(first, more, step):
    assert list(make_axis("d", f"{first}:{first + more}:+{step}").values) == list(range(first, first + more + 1, step))


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.one_of(st.integers(2, 9), st.sampled_from([1.25, 1.5, 2.75])))
def test_a_range_with_a_factor(first, growth, factor):
    values = make_axis("d", f"{first}:{first * growth}:x{factor}").values
    assert values[0] == first
    assert all(a < b for a, b in itertools.pairwise(values))
    assert values[-1] <= first * growth < values[-1] * factor + factor  # no more would fit
    exact = [round(first * factor**i) for i in range(80)]
    assert list(values) == list(dict.fromkeys(value for value in exact if value <= first * growth))


@pytest.mark.parametrize(
    ("name", "given_", "says"),
    [
        ("n", "", "n takes VALUE, a list A,B,C, or a range"),
        ("n", "64,,128", "got '64,,128'"),
        ("n", "64:128", "got '64:128'"),
        ("n", "64:128:2", "such as 128, or 64,128,256, or 1024:65536:x2"),
        ("n", "-4", "got '-4'"),
        ("n", "1e3", "got '1e3'"),
        ("n", "٣", "got"),
        ("n", "0", "n must be at least 1, got 0"),
        ("window", [-1], "window must be at least 0, got -1"),
        ("n", "128:64:x2", "a range goes up"),
        ("n", "64:128:x1", "a factor above x1"),
        ("n", "64:128:+0", "a step of at least +1"),
        ("n", "0:128:x2", "a first number of at least 1"),
        ("n", "1:1000000000:+1", "1,000,000,000 values, at most 100,000"),
        ("n", "1:1000000000:x1.00001", "at most 100,000"),
        ("n", [2.5], "n must be whole numbers, got 2.5"),
        ("n", [True], "n must be whole numbers, got True"),
        ("n", [], "n has no values"),
        ("dtype", "int8", "dtype must be of float64, float32"),
        ("direction", "up", "direction must be of forward, backward"),
        ("schedule", "flahs", "unknown schedule 'flahs'; nearest: flash"),
        ("memory", "t4,", "memory has an empty value"),
        ("colour", "red", "there is no axis 'colour'; the axes are"),
    ],
)
def test_wrong_axes_are_refused(name, given_, says):
    with pytest.raises(RedblueError) as refused:
        make_axis(name, given_)
    assert says in str(refused.value)


def test_a_comma_before_a_digit_belongs_to_the_mask():
    text = "full,window:1024,0,causal-bottom-right, window:3,4"
    assert make_axis("mask", text).values == ("full", "window:1024,0", "causal-bottom-right", "window:3,4")
    made = sweep.make_sweep({"n": 64, "d": 8, "words": 999, "mask": text})
    assert made.masks[1] == rb.Mask.sliding_window(1024, 0)
    assert made.masks[3] == rb.Mask.sliding_window(3, 4)


@pytest.mark.parametrize(
    ("values", "geometric"),
    [
        ("1024:65536:x2", True),
        ("10:1000:x1.5", True),
        ("64,128,256,512", True),
        ("128:512:+64", False),
        ("1,2,3", False),
        ("64,128", False),
        ("0:64:+8", False),
    ],
)
def test_which_axes_are_geometric(values, geometric):
    assert make_axis("window", values).geometric == geometric


@pytest.mark.parametrize(
    ("axes", "says"),
    [
        ({"n": 64, "words": 99}, "d not given"),
        ({"n_q": 64, "d": 8, "words": 99}, "n or n_k not given"),
        ({"n": 64, "d": 8}, "words or memory not given"),
        ({"n": 64, "d": 8, "words": 99, "mask": "full", "window": 3}, "window cannot be given with mask"),
        ({"n": 64, "n_q": 1, "n_k": 2, "d": 8, "words": 99}, "n cannot be given with n_k and n_q"),
        ({"n": 64, "d": 8, "words": 99, "mask": "diagonal"}, "mask must be full, causal"),
        ({"n": 64, "d": 8, "memory": "h100"}, "unknown memory 'h100'; nearest: h100-sxm"),
        ({"n": "1:1000:+1", "d": "1:1000:+1", "words": 99}, "1,000,000 points, at most"),
        (
            {"n": 64, "d": 8, "words": 99, "heads": "3,5", "kv_heads": 2},
            "none of the 2 points is a valid problem: heads",
        ),
    ],
)
def test_wrong_sweeps_are_refused(axes, says):
    with pytest.raises(RedblueError) as refused:
        sweep.make_sweep(axes)
    assert says in str(refused.value)


# The rows


def tried(make, *arguments, **options):
    try:
        return make(*arguments, **options)
    except RedblueError as error:
        return error


def test_rows_are_those_of_count_and_lower_bound():
    """Every schedule at every point of the product, in its order, with every direction and grouped heads."""
    axes = {"n": [48, 64], "d": [8, 24], "words": [60, 600], "mask": "full,window:9,2", "heads": 4, "kv_heads": [2, 4]}
    rows = iter(sweep.run(axes | {"direction": problem.DIRECTIONS, "dtype": "float32"}, jobs=1))
    statuses = Counter()
    masks = {"full": rb.Mask.full(), "window:9,2": rb.Mask.sliding_window(9, 2)}
    for direction, kv, (label, mask), d, n, words in itertools.product(
        problem.DIRECTIONS, [2, 4], masks.items(), [8, 24], [48, 64], [60, 600]
    ):
        point = {"n_q": n, "n_k": n, "d": d, "heads": 4, "kv_heads": kv, "dtype": "float32", "direction": direction}
        made = tried(rb.Problem, **point, mask=mask)
        if isinstance(made, RedblueError):
            row = next(rows)
            assert (row["status"], row["reason"]) == ("invalid", str(made))
            assert point.items() <= row.items()
            statuses["invalid"] += 1
            continue
        bound = next((each for each in rb.lower_bounds(made, words) if each.proved), None)
        counts = {name: tried(rb.count, name, made, words=words) for name in rb.list_schedules()}
        expected = [(name, each) for name, each in counts.items() if not isinstance(each, rb.NotCovered)]
        for name, each in expected:
            row = next(rows)
            assert list(row) == list(sweep.COLUMNS)
            assert point.items() <= row.items()
            assert (row["mask"], row["capacity_words"], row["batch"], row["d_v"]) == (label, words, 1, d)
            assert (row["bound_words"], row["bound"]) == (bound and bound.words, bound and bound.name)
            statuses[row["status"]] += 1
            if isinstance(each, RedblueError):
                assert (row["schedule"], row["reason"], row["words"]) == (name, str(each), None)
                continue
            figures = {name: getattr(each, name) for name in ("schedule", "words", "reads", "writes", "peak", "flops")}
            assert figures.items() <= row.items()
            assert row["tiles"] == ",".join(f"{edge}={length}" for edge, length in each.tiles.items())
            assert row["words_per_pair"] == pytest.approx(each.words / (4 * mask.nnz(n, n)))
            assert row["gap"] == (each.words / bound.words if bound and bound.words else None)
            assert (row["bytes"], row["seconds"], row["memory"]) == (4 * each.words, None, None)
    assert next(rows, None) is None
    assert statuses["fits"] > 200
    assert statuses["too few words"] > 10
    assert statuses["invalid"] > 10


def test_each_boundary_of_a_memory_is_counted():
    machine = rb.memory("h100-sxm")
    rows = sweep.run(
        {"n": 512, "d": 64, "memory": machine.name, "schedule": "flash", "dtype": "float8,float32"}, jobs=1
    )
    at = [each for each in machine.boundaries if each.capacity_bytes]
    assert [(row["dtype"], row["boundary"]) for row in rows] == [
        (dtype, each.name) for dtype in ("float8", "float32") for each in at
    ]
    for row, boundary in zip(rows, [*at, *at], strict=True):
        size = 1 if row["dtype"] == "float8" else 4
        made = rb.Problem(512, 512, 64, dtype=row["dtype"])
        assert row["memory"] == "h100-sxm"
        assert row["capacity_words"] == boundary.capacity_bytes // size
        assert row["words"] == rb.count("flash", made, words=boundary.capacity_bytes // size).words
        speed = boundary.bandwidth_bytes_per_second
        assert row["seconds"] == (row["words"] * size / speed if speed else None)
    assert any(row["seconds"] for row in rows)


def test_windows_batches_and_separate_lengths():
    rows = sweep.run(
        {
            "n": 96,
            "n_q": [1, 7],
            "d": 8,
            "d_v": [4, 16],
            "window": [0, 5],
            "batch": 3,
            "words": 500,
            "schedule": "flash",
        },
        jobs=1,
    )
    assert [(row["window"], row["mask"], row["d_v"], row["n_q"], row["n_k"]) for row in rows] == [
        (w, f"window:{w}", d_v, n_q, 96) for w in (0, 5) for d_v in (4, 16) for n_q in (1, 7)
    ]
    for row in rows:
        made = rb.Problem(row["n_q"], 96, 8, row["d_v"], batch=3, mask=rb.Mask.sliding_window(row["window"]))
        assert row["words"] == rb.count("flash", made, words=500).words


def test_words_and_memories_together_are_both_counted():
    mine = rb.memory("t4")
    rows = sweep.run({"n": 64, "d": 8, "words": 999, "memory": [mine], "mask": [rb.Mask.causal()]}, jobs=1)
    assert {(row["memory"], row["capacity_words"]) for row in rows} >= {(None, 999), ("t4", 65536 // 2)}
    assert {row["mask"] for row in rows} == {"Mask.causal()"}


def test_what_does_not_apply_is_a_row_only_when_asked_for():
    lacking = next(name for name in rb.list_schedules() if name not in rb.list_schedules("backward") or name == "flash")
    other = next(way for way in problem.DIRECTIONS if lacking not in rb.list_schedules(way))
    axes = {"n": 64, "d": 8, "words": 999, "direction": other}
    assert lacking not in {row["schedule"] for row in sweep.run(axes, jobs=1)}
    named = sweep.run(axes | {"schedule": lacking}, jobs=1)
    assert [(row["schedule"], row["status"], row["words"]) for row in named] == [(lacking, "not covered", None)]
    assert other in named[0]["reason"]


def test_an_invalid_point_is_a_row_with_its_reason():
    rows = sweep.run({"n": 64, "d": 8, "words": 999, "heads": [3, 4], "kv_heads": 2, "schedule": "flash"}, jobs=1)
    assert [(row["heads"], row["status"]) for row in rows] == [(3, "invalid"), (4, "fits")]
    assert rows[0]["reason"] == "heads (3) must be a multiple of kv_heads (2)"


def test_a_bug_is_not_taken_for_a_bad_point(monkeypatch):
    monkeypatch.setattr(rb, "count", lambda *_, **__: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        sweep.run(SMALL, jobs=1)


# In parallel


@pytest.fixture(scope="module")
def expected():
    return sweep.run(SMALL, jobs=1)


@pytest.mark.parametrize("jobs", [2, None])
def test_results_do_not_depend_on_jobs(jobs, expected, monkeypatch):
    monkeypatch.setattr(runner, "ALONE_SECONDS", 0.0)
    evaluated = counting(monkeypatch)  # in this process
    assert sweep.run(SMALL, jobs=jobs) == expected
    assert len(evaluated) == (1 if jobs is None else 0)


class Backend(ThreadingBackend):
    """Threads that say how often they were given work."""

    given = 0

    def submit(self, *arguments, **options):
        type(self).given += 1
        return super().submit(*arguments, **options)


class ListsOnly(Backend):
    """Like Ray's: no results one by one."""

    supports_return_generator = False


@pytest.mark.parametrize("kind", [Backend, ListsOnly])
def test_the_active_backend_is_used(kind, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(kind, "given", 0)
    joblib.register_parallel_backend(kind.__name__, kind)
    with joblib.parallel_config(kind.__name__, n_jobs=2):
        assert sweep.run(SMALL, output=tmp_path / "r.jsonl") == expected
    assert kind.given > 1
    assert sweep.read(tmp_path / "r.jsonl") == expected


@pytest.mark.parametrize("jobs", [0, -1, True, 2.5])
def test_wrong_jobs_are_refused(jobs):
    with pytest.raises(RedblueError, match="jobs must be a whole number of at least 1"):
        sweep.run(SMALL, jobs=jobs)


# Files


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_files_give_back_the_rows(suffix, tmp_path):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow", reason="Parquet is NOT tested: pip install 'redblue[parquet]'")
    axes = {"n": [64, 333], "d": 8, "memory": "t4", "words": "5,500", "heads": [3, 4], "kv_heads": 2}
    path = tmp_path / f"r{suffix}"
    rows = sweep.run(axes | {"mask": "causal,window:8,2"}, output=path, jobs=1)
    assert {row["status"] for row in rows} == {"fits", "too few words", "invalid"}
    back = sweep.read(path)
    assert back == rows
    types = [{name: type(value) for name, value in row.items()} for row in rows]
    assert [{name: type(value) for name, value in row.items()} for row in back] == types
    assert os.listdir(tmp_path) == [path.name]  # neither a draft nor the kept points are left


def test_parquet_without_pyarrow_says_what_to_install(monkeypatch, tmp_path):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "pyarrow" else found(name, *a))
    with pytest.raises(RedblueError, match=r"pip install 'redblue\[parquet\]'"):
        sweep.run(SMALL, output=tmp_path / "r.parquet")


def test_too_large_for_parquet_is_said(tmp_path, expected):
    pytest.importorskip("pyarrow", reason="Parquet is NOT tested: pip install 'redblue[parquet]'")
    with pytest.raises(RedblueError, match="exceeds Parquet's 64 bits"):
        sweep.write([expected[0] | {"flops": 2**63}], tmp_path / "r.parquet")
    assert os.listdir(tmp_path) == []


def test_an_existing_file_is_kept(tmp_path, expected):
    path = tmp_path / "r.csv"
    path.write_text("mine")
    with pytest.raises(RedblueError, match="exists: name another file, or replace it with --force"):
        sweep.run(SMALL, output=path)
    assert path.read_text() == "mine"
    assert os.listdir(tmp_path) == ["r.csv"]
    sweep.run(SMALL, output=path, force=True, jobs=1)
    assert sweep.read(path) == expected


def test_a_file_that_came_in_the_meantime_is_kept(interrupted, expected):
    def progress(done, total):
        if done == total:
            interrupted.write_text("mine")

    with pytest.raises(RedblueError, match="exists"):
        sweep.run(SMALL, output=interrupted, jobs=1, progress=progress)
    assert interrupted.read_text() == "mine"
    assert sweep.run(SMALL, output=interrupted, jobs=1, force=True) == expected


@pytest.mark.parametrize("name", ["r.xlsx", "r", "no/r.csv", "folder.csv"])
def test_where_nothing_can_be_written_is_said_before_any_work(name, tmp_path, monkeypatch):
    (tmp_path / "folder.csv").mkdir()
    monkeypatch.setattr(runner, "evaluate", lambda point: pytest.fail("worked"))
    with pytest.raises(RedblueError, match=r"must end in|it is a folder|there is no folder"):
        sweep.run(SMALL, output=tmp_path / name)


# Interruptions


class Stop(Exception):
    pass


def stop_after(points):
    def progress(done, total):
        if done == points:
            raise Stop

    return progress


@pytest.fixture
def interrupted(tmp_path):
    """An output whose sweep stopped after 5 points."""
    path = tmp_path / "r.csv"
    with pytest.raises(Stop):
        sweep.run(SMALL, output=path, jobs=1, progress=stop_after(5))
    assert not path.exists()
    return path


def counting(monkeypatch):
    """The indices of the points that are evaluated from now on."""
    evaluated, real = [], runner.evaluate

    def evaluate(point):
        evaluated.append(point.index)
        return real(point)

    monkeypatch.setattr(runner, "evaluate", evaluate)
    return evaluated


def test_a_stopped_sweep_goes_on(interrupted, expected, monkeypatch):
    evaluated, progress = counting(monkeypatch), []
    rows = sweep.run(SMALL, output=interrupted, jobs=1, progress=lambda *state: progress.append(state))
    assert rows == expected == sweep.read(interrupted)
    assert evaluated == list(range(5, 16))
    assert progress[0] == (5, 16)
    assert progress[-1] == (16, 16)
    assert not journal_path(interrupted).exists()


@pytest.mark.parametrize("cut", [1, 2, 40, -1, -2])
def test_a_half_written_line_is_done_again(interrupted, expected, monkeypatch, cut):
    """cut: bytes left of the last line, or (negative) missing from it."""
    journal = journal_path(interrupted)
    *whole, last = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(whole) + last[:cut])
    evaluated = counting(monkeypatch)
    with pytest.raises(Stop):
        sweep.run(SMALL, output=interrupted, jobs=1, progress=stop_after(9))  # and once more
    assert sweep.run(SMALL, output=interrupted, jobs=1) == expected
    assert evaluated == list(range(4, 16))


@pytest.mark.parametrize("cut", [0, 1, 23, -1, -2])
def test_a_half_written_header_is_written_again(cut, interrupted, expected, monkeypatch):
    header = journal_path(interrupted).read_bytes().splitlines(keepends=True)[0]
    journal_path(interrupted).write_bytes(header[:cut])
    evaluated = counting(monkeypatch)
    with pytest.raises(Stop):
        sweep.run(SMALL, output=interrupted, jobs=1, progress=stop_after(2))
    assert sweep.run(SMALL, output=interrupted, jobs=1) == expected
    assert evaluated == list(range(16))


def refused(path, axes, says):
    """The sweep is refused, its journal left as it is, and restart goes on."""
    before = journal_path(path).read_bytes()
    with pytest.raises(RedblueError) as error:
        sweep.run(axes, output=path, jobs=1)
    assert says in str(error.value)
    assert "--restart" in str(error.value)
    assert journal_path(path).read_bytes() == before
    assert not path.exists()
    assert sweep.run(axes, output=path, jobs=1, restart=True) == sweep.run(axes, jobs=1)


def test_damage_before_the_last_line_is_refused(interrupted):
    lines = journal_path(interrupted).read_bytes().splitlines(keepends=True)
    lines[2] = lines[2][:30] + b"\n"
    journal_path(interrupted).write_bytes(b"".join(lines))
    refused(interrupted, SMALL, "is damaged in line 3")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"d": [8, 32]}, "differs in d:"),
        ({"dtype": "float32"}, "differs in dtype:"),
        ({"n": "64,100,128", "words": 60}, "differs in n, words:"),
    ],
)
def test_points_of_another_sweep_are_refused(interrupted, change, says):
    refused(interrupted, SMALL | change, says)


def test_points_of_another_version_are_refused(interrupted, monkeypatch):
    monkeypatch.setattr(rb, "__version__", "99.0")
    refused(interrupted, SMALL, f"was written by redblue {rb.version('redblue')}, this is 99.0")


def test_points_of_a_memory_that_changed_are_refused(tmp_path):
    def toml(capacity):
        text = f'[m]\ntitle = "M"\nkind = "cpu"\n[[m.levels]]\nname = "L1"\ncapacity = {{ kib = {capacity} }}\n'
        (tmp_path / "m.toml").write_text(text + '[[m.levels]]\nname = "RAM"\n')

    axes, path = {"n": [64, 100], "d": 8, "memory": str(tmp_path / "m.toml")}, tmp_path / "r.csv"
    toml(32)
    with pytest.raises(Stop):
        sweep.run(axes, output=path, jobs=1, progress=stop_after(1))
    toml(48)
    refused(path, axes, "differs in caches")


def test_two_processes_do_not_write_one_file(interrupted):
    with (
        Journal(journal_path(interrupted), sweep.make_sweep(SMALL)),
        pytest.raises(RedblueError, match="another process is writing"),
    ):
        sweep.run(SMALL, output=interrupted, restart=True)


LONG = {"n": "1000:4096:x1.15", "d": "64,128", "words": "1000,9000", "mask": "causal"}


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=lambda how: how.name)
def test_a_process_that_dies_loses_nothing(how, tmp_path, monkeypatch):
    """A real one, in the middle of its work; what is done is not done again, the result as if it had not died."""
    path = tmp_path / "r.csv"
    options = [part for name, value in LONG.items() for part in (f"--{name}", value)]
    command = [sys.executable, "-m", "redblue.cli", "sweep", *options, "--jobs", "2", "-o", "r.csv"]
    with open(tmp_path / "stderr", "wb") as errors:
        process = subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 60
        while not journal_path(path).exists() or len(journal_path(path).read_bytes().splitlines()) < 6:
            assert process.poll() is None, (tmp_path / "stderr").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        if how == signal.SIGINT:
            os.killpg(process.pid, how)  # as a terminal does
        else:
            process.kill()
        code = process.wait(timeout=20)
    finally:
        kill_group(process.pid)
    assert not path.exists()
    said = (tmp_path / "stderr").read_text()
    if how == signal.SIGINT:
        assert code == 130
        assert "points are done, kept in r.csv.partial.jsonl" in said
        assert f"to go on: redblue sweep {' '.join(options)} --jobs 2 -o r.csv" in said
        assert "Traceback" not in said
    else:
        assert code == -signal.SIGKILL
    lines = (
        journal_path(path).read_bytes().split(b"\n")[1:-1]
    )  # after the header; what follows the last \n is not whole
    kept = {json.loads(line)["point"] for line in lines}
    evaluated = counting(monkeypatch)
    total = sweep.make_sweep(LONG).size
    assert 5 <= len(kept) < total
    rows = sweep.run(LONG, output=path, jobs=1)
    assert sorted(evaluated) == sorted(set(range(total)) - kept)
    assert rows == whole() == sweep.read(path)


def kill_group(group):
    """The process that this test started, and its workers."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


_whole = []


def whole():
    """LONG without any interruption."""
    if not _whole:
        _whole.extend(sweep.run(LONG, jobs=2))
    return _whole


# Pictures


def values_of(chart):
    return chart.to_dict()["data"]["values"]


def test_a_picture_shows_every_word_count():
    axes = {"n": 64, "d": [8, 16], "words": "50:800:x2"}
    made = sweep.make_sweep(axes)
    rows = sweep.run(made, jobs=1)
    chart = sweep.figure(made, rows)
    drawn = {(v["schedule"], v["facet"], v["x"]): v["y"] for v in values_of(chart) if "schedule" in v}
    fitting = [row for row in rows if row["words"] is not None]
    assert drawn == {
        (row["schedule"], f"d = {row['d']}", row["capacity_words"]): row["words_per_pair"] for row in fitting
    }
    bounds = {(v["facet"], v["x"]): v["y"] for v in values_of(chart) if "bound" in v}
    assert bounds == {
        (f"d = {row['d']}", row["capacity_words"]): pytest.approx(row["bound_words"] / 64**2) for row in fitting
    }
    spec = chart.to_dict()
    assert spec["columns"] == 2
    layers = spec["spec"]["layer"]
    assert {layer["encoding"]["x"]["scale"]["type"] for layer in layers} == {"log"}
    assert {layer["encoding"]["y"]["scale"]["type"] for layer in layers} == {"log"}


def test_an_axis_of_steps_is_drawn_without_logarithms():
    made = sweep.make_sweep({"n": 64, "d": "8:32:+8", "words": 999})
    layers = sweep.figure(made, sweep.run(made, jobs=1), y="gap").to_dict()["layer"]
    assert {layer["encoding"]["x"]["scale"]["type"] for layer in layers} == {"linear"}


@pytest.mark.parametrize("suffix", [".svg", ".png", ".html"])
def test_pictures_are_written(suffix, tmp_path):
    made = sweep.make_sweep({"n": "64:256:x2", "d": 8, "memory": "t4"})
    rows = sweep.run(made, jobs=1)
    path = tmp_path / f"p{suffix}"
    sweep.draw(made, rows, path)
    data = path.read_bytes()
    if suffix == ".png":
        assert data.startswith(b"\x89PNG")
        assert len(data) > 20_000
    else:
        text = data.decode()
        for said in ("flash", "small_cache", "L2/DRAM", "shared memory/L2", "words per attended pair"):
            assert said in text
        if suffix == ".svg":
            assert text.count('aria-roledescription="point"') >= 3 * 2 * 2
        else:
            assert "<script src" not in text  # nothing from the network
            assert len(text) > 500_000
    with pytest.raises(RedblueError, match="exists"):
        sweep.draw(made, rows, path)
    assert path.read_bytes() == data
    sweep.draw(made, rows, path, force=True, y="gap")
    assert path.read_bytes() != data


@pytest.mark.parametrize(
    ("axes", "options", "says"),
    [
        ({"n": 64, "d": 8, "words": 99}, {}, "needs an axis of several values"),
        ({"n": [64, 65], "d": [8, 9], "words": [99, 199]}, {}, "n, d, words have several values"),
        ({"n": [64, 65], "d": 8, "words": 99}, {"x": "d"}, "x must be an axis of several values, which are n; got 'd'"),
        ({"n": [64, 65], "d": 8, "words": 99}, {"y": "joules"}, "y must be one of words_per_pair, gap"),
        ({"n": [64, 65], "d": 8, "words": 99}, {"y": "seconds"}, "seconds without a memory"),
        ({"n": [64, 65], "d": 8, "words": 99, "memory": "t4"}, {}, "words or memories, not both"),
        ({"n": "64:96:+1", "d": "8:20:+1", "words": 99}, {}, "d has 13 values, a picture at most 12 facets"),
        ({"n": [64, 65], "d": 8, "words": 1}, {}, "nothing to draw"),
    ],
)
def test_pictures_that_cannot_be_drawn_are_refused(axes, options, says, tmp_path):
    made = sweep.make_sweep(axes)
    with pytest.raises(RedblueError) as error:
        sweep.draw(made, sweep.run(made, jobs=1) if says == "nothing to draw" else [], tmp_path / "p.svg", **options)
    assert says in str(error.value)
    assert os.listdir(tmp_path) == []
