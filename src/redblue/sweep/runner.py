"""Runs a sweep: its points on all cores or a cluster through joblib, each kept as soon as it is done."""

from __future__ import annotations

import multiprocessing.resource_tracker
import os
import signal
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import islice
from math import inf
from time import monotonic
from typing import Any

import joblib
from joblib.externals.loky.backend import resource_tracker as loky_tracker
from joblib.parallel import BACKENDS, get_active_backend

from redblue.errors import RedblueError
from redblue.sweep.grid import Point, Sweep, make_sweep
from redblue.sweep.journal import Journal, journal_path
from redblue.sweep.points import Row, evaluate
from redblue.sweep.store import FORMATS, check_target, write

ALONE_SECONDS = 1.0  # this process works by itself for so long: starting a pool takes longer
CHUNK = 8  # points per worker at a time, on a backend that cannot give back results one by one


def run(
    sweep: Sweep | Mapping[str, Any],
    *,
    output: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    restart: bool = False,
    force: bool = False,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> list[Row]:
    """The rows of a sweep, in the order of its points, whatever the order in which these were done.

    sweep: as make_sweep takes it, such as {"n": "1024:65536:x2", "d": [64, 128], "words": 12288}.
    output: a .csv, .parquet or .jsonl file. Until it is written, finished points are kept in a file beside it
    (OUTPUT.partial.jsonl), and the same call goes on from there.
    jobs: processes; 1 is this one alone, None all cores, or what the active `joblib.parallel_config` says.
    restart: discard the points that an earlier call kept. force: replace `output` if it exists.
    progress(done, total): called at the start and after each point.
    Raises RedblueError for bad axes, an output that exists or cannot be written, and points kept by another sweep.
    """
    sweep = sweep if isinstance(sweep, Sweep) else make_sweep(sweep)
    if jobs is not None and (isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1):
        raise RedblueError(f"jobs must be a whole number of at least 1, got {jobs!r}; leave it out for all cores")
    if output is None:
        return _sorted(_finish(sweep, {}, jobs, lambda index, rows: None, progress))
    target = check_target(output, tuple(FORMATS), force)
    with Journal(journal_path(target), sweep, restart) as journal:
        found = _sorted(_finish(sweep, journal.done, jobs, journal.add, progress))
        write(found, check_target(target, tuple(FORMATS), force))  # nobody else's, made in the meantime
        journal.remove()
    return found


def _sorted(done: Mapping[int, list[Row]]) -> list[Row]:
    return [row for index in sorted(done) for row in done[index]]


def _finish(
    sweep: Sweep,
    done: dict[int, list[Row]],
    jobs: int | None,
    keep: Callable[[int, list[Row]], object],
    progress: Callable[[int, int], object],
) -> dict[int, list[Row]]:
    """Do what is not done yet."""
    progress(len(done), sweep.size)
    todo = [index for index in range(sweep.size) if index not in done]
    with closing(_evaluated(sweep, iter(todo), jobs)) as results:
        for index, rows in results:
            keep(index, rows)
            done[index] = rows
            progress(len(done), sweep.size)
    return done


def _indexed(point: Point) -> tuple[int, list[Row]]:
    return point.index, evaluate(point)


def _evaluated(sweep: Sweep, todo: Iterator[int], jobs: int | None) -> Generator[tuple[int, list[Row]], None, None]:
    """Points as they are done, in any order."""
    backend: Any
    backend, configured = get_active_backend()
    parallel: Any = joblib.Parallel
    if jobs == 1 or (jobs is None and isinstance(backend, BACKENDS["loky"])):
        stop = monotonic() + (ALONE_SECONDS if jobs is None else inf)
        for index in todo:
            yield _indexed(sweep.point(index))
            if monotonic() > stop:
                break
    rest = list(todo)
    if not rest:
        return
    workers = jobs if jobs is not None else configured if configured is not None else -1
    work = (joblib.delayed(_indexed)(sweep.point(index)) for index in rest)
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
