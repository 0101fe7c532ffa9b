"""Calls of attention on contiguous arrays, their inputs, and functions that make them in PyTorch.

Does not import redblue, because processes of peers without redblue import this module, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch  # pyright: ignore[reportMissingImports]

from benchmarks.common.timing import THREADS

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
FLOPS = {"forward": 4, "backward": 10, "training": 14}  # per pair of a query and a key, per feature

Run = Callable[[], "list[torch.Tensor]"]


def short_name(dtype: torch.dtype) -> str:
    return SHORT[str(dtype).removeprefix("torch.")]


@dataclass(frozen=True)
class Call:
    """One call of attention, on one batch. direction: "forward", "backward", or "training", which is both passes."""

    d: int
    dtype: str = "float32"
    direction: str = "forward"
    n_q: int = 2048
    n_k: int = 2048
    heads: int = 4
    causal: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def flops(self) -> int:
        """FLOPs of the products (two forward, five backward) with a full mask."""
        return FLOPS[self.direction] * self.heads * self.n_q * self.n_k * self.d

    @property
    def title(self) -> str:
        n = f"n {self.n_q}" if self.n_q == self.n_k else f"n_q {self.n_q}, n_k {self.n_k}"
        return f"{SHORT[self.dtype]} {self.direction}, H {self.heads}, {n}, d {self.d}{', causal' * self.causal}"


class Inputs(NamedTuple):
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    dout: torch.Tensor


def inputs(call: Call, dtype: torch.dtype | None = None) -> Inputs:
    """Tensors (1, H, n, d), contiguous, normally distributed, equal for equal calls."""
    generator = torch.Generator().manual_seed(call.d)
    rows = (call.n_q, call.n_k, call.n_k, call.n_q)
    drawn = [torch.randn(1, call.heads, n, call.d, generator=generator).to(DTYPES[call.dtype]) for n in rows]
    return Inputs(*(x.to(dtype) if dtype else x for x in drawn))


def in_torch(direction: str, x: Inputs, forward: Callable[..., torch.Tensor]) -> Run:
    """A run of the passes of this direction, which returns [out] or [dq, dk, dv].

    forward: a differentiable function of q, k and v. A run of only the backward pass keeps the recorded graph.
    """
    if direction == "forward":
        return lambda: [forward(x.q, x.k, x.v)]
    leaves = [array.requires_grad_() for array in x[:3]]
    if direction == "training":
        return lambda: list(torch.autograd.grad(forward(*leaves), leaves, x.dout))
    out = forward(*leaves)
    return lambda: list(torch.autograd.grad(out, leaves, x.dout, retain_graph=True))


def on_threads(threads: int, measured: Callable[[], float]) -> float:
    """Measure with this number of threads of PyTorch and redblue, then set THREADS again."""
    torch.set_num_threads(threads)
    try:
        return measured()
    finally:
        torch.set_num_threads(THREADS)


def pytorch(call: Call, x: Inputs) -> Run:
    """PyTorch's SDPA."""
    sdpa = torch.nn.functional.scaled_dot_product_attention
    return in_torch(call.direction, x, lambda q, k, v: sdpa(q, k, v, is_causal=call.causal))
