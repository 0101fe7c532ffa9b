"""Runs the points of a piece of work on all cores or a cluster through joblib; each is kept as soon as it is done."""

from __future__ import annotations

import multiprocessing.resource_tracker
import signal
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from math import inf
from time import monotonic
from typing import Any, TypeVar

import joblib
from joblib.externals.loky.backend import resource_tracker as loky_tracker
from joblib.parallel import BACKENDS, get_active_backend

from redblue.base.integers import whole_number

P = TypeVar("P")
R = TypeVar("R")

ALONE_SECONDS = 1.0  # this process works by itself for so long: starting a pool takes longer
CHUNK = 8  # points per worker at a time, on a backend that cannot give back results one by one


def finish(
    evaluate: Callable[[P], R],
    point: Callable[[int], P],
    size: int,
    done: dict[int, R],
    jobs: int | None,
    keep: Callable[[int, R], object],
    progress: Callable[[int, int], object],
) -> dict[int, R]:
    """Evaluate every point of 0 .. size - 1 that is not in `done`, keep it and add it there.

    evaluate, point(index): both can be pickled by the backend. jobs: processes; 1 is this one alone, None all cores, or
    what the active `joblib.parallel_config` says. progress(done, total): called at the start and after each point.
    """
    if jobs is not None:
        whole_number("jobs", jobs, advice="; leave it out for all cores")
    progress(len(done), size)
    todo = [index for index in range(size) if index not in done]
    with closing(_evaluated(evaluate, point, iter(todo), jobs)) as results:
        for index, result in results:
            keep(index, result)
            done[index] = result
            progress(len(done), size)
    return done


def _indexed(evaluate: Callable[[P], R], index: int, point: P) -> tuple[int, R]:
    return index, evaluate(point)


def _evaluated(
    evaluate: Callable[[P], R], point: Callable[[int], P], todo: Iterator[int], jobs: int | None
) -> Generator[tuple[int, R], None, None]:
    """Points as they are done, in any order."""
    backend: Any
    backend, configured = get_active_backend()
    parallel: Any = joblib.Parallel
    if jobs == 1 or (jobs is None and isinstance(backend, BACKENDS["loky"])):
        stop = monotonic() + (ALONE_SECONDS if jobs is None else inf)
        for index in todo:
            yield _indexed(evaluate, index, point(index))
            if monotonic() > stop:
                break
    rest = list(todo)
    if not rest:
        return
    workers = jobs if jobs is not None else configured if configured is not None else -1
    work = (joblib.delayed(_indexed)(evaluate, index, point(index)) for index in rest)
    if not backend.supports_return_generator:
        size = CHUNK * backend.effective_n_jobs(workers)
        while chunk := list(islice(work, size)):
            yield from parallel(n_jobs=workers)(chunk)
        return
    # One point per task, so that each is kept as soon as it is done.
    with _interrupts_held():
        results = parallel(n_jobs=workers, batch_size=1, return_as="generator_unordered")(work)
    try:
        yield from results
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # joblib's, that results are left behind
            results.close()


@contextmanager
def _interrupts_held() -> Generator[None, None, None]:
    """Start worker processes that a terminal's Ctrl-C does not reach.

    A signal mask is inherited by a process that is started; the interrupt is for the parent, which stops its workers.
    One that comes in the meantime is delivered afterwards.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    for tracker in (multiprocessing.resource_tracker, loky_tracker):
        tracker.ensure_running()  # as its start, later, would lift the mask
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
