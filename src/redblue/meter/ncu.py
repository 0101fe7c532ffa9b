"""Measure the bytes that GPU kernels move at each boundary, with NVIDIA's Nsight Compute (ncu).

Between the multiprocessors (L1 and shared memory) and L2, the bytes through the crossbar are counted; between L2 and
DRAM, the bytes that the memory controllers move; inside a multiprocessor, the bytes that shared memory reads and
writes. ncu empties the caches before each kernel, and replays the kernel until all counters have been read.
"""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from redblue.base.errors import RedblueError
from redblue.meter import processes

PLACES = ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute/ncu")
WAVEFRONT_BYTES = 128  # shared memory moves this much at once
UNITS = {"byte": 1, "Kbyte": 10**3, "Mbyte": 10**6, "Gbyte": 10**9, "Tbyte": 10**12, "": WAVEFRONT_BYTES}
# Boundary -> (metrics of bytes towards the fast side, metrics of bytes back)
METRICS = {
    "registers/shared memory": (
        ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",),
        ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",),
    ),
    "shared memory and L1/L2": (("l1tex__m_xbar2l1tex_read_bytes.sum",), ("l1tex__m_l1tex2xbar_write_bytes.sum",)),
    "L2/DRAM": (("dram__bytes_read.sum",), ("dram__bytes_write.sum",)),
}


@dataclass(frozen=True)
class Moved:
    """Bytes moved by all kernels together. kernels: their names, in the order of their launches."""

    bytes_read: int
    bytes_written: int
    kernels: tuple[str, ...]


def find() -> str:
    """Find ncu; return its path. Raises RedblueError if it is not installed."""
    path = shutil.which("ncu") or next((place for place in PLACES if Path(place).is_file()), None)
    if path is None:
        raise RedblueError(
            f"ncu needs NVIDIA's Nsight Compute, which is neither on PATH nor at {' nor at '.join(PLACES)}: install "
            "nsight-compute on the machine with the GPU; without a GPU, measure with interpreter or cachegrind"
        )
    return path


def check_boundary(boundary: str | None) -> str:
    """Return the boundary's name; None means the boundary between a multiprocessor and L2.

    Raises RedblueError for a boundary that ncu does not measure.
    """
    name = boundary or "shared memory and L1/L2"
    if name not in METRICS:
        raise RedblueError(f"ncu measures {', '.join(METRICS)}; got boundary {name!r}")
    return name


def description(moved: Moved) -> str:
    """Describe the measurement, for its record."""
    return f"{len(moved.kernels)} kernels, each from empty caches"


def version(path: str) -> str:
    """ncu's version."""
    printed = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
    number = re.search(r"Version ([\d.]+)", printed)
    return f"ncu {number[1] if number else 'of unknown version'}"


def profile(command: Sequence[str], boundaries: Sequence[str], env: Mapping[str, str]) -> dict[str, Moved]:
    """Measure the kernels that `command` launches between cudaProfilerStart and cudaProfilerStop, at each boundary.

    Raises RedblueError.
    """
    status, printed, errors = csv_of(command, boundaries, env)
    return read(printed, boundaries, status, errors)


def csv_of(command: Sequence[str], boundaries: Sequence[str], env: Mapping[str, str]) -> tuple[int, str, str]:
    """Run ncu on a command; return its exit status, its output in the form for `read`, and its errors.

    Raises RedblueError without ncu.
    """
    path = find()
    metrics = ",".join(name for boundary in boundaries for side in METRICS[boundary] for name in side)
    options = ["--csv", "--print-units", "base", "--profile-from-start", "off", "--clock-control", "none"]
    return processes.run([path, *options, "--metrics", metrics, *command], processes.in_c_locale(env))


def read_each(
    printed: str, kernels: Sequence[int], boundaries: Sequence[str], status: int = 0, errors: str = ""
) -> list[dict[str, Moved]]:
    """Parse ncu's output of several calls; return the result of `read` for each call.

    kernels: the number of kernels that each call launched, in order. Raises RedblueError.
    """
    _check(printed + errors, status)
    start = re.search(r'^"?ID"?,', printed, re.M)
    lines = printed[start.start() :].splitlines() if start else []
    numbers = [int(match[1]) if (match := re.match(r'"?(\d+)"?,', line)) else -1 for line in lines]
    launched, profiled = sum(kernels), 1 + max(numbers, default=-1)
    if launched != profiled:
        raise RedblueError(f"ncu profiled {profiled} kernels of the {launched} that were launched: measure again")
    results, first = [], 0
    for count in kernels:
        own_lines = (line for line, number in zip(lines, numbers, strict=True) if first <= number < first + count)
        results.append(read("\n".join([lines[0], *own_lines]), boundaries))
        first += count
    return results


def read(printed: str, boundaries: Sequence[str], status: int = 0, errors: str = "") -> dict[str, Moved]:
    """Parse the output of `ncu --csv`, which has one row for each kernel and metric, after some lines of log.

    Raises RedblueError if ncu failed, or if a metric is missing.
    """
    _check(printed + errors, status)
    start = re.search(r'^"?ID"?,', printed, re.M)
    rows = list(csv.DictReader(io.StringIO(printed[start.start() :]))) if start else []
    if not rows:
        raise RedblueError("ncu profiled no kernel: the function must launch one on the GPU")
    values: dict[str, float] = {}
    kernels: dict[str, str] = {}
    for row in rows:
        name, unit, value = (row.get(f"Metric {part}", "") or "" for part in ("Name", "Unit", "Value"))
        kernels[row["ID"]] = row["Kernel Name"]
        if any(name in side for boundary in boundaries for side in METRICS[boundary]):
            values[name] = values.get(name, 0.0) + _bytes(name, unit, value)
    by_boundary = {}
    for boundary in boundaries:
        missing = [name for side in METRICS[boundary] for name in side if name not in values]
        if missing:
            raise RedblueError(
                f"ncu did not report {', '.join(missing)}, which this GPU may not have: measure another boundary"
            )
        reads, writes = (round(sum(values[name] for name in side)) for side in METRICS[boundary])
        by_boundary[boundary] = Moved(reads, writes, tuple(kernels.values()))
    return by_boundary


def _bytes(name: str, unit: str, value: str) -> float:
    """The bytes of a metric. Raises RedblueError if it was not counted, or in an unknown unit."""
    number = value.replace(",", "")
    if not re.fullmatch(r"[\d.]+", number):
        raise RedblueError(f"ncu reports {value!r} for {name}: this GPU, or this driver, does not count it")
    if unit not in UNITS:
        raise RedblueError(f"ncu reports {name} in {unit!r}, which is not known: {', '.join(filter(None, UNITS))} are")
    return float(number) * UNITS[unit]


def _check(text: str, status: int) -> None:
    """Raise RedblueError, with the remedy, if ncu failed. text: its output and its errors."""
    if "ERR_NVGPUCTRPERM" in text:
        raise RedblueError(
            "the driver lets only administrators read the GPU's counters (ERR_NVGPUCTRPERM): run as root, or load the "
            "module with NVreg_RestrictProfilingToAdminUsers=0 (in /etc/modprobe.d, then reboot); in a container, add "
            "CAP_SYS_ADMIN"
        )
    messages = re.findall(r"^==ERROR== (.*)$", text, re.M)
    if status or messages:
        others = [line for line in text.splitlines() if line.strip() and not line.startswith(("==PROF==", "==ERROR=="))]
        last = " | ".join(messages[-3:] + others[-3:]) or "nothing"
        raise RedblueError(f"ncu failed with status {status}. It said: {last}")
