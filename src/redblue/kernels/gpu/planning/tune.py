"""Which of the plan's few candidates is fastest on this card: timed once, kept on disk.

Timed by the device's own events, on the call's own arrays (launches overwrite what they write), the first time that a
call of its kind comes along. REDBLUE_TUNE=0 turns it off: then the plan's first candidate runs, as it does where
PyTorch is asked for deterministic algorithms, since another tile sums in another order.
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
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import platformdirs
import torch
import triton

from redblue.kernels.cpu.call import Sizes
from redblue.kernels.gpu.launch import Options
from redblue.kernels.gpu.planning.plan import Card, Launch

VARIABLE = "REDBLUE_TUNE"
REPETITIONS, LONGEST_MILLISECONDS = 5, 50.0
HOPELESS = 2.0  # times the best so far: not timed any further
FORMAT = 2  # of what is kept

Run = Callable[[Launch], object]


class Kind(NamedTuple):
    """What calls have in common that run best in the same way. Lengths are rounded up to powers of two."""

    device: str
    card: Card
    direction: str
    streams: int
    rows: int
    keys: int
    d: int
    d_v: int
    dtype: str  # and, of float32, the precision of its products
    mask: str  # "full", "band" or "lists"
    options: Options  # what fits without a bias may not fit with one
    schedule: str  # that was asked for
    versions: tuple[str, str]

    @classmethod
    def of(
        cls,
        direction: str,
        sizes: Sizes,
        dtype: str,
        mask: str,
        options: Options,
        schedule: str,
        device: torch.device,
        card: Card,
    ) -> Kind:
        streams, rows, keys = (_magnitude(x) for x in (sizes.streams, sizes.n_q * sizes.group, sizes.n_k))
        of = _name(device), card, direction, streams, rows, keys, sizes.d, sizes.d_v, dtype, mask, options, schedule
        return cls(*of, _versions())


def chosen(kind: Kind, candidates: Sequence[Launch], run: Run) -> Launch:
    """The fastest of the candidates that run; the first one where nothing is to be timed.

    run: executes the call as a candidate says. Candidates that fail are left out; if all do, the first one's error is
    raised. While a CUDA graph is captured or torch.compile traces, nothing is timed.
    """
    if len(candidates) == 1 or not enabled():
        return candidates[0]
    found = _remembered.get(kind)
    if found is not None and found in candidates:
        return found
    with _lock:
        found = _remembered.get(kind) or _read(kind, candidates)
        if found is None or found not in candidates:
            if _watched():
                return candidates[0]
            found, times = _fastest(candidates, run)
            _write(kind, found, times)
        _remembered[kind] = found
        return found


def enabled() -> bool:
    return os.environ.get(VARIABLE, "1") != "0" and not torch.are_deterministic_algorithms_enabled()


def forget() -> None:
    """What this process remembers; not what is on disk."""
    with _lock:
        _remembered.clear()


_lock = threading.Lock()
_remembered: dict[Kind, Launch] = {}


def folder() -> Path:
    """Where choices are kept, one file each, so that processes that write at once do not lose each other's."""
    return platformdirs.user_cache_path("redblue") / f"tuned-{FORMAT}"


def milliseconds(call: Callable[[], object], best: float) -> float:
    """The device's time for a call that has run before: the median of several. best: of the others until now."""
    times: list[float] = []
    while len(times) < REPETITIONS and sum(times) < LONGEST_MILLISECONDS:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
        if times[0] > HOPELESS * best:
            break
    return statistics.median(times)


def _fastest(candidates: Sequence[Launch], run: Run) -> tuple[Launch, dict[str, float | str]]:
    """The fastest, and the time of each or why it failed."""
    times: dict[Launch, float] = {}
    failures: dict[Launch, Exception] = {}
    for candidate in candidates:
        found = _timed(candidate, run, min(times.values(), default=math.inf))
        if isinstance(found, Exception):
            failures[candidate] = found
        else:
            times[candidate] = found
    if not times:
        raise failures[candidates[0]]
    told = {repr(each): str(failure) for each, failure in failures.items()}
    return min(times, key=times.__getitem__), {repr(each): time for each, time in times.items()} | told


def _timed(candidate: Launch, run: Run, best: float) -> float | Exception:
    try:
        run(candidate)  # compiles it
        return milliseconds(lambda: run(candidate), best)
    except Exception as failure:  # of whatever kind: another candidate may do
        return failure


def _watched() -> bool:
    """Whether this call is recorded rather than made."""
    return torch.compiler.is_compiling() or (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def _magnitude(count: int) -> int:
    return 1 << max(0, count - 1).bit_length()


@cache
def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


@cache
def _versions() -> tuple[str, str]:
    return version("redblue"), triton.__version__


def _path(kind: Kind) -> Path:
    return folder() / f"{hashlib.sha256(repr(kind).encode()).hexdigest()[:32]}.json"


def _read(kind: Kind, candidates: Sequence[Launch]) -> Launch | None:
    """A kept choice, if it is still among the candidates; None if not, or if there is none or it is damaged."""
    try:
        kept: Any = json.loads(_path(kind).read_text(encoding="utf-8"))
        return next((each for each in candidates if repr(each) == kept["launch"]), None)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _write(kind: Kind, found: Launch, times: dict[str, float | str]) -> None:
    """Keep it, whole or not at all; where that is impossible, this process alone remembers."""
    path = _path(kind)
    kept = {"kind": kind._asdict(), "launch": repr(found), "milliseconds": times}
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
