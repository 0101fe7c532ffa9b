"""Measure how much of PyTorch's memory lies on huge pages."""

from __future__ import annotations

from pathlib import Path

import torch  # pyright: ignore[reportMissingImports]

PROBE_BYTES = 64 << 20


def huge_share() -> float:
    """The share of a new tensor's memory that lies on huge pages; 0 if the system does not report it.

    The tensor has the size of a cache and is allocated like one, so the share is valid for caches allocated next.
    """
    probe = torch.ones(PROBE_BYTES, dtype=torch.uint8)
    try:
        lines = Path("/proc/self/smaps").read_text().splitlines()
    except OSError:
        return 0.0
    return min(1.0, huge_bytes(lines, probe.data_ptr(), probe.data_ptr() + PROBE_BYTES) / PROBE_BYTES)


def huge_bytes(lines: list[str], first: int, stop: int) -> int:
    """Bytes on huge pages in the mappings that overlap the addresses first .. stop - 1. lines: of /proc/self/smaps."""
    total, within = 0, False
    for line in lines:
        name, _, rest = line.partition(" ")
        if "-" in name and not name.endswith(":"):
            begin, end = (int(address, 16) for address in name.split("-"))
            within = begin < stop and first < end
        elif within and name == "AnonHugePages:":
            total += int(rest.split()[0]) * 1024
    return total
