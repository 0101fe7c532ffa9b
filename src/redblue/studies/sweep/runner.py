"""Runs a sweep: its points on all cores or a cluster through joblib, each kept as soon as it is done."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from redblue.base.journal import Journal, journal_path
from redblue.base.parallel import finish
from redblue.studies.sweep.grid import Point, Sweep, make_sweep
from redblue.studies.sweep.points import COLUMNS, Row, evaluate
from redblue.studies.sweep.store import FORMATS, check_target, write


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
    if output is None:
        return _sorted(finish(_rows, sweep.point, sweep.size, {}, jobs, lambda index, rows: None, progress))
    target = check_target(output, tuple(FORMATS), force)
    with open_journal(target, sweep, restart) as journal:
        found = _sorted(finish(_rows, sweep.point, sweep.size, journal.done, jobs, journal.add, progress))
        write(found, check_target(target, tuple(FORMATS), force))  # nobody else's, made in the meantime
        journal.remove()
    return found


def open_journal(target: Path, sweep: Sweep, restart: bool = False) -> Journal:
    """What the sweep into `target` has done so far."""
    return Journal(journal_path(target), "sweep", sweep.identity, sweep.size, restart, list(COLUMNS))


def _rows(point: Point) -> list[Row]:
    return evaluate(point)


def _sorted(done: Mapping[int, list[Row]]) -> list[Row]:
    return [row for index in sorted(done) for row in done[index]]
