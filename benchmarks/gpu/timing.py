"""Time calls on a GPU with the events of the device. The L2 cache is flushed before each call."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

import torch  # pyright: ignore[reportMissingImports]

from benchmarks.common.timing import seconds_of

MIN_COUNT, MAX_COUNT = 5, 30  # repetitions
SECONDS = 0.3  # for each contender, unless MIN_COUNT repetitions take longer
FLUSH_OVER_L2 = 4
PEAK_SIDE = 8192


class Device:
    """The operations of a GPU that the benchmarks need."""

    name = "cuda"

    def __init__(self) -> None:
        l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
        self.flushed = torch.empty(FLUSH_OVER_L2 * l2_bytes, dtype=torch.int8, device=self.name)

    def seconds(self, run: Callable[[], object]) -> list[float]:
        """The seconds of several repetitions, after two warm-up calls."""
        run()
        once = self._timed([run])[0]
        count = min(MAX_COUNT, max(MIN_COUNT, int(SECONDS / max(once, 1e-6))))
        return self._timed([run] * count)

    def _timed(self, runs: list[Callable[[], object]]) -> list[float]:
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in runs]
        for run, (start, end) in zip(runs, events, strict=True):
            self.flushed.zero_()
            start.record()
            run()
            end.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) / 1e3 for start, end in events]

    def free(self) -> None:
        torch.cuda.empty_cache()


class Dry:
    """Replaces a GPU in dry runs: measures the interpreter with the clock of the host. Its times are meaningless."""

    name = "cpu"

    def seconds(self, run: Callable[[], object]) -> list[float]:
        return [seconds_of(run)]

    def free(self) -> None:
        pass


def peak(device: Device | Dry, dtype: str, side: int = PEAK_SIDE) -> float:
    """TFLOP/s of PyTorch's product of two square matrices."""
    a, b = (torch.randn(side, side, device=device.name).to(getattr(torch, dtype)) for _ in range(2))
    return 2 * side**3 / statistics.median(device.seconds(lambda: a @ b)) / 1e12


def medians(times: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(each) for name, each in times.items() if each}
