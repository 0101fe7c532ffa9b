"""Time contenders in alternation within one process, so that a busy host slows all of them and ratios do not change."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping

PAUSE_SECONDS = 0.02  # a pause in which idle threads of the previous contender go to sleep


def race(contenders: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """The seconds of each contender in each round, after a round that is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, call in contenders.items():
            gc.collect()
            time.sleep(PAUSE_SECONDS)
            start = time.perf_counter()
            call()
            if number:
                seconds[name].append(time.perf_counter() - start)
    return seconds
