"""Measure bytes between the caches of this CPU, and to DRAM, with its hardware counters, through Linux's perf.

The vendor's events decide which boundaries can be measured. Intel counts the lines that L1d and L2 receive and write
back, and the traffic of the memory controllers. AMD has no events for write-backs of L1d and L2 (LIKWID's groups for
Zen confirm this), so only the memory controllers of Zen 4 and later are measured. The formulas follow LIKWID's groups
L2, L3 and MEM and Intel's event lists. A memory controller serves the whole socket, so its figure includes other
programs.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from redblue.base.errors import RedblueError
from redblue.catalogue.detect import detect_cpu
from redblue.meter import processes

DEVICES = Path("/sys/bus/event_source/devices")
CPUINFO = Path("/proc/cpuinfo")
PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
LINE_BYTES = 64
UNITS = {"": LINE_BYTES, "MiB": 2**20, "Bytes": 1}  # perf's second column -> bytes; a count without unit counts lines
REPEATS = 3  # measured calls, after one call that is not measured


@dataclass(frozen=True)
class Formula:
    """The events whose sums are the lines read from, and written to, the slower side of a boundary.

    system: the events count the whole socket, not one process.
    """

    boundary: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    system: bool = False


INTEL_CORE = (
    Formula("L1d/L2", ("l1d.replacement",), ("l2_trans.l1d_wb",)),
    Formula("L2/L3", ("l2_lines_in.all",), ("l2_trans.l2_wb",)),
)
# (vendor, name of the memory controllers' devices, event for reads, event for writes), in order of preference
CONTROLLERS = (
    ("GenuineIntel", r"uncore_imc_\d+", "cas_count_read", "cas_count_write"),
    ("GenuineIntel", r"uncore_imc_free_running(_\d+)?", "data_read", "data_write"),
    ("GenuineIntel", r"uncore_imc", "data_reads", "data_writes"),
    ("AuthenticAMD", r"amd_umc_\d+", "event=0x0a,rdwrmask=0x1", "event=0x0a,rdwrmask=0x2"),
)
REMEDY = "measure with cachegrind, which needs no permission, or with probe"


def formulas(vendor: str, devices: Mapping[str, frozenset[str]]) -> dict[str, Formula]:
    """The formulas for this CPU, by boundary. devices: perf's devices, with the names of their events."""
    by_boundary = {formula.boundary: formula for formula in (INTEL_CORE if vendor == "GenuineIntel" else ())}
    for maker, pattern, read, write in CONTROLLERS:
        units = sorted(name for name in devices if re.fullmatch(pattern, name))
        has_name = "=" not in read
        units = [name for name in units if not has_name or {read, write} <= devices[name]]
        if maker == vendor and units:
            reads, writes = (tuple(f"{unit}/{event}/" for unit in units) for event in (read, write))
            by_boundary["L3/DRAM"] = Formula("L3/DRAM", reads, writes, system=True)
            break
    return by_boundary


def available() -> dict[str, Formula]:
    """The formulas for this machine, by boundary.

    Raises RedblueError, with the remedy, if perf is missing or the machine offers no counters.
    """
    if shutil.which("perf") is None:
        raise RedblueError(
            f"counters need perf, which is not on PATH: install linux-perf (or linux-tools), or {REMEDY}"
        )
    vendor = re.search(r"^vendor_id\s*:\s*(\S+)", _text(CPUINFO), re.M)
    devices = {
        device.name: frozenset(event.name for event in (device / "events").glob("*"))
        for device in (DEVICES.glob("*") if DEVICES.is_dir() else ())
    }
    if "cpu" not in devices and not any(name.startswith("cpu_") for name in devices):
        where = " This is a virtual machine without them." if "hypervisor" in _text(CPUINFO) else ""
        raise RedblueError(
            f"the system offers no hardware counters ({DEVICES}/cpu is missing).{where} {_upper(REMEDY)}"
        )
    by_boundary = formulas(vendor[1] if vendor else "", devices)
    if not by_boundary:
        raise RedblueError(
            f"no counters are known that measure traffic on this CPU ({detect_cpu().model}): use an Intel "
            f"CPU, or an AMD CPU from Zen 4 on with the amd_umc driver (Linux 6.10); or {REMEDY}"
        )
    return by_boundary


def version() -> str:
    """perf's version."""
    printed = subprocess.run(["perf", "--version"], capture_output=True, text=True).stdout
    return printed.strip().replace("version ", "") or "perf of unknown version"


def needs() -> None:
    """Raise RedblueError, with the remedy, unless perf can count at some boundary."""
    refusals = [_refusal(formula) for formula in available().values()]
    if refusals[0] and all(refusals):
        raise refusals[0]


def _refusal(formula: Formula) -> RedblueError | None:
    """The error with which counting by this formula fails; None if it works."""
    try:
        count(lambda: None, formula)
    except RedblueError as error:
        return error
    return None


def boundary_for(capacity_bytes: int, by_boundary: Mapping[str, Formula]) -> str:
    """Choose the boundary of the smallest cache that holds `capacity_bytes`; the outermost one if none does."""
    sizes = {cache.name: cache.capacity_bytes for cache in detect_cpu().caches}
    fits = [name for name in by_boundary if sizes.get(name.split("/")[0], 0) >= capacity_bytes]
    return fits[0] if fits else list(by_boundary)[-1]


