"""Running a program under valgrind's callgrind, and reading what its simulated caches did.

Callgrind simulates two levels: D1, which writes through, and LL, which writes back. The cache that is measured is LL;
D1 is as small as valgrind allows, two half lines, so that next to every access reaches LL. I1 is large, so that each
line of code reaches LL once only. Counting starts and ends inside the program, by client requests
(cpp/meter/meter.cpp): at the start all caches are empty, so that nothing that ran before is counted, nor written back.
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

LEAST = (3, 10)  # decodes AVX2, and its callgrind simulates write-backs
INSTALL = "install it (apt install valgrind, dnf install valgrind), or measure with probe, which needs nothing"
SMALLEST_LINE = 32  # bytes: no register may be longer
CODE_BYTES = 1 << 22  # of I1
SHOWN = 12  # lines of what valgrind said, where it failed


@dataclass(frozen=True)
class Events:
    """What the cache did while something ran, in lines; see `cachegrind.traffic`.

    inner_misses: of the cache before it, D1: all that was asked of the cache for data.
    """

    read_misses: int
    write_misses: int
    code_misses: int
    write_backs: int
    accesses: int
    inner_misses: int


def find() -> tuple[str, str]:
    """valgrind's path and version. Raises RedblueError where it is missing, broken or too old."""
    path = shutil.which("valgrind")
    if path is None:
        raise RedblueError(f"cachegrind needs valgrind, which is not on PATH: {INSTALL}")
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RedblueError(f"{path} cannot be run ({error}): {INSTALL}") from error
    found = re.match(r"valgrind-(\d+)\.(\d+)", said.stdout)
    if not found:
        raise RedblueError(f"{path} --version says {said.stdout.strip()!r}, which is no version: {INSTALL}")
    if (int(found[1]), int(found[2])) < LEAST:
        least = ".".join(map(str, LEAST))
        raise RedblueError(f"cachegrind needs valgrind {least} or newer, {path} is {said.stdout.strip()}: {INSTALL}")
    return path, said.stdout.strip()


def check_cache(cache: CacheLevel) -> None:
    """Raise RedblueError for a geometry that valgrind does not simulate."""
    if cache.line_bytes < SMALLEST_LINE or cache.line_bytes & (cache.line_bytes - 1):
        raise RedblueError(f"valgrind simulates lines of 32, 64, 128 ... bytes, got {cache.line_bytes}")
    if cache.sets & (cache.sets - 1):
        raise RedblueError(
            f"valgrind simulates caches whose number of sets is a power of two; {cache.capacity_bytes:,} bytes in "
            f"lines of {cache.line_bytes} bytes, {cache.ways} ways, are {cache.sets}: "
            f"give another capacity or other ways"
        )
    if cache.lines < 2:
        raise RedblueError(f"valgrind simulates caches of at least 2 lines, got {cache.lines}")


def options(cache: CacheLevel, inner: CacheLevel | None) -> list[str]:
    """callgrind's options: the caches, nothing counted until the program says so."""
    half = max(SMALLEST_LINE, cache.line_bytes // 2)
    nearest = inner or CacheLevel("D1", 2 * half, half, 1)
    for each in (cache, nearest) if inner else (cache,):
        check_cache(each)
    code = CacheLevel("I1", CODE_BYTES, cache.line_bytes, 16)
    shapes = {"I1": code, "D1": nearest, "LL": cache}
    geometry = [f"--{n}={c.capacity_bytes},{c.ways or c.lines},{c.line_bytes}" for n, c in shapes.items()]
    return ["--tool=callgrind", "--cache-sim=yes", "--simulate-wb=yes", "--instr-atstart=no", *geometry]


def run(
    command: Sequence[str], cache: CacheLevel, folder: Path, env: Mapping[str, str], inner: CacheLevel | None = None
) -> tuple[list[tuple[str, Events]], str]:
    """Run the command under callgrind. What the cache did between its marks, in order, by name; and standard output.

    inner: a cache between the program and `cache`. Raises RedblueError; KeyboardInterrupt ends the child, too.
    """
    path, _ = find()
    arguments = [path, "-q", *options(cache, inner), f"--callgrind-out-file={folder / 'out'}", *command]
    status, said, errors = processes.run(arguments, env)
    if status:
        raise RedblueError(_failure(path, status, errors))
    files = sorted(folder.glob("out.*"), key=lambda file: int(file.suffix[1:]))
    found = [part for file in files for part in read(file.read_text()).items()]
    if not found:
        raise RedblueError(f"{path} wrote no counts, so the program never reached what is measured: {_tail(errors)}")
    return found, said


def _failure(path: str, status: int, errors: str) -> str:
    if "unhandled instruction" in errors or "Unrecognised instruction" in errors or status in (-signal.SIGILL, 132):
        return (
            f"{path} does not know an instruction of the measured code: set REDBLUE_ISA=avx2 or REDBLUE_ISA=portable, "
            f"or install a newer valgrind. It said: {_tail(errors)}"
        )
    ended = f"was ended by signal {-status}" if status < 0 else f"failed with status {status}"
    return f"{path} {ended}. It said: {_tail(errors)}"


def _tail(errors: str) -> str:
    lines = [re.sub(r"^==\d+== ?", "", line).rstrip() for line in errors.splitlines()]
    return " | ".join([line for line in lines if line][-SHOWN:]) or "nothing"


def read(text: str) -> dict[str, Events]:
    """callgrind's file: what was counted until a request, by the request's name; nothing if it is no such file."""
    name = re.search(r"^desc: Trigger: Client Request: (.*)$", text, re.M)
    events = re.search(r"^events: (.*)$", text, re.M)
    totals = re.findall(r"^totals: (.*)$", text, re.M)
    if not (name and events and totals):
        return {}
    # Trailing zeros are left out of the totals
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
