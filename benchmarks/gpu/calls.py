"""The calls of the GPU benchmark in order of importance, and its requirements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import numpy as np
import torch  # pyright: ignore[reportMissingImports]

from redblue import Mask

PLANNED, TUNED = "redblue, as planned", "redblue, tuned"
FLASH, CUDNN, EFFICIENT, MATH = "SDPA flash", "SDPA cuDNN", "SDPA efficient", "SDPA math"
FLEX, UNFUSED, FFPA = "FlexAttention", "unfused", "FFPA"
OURS, SDPA = (PLANNED, TUNED), (FLASH, CUDNN, EFFICIENT, MATH)
QUICK = (PLANNED, *SDPA, FFPA)  # contenders whose first call needs no long compilation
LENGTHS = (4096, 16384, 2048, 1024)  # in addition to 8192
PEERS = (*SDPA, FFPA, FLEX, UNFUSED)
DENSITY, BLOCK = 0.1, 128


@dataclass(frozen=True)
class Call:
    """One call of attention, on one batch. density: share of blocks that attend, each of BLOCK queries and keys."""

    d: int
    direction: str = "forward"
    causal: bool = False
    n: int = 8192
    d_v: int = 0  # 0 stands for d
    density: float = 1.0
    heads: int = 32
    dtype: str = "bfloat16"

    @property
    def values(self) -> int:
        return self.d_v or self.d

    @property
    def mask(self) -> Mask | None:
        if self.density < 1:
            return _blocks(self.n, self.density)
        return Mask.causal() if self.causal else None

    @property
    def flops(self) -> int:
        """FLOPs of two products forward, or five backward, over the pairs that attend."""
        mask = self.mask
        pairs = self.n**2 if mask is None else mask.nnz(self.n, self.n)
        widths = {"forward": self.d + self.values, "backward": 3 * self.d + 2 * self.values}
        return 2 * self.heads * pairs * widths[self.direction]

    @property
    def width(self) -> str:
        return f"{self.d}" + (f"/{self.d_v}" if self.d_v else "")

    @property
    def title(self) -> str:
        d = f"d {self.width}"
        sparse = f", blocks {self.density:.0%}" if self.density < 1 else ""
        return f"{self.dtype} {self.direction}, {d}, n {self.n}, H {self.heads}{', causal' * self.causal}{sparse}"


def layout(n: int, density: float) -> np.ndarray:
    """The blocks that attend: in each row of blocks the one on the diagonal, and random others."""
    side = -(-n // BLOCK)
    rng = np.random.default_rng(0)
    kept = np.eye(side, dtype=bool)
    others = max(0, round(density * side) - 1)
    for i in range(side):
        kept[i, rng.choice(np.delete(np.arange(side), i), others, replace=False)] = True
    return kept


@cache
def _blocks(n: int, density: float) -> Mask:
    return Mask.blocks(layout(n, density), BLOCK)


def plan(dry: bool = False) -> Iterator[tuple[Call, tuple[str, ...]]]:
    """Calls with their contenders, most important first, since a run may end early. dry: tiny calls of redblue only."""
    both = ("forward", "backward")
    if dry:
        for direction in both:
            yield Call(24, direction, True, n=40, heads=2, dtype="float16"), (PLANNED,)
            yield Call(40, direction, False, n=33, d_v=16, heads=1, dtype="float32"), (PLANNED,)
        yield Call(16, "forward", density=0.5, n=260, heads=1, dtype="float16"), (PLANNED,)
        return
    # Calls with requirements, others of the same length, then other lengths; long compilations come last
    must = [Call(d, direction) for d in (512, 128, 64, 256, 1024) for direction in both]
    widest = [call for call in must if call.d == 1024]
    sparse = [Call(d, direction, density=DENSITY) for d in (128, 512) for direction in both]
    latent = [Call(576, direction, d_v=512) for direction in both]
    causal = [replace(call, causal=True) for call in (*must, *latent)]
    others = [replace(call, n=n) for n in LENGTHS for call in (*must, *latent, *causal)]
    for calls, names in (
        (must, QUICK),
        (sparse, (PLANNED,)),
        (widest, (UNFUSED, FLEX)),
        (must, (TUNED,)),
        (sparse, (TUNED,)),
        (latent, QUICK),
        (causal, QUICK),
        ([call for call in must if call not in widest], (UNFUSED,)),
        ([*latent, *causal], (UNFUSED,)),
        (sparse, (FLEX,)),
        ([*latent, *causal], (TUNED,)),
        (others, (*QUICK, UNFUSED)),
        ([call for call in (*must, *latent, *causal) if call not in widest], (FLEX,)),
        (others, (TUNED,)),
        (others, (FLEX,)),
    ):
        for call in calls:
            yield call, names


Times = Mapping[Call, Mapping[str, float]]  # seconds by call and contender


class Limit(NamedTuple):
    """A requirement on one NVIDIA H200. value: computes the figure, or None if a measurement is missing."""

    what: str
    must: float
    value: Callable[[Times], float | None]
    unit: str = "x"
    at_most: bool = False


def _ours(times: Times, call: Call) -> float | None:
    """redblue's seconds, tuned or as planned, whichever is less."""
    return min((times.get(call, {})[name] for name in OURS if name in times.get(call, {})), default=None)


