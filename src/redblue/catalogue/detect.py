"""Detect the hardware of this machine: CPU cores and caches, and CUDA devices, as the system reports them.

The parsers take text, so that tests can use dumps of other machines. Missing information never raises an error: values
that the system does not report are omitted or None.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

CPU_ROOT = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class Cache:
    """One data (or unified) cache level of the CPU."""

    level: int  # 1, 2, 3
    capacity_bytes: int  # per instance
    count: int  # instances in the machine
    line_bytes: int | None = None
    ways: int | None = None

    @property
    def name(self) -> str:
        return "L1d" if self.level == 1 else f"L{self.level}"


@dataclass(frozen=True)
class Cpu:
    """The CPU cores that this process may use. On a CPU with big and little cores, only the big ones count."""

    model: str
    cores: int  # physical ones
    caches: tuple[Cache, ...]  # fastest first; empty if the system does not report them
    memory_bytes: int | None
    source: str


@dataclass(frozen=True)
class CudaDevice:
    """Properties of one GPU, as reported by the CUDA driver; a missing one is None or 0."""

    name: str
    compute_capability: str
    multiprocessors: int
    shared_memory_bytes: int  # the maximum for one thread block
    l2_bytes: int
    memory_bytes: int
    memory_bandwidth_bytes_per_second: float | None  # 2 (double data rate) x clock x bus width


def detect_cpu() -> Cpu:
    """Describe this machine's CPU, from sysfs on Linux and sysctl on macOS; elsewhere only the core count is known."""
    if sys.platform == "linux":
        return parse_linux(_linux_files(), allowed=os.sched_getaffinity(0))
    if sys.platform == "darwin":
        return parse_macos(_output_of(["sysctl", "hw", "machdep.cpu"]))
    return Cpu(platform.processor() or "unknown CPU", os.cpu_count() or 1, (), None, "the operating system")


def parse_linux(files: Mapping[str, str], allowed: Iterable[int] | None = None) -> Cpu:
    """Describe a Linux machine's CPU.

    files: file contents by path: "cpuinfo", "meminfo", and "cpu<n>/..." relative to /sys/devices/system/cpu.
    allowed: the CPUs (hardware threads) to count; None for all.
    """
    indices = {int(match[1]) for path in files if (match := re.match(r"cpu(\d+)/", path))}
    cpus = indices & set(allowed) if allowed is not None else indices
    first_level = {cpu: next((cache[1] for cache in _caches_of(files, cpu) if cache[0] == 1), 0) for cpu in cpus}
    big = [cpu for cpu in sorted(cpus) if first_level[cpu] == max(first_level.values())]

    cores = {files.get(f"cpu{cpu}/topology/thread_siblings_list", str(cpu)) for cpu in big}
    instances: dict[int, dict[str, tuple[int, int, int | None, int | None]]] = {}
    for cpu in big:
        for cache in _caches_of(files, cpu):
            instances.setdefault(cache[0], {})[cache[4]] = cache[:4]
    caches = []
    for _, by_sharers in sorted(instances.items()):
        level, capacity, line, ways = max(by_sharers.values(), key=lambda cache: cache[1])
        caches.append(Cache(level, capacity, len(by_sharers), line, ways))
    memory_kib = _field(files.get("meminfo", ""), "MemTotal").split(" ")[0]
    return Cpu(
        model=_linux_model(files.get("cpuinfo", "")),
        cores=len(cores) or (len(set(allowed)) if allowed is not None else 0) or 1,
        caches=tuple(caches),
        memory_bytes=int(memory_kib) * 1024 if memory_kib.isdecimal() else None,
        source="Linux sysfs and /proc/meminfo",
    )


def _caches_of(files: Mapping[str, str], cpu: int) -> list[tuple[int, int, int | None, int | None, str]]:
    """Return (level, bytes, line bytes, ways, CPUs that share the cache) of each data or unified cache of one CPU."""
    caches = []
    for index in range(10):
        folder = f"cpu{cpu}/cache/index{index}"
        size_bytes = parse_size(files.get(f"{folder}/size", ""))
        level = files.get(f"{folder}/level", "")
        if size_bytes and level.isdecimal() and files.get(f"{folder}/type") in ("Data", "Unified"):
            line, ways = (
                files.get(f"{folder}/{name}", "") for name in ("coherency_line_size", "ways_of_associativity")
            )
            sharers = files.get(f"{folder}/shared_cpu_list", str(cpu))
            caches.append((int(level), size_bytes, _positive(line), _positive(ways), sharers))
    return caches


def parse_size(text: str) -> int | None:
    """Convert sysfs's "48K" or "32M" to bytes; None for anything else."""
    match = re.fullmatch(r"(\d+)([KMG]?)", text.strip())
    return int(match[1]) * 1024 ** " KMG".index(match[2] or " ") if match else None


