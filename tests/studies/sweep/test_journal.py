"""The journal that an interrupted sweep leaves, and its continuation."""

import errno
import itertools
import json
import os
import signal
import subprocess
import sys
import time

import pytest

import redblue as rb
from redblue.base import journal
from redblue.base.errors import RedblueError
from redblue.base.journal import journal_path
from redblue.catalogue.detect import detect_cpu
from redblue.catalogue.roofline import ALL_CORES, ONE_CORE, Roofline
from redblue.studies import sweep
from redblue.studies.sweep.runner import open_journal
from support.sweeps import SMALL, Stop, counting, stop_after


def test_a_stopped_sweep_goes_on(interrupted, expected, monkeypatch):
    evaluated, progress = counting(monkeypatch), []
    rows = sweep.run(SMALL, output=interrupted, jobs=1, progress=lambda *state: progress.append(state))
    assert rows == expected == sweep.read(interrupted)
    assert evaluated == list(range(5, 16))
    assert progress[0] == (5, 16)
    assert progress[-1] == (16, 16)
    assert not journal_path(interrupted).exists()


def test_a_sweep_on_this_machine_goes_on_with_a_newly_measured_bandwidth(tmp_path, monkeypatch):
    """Each call measures another bandwidth, as where the roofline cannot be stored."""
    rates = itertools.count(1)

    def roofline(remeasure=False):
        rate = dict.fromkeys((ONE_CORE, ALL_CORES), next(rates) * 1e9)
        levels = dict.fromkeys(["DRAM", *(cache.name for cache in detect_cpu().caches)], rate)
        return Roofline("a CPU", 2, "portable", {"float32": rate}, levels, "2026-01-01", 1.0)

    monkeypatch.setattr("redblue.catalogue.roofline.roofline", roofline)
    axes, output = {"n": [64, 128], "d": 8, "memory": "this-machine", "schedule": "flash"}, tmp_path / "rows.csv"
    with pytest.raises(Stop):
        sweep.run(axes, output=output, jobs=1, progress=stop_after(1))
    rows = sweep.run(axes, output=output, jobs=1)
    assert {row["n_q"] for row in rows} == {64, 128}
    again = sweep.run(axes, jobs=1)
    assert rows != again
    assert [row | {"seconds": None} for row in rows] == [row | {"seconds": None} for row in again]


@pytest.mark.parametrize("cut", [1, 2, 40, -1, -2])
def test_a_half_written_line_is_done_again(interrupted, expected, monkeypatch, cut):
    """cut: the bytes that remain of the last line, or, if negative, those that are missing."""
    path = journal_path(interrupted)
    *whole, last = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole) + last[:cut])
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


FOREIGN = {
    "a line": b"my precious notes\n",
    "half a line": b"my precious notes",
    "lines": b"my precious\nnotes\n",
    "json": b'{"mine": 1}\n',
    "no object": b'"redblue_sweep"\n',
    "deep": b"[" * 100_000 + b"\n",
    "binary": b"\x00\xff\r\x80",
}


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
def test_a_file_that_is_no_journal_is_kept(content, restart, tmp_path):
    path = tmp_path / "r.csv"
    journal_path(path).write_bytes(content)
    with pytest.raises(RedblueError, match=r"is no sweep's journal.*move it away, or name another output"):
        sweep.run(SMALL, output=path, jobs=1, restart=restart)
    assert journal_path(path).read_bytes() == content
    assert not path.exists()


def test_half_a_header_of_another_sweep_is_refused(interrupted):
    journal_path(interrupted).write_bytes(journal_path(interrupted).read_bytes().splitlines()[0][:-5])
    refused(interrupted, SMALL | {"n": 64}, "was begun by another sweep or version of redblue")


def test_notes_below_the_points_are_kept(interrupted):
    with open(journal_path(interrupted), "ab") as file:
        file.write(b"my precious notes\n")
    refused(interrupted, SMALL, "is damaged in line 7")


