"""Compiles redblue's kernels for calls to come, on several cores at once, into the cache on disk of Triton.

One process compiles one kernel after the other, and on a fresh machine that would take most of a benchmark's time. So
processes of their own make each call once, with every candidate of the plan; what they find is thrown away.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from rich.console import Console

from benchmarks.gpu.calls import PLANNED, TUNED, Call, inputs
from benchmarks.gpu.gate import small
from benchmarks.gpu.peers import contender

MAX_WORKERS = 8  # each holds a call's arrays
LONGEST = 8192  # queries: of longer calls that many, whose kernels are nearly always the same


def ahead(calls: Sequence[Call], seconds: float, console: Console, device: str = "cuda") -> int:
    """Compile as much as can be in this time, the first calls first. Returns how many calls were made.

    What fails here is left to fail where it is measured.
    """
    return side_by_side(_made, [(replace(x, n=min(x.n, LONGEST)), device) for x in calls], seconds, console)


def side_by_side(make: Callable[[Any], None], calls: Sequence[Any], seconds: float, console: Console) -> int:
    """make(call) in processes of their own, until the time is over; how many were made. Equal calls once."""
    todo = list(dict.fromkeys(calls))
    workers = min(MAX_WORKERS, max(1, (os.cpu_count() or 1) // 2), len(todo))
    if not workers:
        return 0
    begun, done = time.monotonic(), 0
    with multiprocessing.get_context("spawn").Pool(workers) as pool:  # ended, whatever it does, when this is left
        made = pool.imap_unordered(make, todo)
        with contextlib.suppress(multiprocessing.TimeoutError, StopIteration):
            while True:
                made.next(timeout=max(0.0, begun + seconds - time.monotonic()))
                done += 1
    took = time.monotonic() - begun
    console.print(f"compiled ahead: {done} of {len(todo)} calls in {took:.0f} s, {workers} at once", highlight=False)
    return done


def _made(task: tuple[Call, str]) -> None:
    from redblue.kernels.gpu.planning import tune

    call, device = task
    tune.chosen = _each
    with contextlib.suppress(Exception):  # of whatever kind, memory included
        for one, name in ((call, TUNED), (small(call), PLANNED)):
            contender(name, one, inputs(one, device))()
    if device == "cuda":
        torch.cuda.empty_cache()


def _each(kind: Any, candidates: Sequence[Any], run: Any) -> Any:
    """In place of tune.chosen: all candidates once, none timed beside other processes, no choice kept."""
    for candidate in candidates:
        with contextlib.suppress(Exception):
            run(candidate)
    return candidates[0]
