"""The script `.ci/gpu`: its steps on a dry run, and steps and options that it refuses."""

import os
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
