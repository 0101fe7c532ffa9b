"""The part of the small-cache experiment that needs a GPU: times, and bytes if Nsight Compute is available."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from rich.console import Console

import redblue as rb
from benchmarks.common.failures import Red
from benchmarks.common.gate import Gate
from benchmarks.common.kept import changed, fingerprint, is_final, now, repeat_notice
from benchmarks.gpu.ahead import side_by_side, warm
from benchmarks.gpu.calls import PLANNED, Call, inputs
from benchmarks.gpu.gate import gate
from benchmarks.gpu.timing import Device
from benchmarks.gpu.worker import Failed, Worker
from benchmarks.small_cache import crossing as small_cache
from benchmarks.small_cache.bytes import bytes_of
from benchmarks.small_cache.crossing import DIRECTIONS, DTYPE, HEADS, SCHEDULES, WORD_BYTES, N, Row
from redblue import schedules
from redblue.base.errors import RedblueError
from redblue.kernels.gpu.launch import PlanOptions
from redblue.kernels.gpu.planning.card import Card, card_of, planning_for
from redblue.kernels.gpu.planning.plan import Launch, plan
from redblue.kernels.sizes import Sizes
from redblue.meter.gpu_calls import task_of
from redblue.op.pytorch import gpu, ops

WIDTHS = (512, 256, 1024, 128, 64)  # the most informative first
MEASURED = ("launch", "launch_words", "seconds", "date", "l1_l2_bytes", "l2_dram_bytes", "l2_dram_bound_bytes", "why")
AHEAD_SECONDS = 150.0  # for compilation on all cores before the first measurement
PATIENCE_SECONDS = 60  # for one row
MAX_CHARACTERS = 300  # characters of the reason why a launch failed


def measured(path: Path, budget: float, console: Console) -> tuple[dict[str, Any], list[Row]]:
    """Count all rows, and measure as many as the budget allows. Earlier measurements are reused."""
    if not torch.cuda.is_available():
        raise SystemExit("no GPU that PyTorch sees: run this where there is one, or --dry, which only counts")
    os.environ["REDBLUE_TUNE"] = "0"  # no tuning: the plan's tiles for the given memory
    facts = small_cache.about() | fingerprint(torch.cuda.get_device_name())
    rows = small_cache.everything()
    done = _kept(path, facts, console)
    for row in rows:
        before = done.get(_place(row))
        for name in MEASURED if before is not None else ():
            setattr(row, name, getattr(before, name))
    end = time.monotonic() + budget
    todo = [(_place(row), card_with(row.kilobytes)) for row in _in_order(rows) if not row.launch]
    side_by_side(_compiled, todo, min(budget / 3, AHEAD_SECONDS), console)
    _time(rows, end, lambda: small_cache.write(path, facts, rows), console)
    _count_bytes(rows, end, lambda: small_cache.write(path, facts, rows), console)
    for state, left in (
        ("timed", sum(not row.launch for row in _in_order(rows))),
        ("whose bytes were not counted", sum(bool(row.seconds) and not row.l1_l2_bytes for row in rows)),
    ):
        if left:
            console.print(
                f"left out: {left} launches {'not ' * (state == 'timed')}{state}; the next run continues with them"
            )
    return facts, rows


def _in_order(rows: list[Row]) -> list[Row]:
    """The rows of WIDTHS, ordered by width, direction, and decreasing memory."""
    wanted = [row for row in rows if row.d in WIDTHS]
    return sorted(
        wanted,
        key=lambda x: (WIDTHS.index(x.d), DIRECTIONS.index(x.direction), -x.kilobytes, SCHEDULES.index(x.schedule)),
    )


def _place(row: Row) -> tuple[str, int, int, str]:
    return row.direction, row.d, row.kilobytes, row.schedule


def _kept(path: Path, facts: dict[str, Any], console: Console) -> dict[tuple[str, int, int, str], Row]:
    """The stored rows that were measured or finally refused, if their facts and fingerprint are unchanged."""
    try:
        kept, rows = small_cache.read(path)
    except (OSError, ValueError, TypeError, KeyError):
        return {}
    done = {_place(row): row for row in rows if row.launch}
    other = changed(kept, {name: value for name, value in facts.items() if name != "date"})
    if done and other:
        console.print(repeat_notice(len(done), "launches", other), highlight=False)
    return {} if other else done


class Timer:
    """Times rows in the process that uses the device."""

    def __init__(self) -> None:
        self.device, self.shape = Device(), ("", 0)

    def time(self, row: Row) -> Row:
        """The row, with its time. Raises Red if the kernel is wrong, RuntimeError if it failed temporarily."""
        if self.shape != (row.direction, row.d):
            self.shape, self.arrays, self.gate = (row.direction, row.d), [], None
            self.device.free()
            self.call = Call(row.d, row.direction, n=N, heads=HEADS, dtype=DTYPE)
            self.arrays = inputs(self.call, self.device.name)
            self.gate, self.known = gate(self.call, self.arrays), dict[Launch, float]()
        assert self.gate is not None
        _time_one(row, self.call, self.arrays, self.gate, card_with(row.kilobytes), self.device, self.known)
        if not row.launch:  # so that the worker finds out whether the device is lost
            raise RuntimeError(row.why)
        return row


def _time(rows: list[Row], end: float, write: Any, console: Console) -> None:
    """Time the rows in a worker, so that a crash or a hang costs one row."""
    worker = Worker(Timer)
    for row in _in_order(rows):
        left = end - time.monotonic()
        if row.launch or left < 0:
            continue
        try:
            timed = worker.ask("time", row, seconds=min(PATIENCE_SECONDS, left))
        except Failed as failure:
            timed = replace(
                row, launch="" if failure.passing else "none", why=str(failure)[:MAX_CHARACTERS], date=now()
            )
        for name in MEASURED:
            setattr(row, name, getattr(timed, name))
        write()
        outcome = f"{row.seconds * 1e3:.2f} ms" if row.seconds else row.why
        console.print(f"{row.direction}, d {row.d}, {row.kilobytes} KB: {row.schedule} {outcome}", highlight=False)
    worker.end()


def card_with(kilobytes: int) -> Card:
    """This card with at most `kilobytes` of shared memory."""
    own = card_of(torch.device("cuda"))
    return own._replace(shared_bytes=min(own.shared_bytes, kilobytes << 10))


def _time_one(
    row: Row,
    call: Call,
    arrays: list[torch.Tensor],
    own_gate: Gate,
    card: Card,
    device: Device,
    known: dict[Launch, float],
) -> None:
    """Time the launch of a row and fill the row. After a temporary failure, the row has no launch."""
    row.date = now()
    try:
        launch = planned(row, card)
    except RedblueError as error:
        row.launch, row.why = "none", str(error)
        return
    if launch not in known:
        try:
            run = _call(row, arrays)
            with planning_for(card), pinned(row.direction, launch), warnings.catch_warnings():
                warnings.filterwarnings("error", message=".* runs instead")  # if the card refuses the launch
                own_gate.check(PLANNED, run())
                known[launch] = statistics.median(device.seconds(run))
        except Red:
            raise
        except Exception as failure:  # no failure of a launch may end the run
            row.launch = "none" if is_final(failure) else ""
            row.why = f"{type(failure).__name__}: {failure}"[:MAX_CHARACTERS]
            return
    problem = small_cache.problem(row.direction, row.d)
    row.launch, row.launch_words = repr(launch), schedules.get(row.schedule).words(problem, launch.tiles)
    row.seconds = known[launch]


def planned(row: Row, card: Card) -> Launch:
    """The launch of the row's schedule on the card, with kernels for any card with tensor cores.

    The schedule "auto" is the default schedule, with the kernels for this card. Raises RedblueError if another schedule
    would replace the row's.
    """
    sizes, default = Sizes((1,), HEADS, 1, N, N, row.d, row.d), row.schedule == "auto"
    task = task_of(small_cache.problem(row.direction, row.d), sizes, torch.device("meta"))
    options = task.plan_options if default else PlanOptions()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        launch = plan(row.direction, sizes, DTYPE, card, options, row.schedule)
    if not default and launch.kernel != row.schedule:
        raise RedblueError(f"{row.schedule} does not fit: {launch.kernel} would run")
    return launch


@contextlib.contextmanager
def pinned(direction: str, launch: Launch) -> Iterator[None]:
    """A context in which calls of this direction run this launch instead of the planned one."""
    usual = gpu.plan

    def one(requested: str, *arguments: Any) -> Launch:
        return launch if requested == direction else usual(requested, *arguments)

    gpu.plan = one
    try:
        yield
    finally:
        gpu.plan = usual


def _compiled(task: tuple[tuple[str, int, int, str], Card]) -> None:
    """Compile the kernels of a row into Triton's cache, without touching the device; runs in a worker process."""
    from redblue.kernels.gpu.planning.fit import standing_in

    place, card = task
    row = Row(*place)
    os.environ["REDBLUE_TUNE"] = "0"
    with contextlib.suppress(Exception), warm(), standing_in(card.arch), planning_for(card), ops.substituted(by=gpu):
        arrays = [torch.empty(1, HEADS, N, row.d, dtype=getattr(torch, DTYPE)) for _ in range(4)]
        with pinned(row.direction, planned(row, card)):
            _call(row, arrays)()


