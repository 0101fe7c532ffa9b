"""Measure this machine's roofline: its peak multiply-add rate and the read bandwidth of each of its memories.

The compiled core measures for about two seconds; the result is stored in the user's cache folder, one file per machine.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import platformdirs

from redblue.base.errors import RedblueError
from redblue.base.files import replace_whole
from redblue.catalogue.detect import Cpu, detect_cpu
from redblue.compiled import _core

ONE_CORE, ALL_CORES = "one core", "all cores"

# Seconds per measured rate. Two dtypes and four levels, each on one core and on all cores, take 1.5 s together; the
# first touch of the DRAM buffers comes on top.
SECONDS_PER_RATE, ROUNDS = 0.12, 2

# A measurement that got a smaller share of the cores' time than this is not stored.
MIN_CPU_SHARE = 0.9

# Size of the buffers in DRAM. They are much larger than the last cache, which then holds little of them.
DRAM_OVER_LAST_CACHE = 4  # ratio to the last cache
DRAM_PART_OF_MEMORY = 1 / 8  # limit: this share of memory
MIN_DRAM_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Roofline:
    """Measured rates, by dtype or memory level, then by "one core" or "all cores" (one thread per core, summed)."""

    cpu: str
    cores: int
    isa: str
    peak_flops_per_second: Mapping[str, Mapping[str, float]]  # "float32"; also "bfloat16" if the CPU has it
    read_bandwidth_bytes_per_second: Mapping[str, Mapping[str, float]]  # "L1d", "L2", "L3", "DRAM"
    date: str
    cpu_share: float  # share of the cores' time that the measurement got; well below 1: other work was running


def roofline(remeasure: bool = False) -> Roofline:
    """Return this machine's roofline from the user's cache folder, or measure and store it.

    The environment variable REDBLUE_ISA forces an instruction set by name. A damaged cache file is ignored, and a
    failure to write the file is no error. Rates measured while other work kept the cores busy (see `cpu_share`) are
    returned but not stored. Raises RedblueError, with the list of names, for an instruction set that is unknown or not
    supported by this CPU.
    """
    try:
        isa = _core.choose_isa()
    except ValueError as error:
        raise RedblueError(str(error)) from error
    cpu = detect_cpu()
    path = cache_path(cpu, isa.name)
    result = None if remeasure else _read(path)
    if result is None:
        result = measure(cpu, isa)
        if result.cpu_share >= MIN_CPU_SHARE:
            _write(path, result)
    return result


def cache_path(cpu: Cpu, isa: str) -> Path:
    """Return the cache file for a machine: one file per CPU model, cores, caches, ISA and redblue version."""
    from redblue.base.version import __version__  # deferred: importing it takes 30 ms

    key = repr((cpu.model, cpu.cores, cpu.caches, isa, __version__))
    return platformdirs.user_cache_path("redblue") / f"roofline-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def measure(cpu: Cpu, isa: _core.Isa, seconds_per_rate: float = SECONDS_PER_RATE) -> Roofline:
    """Measure every rate on one core and on all cores: the better of two rounds, `seconds_per_rate` in total.

    Two rounds are needed because the host of a virtual machine may first run an idle core at half speed.
    """
    dtypes = ["float32", "bfloat16"] if isa.has_bfloat16 else ["float32"]
    crews = {ONE_CORE: 1, ALL_CORES: cpu.cores}
    sizes = {crew: buffer_bytes(cpu, threads) for crew, threads in crews.items()}
    peaks = {dtype: dict.fromkeys(crews, 0.0) for dtype in dtypes}
    rates = {name: dict.fromkeys(crews, 0.0) for name in sizes[ONE_CORE]}

    seconds, elapsed_seconds, processor_seconds = seconds_per_rate / ROUNDS, 0.0, 0.0
    for crew, threads in list(crews.items()) * ROUNDS:
        wall_start, processor_start = time.perf_counter(), time.process_time()
        for dtype, best in peaks.items():
            best[crew] = max(best[crew], _core.multiply_add_rate(dtype, threads, seconds, isa.name))
        for name, best in rates.items():
            best[crew] = max(best[crew], _core.read_rate(sizes[crew][name], threads, seconds, isa.name))
        elapsed_seconds += threads * (time.perf_counter() - wall_start)
        processor_seconds += time.process_time() - processor_start
    share = round(processor_seconds / elapsed_seconds, 3)
    today = datetime.date.today().isoformat()
    return Roofline(cpu.model, cpu.cores, isa.name, peaks, rates, today, share)


def buffer_bytes(cpu: Cpu, threads: int) -> dict[str, int]:
    """Return, for each level, the bytes that each of `threads` threads reads repeatedly so that the level serves them.

    Cache levels: the thread's share of the next faster cache plus half its share of this cache. This size exceeds
    the faster cache and fits this cache, whether caches are inclusive or exclusive. DRAM: several times the last cache.
    """
    sizes, faster, last = {}, 0, 0
    for cache in cpu.caches:
        threads_per_instance = max(1, -(-threads // cache.count))
        share = cache.capacity_bytes // threads_per_instance
        sizes[cache.name] = faster + share // 2
        faster, last = share, share
    least = MIN_DRAM_BYTES // threads
    most = int(cpu.memory_bytes * DRAM_PART_OF_MEMORY) // threads if cpu.memory_bytes else least
    sizes["DRAM"] = min(max(DRAM_OVER_LAST_CACHE * last, least), max(most, 1024))
    return sizes


def _read(path: Path) -> Roofline | None:
    """Read a stored roofline; None if the file is missing or damaged."""
    try:
        stored = Roofline(**json.loads(path.read_text(encoding="utf-8")))
        for rates in (stored.peak_flops_per_second, stored.read_bandwidth_bytes_per_second):
            for rate in rates.values():
                if not (float(rate[ONE_CORE]) > 0 and float(rate[ALL_CORES]) > 0):
                    return None
        complete = "float32" in stored.peak_flops_per_second and "DRAM" in stored.read_bandwidth_bytes_per_second
        return stored if complete else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _write(path: Path, result: Roofline) -> None:
    """Store the roofline atomically: a concurrent reader sees the old file or the new one."""
    text = json.dumps(asdict(result), indent=1)
    with contextlib.suppress(OSError, RedblueError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_whole(path, lambda draft: draft.write_text(text, encoding="utf-8"))
