"""Run a sweep: evaluate its points on all cores or on a cluster, and keep each result as soon as it exists."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from redblue.base.errors import RedblueError
from redblue.base.files import check_target
from redblue.base.journal import Journal, journal_path
from redblue.base.parallel import finish
from redblue.schedules import SCHEDULES, Schedule, users
from redblue.studies.sweep.grid import Point, Sweep, make_sweep
from redblue.studies.sweep.points import COLUMNS, Row, evaluate
from redblue.studies.sweep.store import FORMATS, TooLarge, write


def run(
    sweep: Sweep | Mapping[str, Any],
    *,
    output: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    restart: bool = False,
    force: bool = False,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> list[Row]:
    """Run a sweep and return its rows, in the order of its points, whatever the order of their evaluation.

    sweep: a Sweep, or axes for make_sweep, such as {"n": "1024:65536:x2", "d": [64, 128], "words": 12288}.
    output: a .csv, .parquet or .jsonl file. Until it is written, finished points are kept in a file beside it,
    OUTPUT.partial.jsonl, and the same call continues from there. A stream, such as "-", has no such file. The times on
    the memory "this-machine" use the bandwidth that was measured before their point was evaluated. Where the
    measurement cannot be stored, an interrupted call and its continuation measure their own bandwidths.
    jobs: the number of processes: 1 for this process alone; None for all cores, or for the number that the active
    `joblib.parallel_config` sets.
    restart: discard the points that an earlier call kept. force: replace `output` if it exists.
    progress(done, total): called at the start and after each point.
    Raises RedblueError for bad axes, an output that exists or cannot be written, and points kept by another sweep.
    """
    sweep = sweep if isinstance(sweep, Sweep) else make_sweep(sweep)
    rows_of = partial(_rows, own=users(sweep.schedules))
    target = None if output is None else check_target(output, tuple(FORMATS), force)
    if output is None or target is None or target.stream is not None:  # a stream has no place for a journal
        rows = _sorted(finish(rows_of, sweep.point, sweep.size, {}, jobs, lambda index, rows: None, progress))
        if output is not None:
            write(rows, output, force)
        return rows
    with open_journal(target.path, sweep, restart) as journal:
        rows = _sorted(finish(rows_of, sweep.point, sweep.size, journal.done, jobs, journal.add, progress))
        try:
            write(rows, output, force)
        except TooLarge as error:
            other = target.path.with_suffix(".csv")
            raise RedblueError(
                f"{error}. The finished points are in {journal.path}. To keep them, rename this file to "
                f"{journal_path(other).name}, and repeat the sweep with the output {other.name}"
            ) from error
        journal.remove()
    return rows


def open_journal(target: Path, sweep: Sweep, restart: bool = False) -> Journal:
    """Open the journal of the sweep into `target`, which holds its finished points."""
    return Journal(journal_path(target), "sweep", sweep.identity, sweep.size, restart, list(COLUMNS))


def _rows(point: Point, own: tuple[Schedule, ...]) -> list[Row]:
    """Evaluate a point. A function of this module, so that worker processes can import it.

    own: the schedules that the user registered in the parent process; a worker process does not have them yet.
    """
    for schedule in own:
        SCHEDULES[schedule.name] = schedule
    return evaluate(point)


def _sorted(done: Mapping[int, list[Row]]) -> list[Row]:
    """All rows, in the order of the points."""
    return [row for index in sorted(done) for row in done[index]]
