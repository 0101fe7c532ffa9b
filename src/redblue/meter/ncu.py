"""Bytes that GPU kernels move, at each boundary, through NVIDIA's Nsight Compute (ncu).

Between the multiprocessors (L1 and shared memory) and L2: what crosses their crossbar. Between L2 and DRAM: what the
memory controllers move. Inside a multiprocessor: what shared memory gives and takes. ncu empties the caches before
each kernel and replays it as often as its counters ask.
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
WAVEFRONT_BYTES = 128  # that shared memory moves at once
UNITS = {"byte": 1, "Kbyte": 10**3, "Mbyte": 10**6, "Gbyte": 10**9, "Tbyte": 10**12, "": WAVEFRONT_BYTES}
# Boundary -> (metrics of bytes towards the fast side, and back)
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
    """Of all kernels together. kernels: their names, in the order of their launches."""

    bytes_read: int
    bytes_written: int
    kernels: tuple[str, ...]


def find() -> str:
    """ncu's path. Raises RedblueError."""
    found = shutil.which("ncu") or next((path for path in PLACES if Path(path).is_file()), None)
    if found is None:
        raise RedblueError(
            "ncu needs NVIDIA's Nsight Compute, which is neither on PATH nor in /usr/local/cuda/bin: install "
            "nsight-compute on the machine with the GPU; without a GPU, measure with interpreter or cachegrind"
        )
    return found


def checked(boundary: str | None) -> str:
    """The boundary, between a multiprocessor and L2 if None. Raises RedblueError for one that is not measured."""
    name = boundary or "shared memory and L1/L2"
    if name not in METRICS:
        raise RedblueError(f"ncu measures {', '.join(METRICS)}; got boundary {name!r}")
    return name


def described(moved: Moved) -> str:
    return f"{len(moved.kernels)} kernels, each from empty caches"


def version(path: str) -> str:
    said = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
    number = re.search(r"Version ([\d.]+)", said)
    return f"ncu {number[1] if number else 'of unknown version'}"


def profile(command: Sequence[str], boundaries: Sequence[str], env: Mapping[str, str]) -> dict[str, Moved]:
    """What the kernels move that `command` launches between cudaProfilerStart and Stop. Raises RedblueError."""
    status, said, errors = csv_of(command, boundaries, env)
    return read(said, boundaries, status, errors)


def csv_of(command: Sequence[str], boundaries: Sequence[str], env: Mapping[str, str]) -> tuple[int, str, str]:
    """ncu's status and what it says of them, as `read` takes it, and its errors. Raises RedblueError without ncu."""
    path = find()
    metrics = ",".join(name for boundary in boundaries for side in METRICS[boundary] for name in side)
    options = ["--csv", "--print-units", "base", "--profile-from-start", "off", "--metrics", metrics]
    return processes.run([path, *options, *command], env)


def read_each(
    said: str, kernels: Sequence[int], boundaries: Sequence[str], status: int = 0, errors: str = ""
) -> list[dict[str, Moved]]:
    """As `read`, of each of several calls, which launched so many kernels one after the other."""
    _check(said + errors, status)
    start = re.search(r'^"?ID"?,', said, re.M)
    lines = said[start.start() :].splitlines() if start else []
    numbers = [int(found[1]) if (found := re.match(r'"?(\d+)"?,', line)) else -1 for line in lines]
    launched, told = sum(kernels), 1 + max(numbers, default=-1)
    if launched != told:
        raise RedblueError(f"ncu profiled {told} kernels of the {launched} that were launched")
    found, first = [], 0
    for count in kernels:
        own = (line for line, number in zip(lines, numbers, strict=True) if first <= number < first + count)
        found.append(read("\n".join([lines[0], *own]), boundaries))
        first += count
    return found


def read(said: str, boundaries: Sequence[str], status: int = 0, errors: str = "") -> dict[str, Moved]:
    """ncu --csv: after lines of its own, one row for each kernel and metric. Raises RedblueError."""
    _check(said + errors, status)
    start = re.search(r'^"?ID"?,', said, re.M)
    rows = list(csv.DictReader(io.StringIO(said[start.start() :]))) if start else []
    if not rows:
        raise RedblueError("ncu profiled no kernel: the function must launch one on the GPU")
    values: dict[str, float] = {}
    kernels: dict[str, str] = {}
    for row in rows:
        name, unit, value = (row.get(f"Metric {part}", "") or "" for part in ("Name", "Unit", "Value"))
        kernels[row["ID"]] = row["Kernel Name"]
        if any(name in side for boundary in boundaries for side in METRICS[boundary]):
            values[name] = values.get(name, 0.0) + _bytes(name, unit, value)
    found = {}
    for boundary in boundaries:
        missing = [name for side in METRICS[boundary] for name in side if name not in values]
        if missing:
            raise RedblueError(f"ncu did not report {', '.join(missing)}, which this GPU may not have")
        reads, writes = (round(sum(values[name] for name in side)) for side in METRICS[boundary])
        found[boundary] = Moved(reads, writes, tuple(kernels.values()))
    return found


def _bytes(name: str, unit: str, value: str) -> float:
    number = value.replace(",", "")
    if not re.fullmatch(r"[\d.]+", number):
        raise RedblueError(f"ncu reports {value!r} for {name}: this GPU, or this driver, does not count it")
    if unit not in UNITS:
        raise RedblueError(f"ncu reports {name} in {unit!r}, which is not known: {', '.join(filter(None, UNITS))} are")
    return float(number) * UNITS[unit]


def _check(text: str, status: int) -> None:
    if "ERR_NVGPUCTRPERM" in text:
        raise RedblueError(
            "the driver lets only administrators read the GPU's counters (ERR_NVGPUCTRPERM): run as root, or load the "
            "module with NVreg_RestrictProfilingToAdminUsers=0 (in /etc/modprobe.d, then reboot); in a container, add "
            "CAP_SYS_ADMIN"
        )
    said = re.findall(r"^==ERROR== (.*)$", text, re.M)
    if status or said:
        lines = [line for line in text.splitlines() if line.strip() and not line.startswith("==PROF==")]
        raise RedblueError(f"ncu failed with status {status}. It said: {' | '.join((said or lines)[-6:]) or 'nothing'}")
