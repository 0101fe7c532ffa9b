"""The number of CPUs that this process may use."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def usable_cpus() -> int:
    """Number of CPUs in this process's affinity, or in its control group's quota of CPU time if that is less."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, _quota(CGROUPS) or allowed))


@cache
def _quota(folder: Path) -> int | None:
    """CPUs that the control group's quota allows, rounded up; None: no limit, or no control groups.

    Inside a container the folder shows the container's own group.
    """
    try:
        quota, period = (folder / "cpu.max").read_text().split()  # version 2
    except (OSError, ValueError):
        try:
            first_version = (folder / "cpu" / f"cpu.cfs_{name}_us" for name in ("quota", "period"))
            quota, period = (path.read_text().strip() for path in first_version)
        except OSError:
            return None
    if not (quota.isdecimal() and period.isdecimal() and int(period)):
        return None  # "max" in version 2, -1 in version 1
    return -(-int(quota) // int(period))
