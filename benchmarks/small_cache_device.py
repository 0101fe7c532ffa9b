"""The small-cache experiment's part that a GPU runs: times, and bytes where Nsight Compute counts them."""

from __future__ import annotations

import datetime
import os
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import small_cache
import torch  # pyright: ignore[reportMissingImports]
from gpu_calls import PLANNED, Call, inputs
from gpu_gate import Gate
from gpu_timing import Device
from rich.console import Console
from small_cache import DTYPE, HEADS, SCHEDULES, WORD_BYTES, N, Row

import redblue as rb
from redblue import schedules
from redblue.errors import RedblueError
from redblue.kernels.cpu import Sizes
from redblue.kernels.gpu.card import Card, card_of, told
from redblue.kernels.gpu.plan import Launch, plan
from redblue.meter import Measurement, measure

WIDTHS = (512, 256, 1024, 128, 64)  # the most telling first
MEASURED = ("launch", "launch_words", "seconds", "l1_l2_bytes", "l2_dram_bytes", "l2_dram_bound_bytes", "why")
NEAR, FAR = "shared memory and L1/L2", "L2/DRAM"
BYTES_WIDTHS = (512, 128)  # of which bytes are counted: each is a run of its own


def measured(path: Path, budget: float, console: Console) -> tuple[dict[str, Any], list[Row]]:
    """Everything counted, and as much as the budget allows measured; what was measured before is kept.

    Raises gpu_gate.Red if a kernel is wrong.
    """
    if not torch.cuda.is_available():
        raise SystemExit("no GPU that PyTorch sees: run this where there is one, or --dry, which only counts")
    os.environ["REDBLUE_TUNE"] = "0"  # as planned: tiles for the memory that is told
    facts = small_cache.about() | {
        "device": torch.cuda.get_device_name(),
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "torch": torch.__version__,
    }
    rows = small_cache.everything()
    done = _kept(path, facts)
    for row in rows:
        before = done.get(_place(row))
        for name in MEASURED if before is not None else ():
            setattr(row, name, getattr(before, name))
    end = time.monotonic() + budget
    _time(rows, end, lambda: small_cache.write(path, facts, rows), console)
    _count_bytes(rows, end, lambda: small_cache.write(path, facts, rows), console)
    return facts, rows


def _place(row: Row) -> tuple[str, int, int, str]:
    return row.direction, row.d, row.kilobytes, row.schedule


def _kept(path: Path, facts: dict[str, Any]) -> dict[tuple[str, int, int, str], Row]:
    """What was measured on the same device with the same PyTorch."""
    try:
        kept, rows = small_cache.read(path)
    except (OSError, ValueError, TypeError, KeyError):
        return {}
    same = all(kept.get(name) == facts[name] for name in ("device", "torch", "n", "dtype"))
    return {_place(row): row for row in rows if row.launch} if same else {}


def _time(rows: list[Row], end: float, write: Any, console: Console) -> None:
    device, own = Device(), card_of(torch.device("cuda"))
    for direction in small_cache.DIRECTIONS:
        for d in WIDTHS:
            todo = [row for row in rows if (row.direction, row.d) == (direction, d) and not row.launch]
            if not todo or time.monotonic() > end:
                continue
            call = Call(d, direction, n=N, heads=HEADS, dtype=DTYPE)
            given = inputs(call, device.name)
            gate, known = Gate(call, given), {}  # one launch serves all memories that allow no other
            for row in sorted(todo, key=lambda row: (-row.kilobytes, SCHEDULES.index(row.schedule))):
                if time.monotonic() > end:
                    return
                card = own._replace(shared_bytes=min(own.shared_bytes, row.kilobytes << 10))
                _time_one(row, call, given, gate, card, device, known)
                write()
                said = f"{row.seconds * 1e3:.2f} ms" if row.seconds else row.why
                console.print(f"{direction}, d {d}, {row.kilobytes} KB: {row.schedule} {said}", highlight=False)
            del given, gate
            device.free()


def _time_one(
    row: Row,
    call: Call,
    given: list[torch.Tensor],
    gate: Gate,
    card: Card,
    device: Device,
    known: dict[Launch, float],
) -> None:
    try:
        launch = planned(row, card)
    except RedblueError as error:
        row.launch, row.why = "none", str(error)
        return
    problem = small_cache.problem(row.direction, row.d)
    row.launch, row.launch_words = repr(launch), schedules.get(row.schedule).words(problem, launch.tiles)
    if launch not in known:
        run = _call(row, given)
        with told(card):
            gate.check(PLANNED, run())
            known[launch] = statistics.median(device.seconds(run))
    row.seconds = known[launch]


def planned(row: Row, card: Card) -> Launch:
    """What the schedule runs as with so much shared memory. Raises RedblueError where another would take its place."""
    sizes = Sizes((1,), HEADS, 1, N, N, row.d, row.d)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        launch = plan(row.direction, sizes, DTYPE, card, schedule=row.schedule)
    if launch.kernel != row.schedule:
        raise RedblueError(f"{row.schedule} does not fit: {launch.kernel} would run")
    return launch


def _call(row: Row, given: list[torch.Tensor]) -> Any:
    q, k, v, dout = given
    if row.direction == "forward":
        return lambda: [rb.attention(q, k, v, schedule=row.schedule)]
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out = rb.attention(*leaves, schedule=row.schedule)
    return lambda: list(torch.autograd.grad(out, leaves, dout, retain_graph=True))


def _count_bytes(rows: list[Row], end: float, write: Any, console: Console) -> None:
    """Of one head, at both boundaries; nothing where Nsight Compute does not run, which is said once."""
    for row in rows:
        if row.d not in BYTES_WIDTHS or not row.seconds or row.l1_l2_bytes:
            continue
        if time.monotonic() > end:
            return
        try:
            near, far = (_bytes(row, boundary) for boundary in (NEAR, FAR))
        except RedblueError as error:
            console.print(f"no bytes: {error}", style="yellow", highlight=False)
            return
        row.l1_l2_bytes, row.l2_dram_bytes = (each.bytes_read + each.bytes_written for each in (near, far))
        row.l2_dram_bound_bytes = (far.bound_words or 0) * WORD_BYTES
        write()
        console.print(f"{row.direction}, d {row.d}, {row.kilobytes} KB: {row.schedule}, bytes counted", highlight=False)


def _bytes(row: Row, boundary: str) -> Measurement:
    problem = small_cache.problem(row.direction, row.d)
    return measure(problem, plan_words=row.capacity_words, using="ncu", schedule=row.schedule, boundary=boundary)
