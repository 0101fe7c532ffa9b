"""The calls of the GPU benchmark, in order of importance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch  # pyright: ignore[reportMissingImports]

from redblue import Mask

PLANNED, TUNED = "redblue, as planned", "redblue, tuned"
FLASH, CUDNN, EFFICIENT, MATH = "SDPA flash", "SDPA cuDNN", "SDPA efficient", "SDPA math"
FLEX, UNFUSED, FFPA = "FlexAttention", "unfused", "FFPA, tuned"
FFPA_UNTUNED = "FFPA, untuned"  # measured on 2026-11-23 only
OURS, SDPA = (PLANNED, TUNED), (FLASH, CUDNN, EFFICIENT, MATH)
QUICK = (PLANNED, TUNED, *SDPA, FFPA)  # contenders whose first call is fast, or whose kernels are compiled ahead
LENGTHS = (4096, 16384, 2048, 1024)  # in addition to 8192
PEERS = (*SDPA, FFPA, FLEX, UNFUSED)
BOTH = ("forward", "backward")
DENSITY, BLOCK = 0.1, 128
PAGE = 64


@dataclass(frozen=True)
class Call:
    """One call of attention. density: share of blocks that attend, each of BLOCK queries and keys."""

    d: int
    direction: str = "forward"
    causal: bool = False
    n: int = 8192  # keys, and also queries if `queries` is 0
    d_v: int = 0  # 0 stands for d
    density: float = 1.0
    heads: int = 32
    dtype: str = "bfloat16"
    batch: int = 1
    queries: int = 0  # 0 stands for n
    kv_heads: int = 0  # 0 becomes heads
    page: int = 0  # keys of a page of the cache; 0: contiguous keys and values

    def __post_init__(self) -> None:
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)

    @property
    def values(self) -> int:
        return self.d_v or self.d

    @property
    def n_q(self) -> int:
        return self.queries or self.n

    @property
    def decodes(self) -> bool:
        """Whether each sequence has one query, so that reading keys and values bounds the time."""
        return self.queries == 1

    @property
    def mask(self) -> Mask | None:
        if self.density < 1:
            return _blocks(self.n, self.density)
        return Mask.causal() if self.causal else None

    @property
    def flops(self) -> int:
        """FLOPs of two products forward, or five backward, over the pairs that attend."""
        mask = self.mask
        pairs = self.n_q * self.n if mask is None else mask.nnz(self.n_q, self.n)
        widths = {"forward": self.d + self.values, "backward": 3 * self.d + 2 * self.values}
        return 2 * self.batch * self.heads * pairs * widths[self.direction]

    @property
    def least_bytes(self) -> int:
        """Bytes of the arrays of the forward pass, each read or written once."""
        rows = self.heads * self.n_q + self.kv_heads * self.n
        return self.batch * rows * (self.d + self.values) * getattr(torch, self.dtype).itemsize

    @property
    def width(self) -> str:
        return f"{self.d}" + (f"/{self.d_v}" if self.d_v else "")

    @property
    def title(self) -> str:
        heads = f"H {self.heads}" + (f"/{self.kv_heads}" if self.kv_heads != self.heads else "")
        options = (
            f"B {self.batch}" * (self.batch > 1),
            f"n_q {self.queries}" * bool(self.queries),
            f"pages of {self.page}" * bool(self.page),
            "causal" * self.causal,
            f"blocks {self.density:.0%}" * (self.density < 1),
        )
        parts = (f"{self.dtype} {self.direction}", f"d {self.width}", f"n {self.n}", heads, *filter(None, options))
        return ", ".join(parts)


def layout(n: int, density: float) -> np.ndarray:
    """The attended blocks: in each row of blocks, the diagonal block and random others."""
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


MUST = (
    *(Call(128), Call(128, causal=True), Call(128, "backward"), Call(64), Call(256)),
    *(Call(512), Call(512, "backward"), Call(1024), Call(1024, "backward")),
    *(Call(d, density=DENSITY) for d in (128, 512)),
    *(Call(128, n=32768, batch=batch, queries=1, kv_heads=8, page=page) for page in (0, PAGE) for batch in (64, 16)),
    *(Call(576, direction, d_v=512) for direction in BOTH),
    *(Call(d, "backward", density=DENSITY) for d in (128, 512)),
    *(Call(64, "backward"), Call(256, "backward")),
)


def contenders(call: Call) -> tuple[str, ...]:
    """The contenders that support the call and can be prepared quickly, redblue first."""
    if call.page:
        return (PLANNED,)
    if call.density < 1:
        return OURS
    if call.decodes:
        return (*OURS, FLASH, CUDNN)
    names = (FFPA,) if 256 < call.d < 1024 else ()  # at 1024, its tuning would take minutes
    return (*OURS, *(SDPA if call.d > 128 else (FLASH, CUDNN)), *names)


def plan(dry: bool = False) -> Iterator[tuple[Call, tuple[str, ...]]]:
    """Calls with their contenders, most important first, since a run may end early. dry: tiny calls of redblue only.

    The contenders of one entry are timed in alternation.
    """
    if dry:
        yield from _tiny()
        return
    dense = [call for call in MUST if not call.decodes and call.density == 1 and not call.causal]
    causal = [replace(call, causal=True) for call in dense]
    more = [call for call in causal if call not in MUST]
    others = [replace(call, n=n) for n in LENGTHS for call in (*dense, *causal)]
    square = [call for call in (*MUST, *more) if not call.decodes]
    for calls in (MUST, more):
        for call in calls:
            yield call, contenders(call)
    widest = [Call(1024, direction) for direction in BOTH]
    later = ((dense, UNFUSED), (widest, FFPA), (square, FLEX), (more, UNFUSED), ([Call(128, causal=True)], UNFUSED))
    for calls, name in later:
        for call in calls:
            yield call, (name,)
    for call in others:
        yield call, (*contenders(call), UNFUSED)
    for call in others:
        yield call, (FLEX,)


def _tiny() -> Iterator[tuple[Call, tuple[str, ...]]]:
    for direction in BOTH:
        yield Call(24, direction, True, n=40, heads=2, dtype="float16"), OURS
        yield Call(40, direction, False, n=33, d_v=16, heads=1, dtype="float32"), (PLANNED,)
    yield Call(16, "forward", density=0.5, n=260, heads=1, dtype="float16"), (PLANNED,)
    for page in (0, 16):
        yield Call(16, n=100, heads=4, dtype="float16", batch=2, queries=1, kv_heads=2, page=page), (PLANNED,)


def inputs(call: Call, device: str) -> list[torch.Tensor]:
    """q, k, v, dout, contiguous, normally distributed, equal for equal calls.

    q: (B, H, n_q, d), k: (B, H_kv, n, d), v: (B, H_kv, n, d_v), dout: (B, H, n_q, d_v), or empty for the forward pass.
    """
    generator = torch.Generator(device).manual_seed(call.d)
    kind = {"device": device, "generator": generator, "dtype": getattr(torch, call.dtype)}
    shapes = [
        (call.batch, call.heads, call.n_q, call.d),
        (call.batch, call.kv_heads, call.n, call.d),
        (call.batch, call.kv_heads, call.n, call.values),
    ]
    dout = (call.batch, call.heads, call.n_q, call.values) if call.direction == "backward" else (0,)
    return [torch.randn(shape, **kind) for shape in (*shapes, dout)]
