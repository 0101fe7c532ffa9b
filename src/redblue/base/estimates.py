"""Estimates before work: refuse at once work that does not fit this machine's memory, and announce long work.

The announcement is a warning of the logger "redblue", which Python prints on standard error unless a program configures
the logger.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

from redblue.base.errors import RedblueError
from redblue.base.text import byte_amount, time

LONG_SECONDS = 5.0  # work that takes longer is announced
UNPRINTED = 10**18  # larger estimates are not worth their digits


def check_fits(task: str, bytes: float, seconds: float = 0.0) -> None:
    """Raise RedblueError if `bytes` bytes of memory are more than this machine has available; announce long work.

    task: the work, as the subject of a sentence, such as "the graph attention:n=4,d=2 of 96 nodes".
    bytes, seconds: estimates of the work's memory and time. An order of magnitude is enough; infinity is allowed.
    If the system does not say how much memory is available, only estimates of an exabyte or more are refused.
    """
    available = available_bytes()
    if bytes >= UNPRINTED or (available is not None and bytes > available):
        limit = "" if available is None else f", and this machine has {bytes_text(available)} available"
        raise RedblueError(f"{task} needs {bytes_text(bytes)} of memory{limit}: take a smaller problem")
    if seconds >= LONG_SECONDS:
        logging.getLogger("redblue").warning(f"{task} takes about {time(seconds)} and {bytes_text(bytes)} of memory")


def bytes_text(bytes: float) -> str:
    """Format an estimate of bytes for people."""
    return "more than 1000 PB" if bytes >= UNPRINTED else f"about {byte_amount(bytes)}"


def count_text(number: float) -> str:
    """Format an estimated count for people."""
    return "more than 10^18" if number >= UNPRINTED else f"about {number:,.3g}"


def available_bytes(root: Path = Path("/")) -> int | None:
    """Return the bytes of memory that this process may still take: the machine's, or what its cgroups leave.

    root: the folder that holds proc and sys; tests give another. None if the system does not say.
    """
    return min((*_of_machine(root), *_of_cgroups(root)), default=None)


def _of_machine(root: Path) -> Iterator[int]:
    """Yield the machine's available memory as Linux reports it; on other systems, its total memory."""
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024
            return
    try:
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows, or a system that does not know these names
        return


def _of_cgroups(root: Path) -> Iterator[int]:
    """Yield the memory that is left below the limit of each cgroup of this process, and of each cgroup above it."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        mount, limit, usage, cache = (
            ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")
            if not controllers
            else ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        )
        for folder in (Path(path.strip().lstrip("/")), *Path(path.strip().lstrip("/")).parents):
            most, used = (_number(root / mount / folder / name) for name in (limit, usage))
            if most is not None and used is not None:
                statistics = dict(line.split() for line in _lines(root / mount / folder / "memory.stat"))
                yield max(0, most - used + int(statistics.get(cache, 0)))  # the kernel drops its file cache first


def _number(path: Path) -> int | None:
    """Read a file that holds one number; None for "max" and for a file that cannot be read."""
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdecimal() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []
