"""Parallel points: no more processes than are useful, and none that outlives its parent."""

import os
import signal
import subprocess
import sys
import time

import joblib
import pytest

from redblue.base import parallel
from redblue.base.parallel import finish
from support.examples import thorough

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def square(point):
    return point * point


def finished(size, jobs):
    return finish(square, lambda index: index, size, {}, jobs, lambda index, result: None, lambda done, total: None)


@pytest.mark.parametrize(("points", "most"), [(1, 1), (3, 3), (1000, 8)])
def test_no_more_workers_than_points_or_cores_allow(points, most, monkeypatch):
    asked, real = [], joblib.Parallel

    def recording(n_jobs, **options):
        asked.append(n_jobs)
        return real(n_jobs=1, **options)

    monkeypatch.setattr(joblib, "cpu_count", lambda: 2)
    monkeypatch.setattr(joblib, "Parallel", recording)
    assert finished(points, jobs=100_000) == {index: index * index for index in range(points)}
    assert asked == [most]


@pytest.mark.parametrize("backend", ["threading", "loky"])
def test_a_configured_number_is_limited_too(backend, monkeypatch):
    monkeypatch.setattr(joblib, "cpu_count", lambda: 1)
    with joblib.parallel_config(backend=backend, n_jobs=100_000):
        active, configured = joblib.parallel.get_active_backend()
        assert parallel._workers(active, configured, 50) == 4
        assert finished(2, jobs=None) == {0: 0, 1: 1}


WORK = """
import os, time
from redblue.base.parallel import finish

def wait(folder):
    open(os.path.join(folder, str(os.getpid())), "w").close()
    time.sleep(600)

finish(wait, lambda index: {folder!r}, 2, {{}}, 2, lambda *_: None, lambda *_: None)
"""


@linux_only
@pytest.mark.parametrize("how", [signal.SIGKILL, thorough(signal.SIGTERM)], ids=lambda how: how.name)
def test_workers_end_with_their_parent(how, tmp_path):
    """Kill the parent of two workers that would work for ten minutes."""
    (tmp_path / "work.py").write_text(WORK.format(folder=str(tmp_path / "workers")))
    (tmp_path / "workers").mkdir()
    process = subprocess.Popen([sys.executable, "work.py"], cwd=tmp_path, stderr=subprocess.DEVNULL)
    workers = []
    try:
        while len(workers) < 2:
            assert process.poll() is None
            workers = [int(name) for name in os.listdir(tmp_path / "workers")]
            time.sleep(0.02)
        process.send_signal(how)
        process.wait()
        while any(map(alive, workers)):  # if this hangs, the test runner's time limit fails the test
            time.sleep(0.02)
    finally:
        process.kill()
        for worker in filter(alive, workers):
            os.kill(worker, signal.SIGKILL)


def alive(pid):
    """Whether a process runs; a zombie has ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
