"""The speeds required of redblue on one NVIDIA H100 (SXM), by default for bfloat16, 32 heads and n 8192."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from benchmarks.gpu.calls import BOTH, CUDNN, DENSITY, FFPA, FLASH, MUST, OURS, PEERS, SDPA, Call

Times = Mapping[Call, Mapping[str, float]]  # seconds by call and contender


class Requirement(NamedTuple):
    """A requirement. value(times, bandwidth): the figure, or None if a measurement is missing.

    bandwidth: bytes per second that a large copy reads and writes.
    """

    what: str
    must: float  # 0: nothing is required
    value: Callable[[Times, float], float | None]
    unit: str = "x"


def _ours(times: Times, call: Call) -> float | None:
    """redblue's seconds: the lesser of tuned and as planned."""
    return min((times.get(call, {})[name] for name in OURS if name in times.get(call, {})), default=None)


def _rate(title: str, must: float, call: Call) -> Requirement:
    def value(times: Times, bandwidth: float) -> float | None:
        seconds = _ours(times, call)
        return seconds and call.flops / seconds / 1e12

    return Requirement(title, must, value, "TFLOP/s")


def _over(title: str, must: float, peers: tuple[str, ...], *calls: Call) -> Requirement:
    """The time of the best peer that supports all calls, over redblue's time."""

    def value(times: Times, bandwidth: float) -> float | None:
        measured = [times.get(call, {}) for call in calls]
        totals = [
            sum(seconds_by_name[name] for seconds_by_name in measured)
            for name in peers
            if all(name in seconds_by_name for seconds_by_name in measured)
        ]
        ours = [_ours(times, call) or 0 for call in calls]
        return min(totals) / sum(ours) if totals and all(ours) else None

    return Requirement(title, must, value)


def _sparse(call: Call, must: float) -> Requirement:
    """The time of the dense call over that of the sparse one."""

    def value(times: Times, bandwidth: float) -> float | None:
        sparse, dense = _ours(times, call), _ours(times, Call(call.d, call.direction))
        return dense / sparse if sparse and dense else None

    return Requirement(f"blocks {call.density:.0%}, d {call.d} {call.direction}, over dense", must, value)


def _bandwidth(call: Call, must: float) -> Requirement:
    """The rate of the bytes that decoding must read, as a share of the measured bandwidth."""

    def value(times: Times, bandwidth: float) -> float | None:
        seconds = _ours(times, call)
        return 100 * call.least_bytes / seconds / bandwidth if seconds and bandwidth else None

    form = f"pages of {call.page}" if call.page else "contiguous"
    return Requirement(f"decode, B {call.batch}, n_k {call.n}, {form}: of the copy's bandwidth", must, value, "%")


def requirements() -> list[Requirement]:
    rows = [
        _rate("d 128 forward", 550, Call(128)),
        _rate("d 128 forward, causal", 500, Call(128, causal=True)),
        _rate("d 128 backward", 420, Call(128, "backward")),
        _rate("d 64 forward", 400, Call(64)),
        _rate("d 256 forward", 500, Call(256)),
    ]
    for direction, ffpa, sdpa in (("forward", 1.4, 1.9), ("backward", 1.5, 2.9)):
        rows.append(_over(f"d 512 {direction}, over FFPA", ffpa, (FFPA,), Call(512, direction)))
        rows.append(_over(f"d 512 {direction}, over the best SDPA backend", sdpa, SDPA, Call(512, direction)))
    wide = Call(1024, "forward"), Call(1024, "backward")
    rows.append(_over("d 1024 forward + backward, over the best that runs", 3, PEERS, *wide))
    rows += [_sparse(Call(d, way, density=DENSITY), 6) for d in (128, 512) for way in BOTH]
    rows += [_bandwidth(call, 85 if call.batch >= 64 else 0) for call in MUST if call.decodes]
    for d in (64, 128):
        for way in BOTH:
            rows.append(_over(f"d {d} {way}, over SDPA flash", 1, (FLASH,), Call(d, way)))
            rows.append(_over(f"d {d} {way}, over SDPA cuDNN", 0, (CUDNN,), Call(d, way)))
    rows += [_over(f"d 256 {way}, over the best SDPA backend", 1, SDPA, Call(256, way)) for way in BOTH]
    rows += [_rate(f"d 576/512 {way}", 0, Call(576, way, d_v=512)) for way in BOTH]
    return rows