def _linux_model(cpuinfo: str) -> str:
    """Return the CPU's name. Arm systems often report only implementer and part numbers, or the board's name."""
    implementer, part = _field(cpuinfo, "CPU implementer"), _field(cpuinfo, "CPU part")
    arm = f"Arm CPU, implementer {implementer}, part {part}" if part else ""
    return _field(cpuinfo, "model name") or _field(cpuinfo, "Model") or arm or platform.machine() or "unknown CPU"


def _linux_files() -> dict[str, str]:
    """Read the files that `parse_linux` needs."""
    files = {"cpuinfo": _read(Path("/proc/cpuinfo")), "meminfo": _read(Path("/proc/meminfo"))}
    for pattern in ("cpu[0-9]*/cache/index*/*", "cpu[0-9]*/topology/thread_siblings_list"):
        for path in CPU_ROOT.glob(pattern):
            if path.name in _CACHE_FILES:
                files[path.relative_to(CPU_ROOT).as_posix()] = _read(path)
    return files


_CACHE_FILES = {
    *("level", "type", "size", "shared_cpu_list", "coherency_line_size", "ways_of_associativity"),
    "thread_siblings_list",
}


def parse_macos(text: str) -> Cpu:
    """Describe a Mac's CPU from the output of `sysctl hw machdep.cpu`; on Apple silicon, its performance cores."""

    def number(*names: str) -> int | None:
        return next((value for name in names if (value := _positive(_field(text, name)))), None)

    cores = number("hw.perflevel0.physicalcpu", "hw.physicalcpu") or 1
    # hw.cacheconfig: numbers of hardware threads that share the memory, one L1, one L2, one L3
    sharing = [int(word) for word in _field(text, "hw.cacheconfig").split() if word.isdecimal()]
    threads_per_core = sharing[1] if len(sharing) > 1 and sharing[1] else 1
    caches = []
    for level, name in ((1, "l1d"), (2, "l2"), (3, "l3")):
        capacity = number(f"hw.perflevel0.{name}cachesize", f"hw.{name}cachesize")
        if not capacity:
            continue
        sharers = number("hw.perflevel0.cpusperl2") if level == 2 else None
        if sharers is None:
            is_reported = len(sharing) > level and sharing[level] > 0 and not number("hw.perflevel0.physicalcpu")
            sharers = sharing[level] // threads_per_core if is_reported else 1 if level == 1 else cores
        caches.append(Cache(level, capacity, -(-cores // max(1, sharers)), number("hw.cachelinesize")))
    model = _field(text, "machdep.cpu.brand_string") or _field(text, "hw.model") or "unknown CPU"
    return Cpu(model, cores, tuple(caches), number("hw.memsize"), "macOS sysctl")


# CUdevice_attribute numbers of the CUDA driver API (cuda.h)
_MULTIPROCESSORS, _MEMORY_CLOCK_KHZ, _BUS_BITS, _L2_BYTES = 16, 36, 37, 38
_CAPABILITY_MAJOR, _CAPABILITY_MINOR, _SHARED_BYTES, _SHARED_BYTES_OPT_IN = 75, 76, 8, 97


def detect_cuda() -> tuple[CudaDevice, ...]:
    """Return the CUDA devices that are visible to this process, by asking the driver; () without a driver."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        count = ctypes.c_int()
        if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
            return ()
        return tuple(_cuda_device(driver, index) for index in range(count.value))
    except (OSError, AttributeError):
        return ()


def _cuda_device(driver: ctypes.CDLL, index: int) -> CudaDevice:
    device, memory_bytes, name = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(256)
    driver.cuDeviceGet(ctypes.byref(device), index)
    driver.cuDeviceGetName(name, len(name), device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory_bytes), device)

    def attribute(number: int) -> int:
        value = ctypes.c_int()
        return 0 if driver.cuDeviceGetAttribute(ctypes.byref(value), number, device) else value.value

    bandwidth = 2 * attribute(_MEMORY_CLOCK_KHZ) * 1e3 * attribute(_BUS_BITS) / 8
    return CudaDevice(
        name=name.value.decode(errors="replace"),
        compute_capability=f"{attribute(_CAPABILITY_MAJOR)}.{attribute(_CAPABILITY_MINOR)}",
        multiprocessors=attribute(_MULTIPROCESSORS),
        shared_memory_bytes=attribute(_SHARED_BYTES_OPT_IN) or attribute(_SHARED_BYTES),
        l2_bytes=attribute(_L2_BYTES),
        memory_bytes=memory_bytes.value,
        memory_bandwidth_bytes_per_second=bandwidth or None,
    )


def _field(text: str, name: str) -> str:
    """Return the value of the first "name: value" line, or "" if there is none."""
    match = re.search(rf"^{re.escape(name)}[ \t]*[:=][ \t]*(.*)$", text, re.MULTILINE)
    return match[1].strip() if match else ""


def _positive(text: str) -> int | None:
    return int(text) if text.isdecimal() and int(text) > 0 else None


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _output_of(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
