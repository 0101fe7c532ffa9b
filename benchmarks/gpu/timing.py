"""Time calls on a GPU with the events of the device. The L2 cache is flushed before each call."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

import torch  # pyright: ignore[reportMissingImports]

from benchmarks.common.timing import seconds_of

MIN_COUNT, MAX_COUNT = 5, 30  # repetitions
SECONDS = 0.2  # for each contender, unless MIN_COUNT repetitions take longer
FLUSH_OVER_L2 = 4
PEAK_SIDE = 8192
COPY_BYTES = 4 << 30
SHORT_SECONDS = 2e-3  # of a call whose launches may take the host longer than the device
AHEAD_CYCLES = 1_000_000  # the device waits about half a millisecond, so that the host enqueues launches in advance

Run = Callable[[], object]


class Device:
    """The operations of a GPU that the benchmarks need."""

    name = "cuda"

    def __init__(self) -> None:
        l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
        self.flushed = torch.empty(FLUSH_OVER_L2 * l2_bytes, dtype=torch.int8, device=self.name)

    def seconds(self, run: Run) -> list[float]:
        """The seconds of several repetitions, after two warm-up calls."""
        return self.in_turns({"": run})[""]

    def in_turns(self, runs: Mapping[str, Run]) -> dict[str, list[float]]:
        """The seconds of several repetitions of each run: A B, B A, A B ..., after two warm-up calls of each.

        All runs therefore have the same temperature and clock of the card.
        """
        for run in runs.values():
            run()
        warm = self._timed([(name, run, 1.0) for name, run in runs.items()])
        counts = {
            name: min(MAX_COUNT, max(MIN_COUNT, int(SECONDS / max(warm_times[0], 1e-6))))
            for name, warm_times in warm.items()
        }
        turns = []
        for i in range(max(counts.values())):
            some = [(name, run, warm[name][0]) for name, run in runs.items() if i < counts[name]]
            turns += some[:: 1 if i % 2 == 0 else -1]
        return self._timed(turns)

    def _timed(self, runs: list[tuple[str, Run, float]]) -> dict[str, list[float]]:
        """The seconds of each run by name. runs: (name, function, its seconds so far)."""
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in runs]
        for (_, run, before), (start, end) in zip(runs, events, strict=True):
            self.flushed.zero_()
            if before < SHORT_SECONDS:
                torch.cuda._sleep(AHEAD_CYCLES)
            start.record()
            run()
            end.record()
        torch.cuda.synchronize()
        seconds: dict[str, list[float]] = {}
        for (name, _, _), (start, end) in zip(runs, events, strict=True):
            seconds.setdefault(name, []).append(start.elapsed_time(end) / 1e3)
        return seconds

    def free(self) -> None:
        torch.cuda.empty_cache()


class Dry:
    """Replaces the device in dry runs: times the interpreter by the host's clock. Its times are meaningless."""

    name = "cpu"

    def seconds(self, run: Run) -> list[float]:
        return [seconds_of(run)]

    def in_turns(self, runs: Mapping[str, Run]) -> dict[str, list[float]]:
        return {name: self.seconds(run) for name, run in runs.items()}

    def free(self) -> None:
        pass


def peak(device: Device | Dry, dtype: str, side: int = PEAK_SIDE) -> float:
    """TFLOP/s of PyTorch's product of two square matrices."""
    a, b = (torch.randn(side, side, device=device.name).to(getattr(torch, dtype)) for _ in range(2))
    return 2 * side**3 / statistics.median(device.seconds(lambda: a @ b)) / 1e12


def copied_bytes_per_second(device: Device | Dry, size_bytes: int = COPY_BYTES) -> float:
    """The bytes that a large copy reads and writes, per second."""
    source = torch.zeros(size_bytes // 4, dtype=torch.float32, device=device.name).normal_()
    target = torch.empty_like(source)
    return 2 * source.nbytes / statistics.median(device.seconds(lambda: target.copy_(source)))


def medians(times: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(seconds) for name, seconds in times.items() if seconds}
