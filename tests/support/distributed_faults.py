"""Processes that fail before or within a call of redblue.distributed, for tests; each runs in all processes."""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from redblue import distributed
from redblue.distributed.operations import Operations

N, D = 64, 8


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def stop():
    os.kill(os.getpid(), signal.SIGSTOP)


def sleep():
    time.sleep(6)


FAULTS = {function.__name__: function for function in (kill, stop, sleep)}


def call(n=N, d=D, backward=False, schedule="ring"):
    """Attention on this process's part of n tokens."""
    q, k, v = (distributed.shard(torch.ones(1, 2, n, d)).requires_grad_() for _ in range(3))
    out = distributed.attention(q, k, v, schedule=schedule)
    if backward:
        out.sum().backward()


@contextmanager
def fault_within(fault, operation="attend"):
    """Let the second computation of the schedule fail."""
    right, calls = getattr(Operations, operation), []

    def wrong(self, *arguments, **details):
        calls.append(1)
        if len(calls) == 2:
            fault()
        return right(self, *arguments, **details)

    setattr(Operations, operation, wrong)
    try:
        yield
    finally:
        setattr(Operations, operation, right)


def fail(victim, how, when, schedule="ring"):
    """One process fails; returns (seconds, rank in the error) of each other process. when: also "backward"."""
    begin = time.monotonic()
    try:
        if dist.get_rank() == victim and when == "before":
            FAULTS[how]()
        if dist.get_rank() == victim:
            with fault_within(FAULTS[how], "attend_backward" if when == "backward" else "attend"):
                call(backward=when == "backward", schedule=schedule)
        else:
            call(backward=when == "backward", schedule=schedule)
            call()  # the first call is complete where it needs nothing from the process that failed
    except distributed.ProcessFailed as error:
        return time.monotonic() - begin, error.rank
    return time.monotonic() - begin, None


def stall_again(folder, number):
    """In a new group, rank 1 stalls in a call with large parts; returns the resident bytes of each process."""
    dist.destroy_process_group()
    store = dist.FileStore(str(Path(folder) / f"store{number}"), 3)
    rank, timeout = int(os.environ["RANK_HERE"]), timedelta(seconds=1)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=3, timeout=timeout)
    failed = None
    try:
        if rank == 1:
            with fault_within(lambda: time.sleep(2.5)):
                call(3 * 4096, 64)
        else:
            call(3 * 4096, 64)
    except distributed.ProcessFailed as error:
        failed = error.rank
    return failed, int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def remember_rank():
    os.environ["RANK_HERE"] = str(dist.get_rank())


def wait_for_interrupt():
    """Rank 0 never calls; the others wait for it. Returns the seconds that they waited until they were interrupted."""
    call()
    begin = time.monotonic()
    if dist.get_rank() == 0:
        time.sleep(4)
        return None
    try:
        call()
    except KeyboardInterrupt:
        return time.monotonic() - begin
    return None
