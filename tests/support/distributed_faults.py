"""Processes that fail before or within a call of redblue.distributed, for tests; each runs in all processes."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

import redblue as rb
from redblue import distributed
from redblue.distributed import failures
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
            call()  # the first call is complete if it needs nothing from the failed process
    except distributed.ProcessFailed as error:
        return time.monotonic() - begin, error.rank
    return time.monotonic() - begin, None


def fail_before_gradients_of_gather(victim):
    """One process dies after `gather`; returns the rank in the error of each other process's backward pass."""
    whole = distributed.gather(distributed.shard(torch.ones(1, 2, N, D)).requires_grad_())
    if dist.get_rank() == victim:
        kill()
    try:
        whole.sum().backward()
    except distributed.ProcessFailed as error:
        return error.rank
    return None


def memory_of_failed_calls(calls):
    """Rank 1 dies. Returns KiB of resident memory of another rank after a third of its failed calls, and after all."""
    call()
    if dist.get_rank() == 1:
        kill()
    failures.GRACE_SECONDS = failures.TICK_SECONDS = 0.02
    kilobytes = []
    for i in range(calls + 1):
        if i in (calls // 3, calls):
            gc.collect()
            lines = Path("/proc/self/status").read_text().splitlines()
            kilobytes.append(next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")))
        try:
            call()
        except distributed.ProcessFailed:
            continue
        raise AssertionError("a call without rank 1 has returned")
    return kilobytes


def wait_for_interrupt():
    """Rank 0 never calls; the others wait for it. Returns the seconds that they waited until they were interrupted."""
    call()
    begin = time.monotonic()
    if dist.get_rank() == 0:
        time.sleep(4)
        return None
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()  # from here: it cannot come before the wait
    try:
        call()
    except KeyboardInterrupt:
        return time.monotonic() - begin
    return None


def refusal(wrong):
    """The message of the error that a wrong call raises in this process, after which right calls work."""
    rank, sizes = dist.get_rank(), {"batch": 2, "heads": 4, "n": 4, "d": 8}
    mine = rank == 1
    if mine and wrong.endswith(("another d", "another batch", "other heads", "other lengths")):
        sizes[wrong.rsplit(" ", 1)[-1].replace("lengths", "n")] *= 2
    if wrong == "the heads cannot be divided":
        sizes["heads"] = 4
    dtype = torch.float64 if mine and "dtype" in wrong else torch.float32
    q, k, v = (torch.ones(*sizes.values(), dtype=dtype) for _ in range(3))
    options = {"mask": rb.Mask.causal(), "schedule": "ring", "placement": "contiguous"}
    if mine and "another mask" in wrong:
        options["mask"] = rb.Mask.full()
    if mine and "another schedule" in wrong:
        options["schedule"] = "mesh"
    if mine and "another placement" in wrong:
        options["placement"] = "zigzag"
    if mine and "another scale" in wrong:
        options["scale"] = 0.5
    if mine and "unknown option" in wrong:
        options["nonsense"] = 1
    if wrong == "the mask does not fit":
        options["mask"] = rb.Mask.documents([5, 5])
    if wrong == "the heads cannot be divided":
        options["schedule"] = "head_parallel"
    message = None
    try:
        distributed.attention([1.0] if mine and "no tensor" in wrong else q, k, v, **options)  # pyright: ignore
    except (rb.RedblueError, TypeError) as error:
        message = str(error)
    call()
    return message


def few_tokens(n):
    """Outputs and gradients of n tokens, of which some processes hold none, equal those of a single process."""
    generator = torch.Generator().manual_seed(0)
    whole = [torch.randn(2, 3, n, 4, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(3)]
    right = rb.attention(*whole, mask=rb.Mask.causal())
    right_gradients = torch.autograd.grad(right.sum(), whole)
    for schedule in ("ring", "all_gather", "mesh", "auto"):
        parts = [distributed.shard(x.detach()).requires_grad_() for x in whole]
        out = distributed.attention(*parts, mask=rb.Mask.causal(), schedule=schedule)
        gradients = torch.autograd.grad(out.sum(), parts)
        for got, wanted in zip((out, *gradients), (right, *right_gradients), strict=True):
            torch.testing.assert_close(got, distributed.shard(wanted), atol=1e-12, rtol=1e-12)


def empty_batch():
    """A batch without entries gives outputs without entries."""
    q, k, v = (torch.ones(0, 2, 5, 4).requires_grad_() for _ in range(3))
    out = distributed.attention(q, k, v)
    assert out.shape == (0, 2, 5, 4)
    out.sum().backward()
