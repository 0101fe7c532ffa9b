"""redblue's threads if OpenMP pins the main thread to one CPU, as in vLLM's worker processes."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

PROGRAM = """
import os, time
import torch
torch.ones(1 << 20).add_(1)
def cpus_of(thread):  # most of the time: the pool narrows the CPUs of a late thread for a moment, to move it
    seen = []
    for _ in range(20):
        try:
            seen.append(sorted(os.sched_getaffinity(thread)))
        except ProcessLookupError:  # the starting thread has ended
            break
        time.sleep(0.01)
    return max(seen, key=seen.count, default=None)
from redblue.integrations.vllm.workers import TASKS, pinned_cpus, start_workers
threads = lambda: {int(task.name) for task in TASKS.iterdir()}
pinned, before, own = sorted(pinned_cpus()), threads(), sorted(os.sched_getaffinity(0))
start_workers()
new = [cpus for cpus in map(cpus_of, threads() - before) if cpus]
start_workers()
again = len(threads()) - len(before) - len(new)
print((pinned, own, sorted(os.sched_getaffinity(0)), new, again))
"""
AFTER = """
known = threads()
from redblue import attention
x = torch.ones(1, 8, 512, 64)
for _ in range(20):
    x.add_(0)  # wakes PyTorch's team
    attention(x, x, x)
added = threads() - known
print(sorted(os.sched_getaffinity(thread) == {own[0]} for thread in added))
"""
INTEL = Path(sys.prefix, "lib", "libiomp5.so")  # vLLM for CPUs brings it, and advises to preload it


def ran(program=PROGRAM, **variables):
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env | variables)
    assert run.returncode == 0, run.stderr
    return ast.literal_eval(run.stdout.splitlines()[-1])


@pytest.mark.thorough
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
    assert new  # including the starting thread, if it has not ended yet
    assert all(cpus == [first, second] for cpus in new)
    assert again <= 0


@pytest.mark.thorough
def test_nothing_is_started_where_no_thread_is_pinned():
    pinned, before, after, new, again = ran()
    assert (pinned, new, again) == ([], [], 0)
    assert before == after


@pytest.mark.skipif(not INTEL.exists() or len(os.sched_getaffinity(0)) < 2, reason="needs libiomp5.so and two CPUs")
def test_a_preloaded_openmp_is_the_one_that_redblue_uses():
    """PyTorch then does not use its own libgomp, which would start a second team, pinned to the caller's CPU."""
    cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))[:2]))
    pinned = {"KMP_AFFINITY": f"granularity=fine,explicit,proclist=[{cpus}]", "OMP_NUM_THREADS": "2"}
    assert not any(ran(PROGRAM + AFTER, LD_PRELOAD=str(INTEL), **pinned))
