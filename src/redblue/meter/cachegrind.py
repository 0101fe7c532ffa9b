"""Measure the lines that a compiled kernel moves between memory and a cache of any shape, simulated by valgrind.

Lines read: read misses, and write misses, because an ordinary store reads a line before it changes it (write
allocation). Lines written: dirty lines that are evicted, and the output lines that the cache still holds at the end.
The number of the lines still held is a lower limit: it is measured by touching the outputs, and a touch that misses may
evict an output line that has not been touched yet. The kernel's own tiles are dead at the end, and are not counted.
Lines of code occupy the cache, but are not counted as words. Replacement is LRU. Prefetches are not simulated.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from redblue.base.errors import RedblueError
from redblue.compiled import _core
from redblue.machine import CacheLevel
from redblue.meter import child, valgrind
from redblue.meter.calls import KernelCall, Region, Struct
from redblue.meter.valgrind import Events

UNDECODED = ("amx_bf16", "avx512_bf16", "avx512")  # instruction sets that valgrind does not decode


def isa() -> _core.Isa:
    """Choose the best instruction set that valgrind decodes, or the one that REDBLUE_ISA names.

    Raises RedblueError if REDBLUE_ISA names a set that valgrind does not decode, or that this CPU does not have.
    """
    forced = os.environ.get("REDBLUE_ISA")
    if forced in UNDECODED:
        raise RedblueError(f"valgrind does not decode AVX-512: set REDBLUE_ISA=avx2 or unset it, got {forced!r}")
    try:
        return _core.choose_isa(
            forced or next(x.name for x in _core.list_isas() if x.supported and x.name not in UNDECODED)
        )
    except ValueError as error:
        raise RedblueError(str(error)) from error


def measure_call(
    call: KernelCall, cache: CacheLevel, inner: CacheLevel | None = None
) -> tuple[dict[str, int], list[Any]]:
    """Run the call under valgrind; return the lines by cause, as `traffic` does, and the call's own result."""
    return run(call.function, call.isa, call.regions, call.outputs, call.arguments, cache, inner)


def run(
    function: str,
    isa_name: str | None,
    regions: tuple[int | bytes, ...],
    outputs: tuple[int, ...],
    arguments: tuple[Any, ...],
    cache: CacheLevel,
    inner: CacheLevel | None = None,
) -> tuple[dict[str, int], Any]:
    """Run a function of the compiled core under valgrind.

    regions, outputs, arguments: as in KernelCall. cache: the cache to measure. inner: a cache between it and the core.
    Returns the lines by cause, with `inner_miss_lines` if there is an inner cache, and the function's result.
    Raises RedblueError.
    """
    with tempfile.TemporaryDirectory(prefix="redblue-meter-") as name:
        folder = Path(name)
        described = []
        for i, region in enumerate(regions):
            if isinstance(region, bytes):
                (folder / f"region{i}").write_bytes(region)
                described.append({"bytes": len(region), "file": str(folder / f"region{i}")})
            else:
                described.append({"bytes": region})
        task = {
            "core": _core.__file__,
            "function": function,
            "isa": isa_name,
            "regions": described,
            "outputs": outputs,
            "arguments": plain(arguments),
            "line_bytes": cache.line_bytes,
        }
        (folder / "task.json").write_text(json.dumps(task))
        command = [sys.executable, "-I", "-S", child.__file__, str(folder / "task.json")]
        sections, printed = valgrind.run(command, cache, folder, {}, inner)
        sizes = [array["bytes"] for array in described]
        output_lines = sum(-(-sizes[i] // cache.line_bytes) for i in outputs)
        events = dict(sections)
        inner_lines = {"inner_miss_lines": events["kernel"].inner_misses} if inner else {}
        return traffic(events, output_lines) | inner_lines, json.loads(printed)


def description(cache: CacheLevel, inner: CacheLevel | None) -> str:
    """Describe the simulated caches, for the record of a measurement."""
    behind = f", behind {inner.capacity_bytes:,} bytes, {_ways(inner)}" if inner else ""
    return f"lines of {cache.line_bytes} bytes, {_ways(cache)}, LRU, write-back{behind}"


def _ways(cache: CacheLevel) -> str:
    return f"{cache.ways} ways" if cache.ways else "fully associative"


def traffic(events: dict[str, Events], output_lines: int) -> dict[str, int]:
    """Lines by cause. events: the Events of sections "kernel" and "outputs". output_lines: the size of the outputs."""
    kernel, outputs = events["kernel"], events["outputs"]
    return {
        "read_miss_lines": kernel.read_misses,
        "write_allocate_lines": kernel.write_misses,
        "written_back_lines": kernel.write_backs,
        "outputs_left_lines": max(0, output_lines - outputs.read_misses),
        "code_lines": kernel.code_misses,
        "accesses": kernel.accesses,
    }


def plain(value: Any) -> Any:
    """Convert arguments for JSON: a Region to {"region": index}, a Struct to {"struct": name, "fields": {...}}."""
    if isinstance(value, Region):
        return {"region": value.index}
    if isinstance(value, Struct):
        return {"struct": value.name, "fields": {name: plain(field) for name, field in value.fields.items()}}
    return [plain(field) for field in value] if isinstance(value, tuple) else value
