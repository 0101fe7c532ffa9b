"""Evaluate independent points on all cores or on a cluster, through joblib; keep each result as soon as it exists."""

from __future__ import annotations

import multiprocessing.resource_tracker
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
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

ALONE_SECONDS = 1.0  # seconds that this process works alone before it starts a pool; starting one takes about as long
WORKERS_PER_CORE = 4  # limit of processes, even if `jobs` is larger: more processes take memory and save no time
PARENT_SECONDS = 0.5  # interval at which a worker checks whether its parent is alive
CHUNK = 8  # points per worker and batch, on a backend that cannot return results one by one


def finish(
    evaluate: Callable[[P], R],
    point: Callable[[int], P],
    size: int,
    done: dict[int, R],
    jobs: int | None,
    keep: Callable[[int, R], object],
    progress: Callable[[int, int], object],
) -> dict[int, R]:
    """Evaluate the points 0 .. size - 1 that are not in `done`; add their results to `done`, and return it.

    evaluate: computes the result of a point; the backend must be able to pickle it and the points.
    point(index): makes a point.
    done: results by index, such as those of an earlier run.
    jobs: the number of processes: 1 for this process alone; None for all cores, or for the number that the active
    `joblib.parallel_config` sets. On this machine, the number is limited to the number of points and to
    WORKERS_PER_CORE per core. The processes end with this process, even if it is killed.
    keep(index, result): called for each new result, in the order in which the results arrive.
    progress(done, total): called at the start and after each point.
    Raises RedblueError for an invalid number of jobs.
    """
    if jobs is not None:
        whole_number("jobs", jobs, advice="; leave it out for all cores")
    progress(len(done), size)
    pending = [index for index in range(size) if index not in done]
    with closing(_results(evaluate, point, iter(pending), jobs)) as results:
        for index, result in results:
            keep(index, result)
            done[index] = result
            progress(len(done), size)
    return done


def run_all(
    tasks: Sequence[Callable[[], R]],
    jobs: int | None = None,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> list[R]:
    """Call each of `tasks`, and return their results in the same order. jobs, progress: as for `finish`.

    The backend must be able to pickle the tasks and their results.
    """
    done: dict[int, R] = {}
    finish(_call, tasks.__getitem__, len(tasks), done, jobs, lambda index, result: None, progress)
    return [done[index] for index in range(len(tasks))]


def _call(task: Callable[[], R]) -> R:
    return task()


def _evaluate_indexed(evaluate: Callable[[P], R], index: int, point: P) -> tuple[int, R]:
    return index, evaluate(point)


def _results(
    evaluate: Callable[[P], R], point: Callable[[int], P], pending: Iterator[int], jobs: int | None
) -> Generator[tuple[int, R], None, None]:
    """Yield (index, result) of each point when it is finished, in any order."""
    backend: Any
    configured: Any
    backend, configured = get_active_backend()
    parallel: Any = joblib.Parallel
    if jobs == 1 or (jobs is None and isinstance(backend, BACKENDS["loky"])):
        stop = monotonic() + (ALONE_SECONDS if jobs is None else inf)
        for index in pending:
            yield _evaluate_indexed(evaluate, index, point(index))
            if monotonic() > stop:
                break
    remaining = list(pending)
    if not remaining:
        return
    wanted = jobs if jobs is not None else configured if configured is not None else -1
    workers = _workers(backend, wanted, len(remaining))
    loky = isinstance(backend, BACKENDS["loky"])
    ending: dict[str, Any] = {"initializer": _end_with, "initargs": (os.getpid(),)} if loky else {}
    work = (joblib.delayed(_evaluate_indexed)(evaluate, index, point(index)) for index in remaining)
    if not backend.supports_return_generator:
        size = CHUNK * backend.effective_n_jobs(workers)
        while chunk := list(islice(work, size)):
            yield from parallel(n_jobs=workers)(chunk)
        return
    # One point per task, so that each result arrives as soon as it exists.
    with _interrupts_held():
        results = parallel(n_jobs=workers, batch_size=1, return_as="generator_unordered", **ending)(work)
    try:
        yield from results
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # joblib warns that unread results are discarded
            results.close()


def _workers(backend: Any, wanted: int, points: int) -> int:
    """Return the number of workers to start: limited on this machine, and as `wanted` on a cluster."""
    if not isinstance(backend, tuple(BACKENDS[name] for name in ("loky", "multiprocessing", "threading"))):
        return wanted
    return min(backend.effective_n_jobs(wanted), points, WORKERS_PER_CORE * joblib.cpu_count())


def _end_with(parent: int) -> None:
    """Let this worker process end as soon as its parent has ended, even if the parent was killed.

    A thread checks periodically. Linux's PR_SET_PDEATHSIG would act when the parent's thread ends, not its process.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _interrupts_held() -> Generator[None, None, None]:
    """Block SIGINT while the block runs, so that the worker processes started in it ignore a terminal's Ctrl-C.

    Processes inherit the signal mask of the process that starts them. Only the parent should act on Ctrl-C: it stops
    its workers. An interrupt that arrives during the block is delivered after it.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    for tracker in (multiprocessing.resource_tracker, loky_tracker):
        tracker.ensure_running()  # this resets the signal mask, so both start before SIGINT is blocked
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
