"""The five meters: functions that take a Request and return a Measurement."""

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
from redblue.base.version import __version__
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
    """The arguments of `registry.measure`, in one record.

    words: the simulated fast memory; None if a memory of the machine is measured. line_bytes, ways, inner: for
    cachegrind, the geometry of its cache and the nearer cache.
    """

    problem: Problem
    words: int | None
    plan_words: int | None
    schedule: str | None
    tiles: Mapping[str, int] | None
    boundary: str | None
    line_bytes: int
    ways: int | None
    inner: CacheLevel | None

    @property
    def capacity_bytes(self) -> int:
        """The size of the simulated fast memory."""
        assert self.words is not None
        return int(self.words) * self.problem.bytes_per_word

    @property
    def planned_words(self) -> int:
        """The fast memory that tiles are planned for, in words; 0 if none was given."""
        return self.plan_words or self.words or 0

    @property
    def boundary_name(self) -> str:
        """The boundary's name for a fast memory of any size; all meters that simulate one use this name."""
        return f"fast memory of {self.capacity_bytes:,} bytes/slow memory"

    def check_tiles(self, schedule: str, tiles: Mapping[str, int]) -> None:
        """Raise TooFewWords if tiles do not fit into the fast memory: its bound does not hold for their words."""
        counts.count(schedule, self.problem, words=self.words, tiles=tiles)


def by_probe(request: Request) -> Measurement:
    """Measure the words that the compiled kernel itself counts."""
    call = kernel_call(request.problem, request.planned_words, request.schedule, request.tiles)
    request.check_tiles(call.schedule, call.tiles)
    reads, writes = probe.moved_words(call)
    word_bytes = request.problem.bytes_per_word
    return _record(
        request,
        call.kernel,
        call.schedule,
        call.tiles,
        bytes_read=reads * word_bytes,
        bytes_written=writes * word_bytes,
        meter="probe",
        how="the kernel counts the words that it moves between its tiles and the arrays",
        tool=f"redblue {__version__}",
    )


def by_cachegrind(request: Request) -> Measurement:
    """Measure the lines that the compiled kernel moves through a simulated cache."""
    cache = CacheLevel("cache", request.capacity_bytes, request.line_bytes, request.ways)
    call = kernel_call(request.problem, request.planned_words, request.schedule, request.tiles, cachegrind.isa())
    lines, _ = cachegrind.measure_call(call, cache, request.inner)
    line = cache.line_bytes
    return _record(
        request,
        call.kernel,
        call.schedule,
        call.tiles,
        bytes_read=line * (lines["read_miss_lines"] + lines["write_allocate_lines"]),
        bytes_written=line * (lines["written_back_lines"] + lines["outputs_left_lines"]),
        meter="cachegrind",
        how=cachegrind.description(cache, request.inner),
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
    """Count the words that the Triton kernel loads and stores."""
    from redblue.meter.gpu_calls import gpu_call
    from redblue.meter.interpreter import counting

    call = gpu_call(request.problem, request.planned_words, request.schedule, request.tiles)
    request.check_tiles(call.schedule, call.tiles)
    with counting() as tally:
        call.run()
    lists = [name for name in tally.tensors if name.startswith("lists")]
    words, everything = tally.total(without=lists), tally.total()
    word_bytes = request.problem.bytes_per_word
    return _record(
        request,
        f"{call.schedule} {request.problem.direction}, Triton",
        call.schedule,
        call.tiles,
        bytes_read=words.reads * word_bytes,
        bytes_written=words.writes * word_bytes,
        meter="interpreter",
        how="every unmasked lane of a load or store is a word; the index lists of a mask are counted separately",
        tool=f"triton {version('triton')}",
        parts={"index_bytes": everything.bytes - words.bytes},
    )


def by_counters(request: Request) -> Measurement:
    """Measure the lines that the compiled kernel moves between this CPU's memories."""
    fast_bytes = (request.words or 0) * request.problem.bytes_per_word
    name, formula, capacity = counters.choose(request.boundary, fast_bytes)
    words = (capacity or 0) // request.problem.bytes_per_word
    call = kernel_call(request.problem, request.planned_words or words, request.schedule, request.tiles)
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
        how=counters.description(formula),
        tool=counters.version(),
    )


def by_ncu(request: Request) -> Measurement:
    """Measure the bytes that the Triton kernel moves between a GPU's memories."""
    name = ncu.check_boundary(request.boundary)
    path = ncu.find()
    from redblue.meter import gpu_calls

    with tempfile.TemporaryDirectory(prefix="redblue-ncu-") as folder:
        task = Path(folder, "task")
        planned = request.planned_words or None
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
        how=ncu.description(moved),
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
    **measured: Any,
) -> Measurement:
    """Make the record: the measured fields, the words of the schedule's closed form, and the bound for the capacity.

    boundary: the name of the measured boundary; None for the boundary of the simulated cache.
    capacity: the bytes of the boundary's fast side, if its name is given.
    """
    problem = request.problem
    if boundary is None:
        boundary, capacity = request.boundary_name, request.capacity_bytes
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
        **measured,
    )
