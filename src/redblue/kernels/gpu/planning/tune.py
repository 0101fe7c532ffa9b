"""Tuning: time the plan's candidates once on this card and keep the fastest on disk.

The first call of a kind times them with device events on the call's own arrays, which launches may overwrite. With
REDBLUE_TUNE=0, or if PyTorch must use deterministic algorithms, the plan's first candidate runs untimed, since other
tiles sum in another order.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import platformdirs
import torch
import triton

from redblue.kernels.gpu.launch import PlanOptions
from redblue.kernels.gpu.planning.plan import Card, Launch
from redblue.kernels.gpu.planning.refusals import is_refusal
from redblue.kernels.sizes import Sizes, magnitude

VARIABLE = "REDBLUE_TUNE"
REPETITIONS, MAX_MILLISECONDS = 5, 50.0
HOPELESS = 2.0  # a candidate this many times slower than the best so far is timed only once
FORMAT = 4  # version of the files
CLEARED_BYTES = 64 << 20  # more than an L2 cache holds
MAX_CLEARED = 1000  # times that memory is cleared in a row

Run = Callable[[Launch], object]


class Kind(NamedTuple):
    """The properties of a call that decide its launch. Lengths are rounded up to powers of two."""

    device: str
    card: Card
    direction: str
    streams: int
    group: int  # query heads that share a key head
    queries: int
    rows: int  # queries of all heads of a group
    keys: int
    d: int
    d_v: int
    dtype: str  # with the precision of products, which only float32 varies: "float16 ieee", "float32 tf32"
    mask: str  # "full", "band" or "lists"
    options: PlanOptions  # a launch that fits without a bias may not fit with one
    schedule: str  # the requested schedule, or "auto"
    versions: tuple[str, str]

    @classmethod
    def of(
        cls,
        direction: str,
        sizes: Sizes,
        dtype: str,
        mask: str,
        options: PlanOptions,
        schedule: str,
        device: torch.device,
        card: Card,
    ) -> Kind:
        streams, queries, rows, keys = (
            magnitude(x) for x in (sizes.streams, sizes.n_q, sizes.n_q * sizes.group, sizes.n_k)
        )
        lengths = streams, sizes.group, queries, rows, keys
        call = _name(device), card, direction, *lengths, sizes.d, sizes.d_v, dtype, mask, options, schedule
        return cls(*call, _versions())


def chosen(kind: Kind, candidates: Sequence[Launch], run: Run) -> Launch:
    """The fastest candidate; the first one if tuning is off, or while a CUDA graph is captured or torch.compile traces.

    run: executes the call by one candidate. Candidates that cannot be compiled or need too much memory are left out;
    if all are left out, the first one's error is raised. Any other error is raised at once: after an illegal memory
    access, all further calls of the process fail, too.
    """
    if len(candidates) == 1 or not enabled():
        return candidates[0]
    choice = _remembered.get(kind)
    if choice is not None and choice in candidates:
        return choice
    with _lock:
        choice = _remembered.get(kind) or _read(kind, candidates)
        if choice is None or choice not in candidates:
            if _recorded():
                return candidates[0]
            choice, times = _fastest(candidates, run)
            _write(kind, choice, times)
        _remembered[kind] = choice
        return choice


def enabled() -> bool:
    """Whether candidates may be timed."""
    return os.environ.get(VARIABLE, "1") != "0" and not torch.are_deterministic_algorithms_enabled()


def forget() -> None:
    """Drop the choices that this process remembers. Choices on disk stay."""
    with _lock:
        _remembered.clear()


_lock = threading.Lock()
_remembered: dict[Kind, Launch] = {}


def folder() -> Path:
    """The folder of choices. Each choice has its own file, so that processes can write at the same time."""
    return platformdirs.user_cache_path("redblue") / f"tuned-{FORMAT}"


def milliseconds(call: Callable[[], object], best: float) -> float:
    """The median time of a compiled call, by device events. best: the best candidate's time so far.

    The device clears memory while Python queues the call, so that it never waits for Python between launches.
    """
    times: list[float] = []
    queue_work = _work_ahead_of(call)
    while len(times) < REPETITIONS and sum(times) < MAX_MILLISECONDS:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        queue_work()
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
        if times[0] > HOPELESS * best:
            break
    return statistics.median(times)


def _work_ahead_of(call: Callable[[], object]) -> Callable[[], None]:
    """Return a function that keeps the device busy for as long as Python needs to queue the call."""
    try:
        memory = torch.empty(CLEARED_BYTES, dtype=torch.int8, device="cuda")
    except torch.OutOfMemoryError:
        return lambda: None
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    memory.zero_()  # the first time compiles or loads a kernel
    start.record()
    memory.zero_()
    end.record()
    end.synchronize()
    began = time.perf_counter()
    call()
    seconds = time.perf_counter() - began
    torch.cuda.synchronize()
    times = min(MAX_CLEARED, 2 + math.ceil(1e3 * seconds / max(1e-3, start.elapsed_time(end))))

    def clear() -> None:
        for _ in range(times):
            memory.zero_()

    return clear


def _fastest(candidates: Sequence[Launch], run: Run) -> tuple[Launch, dict[str, float | str]]:
    """The fastest candidate, and every candidate's time or error message."""
    times: dict[Launch, float] = {}
    failures: dict[Launch, Exception] = {}
    for candidate in candidates:
        outcome = _timed(candidate, run, min(times.values(), default=math.inf))
        if isinstance(outcome, Exception):
            failures[candidate] = outcome
        else:
            times[candidate] = outcome
    if not times:
        raise failures[candidates[0]]
    messages = {repr(candidate): str(failure) for candidate, failure in failures.items()}
    return min(times, key=times.__getitem__), {repr(candidate): time for candidate, time in times.items()} | messages


def _timed(candidate: Launch, run: Run, best: float) -> float | Exception:
    try:
        run(candidate)  # compiles the kernels
        return milliseconds(lambda: run(candidate), best)
    except Exception as failure:
        if not is_refusal(failure):
            raise
        return failure


def _recorded() -> bool:
    """Whether this call is recorded into a graph rather than executed."""
    return torch.compiler.is_compiling() or (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


@cache
def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


@cache
def _versions() -> tuple[str, str]:
    return version("redblue"), triton.__version__


def _path(kind: Kind) -> Path:
    return folder() / f"{hashlib.sha256(repr(kind).encode()).hexdigest()[:32]}.json"


def _read(kind: Kind, candidates: Sequence[Launch]) -> Launch | None:
    """The choice on disk; None if there is none, if its file is damaged or if it is no longer a candidate."""
    try:
        kept: Any = json.loads(_path(kind).read_text(encoding="utf-8"))
        return next((launch for launch in candidates if repr(launch) == kept["launch"]), None)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _write(kind: Kind, choice: Launch, times: dict[str, float | str]) -> None:
    """Keep the choice on disk, atomically; if the folder cannot be written, only this process remembers it."""
    path = _path(kind)
    kept = {"kind": kind._asdict(), "launch": repr(choice), "milliseconds": times}
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(kept, file, indent=1)
            os.replace(draft, path)
        except OSError:
            os.unlink(draft)
            raise
