"""Kernels that are compiled before they are measured."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")


ROOT = Path(__file__).parents[3]


@pytest.mark.thorough
def test_kernels_are_compiled_ahead_in_other_processes(tmp_path):
    """Every candidate of the plan is compiled for an H100, without such a GPU, into Triton's cache."""
    command = [sys.executable, "-m", "benchmarks.gpu.ahead", "--jobs", "1", "--only", "B 16, n_q 1"]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
        "TRITON_CACHE_DIR": str(tmp_path),
        "TRITON_INTERPRET": "0",
    }
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    assert completed.returncode == 0, completed.stderr
    compiled = {path.stem for path in tmp_path.rglob("*.cubin")}
    assert compiled >= {"flash_forward", "paged_forward", "paged_merge"}
    assert "compiled ahead" in completed.stdout