def _call(row: Row, arrays: list[torch.Tensor]) -> Any:
    q, k, v, dout = arrays
    if row.direction == "forward":
        return lambda: [rb.attention(q, k, v, schedule=row.schedule)]
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out = rb.attention(*leaves, schedule=row.schedule)
    return lambda: list(torch.autograd.grad(out, leaves, dout, retain_graph=True))


def _count_bytes(rows: list[Row], end: float, write: Any, console: Console) -> None:
    """Count the bytes of each timed launch at both boundaries, for one head. Needs Nsight Compute."""
    l2_words = torch.cuda.get_device_properties(0).L2_cache_size // WORD_BYTES
    for (d, direction), some in groupby(_in_order(rows), key=lambda row: (row.d, row.direction)):
        timed = [row for row in some if row.seconds]
        todo = list({row.launch: row for row in timed if not row.l1_l2_bytes}.values())  # each launch once
        if not todo or time.monotonic() > end:
            continue
        try:
            counts = bytes_of([_place(row) for row in todo])
        except RedblueError as error:
            console.print(f"no bytes: {error}", style="yellow", highlight=False)
            return
        moved = {row.launch: bytes_of_levels for row, bytes_of_levels in zip(todo, counts, strict=True)}
        bound = rb.lower_bound(small_cache.problem(direction, d), words=l2_words).words * WORD_BYTES
        for row in timed:
            if row.launch in moved:
                row.l1_l2_bytes, row.l2_dram_bytes = moved[row.launch]
                row.l2_dram_bound_bytes = bound
        write()
        console.print(f"{direction}, d {d}: bytes of {len(todo)} launches counted", highlight=False)
