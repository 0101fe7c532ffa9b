"""Bytes between the caches of this CPU, and to DRAM, as its own counters say, through Linux's perf.

What a vendor counts decides what can be measured. Intel: lines brought into L1d and L2, and those that they write
back; what the memory controllers move. AMD counts no write-backs of L1d and L2 (so say LIKWID's groups for Zen, too),
so only what the memory controllers of Zen 4 and later move is measured. Formulas after LIKWID's groups L2, L3 and MEM
and Intel's event lists. Controllers serve the whole socket: other programs are in the figure.
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

DEVICES = Path("/sys/bus/event_source/devices")
CPUINFO = Path("/proc/cpuinfo")
PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
LINE_BYTES = 64
UNITS = {"": LINE_BYTES, "MiB": 2**20, "Bytes": 1}  # of perf's second column: a plain count is one of lines
REPEATS = 3  # calls that are counted together, after one that is not


@dataclass(frozen=True)
class Formula:
    """Events that add up to the lines read from, and written to, the slower side. system: of the whole socket."""

    boundary: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    system: bool = False


INTEL_CORE = (
    Formula("L1d/L2", ("l1d.replacement",), ("l2_trans.l1d_wb",)),
    Formula("L2/L3", ("l2_lines_in.all",), ("l2_trans.l2_wb",)),
)
# Of a controller: events that read and that write, in the order of preference
CONTROLLERS = (
    ("GenuineIntel", r"uncore_imc_\d+", "cas_count_read", "cas_count_write"),
    ("GenuineIntel", r"uncore_imc_free_running(_\d+)?", "data_read", "data_write"),
    ("GenuineIntel", r"uncore_imc", "data_reads", "data_writes"),
    ("AuthenticAMD", r"amd_umc_\d+", "event=0x0a,rdwrmask=0x1", "event=0x0a,rdwrmask=0x2"),
)
REMEDY = "measure with cachegrind, which needs no permission, or with probe"


def formulas(vendor: str, devices: Mapping[str, frozenset[str]]) -> dict[str, Formula]:
    """What can be measured, by boundary. devices: what perf may ask, with the names of their events."""
    found = {each.boundary: each for each in (INTEL_CORE if vendor == "GenuineIntel" else ())}
    for maker, pattern, read, write in CONTROLLERS:
        units = sorted(name for name in devices if re.fullmatch(pattern, name))
        named = "=" not in read
        units = [name for name in units if not named or {read, write} <= devices[name]]
        if maker == vendor and units:
            reads, writes = (tuple(f"{unit}/{event}/" for unit in units) for event in (read, write))
            found["L3/DRAM"] = Formula("L3/DRAM", reads, writes, system=True)
            break
    return found


def available() -> dict[str, Formula]:
    """Of this machine. Raises RedblueError, with the remedy, where perf is missing or nothing is counted."""
    if shutil.which("perf") is None:
        raise RedblueError(
            f"counters need perf, which is not on PATH: install linux-perf (or linux-tools), or {REMEDY}"
        )
    vendor = re.search(r"^vendor_id\s*:\s*(\S+)", _text(CPUINFO), re.M)
    devices = {
        each.name: frozenset(event.name for event in (each / "events").glob("*"))
        for each in (DEVICES.glob("*") if DEVICES.is_dir() else ())
    }
    if "cpu" not in devices and not any(name.startswith("cpu_") for name in devices):
        where = " This is a virtual machine, which was given none." if "hypervisor" in _text(CPUINFO) else ""
        raise RedblueError(
            f"the system offers no hardware counters ({DEVICES}/cpu is missing).{where} {_upper(REMEDY)}"
        )
    found = formulas(vendor[1] if vendor else "", devices)
    if not found:
        raise RedblueError(
            f"no counters are known that measure traffic on this CPU ({detect_cpu().model}): take an Intel "
            f"one, or an AMD one from Zen 4 on with the amd_umc driver (Linux 6.10); or {REMEDY}"
        )
    return found


def version() -> str:
    said = subprocess.run(["perf", "--version"], capture_output=True, text=True).stdout
    return said.strip().replace("version ", "") or "perf of unknown version"


def needs() -> None:
    """Raise RedblueError unless something is counted here when perf is asked."""
    refusals = [_refusal(formula) for formula in available().values()]
    if refusals[0] and all(refusals):
        raise refusals[0]


def _refusal(formula: Formula) -> RedblueError | None:
    try:
        count(lambda: None, formula)
    except RedblueError as error:
        return error
    return None


def boundary_for(capacity_bytes: int, found: Mapping[str, Formula]) -> str:
    """Of those that are counted, the boundary of the smallest cache that holds so much; else the outermost."""
    sizes = {cache.name: cache.capacity_bytes for cache in detect_cpu().caches}
    fits = [name for name in found if sizes.get(name.split("/")[0], 0) >= capacity_bytes]
    return fits[0] if fits else list(found)[-1]


def chosen(boundary: str | None, capacity_bytes: int) -> tuple[str, Formula, int | None]:
    """The boundary of that name, or for so much data; its events; what its fast side holds. Raises RedblueError."""
    found = available()
    name = boundary or boundary_for(capacity_bytes, found)
    if name not in found:
        raise RedblueError(f"on this CPU {', '.join(found)} can be measured, got boundary {name!r}")
    sizes = {cache.name: cache.capacity_bytes for cache in detect_cpu().caches}
    return name, found[name], sizes.get(name.split("/")[0])


def described(formula: Formula) -> str:
    return f"mean of {REPEATS} calls after one; {', '.join((*formula.reads, *formula.writes))}"


def count(call: Callable[[], object], formula: Formula, repeats: int = 1) -> tuple[int, int]:
    """Bytes read and written, per call, by `repeats` calls. Raises RedblueError where the counters may not be read."""
    perf = shutil.which("perf") or "perf"
    with tempfile.TemporaryDirectory(prefix="redblue-perf-") as made:
        folder = Path(made)
        control, answer, output = (folder / name for name in ("control", "answer", "counts"))
        os.mkfifo(control)
        os.mkfifo(answer)
        whose = ["-a"] if formula.system else ["-p", str(os.getpid())]
        events = ",".join((*formula.reads, *formula.writes))
        command = [perf, "stat", "-x;", "-o", str(output), "-e", events, "-D", "-1", "--control"]
        command += [f"fifo:{control},{answer}", *whose]
        with (
            # Opened to read and write, so that opening never waits for a perf that has failed already
            open(control, "r+b", buffering=0) as orders,
            open(answer, "r+b", buffering=0) as answers,
            subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as child,
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
        found = read(output.read_text())
    reads, writes = (sum(_bytes(found, event) for event in events) for events in (formula.reads, formula.writes))
    return round(reads / repeats), round(writes / repeats)


def _order(child: subprocess.Popen[str], orders: IO[bytes], answers: IO[bytes], order: bytes) -> None:
    """Tell perf, and wait until it has done so; raises RedblueError if it ends instead."""
    orders.write(order)
    while not select.select([answers], [], [], 0.05)[0]:
        if child.poll() is not None:
            raise RedblueError(_refused(child.stderr.read() if child.stderr else ""))
    answers.read(64)


def _refused(errors: str) -> str:
    said = " ".join(line.strip() for line in errors.splitlines() if line.strip())[:400] or "nothing"
    if re.search(r"syntax error|unknown|Cannot find PMU|No such", errors):
        return f"perf does not know these events on this CPU: install a newer perf, or {REMEDY}. It said: {said}"
    level = _text(PARANOID).strip() or "unknown"
    return (
        f"perf may not count here (kernel.perf_event_paranoid is {level}): allow it with sysctl -w "
        f"kernel.perf_event_paranoid=1 (-1 for DRAM), run as root or with CAP_PERFMON, or {REMEDY}. It said: {said}"
    )


def read(text: str) -> dict[str, tuple[str, str]]:
    """perf stat -x; : event -> (value, unit). Its columns: value; unit; event; time; share of it ..."""
    rows = [line.split(";") for line in text.splitlines() if line.count(";") >= 2]
    return {row[2]: (row[0], row[1]) for row in rows}


def _bytes(found: Mapping[str, tuple[str, str]], event: str) -> float:
    value, unit = found.get(event, ("<not counted>", ""))
    if value.startswith("<"):
        why = "this (virtual) machine does not offer it" if "supported" in value else "perf did not get to count it"
        raise RedblueError(f"{event} is {value.strip('<>')}: {why}; {REMEDY}")
    if unit not in UNITS:
        raise RedblueError(f"{event} is counted in {unit!r}, which is not known: {', '.join(filter(None, UNITS))} are")
    return float(value) * UNITS[unit]


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _upper(text: str) -> str:
    return text[0].upper() + text[1:]
