"""The roofline of this machine, measured: its peak multiply-add rate and the read bandwidth of each of its memories.

Measured by the compiled core in about two seconds, once; kept per machine in the user's cache folder.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import platformdirs

from redblue.base.errors import RedblueError
from redblue.catalogue.detect import Cpu, detect_cpu
from redblue.compiled import _core

ONE_CORE, ALL_CORES = "one core", "all cores"

# Seconds per measured rate: with two dtypes and four levels, on one core and on all, a second and a half in all,
# to which the first touch of the DRAM buffers comes.
SECONDS_PER_RATE, ROUNDS = 0.12, 2

# Rates measured with less of the cores' time than this are not kept.
LEAST_CPU_SHARE = 0.9

# DRAM buffers are this many times the last cache, so that it can keep little of them; at most this part of memory.
DRAM_OVER_LAST_CACHE = 4
DRAM_PART_OF_MEMORY = 1 / 8
LEAST_DRAM_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Roofline:
    """Rates by what they are of, then by "one core" or "all cores" (one thread on each, all together)."""

    cpu: str
    cores: int
    isa: str
    peak_flops_per_second: Mapping[str, Mapping[str, float]]  # "float32", "bfloat16" where the CPU multiplies it
    read_bandwidth_bytes_per_second: Mapping[str, Mapping[str, float]]  # "L1d", "L2", "L3", "DRAM"
    date: str
    cpu_share: float  # of the cores' time, how much the measurement got; well below 1: other work was running


def roofline(remeasure: bool = False) -> Roofline:
    """This machine's roofline: from the user's cache folder if it is there, else measured and kept there.

    The environment variable REDBLUE_ISA forces an instruction set by name; RedblueError lists the names if it is
    unknown or this CPU lacks it. A cache that is damaged or cannot be written is as good as none. Rates measured while
    other work kept the cores busy (see `cpu_share`) are returned, but not kept.
    """
    try:
        isa = _core.choose_isa()
    except ValueError as error:
        raise RedblueError(str(error)) from error
    cpu = detect_cpu()
    path = cache_path(cpu, isa.name)
    found = None if remeasure else _read(path)
    if found is None:
        found = measure(cpu, isa)
        if found.cpu_share >= LEAST_CPU_SHARE:
            _write(path, found)
    return found


def cache_path(cpu: Cpu, isa: str) -> Path:
    """Where the roofline of such a machine is kept: one file per CPU model, cores, caches, ISA and redblue version."""
    key = repr((cpu.model, cpu.cores, cpu.caches, isa, version("redblue")))
    return platformdirs.user_cache_path("redblue") / f"roofline-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def measure(cpu: Cpu, isa: _core.Isa, seconds_per_rate: float = SECONDS_PER_RATE) -> Roofline:
    """Measure now: every rate on one core and on all, the better of two rounds that take `seconds_per_rate` together.

    Two rounds, because a virtual machine's host may run an idle core's first work on half a core.
    """
    dtypes = ["float32", "bfloat16"] if isa.has_bfloat16 else ["float32"]
    crews = {ONE_CORE: 1, ALL_CORES: cpu.cores}
    sizes = {crew: buffer_bytes(cpu, threads) for crew, threads in crews.items()}
    peaks = {dtype: dict.fromkeys(crews, 0.0) for dtype in dtypes}
    rates = {name: dict.fromkeys(crews, 0.0) for name in sizes[ONE_CORE]}

    seconds, wanted_seconds, got_seconds = seconds_per_rate / ROUNDS, 0.0, 0.0
    for crew, threads in list(crews.items()) * ROUNDS:
        wall, processor = time.perf_counter(), time.process_time()
        for dtype, best in peaks.items():
            best[crew] = max(best[crew], _core.multiply_add_rate(dtype, threads, seconds, isa.name))
        for name, best in rates.items():
            best[crew] = max(best[crew], _core.read_rate(sizes[crew][name], threads, seconds, isa.name))
        wanted_seconds += threads * (time.perf_counter() - wall)
        got_seconds += time.process_time() - processor
    today = datetime.date.today().isoformat()
    return Roofline(cpu.model, cpu.cores, isa.name, peaks, rates, today, round(got_seconds / wanted_seconds, 3))


def buffer_bytes(cpu: Cpu, threads: int) -> dict[str, int]:
    """How much each of `threads` threads reads over and over to be served by each level.

    Half of its share of a cache on top of its share of the next faster one: too much for the faster, little enough for
    this one, whether or not it holds the faster one's lines a second time. DRAM: several times the last cache.
    """
    sizes, faster, last = {}, 0, 0
    for cache in cpu.caches:
        threads_per_instance = max(1, -(-threads // cache.count))
        share = cache.capacity_bytes // threads_per_instance
        sizes[cache.name] = faster + share // 2
        faster, last = share, share
    least = LEAST_DRAM_BYTES // threads
    most = int(cpu.memory_bytes * DRAM_PART_OF_MEMORY) // threads if cpu.memory_bytes else least
    sizes["DRAM"] = min(max(DRAM_OVER_LAST_CACHE * last, least), max(most, 1024))
    return sizes


def _read(path: Path) -> Roofline | None:
    """A kept roofline; None if there is none or it is damaged in any way."""
    try:
        found = Roofline(**json.loads(path.read_text(encoding="utf-8")))
        for rates in (found.peak_flops_per_second, found.read_bandwidth_bytes_per_second):
            for rate in rates.values():
                if not (float(rate[ONE_CORE]) > 0 and float(rate[ALL_CORES]) > 0):
                    return None
        whole = "float32" in found.peak_flops_per_second and "DRAM" in found.read_bandwidth_bytes_per_second
        return found if whole else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _write(path: Path, found: Roofline) -> None:
    """Keep it, all or nothing: a reader sees the old file or the new one."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(asdict(found), file, indent=1)
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise
