"""Lines that a compiled kernel moves between a cache of any shape and memory, in valgrind's simulation.

Read: the lines of read misses, and those of write misses, which an ordinary store reads before it changes them (write
allocation). Written: dirty lines when they are evicted, and at the end those of the outputs that the cache still holds
(at least: touching those that it does not hold may evict one before it is touched); what is left of the kernel's own
tiles is dead, and is not counted. Lines of code are not counted, but take their place. Prefetches are not simulated.
Replacement is LRU.
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

BEYOND = ("avx512_bf16", "avx512")  # instruction sets that valgrind does not decode


def isa() -> _core.Isa:
    """The best instruction set that valgrind decodes, or the one that REDBLUE_ISA names. Raises RedblueError."""
    forced = os.environ.get("REDBLUE_ISA")
    if forced in BEYOND:
        raise RedblueError(f"valgrind does not decode AVX-512: set REDBLUE_ISA=avx2 or unset it, got {forced!r}")
    try:
        return _core.choose_isa(
            forced or next(x.name for x in _core.list_isas() if x.supported and x.name not in BEYOND)
        )
    except ValueError as error:
        raise RedblueError(str(error)) from error


def measure_call(
    call: KernelCall, cache: CacheLevel, inner: CacheLevel | None = None
) -> tuple[dict[str, int], list[Any]]:
    """Run the call under valgrind. What `traffic` says, and what the call returned."""
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
    """Run a function of the compiled core under valgrind (see KernelCall). Raises RedblueError."""
    with tempfile.TemporaryDirectory(prefix="redblue-meter-") as made:
        folder = Path(made)
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
        # The environment lies on the stack, whose lines are counted: the same everywhere.
        found, said = valgrind.run(command, cache, folder, {"PATH": os.environ.get("PATH", "")}, inner)
        sizes = [each["bytes"] for each in described]
        written = sum(-(-sizes[i] // cache.line_bytes) for i in outputs)
        marked = dict(found)
        nearer = {"inner_miss_lines": marked["kernel"].inner_misses} if inner else {}
        return traffic(marked, written) | nearer, json.loads(said)


def described(cache: CacheLevel, inner: CacheLevel | None) -> str:
    """The simulated caches, in words."""
    nearer = f", behind {inner.capacity_bytes:,} bytes, {_ways(inner)}" if inner else ""
    return f"lines of {cache.line_bytes} bytes, {_ways(cache)}, LRU, write-back{nearer}"


def _ways(cache: CacheLevel) -> str:
    return f"{cache.ways} ways" if cache.ways else "fully associative"


def traffic(found: dict[str, Events], output_lines: int) -> dict[str, int]:
    """Lines, by what moved them. output_lines: how many the outputs are."""
    kernel, outputs = found["kernel"], found["outputs"]
    return {
        "read_miss_lines": kernel.read_misses,
        "write_allocate_lines": kernel.write_misses,
        "written_back_lines": kernel.write_backs,
        "outputs_left_lines": max(0, output_lines - outputs.read_misses),
        "code_lines": kernel.code_misses,
        "accesses": kernel.accesses,
    }


def plain(value: Any) -> Any:
    """Arguments as JSON writes them: a Region as {"region": index}, a Struct as {"struct": name, "fields": {...}}."""
    if isinstance(value, Region):
        return {"region": value.index}
    if isinstance(value, Struct):
        return {"struct": value.name, "fields": {name: plain(each) for name, each in value.fields.items()}}
    return [plain(each) for each in value] if isinstance(value, tuple) else value
