"""Compile redblue's kernels for later calls, on several cores at once, into Triton's cache on disk.

A single process compiles one kernel after the other; on a fresh machine that would take most of a benchmark's time.
Therefore worker processes make each call once, with every candidate of the plan, and discard the results.
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

MAX_WORKERS = 8  # each worker holds the arrays of one call
LONGEST = 8192  # queries: longer calls are cut to this length, which nearly always needs the same kernels


def ahead(calls: Sequence[Call], seconds: float, console: Console, device: str = "cuda") -> int:
    """Compile kernels for as many calls as `seconds` allow, in order. Returns the number of calls made.

    Failures are ignored here; they recur, and are reported, when the call is measured.
    """
    return side_by_side(_made, [(replace(x, n=min(x.n, LONGEST)), device) for x in calls], seconds, console)


def side_by_side(make: Callable[[Any], None], calls: Sequence[Any], seconds: float, console: Console) -> int:
    """Run make(call) in worker processes until time is up, equal calls once. Returns the number of calls made."""
    todo = list(dict.fromkeys(calls))
    workers = min(MAX_WORKERS, max(1, (os.cpu_count() or 1) // 2), len(todo))
    if not workers:
        return 0
    start, done = time.monotonic(), 0
    with multiprocessing.get_context("spawn").Pool(workers) as pool:  # leaving the block ends all workers
        results = pool.imap_unordered(make, todo)
        with contextlib.suppress(multiprocessing.TimeoutError, StopIteration):
            while True:
                results.next(timeout=max(0.0, start + seconds - time.monotonic()))
                done += 1
    took = time.monotonic() - start
    console.print(f"compiled ahead: {done} of {len(todo)} calls in {took:.0f} s, {workers} at once", highlight=False)
    return done


def _made(task: tuple[Call, str]) -> None:
    from redblue.kernels.gpu.planning import tune

    call, device = task
    tune.chosen = _each
    with contextlib.suppress(Exception):  # including out of memory
        for case, name in ((call, TUNED), (small(call), PLANNED)):
            contender(name, case, inputs(case, device))()
    if device == "cuda":
        torch.cuda.empty_cache()


def _each(kind: Any, candidates: Sequence[Any], run: Any) -> Any:
    """Replaces tune.chosen: run every candidate once, without timing it beside other processes or keeping a choice."""
    for candidate in candidates:
        with contextlib.suppress(Exception):
            run(candidate)
    return candidates[0]
