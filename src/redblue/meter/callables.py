"""Measure any Python function, with the meters that support this."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from redblue.base.arguments import checked_arguments
from redblue.base.errors import RedblueError, UnknownName
from redblue.compiled import _core
from redblue.machine import CacheLevel
from redblue.meter import cachegrind, callable_child, counters, ncu, valgrind
from redblue.meter.record import Measurement, now


@checked_arguments
def measure_callable(
    fn: Callable[..., object] | str,
    *args: Any,
    using: str,
    words: int | None = None,
    boundary: str | None = None,
    bytes_per_word: int = 4,
    line_bytes: int = 64,
    ways: int | None = None,
    **kwargs: Any,
) -> Measurement:
    """Measure one call fn(*args, **kwargs). The record's counted_words and bound_words are None: both are unknown.

    fn: any callable. cachegrind and ncu start a child process: for them fn must be a function of a module,
    "module:function" or "path/to/script.py:function", and the arguments must be plain data, which is sent as JSON. fn
    is called once before the measurement, except with interpreter.
    using: the meter:
    - "cachegrind": lines through a simulated cache of `words` words (line_bytes, ways: as in `measure`), minus the
      lines of an empty Python call; single-threaded.
    - "interpreter": words of the Triton kernels that fn launches, which Triton must interpret.
    - "counters": lines at a boundary of this CPU.
    - "ncu": bytes of its GPU kernels at a boundary of the GPU.
    bytes_per_word: the size of a word, for `words` and for the record.
    Raises UnknownName for another meter. Raises RedblueError, with the remedy, if the meter cannot work here, cannot
    measure at `boundary`, cannot find fn, or measures nothing.
    """
    meters = {
        "cachegrind": lambda: _by_cachegrind(fn, args, kwargs, _cache(words, bytes_per_word, line_bytes, ways)),
        "interpreter": lambda: _by_interpreter(fn, args, kwargs),
        "counters": lambda: _by_counters(fn, args, kwargs, boundary, (words or 0) * bytes_per_word),
        "ncu": lambda: _by_ncu(fn, args, kwargs, boundary),
    }
    if using not in meters:
        raise UnknownName("meter of callables", using, meters)
    name = fn if isinstance(fn, str) else getattr(fn, "__qualname__", repr(fn))
    unknown: dict[str, Any] = {
        "problem": None,
        "schedule": None,
        "tiles": {},
        "counted_words": None,
        "bound_words": None,
    }
    measured = {"capacity_bytes": None, "parts": {}} | meters[using]()
    return Measurement(kernel=name, bytes_per_word=bytes_per_word, meter=using, date=now(), **unknown, **measured)


def _cache(words: int | None, bytes_per_word: int, line_bytes: int, ways: int | None) -> CacheLevel:
    if words is None or words < 1:
        raise RedblueError(
            f"cachegrind simulates a cache of any size: give its words (example: words=8192), got {words}"
        )
    return CacheLevel("cache", words * bytes_per_word, line_bytes, ways)


def _by_cachegrind(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any], cache: CacheLevel) -> dict[str, Any]:
    """The measured fields of the record."""
    _, tool = valgrind.find()
    valgrind.check_cache(cache)
    with tempfile.TemporaryDirectory(prefix="redblue-meter-") as folder:
        extra = {"core": _core.__file__, "cache_bytes": cache.capacity_bytes, "line_bytes": cache.line_bytes}
        command = _child(Path(folder), fn, args, kwargs, extra)
        single_threaded = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        sections, _ = valgrind.run(command, cache, Path(folder), os.environ | single_threaded)
    if [name for name, _ in sections] != ["kernel", "outputs"] * 2:
        raise RedblueError(f"{_target(fn)} was not measured completely: it must not start or stop callgrind itself")
    (_, idle), (_, idle_left), (_, call), (_, left) = sections

    def above_idle(field: str) -> int:
        return max(0, getattr(call, field) - getattr(idle, field))

    parts = {
        "read_miss_lines": above_idle("read_misses"),
        "write_allocate_lines": above_idle("write_misses"),
        "written_back_lines": above_idle("write_backs"),
        "left_lines": max(0, left.write_backs - idle_left.write_backs),
        "code_lines": above_idle("code_misses"),
        "accesses": above_idle("accesses"),
    }
    line = cache.line_bytes
    return {
        "boundary": f"fast memory of {cache.capacity_bytes:,} bytes/slow memory",
        "capacity_bytes": cache.capacity_bytes,
        "bytes_read": line * (parts["read_miss_lines"] + parts["write_allocate_lines"]),
        "bytes_written": line * (parts["written_back_lines"] + parts["left_lines"]),
        "how": cachegrind.description(cache, None) + "; minus an empty call",
        "tool": tool,
        "parts": parts,
    }


def _by_interpreter(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The measured fields of the record."""
    from redblue.meter.interpreter import counting

    with counting() as tally:
        _callable(fn)(*args, **kwargs)
    total = tally.total()
    if not tally.launches:
        raise RedblueError(f"{_target(fn)} launched no Triton kernel: give a function that launches one")
    return {
        "boundary": "a Triton program/memory",
        "bytes_read": total.bytes_read,
        "bytes_written": total.bytes_written,
        "how": "every unmasked lane of a load or store is a word",
        "tool": f"triton {version('triton')}",
        "parts": {"launches": sum(tally.launches.values()), "words_read": total.reads, "words_written": total.writes},
    }


