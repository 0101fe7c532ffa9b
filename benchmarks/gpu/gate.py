"""Check every contender on the GPU against float64, at the size that is timed, before it is timed.

Only one head is checked, since heads share nothing. The error of redblue may be at most twice that of the unfused
expression in the same type, as everywhere in this project. A peer must be close enough to compute the same function.
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
    """The same call with fewer queries, keys and heads."""
    return replace(call, n=min(call.n, SMALL), heads=min(call.heads, 2))


def textbook(call: Call, arrays: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The results of the unfused expression in this type, for the first head."""
    q, k, v, dout = (x[:, :1].detach().to(dtype) for x in arrays)
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
    """The check of one call; the exact results and the allowed errors are computed once."""

    def __init__(self, call: Call, arrays: list[Tensor]) -> None:
        self.call = call
        self.exact = textbook(call, arrays, torch.float64)
        self.allowed = first_head_errors(textbook(call, arrays, getattr(torch, call.dtype)), self.exact)

    def check(self, name: str, results: list[Tensor]) -> list[float]:
        """The errors of a contender. If they are too large, raises Red for redblue and Refused for a peer."""
        errors = first_head_errors(results, self.exact)
        if within(errors, self.allowed, MAX_OURS if name in OURS else MAX_PEER):
            return errors
        if name in OURS:
            raise Red(f"{name}, {self.call.title}: errors {errors}, errors of the unfused expression {self.allowed}")
        raise Refused(f"too far from float64: {max(errors):.1e}")


def check_small(call: Call, device: str) -> None:
    """Raises Red if redblue is wrong at a small odd size."""
    case = small(call)
    arrays = inputs(case, device)
    Gate(case, arrays).check(PLANNED, contender(PLANNED, case, arrays)())
