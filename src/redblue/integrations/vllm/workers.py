"""Start redblue's threads so that they may run on all CPUs that vLLM assigns to a worker process."""

from __future__ import annotations

import os
import threading
from functools import cache
from pathlib import Path

import torch

from redblue.compiled import _core
from redblue.op.api import attention
from redblue.op.pytorch.ops import OPENMP

TASKS = Path("/proc/self/task")


def start_workers() -> None:
    """Start redblue's threads, if this thread is pinned to fewer CPUs than the threads of PyTorch together.

    If KMP_AFFINITY or GOMP_CPU_AFFINITY is set, as in vLLM's workers, OpenMP pins each of its threads to a CPU, the
    main thread included. A new thread inherits the CPUs of its parent, so redblue's threads would all share the main
    thread's CPU. Therefore a thread that may use the CPUs of all pinned threads starts them.
    """
    _start_workers_of(os.getpid())


@cache
def _start_workers_of(process: int) -> None:
    cpus = pinned_cpus()
    if len(cpus) > 1:
        starter = threading.Thread(target=_start, args=(cpus,))
        starter.start()
        starter.join()


def pinned_cpus() -> set[int]:
    """The union of the CPUs of all threads that are pinned like this one; empty if this thread is not pinned."""
    if not TASKS.is_dir():  # not on Linux
        return set()
    torch.ones(1 << 20).add_(1)  # a parallel region, in which OpenMP starts its threads
    own = os.sched_getaffinity(0)
    others = [_cpus(int(task.name)) for task in TASKS.iterdir()]
    together = own.union(*(cpus for cpus in others if len(cpus) == len(own)))
    return together if together != own else set()


def _cpus(thread: int) -> set[int]:
    try:
        return os.sched_getaffinity(thread)
    except ProcessLookupError:  # the thread has ended
        return set()


def _start(cpus: set[int]) -> None:
    os.sched_setaffinity(0, cpus)
    _core.use_openmp_of("")  # otherwise OpenMP's threads would run this call
    try:
        x = torch.zeros(1, 4 * len(cpus), 64, 64)
        attention(x, x, x)
    finally:
        _core.use_openmp_of(OPENMP)
