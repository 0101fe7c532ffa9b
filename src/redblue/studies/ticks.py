"""Labels of logarithmic axes, the same in all figures."""

from __future__ import annotations

import math


def log_ticks(low: float, high: float) -> list[float]:
    """The powers of ten within [low, high]; also 2 and 5 times these if there are only few powers."""
    factors = (1, 2, 5) if high / low < 200 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [n * 10.0**e for e in powers for n in factors if low <= n * 10.0**e <= high]
