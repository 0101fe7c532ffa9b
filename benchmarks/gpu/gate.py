"""Correctness first: nothing on the GPU is timed that has not been held against float64, there and at the size timed.

Of a large call, one head: heads share nothing. redblue must be no further from float64 than twice the unfused
expression in the same type, as everywhere in this project; a peer must be near enough to be doing the same thing.
"""

from __future__ import annotations

from dataclasses import replace

import torch  # pyright: ignore[reportMissingImports]
from torch import Tensor  # pyright: ignore[reportMissingImports]

from benchmarks.common.gate import MAX_OURS, MAX_PEER, Red, relative_errors, within
from benchmarks.gpu.calls import OURS, PLANNED, Call, inputs
from benchmarks.gpu.peers import Refused, contender, unfused

SMALL = 333  # queries and keys: no multiple of any tile


def small(call: Call) -> Call:
    """The same in small."""
    return replace(call, n=min(call.n, SMALL), heads=min(call.heads, 2))


def textbook(call: Call, given: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The unfused expression's results in this type, on the first head."""
    q, k, v, dout = (x[:, :1].detach().to(dtype) for x in given)
    mask = None if call.density == 1 or call.mask is None else torch.from_numpy(call.mask.to_dense(call.n, call.n))
    attends = None if mask is None else mask.to(q.device)
    if call.direction == "forward":
        return [unfused(q, k, v, call.causal, attends)]
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    return list(torch.autograd.grad(unfused(q, k, v, call.causal, attends), (q, k, v), dout))


def first_head_errors(results: list[Tensor], exact: list[Tensor]) -> list[float]:
    """The relative error of each result's first head."""
    return relative_errors([x[:, :1] for x in results], exact)


class Gate:
    """Of one call, whose yardsticks are computed once."""

    def __init__(self, call: Call, given: list[Tensor]) -> None:
        self.call = call
        self.exact = textbook(call, given, torch.float64)
        self.allowed = first_head_errors(textbook(call, given, getattr(torch, call.dtype)), self.exact)

    def check(self, name: str, found: list[Tensor]) -> list[float]:
        """The errors. Raises Red if redblue's are too large, Refused if a peer's are."""
        got = first_head_errors(found, self.exact)
        if within(got, self.allowed, MAX_OURS if name in OURS else MAX_PEER):
            return got
        if name in OURS:
            raise Red(f"{name}, {self.call.title}: errors {got}, of the unfused expression {self.allowed}")
        raise Refused(f"too far from float64: {max(got):.1e}")


def check_small(call: Call, device: str) -> None:
    """Raises Red if redblue is wrong at a small odd size."""
    one = small(call)
    given = inputs(one, device)
    Gate(one, given).check(PLANNED, contender(PLANNED, one, given)())
