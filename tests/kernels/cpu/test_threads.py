"""Results do not depend on the number of threads; calls may run concurrently, after a fork, and in workers."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import redblue as rb
from redblue import Mask
from redblue.kernels.cpu import call as cpu
from support.attention import DTYPES, Case, backward, forward, running
from support.examples import thorough

SPILLING = [cpu.SpillTile(stays, 32, 48, 16, 48, 9, 50, 20, 30, 7, chunk=96) for stays in (True, False)]
TWO_PASSES = cpu.TwoPassTile(32, 24, 16, 40)
IDS = ["plan", "tiny", "pieces", "two passes", *cpu.SPILLED]


def example(dtype="float32", heads=4, kv_heads=2, n=150, **options):
    rng = np.random.default_rng(0)
    shapes = ((heads, n, 24), (kv_heads, n + 30, 24), (kv_heads, n + 30, 16), (heads, n, 16))
    return Case(*(rng.standard_normal(shape).astype(DTYPES[dtype]) for shape in shapes), options)


def results(case):
    out, lse = forward(case)
    return [x.tobytes() for x in (out, lse, *backward(case, out, lse))]


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("tile", [None, cpu.Tile(16, 16), cpu.Tile(64, 40, pieces=3), TWO_PASSES, *SPILLING], ids=IDS)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (1, 1)])
def test_bitwise_the_same_for_any_number_of_threads(isa, dtype, tile, heads, kv_heads):
    case = example(dtype, heads, kv_heads, mask=Mask.causal(), dropout=0.2, seed=5)
    case.tile = tile
    expected = results(case)
    for case.threads in (2, 3, 8, 8, 8):
        assert results(case) == expected


def test_concurrent_callers():
    cases = [example(n=n, heads=heads) for n in (10, 60, 130, 200) for heads in (2, 4)]
    expected = [results(case) for case in cases]
    start = threading.Barrier(len(cases))

    def call(case):
        start.wait(timeout=30)
        return [results_of(case) for _ in range(10)]

    # Not `forward`, whose patches would be shared by all threads
    def results_of(case):
        out, lse = rb.attention(case.q, case.k, case.v, return_lse=True)
        return [x.tobytes() for x in (out, lse, *rb.attention_backward(case.dout, case.q, case.k, case.v, out, lse))]

    with running(threads=3), ThreadPoolExecutor(len(cases)) as pool:
        for repeated, right in zip(pool.map(call, cases), expected, strict=True):
            assert repeated == [right] * 10


def worker(threads):
    """Compare results with and without threads, in another process."""
    case = example()
    alone = results(case)
    case.threads = threads
    return results(case) == alone, alone


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_after_a_fork_parent_and_child_both_work():
    case = example()
    case.threads = 4
    expected = results(case)  # the parent has worker threads now
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the test forks a process with threads on purpose
        child = os.fork()
    if child == 0:
        signal.alarm(30)  # kills a child that hangs, which the parent notices
        os._exit(0 if results(case) == expected else 1)
    assert results(case) == expected
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert results(case) == expected


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("method", sorted(set(multiprocessing.get_all_start_methods()) & {"fork", "spawn"}))
def test_inside_workers(method):
    expected = worker(4)
    with multiprocessing.get_context(method).Pool(2) as pool:
        for same, result in pool.map_async(worker, [2, 4, 4]).get(timeout=60):
            assert same
            assert result == expected[1]


# The beginning of each script below: a call and its results on one thread.
PREAMBLE = """
import os, resource, runpy, sys, threading, time
import numpy as np
from redblue.compiled import _core
from redblue.kernels.cpu import call as cpu
from redblue.kernels.sizes import Sizes

test_file, tests, team = sys.argv[1:]
if team == "PyTorch's":
    import torch, redblue.op.pytorch
    assert _core.use_openmp_of(torch.__path__[0] + "/lib/libtorch_cpu.so")
    torch.set_num_threads(3)
    torch.ones(1 << 20).sum()  # creates the team
sys.path.insert(0, tests)
helpers = runpy.run_path(test_file)
case, results = helpers["example"](), helpers["results"]
right = results(case)
case.threads = 3
"""

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="affinity and limits of memory are Linux's")


def run_script(script, team="redblue's"):
    """Run a script in a separate process, on redblue's or PyTorch's threads, and return the lines that it prints."""
    if team == "PyTorch's":
        pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + script, __file__, str(Path(__file__).parents[2]), team],
        capture_output=True,
        text=True,
        timeout=120,
        env=dict(os.environ, OPENBLAS_NUM_THREADS="1", MALLOC_ARENA_MAX="2"),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


LITTLE_MEMORY = """
expected = results(case)  # the pool's threads are there
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (512 << 20),) * 2)
rows, d = 2**18, 4096
one = cpu.Array(np.ones(1, np.float32).ctypes.data, (0, 0, 0))  # every array is one number, repeated
for threads in (1, 3):
    try:
        cpu.backward(
            Sizes((), 1, 1, rows, 1, d, 1), "float32", *[one] * 10, mask=cpu.Attended(-rows, rows), scale=1.0,
            threads=threads, tile=cpu.Tile(64, 48),
        )
    except MemoryError:
        case.threads = threads
        assert results(case) == expected
    else:
        raise AssertionError("dQ's panels take 4 GB: where did they come from?")
    print(threads, "raised, and then gave the right results")
