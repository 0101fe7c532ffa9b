"""Measure a function of anybody's, with the meters that can."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from redblue.base.errors import RedblueError, UnknownName
from redblue.compiled import _core
from redblue.machine import CacheLevel
from redblue.meter import cachegrind, callable_child, counters, ncu, valgrind
from redblue.meter.record import Measurement, now


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
    """What one call fn(*args, **kwargs) moves; what it is counted or proved to move, nobody knows.

    using: "cachegrind": lines through a simulated cache of `words` words (line_bytes, ways as for `measure`), what
    Python itself moves in calling a function taken off; single-threaded. "interpreter": words of the Triton kernels
    that it launches, which Triton must interpret. "counters": lines at a boundary of this CPU. "ncu": bytes of its GPU
    kernels at a boundary of the GPU.
    fn: for cachegrind and ncu, which start a child, a function of a module, "module:function" or
    "path/to/script.py:function", its arguments plain data (JSON); else any callable. It is called once before it is
    measured (not for interpreter). bytes_per_word: what `measured_words` and words are of. Raises RedblueError.
    """
    ways_here = {
        "cachegrind": lambda: _lines(fn, args, kwargs, _cache(words, bytes_per_word, line_bytes, ways)),
        "interpreter": lambda: _interpreted(fn, args, kwargs),
        "counters": lambda: _counted(fn, args, kwargs, boundary, (words or 0) * bytes_per_word),
        "ncu": lambda: _profiled(fn, args, kwargs, boundary),
    }
    if using not in ways_here:
        raise UnknownName("meter of callables", using, ways_here)
    name = fn if isinstance(fn, str) else getattr(fn, "__qualname__", repr(fn))
    unsaid: dict[str, Any] = {
        "problem": None,
        "schedule": None,
        "tiles": {},
        "counted_words": None,
        "bound_words": None,
    }
    found = {"capacity_bytes": None, "parts": {}} | ways_here[using]()
    return Measurement(kernel=name, bytes_per_word=bytes_per_word, meter=using, date=now(), **unsaid, **found)


def _cache(words: int | None, bytes_per_word: int, line_bytes: int, ways: int | None) -> CacheLevel:
    if words is None or words < 1:
        raise RedblueError(
            f"cachegrind simulates a cache of any size: give its words (example: words=8192), got {words}"
        )
    return CacheLevel("cache", words * bytes_per_word, line_bytes, ways)


def _lines(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any], cache: CacheLevel) -> dict[str, Any]:
    _, tool = valgrind.find()
    valgrind.check_cache(cache)
    with tempfile.TemporaryDirectory(prefix="redblue-meter-") as made:
        more = {"core": _core.__file__, "cache_bytes": cache.capacity_bytes, "line_bytes": cache.line_bytes}
        command = _child(Path(made), fn, args, kwargs, more)
        alone = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        found, _ = valgrind.run(command, cache, Path(made), os.environ | alone)
    if [name for name, _ in found] != ["kernel", "outputs"] * 2:
        raise RedblueError(f"{_target(fn)} was not measured whole: it must not start or stop callgrind itself")
    (_, idle), (_, idle_left), (_, call), (_, left) = found

    def more_than_idle(field: str) -> int:
        return max(0, getattr(call, field) - getattr(idle, field))

    parts = {
        "read_miss_lines": more_than_idle("read_misses"),
        "write_allocate_lines": more_than_idle("write_misses"),
        "written_back_lines": more_than_idle("write_backs"),
        "left_lines": max(0, left.write_backs - idle_left.write_backs),
        "code_lines": more_than_idle("code_misses"),
        "accesses": more_than_idle("accesses"),
    }
    line = cache.line_bytes
    return {
        "boundary": f"fast memory of {cache.capacity_bytes:,} bytes/slow memory",
        "capacity_bytes": cache.capacity_bytes,
        "bytes_read": line * (parts["read_miss_lines"] + parts["write_allocate_lines"]),
        "bytes_written": line * (parts["written_back_lines"] + parts["left_lines"]),
        "how": cachegrind.described(cache, None) + "; a call of nothing taken off",
        "tool": tool,
        "parts": parts,
    }


def _interpreted(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    from redblue.meter.interpreter import counting

    with counting() as tally:
        _called(fn)(*args, **kwargs)
    found = tally.total()
    if not tally.launches:
        raise RedblueError(f"{_target(fn)} launched no Triton kernel")
    return {
        "boundary": "a Triton program/memory",
        "bytes_read": found.bytes_read,
        "bytes_written": found.bytes_written,
        "how": "every lane that a load or store leaves on",
        "tool": f"triton {version('triton')}",
        "parts": {"launches": sum(tally.launches.values()), "words_read": found.reads, "words_written": found.writes},
    }


def _counted(
    fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any], boundary: str | None, capacity: int
) -> dict[str, Any]:
    name, formula, held = counters.chosen(boundary, capacity)
    call = _called(fn)
    call(*args, **kwargs)
    reads, writes = counters.count(lambda: call(*args, **kwargs), formula, counters.REPEATS)
    return {
        "boundary": name,
        "capacity_bytes": held,
        "bytes_read": reads,
        "bytes_written": writes,
        "how": counters.described(formula),
        "tool": counters.version(),
    }


def _profiled(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any], boundary: str | None) -> dict[str, Any]:
    name = ncu.checked(boundary)
    path = ncu.find()
    with tempfile.TemporaryDirectory(prefix="redblue-ncu-") as made:
        moved = ncu.profile(_child(Path(made), fn, args, kwargs, {}), [name], os.environ)[name]
    return {
        "boundary": name,
        "bytes_read": moved.bytes_read,
        "bytes_written": moved.bytes_written,
        "how": ncu.described(moved),
        "tool": ncu.version(path),
        "parts": {"launches": len(moved.kernels)},
    }


def _child(folder: Path, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any], more: Mapping[str, Any]) -> list[str]:
    """The command that calls the function once it is told to."""
    task = {"target": _target(fn), "args": args, "kwargs": kwargs, "path": sys.path, **more}
    try:
        text = json.dumps(task)
    except TypeError as error:
        raise RedblueError(
            f"arguments travel to a child as JSON, which these do not ({error}): give plain data"
        ) from None
    (folder / "task.json").write_text(text)
    return [sys.executable, callable_child.__file__, str(folder / "task.json")]


def _target(fn: Any) -> str:
    """Where a child finds the function. Raises RedblueError for one that only this process has."""
    if isinstance(fn, str):
        if not fn.rpartition(":")[0]:
            raise RedblueError(
                f"a function in a child is 'module:function' or 'path/to/script.py:function', got {fn!r}"
            )
        return fn
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", "<")
    if module in (None, "__main__") or "<" in name:
        raise RedblueError(f"{fn!r} cannot be found by a child: give a function of a module, or 'module:function'")
    return f"{module}:{name}"


def _called(fn: Any) -> Callable[..., object]:
    return callable_child.function_of(fn) if isinstance(fn, str) else fn
