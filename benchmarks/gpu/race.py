"""Check and time the contenders of one call after another, in the process that uses the device."""

from __future__ import annotations

import torch  # pyright: ignore[reportMissingImports]

from benchmarks.common.failures import Refused
from benchmarks.gpu.calls import Call, inputs
from benchmarks.gpu.gate import gate, worst
from benchmarks.gpu.peers import Run, contender
from benchmarks.gpu.timing import Device, Dry, copied_bytes_per_second, peak


class Races:
    """The race of one call at a time: `open` it, `check` each contender, `time` the correct ones."""

    def __init__(self, device: Device | Dry) -> None:
        self.device = device
        self.call: Call | None = None
        self.runs: dict[str, Run] = {}

    def open(self, call: Call) -> None:
        """Draw the arrays of a call and compute its exact results. They replace those of the last call."""
        self.runs, self.arrays, self.gate = {}, [], None
        self.device.free()
        self.call, self.arrays = call, inputs(call, self.device.name)
        self.gate = gate(call, self.arrays)

    def check(self, name: str) -> list[float]:
        """Compile and tune a contender, and return its errors. Raises Red or Refused if they are too large."""
        assert self.call is not None
        assert self.gate is not None
        try:
            run = contender(name, self.call, self.arrays)
            results = run()
            if reason := self.gate.check(name, results):
                raise Refused(reason)
            self.runs[name] = run
            return worst(self.gate.errors(results))
        finally:
            self.device.free()

    def time(self, names: list[str]) -> dict[str, list[float]]:
        """The seconds of several repetitions of the checked contenders, measured in alternation."""
        return self.device.in_turns({name: self.runs[name] for name in names})

    def peak(self, dtype: str, side: int) -> float:
        return peak(self.device, dtype, side)

    def bandwidth(self, size_bytes: int) -> float:
        return copied_bytes_per_second(self.device, size_bytes)


def on_device() -> Races:
    return Races(Device())


def dry() -> Races:
    torch.manual_seed(0)
    return Races(Dry())
