"""The five meters: each takes a request and returns the common record."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from redblue.base.errors import RedblueError
from redblue.bounds import lower_bound
from redblue.catalogue.detect import detect_cuda
from redblue.lab import counts
from redblue.lab.plans import describe
from redblue.machine import CacheLevel
from redblue.meter import cachegrind, counters, ncu, probe, valgrind
from redblue.meter.calls import kernel_call
from redblue.meter.record import Measurement, now
from redblue.problem import Problem


@dataclass(frozen=True)
class Request:
    """What is to be measured; see `measure`. cache: of `words` words; None where the machine's own is."""

    problem: Problem
    words: int | None
    plan_words: int | None
    schedule: str | None
    tiles: Mapping[str, int] | None
    boundary: str | None
    cache: CacheLevel | None
    inner: CacheLevel | None

    @property
    def planned(self) -> int:
        return self.plan_words or self.words or 0

    @property
    def named(self) -> str:
        """The boundary of a fast memory of any size: alike for all meters of such."""
        assert self.cache is not None
        return f"fast memory of {self.cache.capacity_bytes:,} bytes/slow memory"


def by_probe(request: Request) -> Measurement:
    call = kernel_call(request.problem, request.planned, request.schedule, request.tiles)
    reads, writes = probe.moved(call)
    each = request.problem.bytes_per_word
    return _record(
        request,
        call.kernel,
        call.schedule,
        call.tiles,
        bytes_read=reads * each,
        bytes_written=writes * each,
        meter="probe",
        how="the kernel counts the words that it moves between its tiles and the arrays",
        tool=f"redblue {version('redblue')}",
    )


def by_cachegrind(request: Request) -> Measurement:
    assert request.cache is not None
    call = kernel_call(request.problem, request.planned, request.schedule, request.tiles, cachegrind.isa())
    lines, _ = cachegrind.measure_call(call, request.cache, request.inner)
    line = request.cache.line_bytes
    return _record(
        request,
        call.kernel,
        call.schedule,
        call.tiles,
        bytes_read=line * (lines["read_miss_lines"] + lines["write_allocate_lines"]),
        bytes_written=line * (lines["written_back_lines"] + lines["outputs_left_lines"]),
        meter="cachegrind",
        how=cachegrind.described(request.cache, request.inner),
        tool=valgrind.find()[1],
        parts=lines,
    )


def needs_triton() -> None:
    """Raise RedblueError unless Triton can interpret in this process."""
    if importlib.util.find_spec("triton") is None or importlib.util.find_spec("torch") is None:
        raise RedblueError("interpreter needs Triton and PyTorch: pip install triton torch, or measure with probe")
    if "triton" not in sys.modules and os.environ.get("TRITON_INTERPRET") == "1":
        return
    from triton import knobs

    if not knobs.runtime.interpret:
        raise RedblueError("interpreter needs TRITON_INTERPRET=1 in the environment before Triton is imported: set it")


def by_interpreter(request: Request) -> Measurement:
    from redblue.meter.gpu_calls import gpu_call
    from redblue.meter.interpreter import counting

    call = gpu_call(request.problem, request.planned, request.schedule, request.tiles)
    with counting() as tally:
        call.run()
    lists = [name for name in tally.tensors if name.startswith("lists")]
    found, whole = tally.total(without=lists), tally.total()
    each = request.problem.bytes_per_word
    return _record(
        request,
        f"{call.schedule} {request.problem.direction}, Triton",
        call.schedule,
        call.tiles,
        bytes_read=found.reads * each,
        bytes_written=found.writes * each,
        meter="interpreter",
        how="every lane that a load or store leaves on is a word; lists of masks are counted apart",
        tool=f"triton {version('triton')}",
        parts={"index_bytes": whole.bytes - found.bytes},
    )


def needs_counters() -> None:
    counters.needs()


def by_counters(request: Request) -> Measurement:
    wanted = (request.words or 0) * request.problem.bytes_per_word
    name, formula, capacity = counters.chosen(request.boundary, wanted)
    words = (capacity or 0) // request.problem.bytes_per_word
    call = kernel_call(request.problem, request.planned or words, request.schedule, request.tiles)
    run = probe.prepared(call)
    run()
    reads, writes = counters.count(run, formula, counters.REPEATS)
    return _record(
        request,
        call.kernel,
        call.schedule,
        call.tiles,
        boundary=name,
        capacity=capacity,
        bytes_read=reads,
        bytes_written=writes,
        meter="counters",
        how=counters.described(formula),
        tool=counters.version(),
    )


def by_ncu(request: Request) -> Measurement:
    name = ncu.checked(request.boundary)
    path = ncu.find()
    from redblue.meter import gpu_calls

    with tempfile.TemporaryDirectory(prefix="redblue-ncu-") as made:
        task = Path(made, "task")
        planned = request.planned or None
        task.write_bytes(pickle.dumps((request.problem, planned, request.schedule, request.tiles)))
        command = [sys.executable, "-m", gpu_calls.__name__, str(task)]
        moved = ncu.profile(command, [name], os.environ)[name]
        schedule, tiles = json.loads(task.with_suffix(".json").read_text())
    device = next(iter(detect_cuda()), None)
    sizes = {"shared memory and L1/L2": "shared_memory_bytes", "L2/DRAM": "l2_bytes"}
    capacity = getattr(device, sizes[name]) if device and name in sizes else 0
    return _record(
        request,
        f"{schedule} {request.problem.direction}, Triton on {device.name if device else 'a GPU'}",
        schedule,
        tiles,
        boundary=name,
        capacity=capacity,
        bytes_read=moved.bytes_read,
        bytes_written=moved.bytes_written,
        meter="ncu",
        how=ncu.described(moved),
        tool=ncu.version(path),
    )


def _record(
    request: Request,
    kernel: str,
    schedule: str,
    tiles: Mapping[str, int],
    *,
    boundary: str | None = None,
    capacity: int | None = None,
    **found: Any,
) -> Measurement:
    """The record: what was found, what the schedule's closed form says, and the bound for that capacity."""
    problem = request.problem
    if boundary is None:
        assert request.cache is not None
        boundary, capacity = request.named, request.cache.capacity_bytes
    words = (capacity or 0) // problem.bytes_per_word
    return Measurement(
        problem=describe(problem),
        kernel=kernel,
        schedule=schedule,
        tiles=tiles,
        boundary=boundary,
        capacity_bytes=capacity or None,
        bytes_per_word=problem.bytes_per_word,
        counted_words=counts.count(schedule, problem, tiles=tiles).words,
        bound_words=lower_bound(problem, words).words if words else None,
        date=now(),
        **found,
    )