def _rate(call: Call) -> Callable[[Times], float | None]:
    def value(times: Times) -> float | None:
        seconds = _ours(times, call)
        return seconds and call.flops / seconds / 1e12

    return value


def _over(peers: tuple[str, ...], *calls: Call) -> Callable[[Times], float | None]:
    """The time of the best peer that supports all calls, over redblue's time."""

    def value(times: Times) -> float | None:
        each = [times.get(call, {}) for call in calls]
        totals = [sum(one[name] for one in each) for name in peers if all(name in one for one in each)]
        ours = [_ours(times, call) or 0 for call in calls]
        return min(totals) / sum(ours) if totals and all(ours) else None

    return value


def _sparse(call: Call) -> Callable[[Times], float | None]:
    """The time of a sparse call over the product of its density and the time of the dense call."""
    dense = Call(call.d, call.direction)

    def value(times: Times) -> float | None:
        sparse, whole = _ours(times, call), _ours(times, dense)
        return sparse / (call.flops / dense.flops * whole) if sparse and whole else None

    return value


def limits() -> list[Limit]:
    rows = []
    for direction, rate, ratio in (("forward", 260, 1.9), ("backward", 135, 2.9)):
        call = Call(512, direction)
        rows.append(Limit(f"d 512 {direction}", rate, _rate(call), "TFLOP/s"))
        rows.append(Limit(f"d 512 {direction}, over the best SDPA backend", ratio, _over(SDPA, call)))
    wide = Call(1024, "forward"), Call(1024, "backward")
    rows.append(Limit("d 1024 forward + backward, over the best that runs", 3, _over(PEERS, *wide)))
    for d in (64, 128):
        for direction in ("forward", "backward"):
            call = Call(d, direction)
            rows.append(Limit(f"d {d} {direction}, over SDPA flash", 1, _over((FLASH,), call)))
            rows.append(Limit(f"d {d} {direction}, over SDPA cuDNN (to know)", 0, _over((CUDNN,), call)))
    for direction in ("forward", "backward"):
        call = Call(256, direction)
        rows.append(Limit(f"d 256 {direction}, over the best SDPA backend", 1, _over(SDPA, call)))
    for d in (128, 512):
        for direction in ("forward", "backward"):
            what = f"blocks {DENSITY:.0%}, d {d} {direction}, over density x dense time"
            rows.append(Limit(what, 1.3, _sparse(Call(d, direction, density=DENSITY)), at_most=True))
    return rows


def inputs(call: Call, device: str, dtype: torch.dtype | None = None) -> list[torch.Tensor]:
    """q, k, v, dout: (1, H, n, d or d_v), contiguous, normally distributed, equal for equal calls."""
    generator = torch.Generator(device).manual_seed(call.d)
    kind = {"device": device, "generator": generator, "dtype": torch.float32}
    drawn = [torch.randn(1, call.heads, call.n, width, **kind) for width in (call.d, call.d, call.values, call.values)]
    return [x.to(getattr(torch, call.dtype)).to(dtype or getattr(torch, call.dtype)) for x in drawn]