def _by_counters(
    fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any], boundary: str | None, capacity: int
) -> dict[str, Any]:
    """The measured fields of the record."""
    name, formula, capacity_bytes = counters.choose(boundary, capacity)
    call = _callable(fn)
    call(*args, **kwargs)
    reads, writes = counters.count(lambda: call(*args, **kwargs), formula, counters.REPEATS)
    return {
        "boundary": name,
        "capacity_bytes": capacity_bytes,
        "bytes_read": reads,
        "bytes_written": writes,
        "how": counters.description(formula),
        "tool": counters.version(),
    }


def _by_ncu(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any], boundary: str | None) -> dict[str, Any]:
    """The measured fields of the record."""
    name = ncu.check_boundary(boundary)
    path = ncu.find()
    with tempfile.TemporaryDirectory(prefix="redblue-ncu-") as folder:
        moved = ncu.profile(_child(Path(folder), fn, args, kwargs, {}), [name], os.environ)[name]
    return {
        "boundary": name,
        "bytes_read": moved.bytes_read,
        "bytes_written": moved.bytes_written,
        "how": ncu.description(moved),
        "tool": ncu.version(path),
        "parts": {"launches": len(moved.kernels)},
    }


def _child(
    folder: Path, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any], extra: Mapping[str, Any]
) -> list[str]:
    """Write the child's task into `folder`; return the command that starts the child."""
    task = {"target": _target(fn), "args": args, "kwargs": kwargs, "path": sys.path, **extra}
    try:
        text = json.dumps(task)
    except TypeError as error:
        raise RedblueError(
            f"arguments reach the child process as JSON, and these cannot be written as JSON ({error}): give plain data"
        ) from None
    (folder / "task.json").write_text(text)
    return [sys.executable, callable_child.__file__, str(folder / "task.json")]


def _target(fn: Any) -> str:
    """The name by which a child process finds the function. Raises RedblueError if it has none."""
    if isinstance(fn, str):
        if not fn.rpartition(":")[0]:
            raise RedblueError(
                f"a child process finds a function by 'module:function' or 'path/to/script.py:function', got {fn!r}"
            )
        return fn
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", "<")
    if module in (None, "__main__") or "<" in name:
        raise RedblueError(
            f"{fn!r} cannot be found by a child process: give a function of a module, or 'module:function'"
        )
    return f"{module}:{name}"


def _callable(fn: Any) -> Callable[..., object]:
    """Return fn, or the function that a text names. Raises RedblueError if there is no such function."""
    if not isinstance(fn, str):
        return fn
    try:
        return callable_child.function_of(fn)
    except callable_child.MISSING as error:
        raise RedblueError(callable_child.missing_text(fn, error)) from error
