"""The script `.ci/gpu`: its steps on a dry run, and steps and options that it refuses."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")


ROOT = Path(__file__).parents[3]


@pytest.mark.thorough
@pytest.mark.nightly
def test_the_whole_hour_runs_dry(tmp_path):
    environment = os.environ | {"PYTHON": sys.executable, "OUT": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [ROOT / ".ci" / "gpu", "--budget", "6000", "--dry"]  # time for a busy computer
    completed = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    steps = "once", "bench", "ncu", "test", "small-cache"
    assert [line.split()[1].strip(":") for line in completed.stdout.splitlines() if line.startswith("== ")][:-1] == [
        *steps
    ]
    assert {path.name for path in tmp_path.glob("*.json")} == {
        *("once.json", "gpu_attention.json", "counters.json", "small_cache.json")
    }


def test_the_hour_refuses_unknown_steps_and_options():
    for arguments, said in (
        ([], "give steps"),
        (["bensch"], "unknown step bensch"),
        (["--dri"], "unknown option --dri"),
    ):
        completed = subprocess.run([ROOT / ".ci" / "gpu", *arguments], capture_output=True, text=True)
        assert completed.returncode == 2
        assert said in completed.stderr


@pytest.mark.parametrize(("wheels", "attempts"), [(["some.whl"], 1), ([], 3)], ids=["wheels", "network"])
def test_a_machine_that_was_given_wheels_waits_once_for_the_network(tmp_path, wheels, attempts):
    """A script imitates a Python that lacks two packages and cannot install them."""
    script, python, log = (tmp_path / name for name in (".ci/gpu", "python", "log"))
    (tmp_path / "build" / "wheel").mkdir(parents=True)
    for wheel in wheels:
        (tmp_path / "build" / "wheel" / wheel).touch()
    script.parent.mkdir()
    shutil.copy(ROOT / ".ci" / "gpu", script)
    python.write_text(
        f'#!/bin/sh\necho "$*" >> {log}\n'
        'case "$*" in *missing.py*) printf "one\\nanother\\n" ;; *"pip install"*) exit 1 ;; esac\n'
    )
    python.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "OUT"} | {"PYTHON": str(python)}
    completed = subprocess.run([script, "once"], env=environment, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert [word for line in completed.stderr.splitlines() for word in line.split()[2:]] == ["one", "another"]
    made = log.read_text().splitlines()
    assert len([line for line in made if "pip install" in line]) == attempts
    assert "benchmarks.gpu.once" in made[-1]
