"""Run a program under valgrind's callgrind, and read the counts of its simulated caches.

Callgrind simulates two levels: D1, which writes through, and LL, which writes back. LL is the cache that is measured.
D1 is as small as valgrind allows, two half lines, so that almost every access reaches LL. I1 is large, so that each
line of code reaches LL only once. Client requests inside the program (cpp/meter/meter.cpp) start and stop the
counting. At the start all caches are empty, so nothing that ran before is counted or written back.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from redblue.base.errors import RedblueError
from redblue.machine import CacheLevel
from redblue.meter import processes

MIN_VERSION = (3, 10)  # the first version that decodes AVX2 and whose callgrind simulates write-backs
INSTALL = "install it (apt install valgrind, dnf install valgrind), or measure with probe, which needs nothing"
MIN_LINE_BYTES = 32  # a line must be at least as long as a register
CODE_BYTES = 1 << 22  # the capacity of I1
MAX_SHOWN = 12  # lines of valgrind's output in an error


@dataclass(frozen=True)
class Events:
    """Counts of the cache over one section of a program, in lines, except accesses; see `cachegrind.traffic`.

    inner_misses: misses of D1, the cache nearer to the core.
    """

    read_misses: int
    write_misses: int
    code_misses: int
    write_backs: int
    accesses: int
    inner_misses: int


def find() -> tuple[str, str]:
    """Find valgrind; return its path and version. Raises RedblueError if it is missing, broken or too old."""
    path = shutil.which("valgrind")
    if path is None:
        raise RedblueError(f"cachegrind needs valgrind, which is not on PATH: {INSTALL}")
    try:
        printed = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RedblueError(f"{path} cannot be run ({error}): {INSTALL}") from error
    match = re.match(r"valgrind-(\d+)\.(\d+)", printed)
    if not match:
        raise RedblueError(f"{path} --version prints {printed.strip()!r}, which is no version: {INSTALL}")
    if (int(match[1]), int(match[2])) < MIN_VERSION:
        least = ".".join(map(str, MIN_VERSION))
        raise RedblueError(f"cachegrind needs valgrind {least} or newer, {path} is {printed.strip()}: {INSTALL}")
    return path, printed.strip()


def check_cache(cache: CacheLevel) -> None:
    """Raise RedblueError for a geometry that valgrind does not simulate."""
    if cache.line_bytes < MIN_LINE_BYTES or cache.line_bytes & (cache.line_bytes - 1):
        raise RedblueError(f"valgrind simulates lines of 32, 64, 128 ... bytes, got {cache.line_bytes}")
    if cache.sets & (cache.sets - 1):
        raise RedblueError(
            f"valgrind simulates caches whose number of sets is a power of two; {cache.capacity_bytes:,} bytes in "
            f"lines of {cache.line_bytes} bytes, {cache.ways} ways, are {cache.sets} sets: "
            f"give another capacity or other ways"
        )
    if cache.lines < 2:
        raise RedblueError(f"valgrind simulates caches of at least 2 lines, got {cache.lines}")


def options(cache: CacheLevel, inner: CacheLevel | None) -> list[str]:
    """callgrind's options: the caches, and no counting before the program requests it.

    Raises RedblueError for a geometry that valgrind does not simulate.
    """
    half = max(MIN_LINE_BYTES, cache.line_bytes // 2)
    nearest = inner or CacheLevel("D1", 2 * half, half, 1)
    for level in (cache, nearest) if inner else (cache,):
        check_cache(level)
    code = CacheLevel("I1", CODE_BYTES, cache.line_bytes, 16)
    shapes = {"I1": code, "D1": nearest, "LL": cache}
    geometry = [f"--{n}={c.capacity_bytes},{c.ways or c.lines},{c.line_bytes}" for n, c in shapes.items()]
    return ["--tool=callgrind", "--cache-sim=yes", "--simulate-wb=yes", "--instr-atstart=no", *geometry]


def run(
    command: Sequence[str], cache: CacheLevel, folder: Path, env: Mapping[str, str], inner: CacheLevel | None = None
) -> tuple[list[tuple[str, Events]], str]:
    """Run a command under callgrind; return its counted sections in order, as (name, events), and its standard output.

    cache: the cache to measure. inner: a cache between the core and `cache`. folder: for callgrind's files.
    Raises RedblueError if valgrind fails or writes no counts. KeyboardInterrupt ends the command, too.
    """
    path, _ = find()
    arguments = [path, "-q", *options(cache, inner), f"--callgrind-out-file={folder / 'out'}", *command]
    status, output, errors = processes.run(arguments, env)
    if status:
        raise RedblueError(_failure(path, status, errors))
    files = sorted(folder.glob("out.*"), key=lambda file: int(file.suffix[1:]))
    sections = [section for file in files for section in read(file.read_text()).items()]
    if not sections:
        raise RedblueError(f"{path} wrote no counts, so the program never reached the measured code: {_tail(errors)}")
    return sections, output


def _failure(path: str, status: int, errors: str) -> str:
    """Explain why valgrind, or the program under it, failed."""
    if "unhandled instruction" in errors or "Unrecognised instruction" in errors or status in (-signal.SIGILL, 132):
        return (
            f"{path} does not know an instruction of the measured code: set REDBLUE_ISA=avx2 or REDBLUE_ISA=portable, "
            f"or install a newer valgrind. It said: {_tail(errors)}"
        )
    ended = f"was ended by signal {-status}" if status < 0 else f"failed with status {status}"
    return f"{path} {ended}. It said: {_tail(errors)}"


def _tail(errors: str) -> str:
    """The last lines of valgrind's output, without its prefixes."""
    lines = [re.sub(r"^==\d+== ?", "", line).rstrip() for line in errors.splitlines()]
    return " | ".join([line for line in lines if line][-MAX_SHOWN:]) or "nothing"


def read(text: str) -> dict[str, Events]:
    """Parse one of callgrind's files, which holds the counts up to a client request: {request's name: events}.

    Returns an empty dict for any other file.
    """
    name = re.search(r"^desc: Trigger: Client Request: (.*)$", text, re.M)
    events = re.search(r"^events: (.*)$", text, re.M)
    totals = re.findall(r"^totals: (.*)$", text, re.M)
    if not (name and events and totals):
        return {}
    # callgrind omits trailing zeros from the totals
    counts = dict.fromkeys(events[1].split(), 0) | dict(
        zip(events[1].split(), map(int, totals[-1].split()), strict=False)
    )
    return {
        name[1]: Events(
            read_misses=counts["DLmr"],
            write_misses=counts["DLmw"],
            code_misses=counts["ILmr"],
            write_backs=counts["ILdmr"] + counts["DLdmr"] + counts["DLdmw"],
            accesses=counts["Dr"] + counts["Dw"],
            inner_misses=counts["D1mr"] + counts["D1mw"],
        )
    }