def choose(boundary: str | None, capacity_bytes: int) -> tuple[str, Formula, int | None]:
    """Choose a boundary by its name or, without a name, by the size of the data.

    Returns its name, its formula, and the capacity of its fast side in bytes, None if not known. Raises RedblueError
    if the boundary cannot be measured.
    """
    by_boundary = available()
    name = boundary or boundary_for(capacity_bytes, by_boundary)
    if name not in by_boundary:
        raise RedblueError(f"on this CPU {', '.join(by_boundary)} can be measured, got boundary {name!r}")
    sizes = {cache.name: cache.capacity_bytes for cache in detect_cpu().caches}
    return name, by_boundary[name], sizes.get(name.split("/")[0])


def description(formula: Formula) -> str:
    """Describe the measurement, for its record."""
    return f"mean of {REPEATS} calls after an unmeasured one; {', '.join((*formula.reads, *formula.writes))}"


def count(call: Callable[[], object], formula: Formula, repeats: int = 1) -> tuple[int, int]:
    """Count the bytes that one call reads and writes: the mean of `repeats` calls.

    Raises RedblueError if the counters may not be read. perf starts disabled; commands through a pipe start and stop
    it.
    """
    perf = shutil.which("perf") or "perf"
    with tempfile.TemporaryDirectory(prefix="redblue-perf-") as name:
        folder = Path(name)
        control, answer, output = (folder / name for name in ("control", "answer", "counts"))
        os.mkfifo(control)
        os.mkfifo(answer)
        scope = ["-a"] if formula.system else ["-p", str(os.getpid())]
        events = ",".join((*formula.reads, *formula.writes))
        command = [perf, "stat", "-x;", "-o", str(output), "-e", events, "-D", "-1", "--control"]
        command += [f"fifo:{control},{answer}", *scope]
        env = processes.in_c_locale(os.environ)
        with (
            # Open for reading and writing: opening a pipe in one direction would block forever if perf has failed
            open(control, "r+b", buffering=0) as orders,
            open(answer, "r+b", buffering=0) as answers,
            subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=env) as child,
        ):
            try:
                _order(child, orders, answers, b"enable\n")
                for _ in range(repeats):
                    call()
                _order(child, orders, answers, b"disable\n")
                child.send_signal(signal.SIGINT)
                _, errors = child.communicate()
            except BaseException:
                child.kill()
                child.wait()
                raise
        if not output.exists() or child.returncode not in (0, -signal.SIGINT, 130):
            raise RedblueError(_refused(errors))
        counts = read(output.read_text())
    reads, writes = (sum(_bytes(counts, event) for event in events) for events in (formula.reads, formula.writes))
    return round(reads / repeats), round(writes / repeats)


def _order(child: subprocess.Popen[str], orders: IO[bytes], answers: IO[bytes], order: bytes) -> None:
    """Send a command to perf, and wait for its answer. Raises RedblueError if perf ends instead."""
    orders.write(order)
    while not select.select([answers], [], [], 0.05)[0]:
        if child.poll() is not None:
            raise RedblueError(_refused(child.stderr.read() if child.stderr else ""))
    answers.read(64)


def _refused(errors: str) -> str:
    """Explain perf's refusal, with the remedy. errors: what perf printed."""
    printed = " ".join(line.strip() for line in errors.splitlines() if line.strip())[:400] or "nothing"
    if re.search(r"syntax error|unknown|Cannot find PMU|No such", errors):
        return f"perf does not know these events on this CPU: install a newer perf, or {REMEDY}. It said: {printed}"
    level = _text(PARANOID).strip() or "unknown"
    return (
        f"perf may not count here (kernel.perf_event_paranoid is {level}): allow it with sysctl -w "
        f"kernel.perf_event_paranoid=1 (-1 for DRAM), run as root or with CAP_PERFMON, or {REMEDY}. It said: {printed}"
    )


def read(text: str) -> dict[str, tuple[str, str]]:
    """Parse the output of `perf stat -x;`: event -> (value, unit). Columns: value; unit; event; time; share ..."""
    rows = [line.split(";") for line in text.splitlines() if line.count(";") >= 2]
    return {row[2]: (row[0], row[1]) for row in rows}


def _bytes(counts: Mapping[str, tuple[str, str]], event: str) -> float:
    """The bytes of an event. Raises RedblueError if it was not counted, or in an unknown unit."""
    value, unit = counts.get(event, ("<not counted>", ""))
    if value.startswith("<"):
        why = "this (virtual) machine does not offer it" if "supported" in value else "perf had no free counter for it"
        raise RedblueError(f"{event} is {value.strip('<>')}: {why}; {REMEDY}")
    if unit not in UNITS:
        raise RedblueError(f"{event} is counted in {unit!r}, which is not known: {', '.join(filter(None, UNITS))} are")
    return float(value) * UNITS[unit]


def _text(path: Path) -> str:
    """The content of a file; "" if it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _upper(text: str) -> str:
    return text[0].upper() + text[1:]