"""


@linux
@pytest.mark.parametrize("team", ["redblue's", thorough("PyTorch's")])
def test_memory_that_ends_raises_and_leaves_the_threads_intact(team):
    assert run_script(LITTLE_MEMORY, team) == [f"{n} raised, and then gave the right results" for n in (1, 3)]


# Scripts that one process runs one after another, because starting a process takes longer. Each prints its name last.
IN_ONE_PROCESS = """
allowed = os.sched_getaffinity(0)
for pause in (0, 0, 0.001, 0.03, 0, 0.03):
    time.sleep(pause)
    assert results(case) == right
    assert os.sched_getaffinity(0) == allowed  # the caller's never changes
assert len(os.listdir("/proc/self/task")) >= 3
def narrow():
    return [t for t in os.listdir("/proc/self/task") if os.sched_getaffinity(int(t)) != allowed]

while narrow():  # a worker may be about to restore one; the test's own limit of time ends this loop
    time.sleep(0.01)
print("threads keep their affinity")

if team == "redblue's":
    for _ in range(5):
        assert results(case) == right
    time.sleep(0.005)  # far more than they look for work
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.05
    print("workers sleep between calls")

def call():
    for _ in range(20):
        assert results(case) == right
    done.append(True)

done = []
callers = [threading.Thread(target=call) for _ in range(3)]
for caller in callers: caller.start()
for caller in callers: caller.join()
assert len(done) == 3
child = os.fork()
if child == 0:
    os._exit(0 if results(case) == right else 1)
assert os.waitpid(child, 0)[1] == 0
assert results(case) == right
print("a fork after calls of several threads")

os.sched_setaffinity(0, {min(allowed)})
for case.threads in (1, 2, 9):
    assert results(case) == right
print("one CPU and many threads")
"""
PARTS = [
    "threads keep their affinity",
    "workers sleep between calls",
    "a fork after calls of several threads",
    "one CPU and many threads",
]


@linux
@pytest.mark.parametrize(("team", "parts"), [("redblue's", PARTS), thorough("PyTorch's", [PARTS[0], *PARTS[2:]])])
def test_affinity_sleep_forks_and_one_cpu(team, parts):
    assert run_script(IN_ONE_PROCESS, team) == parts


@linux
@pytest.mark.thorough
def test_a_child_that_imports_redblue_does_not_wait_for_its_parents_openmp_threads():
    """PyTorch's own parallel operations hang in such a child."""
    pytest.importorskip("torch")
    script = """
import os, signal, torch
torch.set_num_threads(3)
torch.ones(1 << 20).sum()  # creates the team
q = torch.sin(torch.arange(8.0 * 200 * 32)).reshape(1, 8, 200, 32)
expected = torch.softmax(q @ q.mT / 32**0.5, -1) @ q
child = os.fork()
if child == 0:
    signal.alarm(60)  # kills a child that hangs, which the parent notices
    import redblue
    for _ in range(3):
        out = redblue.attention(q, q, q)
    os._exit(0 if abs(out.numpy() - expected.numpy()).max() < 1e-5 else 3)
assert os.waitpid(child, 0)[1] == 0
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@linux
def test_where_no_thread_can_be_created_the_caller_works_alone():
    said = run_script(
        """
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
threads = len(os.listdir("/proc/self/task"))
resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 20),) * 2)  # less than the stack of a thread
assert results(case) == right
assert len(os.listdir("/proc/self/task")) == threads
print("right without another thread")
"""
    )
    assert said == ["right without another thread"]


@pytest.mark.parametrize("threads", [thorough(1), 2])
def test_a_caller_that_flushes_subnormal_numbers_gets_the_same_results(threads):
    """PyTorch and JAX let a thread flush them to 0. A new worker inherits this from the thread that creates it."""
    pytest.importorskip("torch")
    script = f"""
import torch, redblue as rb
torch.set_num_threads({threads})
ones, v = torch.ones(4, 512, 1, 1), torch.full((4, 512, 1, 1), 1e-40)
def bits():
    return set(rb.attention(ones, ones, v).view(torch.int32).flatten().tolist())
torch.set_flush_denormal(True)
flushing, callers = bits(), (v * 1).view(torch.int32).max().item()
torch.set_flush_denormal(False)
assert callers == 0  # redblue leaves the state of its caller as it was
assert 0 not in flushing and flushing == bits(), flushing
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
