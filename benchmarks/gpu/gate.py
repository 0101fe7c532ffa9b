"""Check every contender on the GPU against float64, at the size that is timed, before it is timed.

The first head of the first sequence and the last head of the last one are checked, since heads share nothing. The error
of redblue may be at most twice that of the unfused expression in the same type, as everywhere in this project. A peer
must be close enough to compute the same function.
"""

from __future__ import annotations

import torch  # pyright: ignore[reportMissingImports]
from torch import Tensor  # pyright: ignore[reportMissingImports]

from benchmarks.common.gate import MAX_OURS, MAX_PEER, Red, relative_errors, unfused, within
from benchmarks.gpu.calls import OURS, Call
from benchmarks.gpu.peers import Refused


def ends(call: Call, x: Tensor) -> list[Tensor]:
    """The heads of the first key head of the first sequence and of the last key head of the last; each (1, h, n, d)."""
    if not x.numel():
        return [x, x]
    heads = x.shape[1] // call.key_heads
    return [x[:1, :heads], x[-1:, -heads:]]


def textbook(call: Call, arrays: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The results of the unfused expression in this type, on arrays with one key head."""
    q, k, v, dout = (x.detach().to(dtype) for x in arrays)
    mask = None if call.density == 1 or call.mask is None else torch.from_numpy(call.mask.to_dense(call.n_q, call.n))
    attends = None if mask is None else mask.to(q.device)
    if call.direction == "forward":
        return [unfused(q, k, v, call.causal, attends)]
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    return list(torch.autograd.grad(unfused(q, k, v, call.causal, attends), (q, k, v), dout))


class Gate:
    """The check of one call; the exact results and the allowed errors are computed once."""

    def __init__(self, call: Call, arrays: list[Tensor]) -> None:
        self.call = call
        parts = list(zip(*(ends(call, x) for x in arrays), strict=True))
        self.exact = [textbook(call, list(part), torch.float64) for part in parts]
        own = getattr(torch, call.dtype)
        self.allowed = [
            relative_errors(textbook(call, list(part), own), exact)
            for part, exact in zip(parts, self.exact, strict=True)
        ]

    def check(self, name: str, results: list[Tensor]) -> list[float]:
        """The errors of a contender. If they are too large, raises Red for redblue and Refused for a peer."""
        parts = zip(*(ends(self.call, x) for x in results), strict=True)
        errors = [relative_errors(list(part), exact) for part, exact in zip(parts, self.exact, strict=True)]
        factor = MAX_OURS if name in OURS else MAX_PEER
        worst = [max(errors_of_head) for errors_of_head in zip(*errors, strict=True)]
        if all(within(error, allowed, factor) for error, allowed in zip(errors, self.allowed, strict=True)):
            return worst
        if name in OURS:
            raise Red(f"{name}, {self.call.title}: errors {errors}, errors of the unfused expression {self.allowed}")
        raise Refused(f"too far from float64: {max(worst):.1e}")
