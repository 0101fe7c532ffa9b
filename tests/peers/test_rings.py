"""ring-flash-attn and yunchang over two processes on CPUs, with redblue as their flash_attn."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

TESTS = Path(__file__).parents[1]
PROCESSES = 2
CASES = {
    "ring_flash_attn": [
        *("ring_basic", "ring_zigzag", "ring_striped", "ring_packed_tensors"),
        *("ring_varlen", "ring_zigzag_varlen", "ring_llama3"),
    ],
    "yunchang": ["usp_basic", "usp_zigzag", "usp_striped", "usp_packed_tensors", "ulysses"],
}


def finished(process):
    try:
        return process.communicate(timeout=300)[0]
    finally:
        process.kill()


@pytest.mark.thorough
@pytest.mark.parametrize("package", CASES)
def test_parts_and_gradients_are_those_of_one_process(package, tmp_path):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    command = [sys.executable, str(TESTS / "support" / "ring_worker.py")]
    environment = os.environ | {"PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    names = CASES[package]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(PROCESSES), str(tmp_path / "meeting"), *names],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(PROCESSES)
    ]
    outputs = [finished(process) for process in processes]
    for process, output in zip(processes, outputs, strict=True):
        assert [f"{name} passed" in output for name in names] == [True] * len(names), "\n\n".join(outputs)
        assert process.returncode == 0, output
