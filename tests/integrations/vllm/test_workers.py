"""redblue's threads where OpenMP pins the main thread to one CPU, as in vLLM's worker processes."""

import ast
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")

PROGRAM = """
import os
import torch
torch.ones(1 << 20).add_(1)
from redblue.integrations.vllm.workers import TASKS, pinned_cpus, start_workers
threads = lambda: {int(task.name) for task in TASKS.iterdir()}
pinned, before, own = sorted(pinned_cpus()), threads(), sorted(os.sched_getaffinity(0))
start_workers()
new = [sorted(os.sched_getaffinity(thread)) for thread in threads() - before]
start_workers()
again = len(threads()) - len(before) - len(new)
print((pinned, own, sorted(os.sched_getaffinity(0)), new, again))
"""


def ran(**variables):
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=env | variables)
    assert run.returncode == 0, run.stderr
    return ast.literal_eval(run.stdout)


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or len(os.sched_getaffinity(0)) < 2, reason="needs Linux and two CPUs"
)
def test_workers_may_use_all_cpus_of_the_pinned_threads():
    first, second = sorted(os.sched_getaffinity(0))[:2]
    pinned, before, after, new, again = ran(GOMP_CPU_AFFINITY=f"{first} {second}", OMP_NUM_THREADS="2")
    if len(before) > 1:
        pytest.skip("this PyTorch's OpenMP does not read GOMP_CPU_AFFINITY")
    assert pinned == [first, second]
    assert before == after == [first]
    assert new == [[first, second]]
    assert again == 0


def test_nothing_is_started_where_no_thread_is_pinned():
    pinned, before, after, new, again = ran()
    assert (pinned, new, again) == ([], [], 0)
    assert before == after
