"""Run an experiment: measure its points, keep each result as soon as it exists, then write the files."""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import filelock

from redblue.base.charts import write
from redblue.base.errors import RedblueError, UnknownName
from redblue.base.files import DRAFTS, check_target
from redblue.base.journal import Journal, journal_path
from redblue.base.parallel import finish
from redblue.base.version import __version__
from redblue.catalogue.detect import detect_cpu
from redblue.studies.experiments.catalogue import get
from redblue.studies.experiments.experiment import Experiment, Point, Row
from redblue.studies.experiments.page import page
from redblue.studies.experiments.result import Result, as_json, json_path, read

FOLDER = Path("docs", "results")


def run(
    name: str,
    *,
    out: str | os.PathLike[str] = FOLDER,
    quick: bool = False,
    jobs: int | None = None,
    restart: bool = False,
    force: bool = False,
    only: str | None = None,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Result:
    """Run an experiment and write NAME.json, NAME.svg and NAME.md into the folder `out`.

    The files of an earlier run are replaced; a NAME.json of this experiment shows that an earlier run wrote them. Until
    the run ends, finished points are kept in NAME.json.partial.jsonl. The same call continues an interrupted run there.
    quick: measure few and small points. jobs: the number of processes; None for all cores. restart: discard the points
    that an earlier call kept. force: replace files of these names that no run wrote. only: the part to run, of an
    experiment that has parts; the rows of its other parts stay. progress(done, total): called at the start and after
    each point.
    Raises UnknownName for an unknown experiment or part. Raises RedblueError if the folder cannot be written, or if
    this machine lacks a requirement of the experiment. Without `force`, it also raises RedblueError if the folder holds
    other files of these names, or if a quick run would replace results of hours.
    """
    experiment = get(name)
    if missing := experiment.missing():
        raise RedblueError(f"the experiment {name} cannot run here: {missing}")
    points = [point for point in experiment.points(quick) if only in (None, _part_of(experiment, only, point))]
    jobs = _one_job(jobs) if experiment.alone else jobs
    folder = _folder(out)  # after the checks of the arguments, so that a wrong call leaves no folder
    _check_targets(folder, name, force)
    if quick and not force:
        _check_full(folder, experiment, only)
    _other_parts(folder, name, only)  # raises before the work
    kept = journal_of(folder, name, only)
    with Journal(kept, "experiment", identity(name, points), len(points), restart) as journal:
        evaluate = partial(measure, name)
        if experiment.checkpointed:
            evaluate = partial(measure_with, name, str(_checkpoints(kept, restart)))

        def keep(index: int, rows: list[Row]) -> None:
            journal.add(index, rows)
            if experiment.checkpointed:
                _checkpoints(kept, discard=True)

        done = finish(evaluate, points.__getitem__, len(points), journal.done, jobs, keep, progress)
        rows = [row for index in sorted(done) for row in done[index]]
        with _locked(folder, experiment):
            result = Result(
                experiment=name,
                command=_command(name, quick, only, folder),
                date=datetime.date.today().isoformat(),
                version=__version__,
                machine=machine(),
                tools=dict(experiment.tools()),
                quick=quick,
                rows=_in_order(experiment, _other_parts(folder, name, only) + rows),
            )
            _write(result, folder)
        journal.remove()
        if experiment.checkpointed:
            with contextlib.suppress(OSError):  # somebody's own file lies in it
                _checkpoints(kept, discard=True).rmdir()
    return result


@contextlib.contextmanager
def _locked(folder: Path, experiment: Experiment) -> Iterator[None]:
    """Hold a lock on the folder while the files of an experiment with parts are read and written again.

    Without the lock, two parts that end at the same time would each write the other's old rows.
    """
    if not experiment.parts:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        filelock.lock_descriptor(descriptor)
        yield
    finally:
        os.close(descriptor)


def journal_of(folder: Path, name: str, only: str | None) -> Path:
    """The journal of a run of the whole experiment or of one part."""
    return journal_path(folder / (f"{name}.json" if only is None else f"{name}-{only}.json"))


def _part_of(experiment: Experiment, only: str | None, point: Point) -> str | None:
    """The part of a point. Raises RedblueError if the experiment has no part `only`."""
    if only is None:
        return None
    if not experiment.parts:
        raise RedblueError(f"the experiment {experiment.name} has no parts: leave out --only {only}")
    if only not in experiment.parts:
        raise UnknownName("part", only, experiment.parts, f"They are the parts of the experiment {experiment.name}")
    return point["part"]


def _other_parts(folder: Path, name: str, only: str | None) -> list[Row]:
    """The rows that an earlier run left of all parts but `only`. Raises RedblueError if they are of another machine."""
    if only is None or not json_path(folder, name).exists():
        return []
    earlier = read(folder, name)
    if earlier.machine != machine():
        raise RedblueError(
            f"{json_path(folder, name)} is of another machine ({earlier.machine}): name another folder with --out"
        )
    return [row for row in earlier.rows if row["part"] != only]


def _in_order(experiment: Experiment, rows: list[Row]) -> list[Row]:
    """The rows in the order of the parts."""
    return sorted(rows, key=lambda row: experiment.parts.index(row["part"])) if experiment.parts else rows


def _checkpoints(journal: Path, discard: bool) -> Path:
    """The folder for checkpoints beside a journal. discard: delete those in it, and drafts that a killed process left.

    A draft lies in a folder that `replace_whole` makes. Such a folder stays if it holds any other file.
    """
    folder = _folder(journal.with_suffix(".checkpoints"))
    if discard:
        for path in (*folder.glob("*.pt"), *folder.glob(f"{DRAFTS}*/*.pt")):
            path.unlink()
        for drafts in folder.glob(f"{DRAFTS}*"):
            with contextlib.suppress(OSError):  # somebody's own file lies in it
                drafts.rmdir()
    return folder


def _one_job(jobs: int | None) -> int:
    if jobs not in (None, 1):
        raise RedblueError(f"jobs must be 1, because every measurement uses all cores; got {jobs}: leave it out")
    return 1


def _check_targets(folder: Path, name: str, force: bool) -> None:
    """Raise RedblueError if a file exists that is no part of an earlier result of the experiment, unless `force`."""
    earlier = json_path(folder, name).exists() and not force
    if earlier:
        read(folder, name)  # raises if the file is not the result of this experiment
    for suffix in (".json", ".svg", ".md"):
        check_target(folder / f"{name}{suffix}", (suffix,), force or earlier)


def _check_full(folder: Path, experiment: Experiment, only: str | None) -> None:
    """Raise RedblueError if a quick run would replace rows of a full run of an experiment that takes hours."""
    if not experiment.checkpointed or not json_path(folder, experiment.name).exists():
        return
    rows = read(folder, experiment.name).rows
    full = sorted({row["part"] for row in rows if not row["quick"] and only in (None, row["part"])})
    if full:
        raise RedblueError(
            f"{json_path(folder, experiment.name)} has full results of {', '.join(full)}, which a quick run would "
            f"replace: name another folder (--out), or replace them (--force)"
        )


def redraw(name: str, *, out: str | os.PathLike[str] = FOLDER) -> Result:
    """Write the figures and the page of an existing result again, without measuring. Raises as `read` does."""
    read(out, name)  # raises before a folder is made
    folder = _folder(out)
    with _locked(folder, get(name)):
        result = read(folder, name)
        _write(result, folder)
    return result


def measure(name: str, point: Point) -> list[Row]:
    """Measure one point. A function of this module, so that worker processes can import it."""
    return get(name).measure(point)


def measure_with(name: str, checkpoints: str, point: Point) -> list[Row]:
    """Measure one point of an experiment that keeps checkpoints."""
    return get(name).measure(point, checkpoints)


def identity(name: str, points: list[Point]) -> dict[str, object]:
    """Everything that decides the rows. It includes the machine: a run continues only on the same one."""
    return {"experiment": name, "machine": machine(), "points": points}


def machine() -> str:
    """This machine's CPU, cores, caches and system, in a line."""
    cpu = detect_cpu()
    caches = ", ".join(f"{cache.name} {cache.capacity_bytes >> 10} KiB" for cache in cpu.caches)
    return f"{cpu.model}, {cpu.cores} cores ({caches or 'caches not known'}), {platform.system()}"


def _folder(out: str | os.PathLike[str]) -> Path:
    """Make the folder unless it exists. Raises RedblueError if it cannot be written."""
    folder = Path(out)
    try:
        folder.mkdir(exist_ok=True)
    except FileNotFoundError:
        raise RedblueError(f"there is no folder {folder.parent} for {folder}: name another with --out") from None
    except OSError as error:
        raise RedblueError(f"cannot write in {folder}: {error.strerror}; name another folder with --out") from None
    if not os.access(folder, os.W_OK):
        raise RedblueError(f"cannot write in {folder}: you may not; name another folder with --out")
    return folder


def _command(name: str, quick: bool, only: str | None, folder: Path) -> str:
    part = [] if only is None else ["--only", only]
    place = [] if folder == FOLDER else ["--out DIR"]
    return " ".join(["redblue experiment", name, *part, *(["--quick"] * quick), *place])


def _write(result: Result, folder: Path) -> None:
    """Write the figure, the page and, last, the JSON file: its presence means that all files are complete."""
    spec = result.about.figure(result.rows).to_dict()
    write(spec, folder / f"{result.experiment}.svg", force=True)
    for suffix, text in ((".md", page(result)), (".json", as_json(result))):
        target = check_target(folder / f"{result.experiment}{suffix}", (suffix,), force=True)
        target.write(lambda draft, text=text: draft.write_text(text, encoding="utf-8"))
