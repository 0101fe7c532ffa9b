"""Whether the scores of an unfused attention fit in this machine's memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

COPIES = 5  # arrays of scores that a layer holds at once: scores, mask, masked scores, probabilities, one gradient
BYTES = 4


def available_bytes() -> int | None:
    """The memory that this machine can still give; None if the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None


def too_large(point: dict[str, Any]) -> str:
    """Say why the unfused attention of a point cannot run here; "" if it can."""
    needed = COPIES * BYTES * point["layers"] * point["batch"] * point["heads"] * point["n"] ** 2
    available = available_bytes()
    if available is None or needed < 0.8 * available:
        return ""
    return f"the scores take about {needed / 1e9:.0f} GB, and {available / 1e9:.0f} GB are free"