@pytest.mark.thorough
def test_a_full_disk_is_reported_and_kept_points_stay(tmp_path, monkeypatch):
    """A limit on file sizes simulates the full disk; the last line is half-written."""
    full = "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (6000, 6000)); from redblue.cli.main import main; main()"
    options = [part for name, value in LONG.items() for part in (f"--{name}", value)]
    command = [sys.executable, "-c", full, "sweep", *options, "--jobs", "1", "-o", "r.csv"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    path = tmp_path / "r.csv"
    assert done.returncode == 2, done.stderr
    assert "error: cannot write r.csv.partial.jsonl: the disk is full. The file keeps the points" in done.stderr
    assert "Traceback" not in done.stderr
    assert os.listdir(tmp_path) == [journal_path(path).name]
    assert len(journal_path(path).read_bytes()) == 6000
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)  # at the same point
    assert (again.returncode, again.stderr) == (2, done.stderr)
    evaluated = counting(monkeypatch)
    assert sweep.run(LONG, output=path, jobs=1) == whole()
    assert 0 < len(evaluated) < sweep.make_sweep(LONG).size


def test_a_failed_write_is_reported(interrupted, expected):
    class Full:
        def write(self, data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with open_journal(interrupted, sweep.make_sweep(SMALL)) as opened:
        real, opened._file = opened._file, Full()
        with pytest.raises(RedblueError, match=r"No space left on device\. The file keeps the points finished so far"):
            opened.add(5, expected[:1])
        opened._file = real
    assert sweep.run(SMALL, output=interrupted, jobs=1) == expected


def refused(path, axes, says):
    """Check that the sweep is refused, that its journal is unchanged, and that restart works."""
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
    monkeypatch.setattr(journal, "__version__", "99.0")
    refused(interrupted, SMALL, f"was written by redblue {rb.__version__}, this is 99.0")


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


def test_two_processes_do_not_write_one_file(interrupted, expected):
    files = set(os.listdir(interrupted.parent))
    with open_journal(interrupted, sweep.make_sweep(SMALL)):
        with pytest.raises(RedblueError, match="another process is writing"):
            sweep.run(SMALL, output=interrupted, restart=True)
        assert set(os.listdir(interrupted.parent)) == files  # no lock file beside the journal
    assert sweep.run(SMALL, output=interrupted, jobs=1) == expected  # the lock ends with the journal


LONG = {"n": "1000:4096:x1.08", "d": "64,128", "words": "1000,9000", "mask": "causal"}


@pytest.mark.thorough
@pytest.mark.usefixtures("interruptible")  # child processes inherit whether SIGINT is ignored
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=lambda how: how.name)
def test_a_process_that_dies_loses_nothing(how, tmp_path, monkeypatch):
    """Kill a real process at work; its finished points are not repeated, and the result is complete."""
    path = tmp_path / "r.csv"
    options = [part for name, value in LONG.items() for part in (f"--{name}", value)]
    command = [sys.executable, "-m", "redblue.cli.main", "sweep", *options, "--jobs", "2", "-o", "r.csv"]
    with open(tmp_path / "stderr", "wb") as errors:
        process = subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 60
        while not journal_path(path).exists() or len(journal_path(path).read_bytes().splitlines()) < 4:
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
    printed = (tmp_path / "stderr").read_text()
    if how == signal.SIGINT:
        assert code == 130
        assert "points are done, kept in r.csv.partial.jsonl" in printed
        assert f"to go on: redblue sweep {' '.join(options)} --jobs 2 -o r.csv" in printed
        assert "Traceback" not in printed
    else:
        assert code == -signal.SIGKILL
    lines = (
        journal_path(path).read_bytes().split(b"\n")[1:-1]
    )  # after the header; the text behind the last \n is incomplete
    kept = {json.loads(line)["point"] for line in lines}
    evaluated = counting(monkeypatch)
    total = sweep.make_sweep(LONG).size
    assert 3 <= len(kept) < total
    rows = sweep.run(LONG, output=path, jobs=1)
    assert sorted(evaluated) == sorted(set(range(total)) - kept)
    assert rows == whole() == sweep.read(path)


def test_a_journal_is_closed_before_it_is_deleted(tmp_path, monkeypatch):
    """Windows does not delete open files."""
    kept = journal.Journal(tmp_path / "r.partial.jsonl", "sweep", {}, 1)
    closed = []
    monkeypatch.setattr(type(kept.path), "unlink", lambda path, missing_ok: closed.append(kept._file.closed))
    with kept:
        kept.remove()
    assert closed == [True]


def kill_group(group):
    """Kill the process that this test started, and its workers."""
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
