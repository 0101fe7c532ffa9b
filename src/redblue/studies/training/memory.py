"""Whether the scores of an unfused attention fit in this machine's memory."""

from __future__ import annotations

from typing import Any

from redblue.base.estimates import available_bytes

COPIES = 5  # arrays of n x n that a layer holds at once: scores, mask, masked scores, probabilities, one gradient
BYTES = 4


def too_large(point: dict[str, Any]) -> str:
    """The reason why the unfused attention of a point cannot run here; "" if it can."""
    needed = COPIES * BYTES * point["layers"] * point["batch"] * point["heads"] * point["n"] ** 2
    available = available_bytes()
    if available is None or needed < 0.8 * available:
        return ""
    return f"the scores take about {needed / 1e9:.0f} GB, and {available / 1e9:.0f} GB are free"
