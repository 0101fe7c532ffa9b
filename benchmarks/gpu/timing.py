"""Time calls on a GPU with the events of the device.

`Device` compares contenders: it flushes the L2 cache before each call. `in_rounds` compares variants of a kernel with
settings of its own. Both measure with `timed`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

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


class Turn(NamedTuple):
    """One measurement of a run. ahead: queues work that the device does before the measurement starts."""

    name: str
    run: Run
    ahead: Run


def timed(turns: Sequence[Turn], calls: int = 1) -> dict[str, list[float]]:
    """The seconds of a call, for each turn, by the name of its run. The host waits once, after it has queued all turns.

    calls: how often each turn calls its run between its two events.
    """
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in turns]
    for turn, (start, end) in zip(turns, events, strict=True):
        turn.ahead()
        start.record()
        for _ in range(calls):
            turn.run()
        end.record()
    torch.cuda.synchronize()
    seconds: dict[str, list[float]] = {}
    for turn, (start, end) in zip(turns, events, strict=True):
        seconds.setdefault(turn.name, []).append(start.elapsed_time(end) / 1e3 / calls)
    return seconds


def nothing_ahead(run: Run) -> None:
    """Queue nothing. After the first call, the host is ahead if a call takes the device longer than the host."""


def sleep_ahead(run: Run) -> None:
    """Let the device wait while the host queues the launches of the run."""
    torch.cuda._sleep(AHEAD_CYCLES)


def call_ahead(run: Run) -> None:
    """Queue a call that is not timed. The host queues the timed calls during its execution."""
    run()


def in_rounds(
    runs: Mapping[str, Run],
    rounds: int,
    calls: int = 1,
    ahead: Callable[[Run], object] = nothing_ahead,
    queue_all: bool = True,
) -> dict[str, list[float]]:
    """The seconds of a call of each run, one number per round: A B, A B ..., after a warm-up call of each.

    The L2 cache isn't flushed, so that the times can be compared with those in docs/results, which were measured so.

    calls: how often a run is called between two events. ahead: queues work for the device before the first event.
    queue_all: queue all measurements before the host waits; otherwise each measurement starts on an idle device.
    """
    for run in runs.values():
        run()
    turns = [Turn(name, run, partial(ahead, run)) for _ in range(rounds) for name, run in runs.items()]
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for queued in [turns] if queue_all else [[turn] for turn in turns]:
        for name, values in timed(queued, calls).items():
            seconds[name] += values
    return seconds


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
        warm = timed([self._turn(name, run, 1.0) for name, run in runs.items()])
        counts = {
            name: min(MAX_COUNT, max(MIN_COUNT, int(SECONDS / max(warm_times[0], 1e-6))))
            for name, warm_times in warm.items()
        }
        turns = []
        for i in range(max(counts.values())):
            some = [self._turn(name, run, warm[name][0]) for name, run in runs.items() if i < counts[name]]
            turns += some[:: 1 if i % 2 == 0 else -1]
        return timed(turns)

    def _turn(self, name: str, run: Run, seconds: float) -> Turn:
        """A turn on a flushed cache. seconds: those that the run took before."""

        def ahead() -> None:
            self.flushed.zero_()
            if seconds < SHORT_SECONDS:
                sleep_ahead(run)

        return Turn(name, run, ahead)

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
