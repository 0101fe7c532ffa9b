"""Check every contender on CPUs against float64 before it is timed; common/gate.py has the allowed errors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch  # pyright: ignore[reportMissingImports]

from benchmarks.common.gate import relative_errors, unfused, verdict, why
from benchmarks.cpu.calls import Call, Inputs, in_torch, inputs
from benchmarks.cpu.peers import REDBLUE, as_tensors, contender


class Gate(NamedTuple):
    """exact: results (1, heads, n, d) in float64 for some heads. allowed: the errors of the textbook expression."""

    call: Call
    heads: list[int]
    exact: list[torch.Tensor]
    allowed: list[float]

    def errors(self, results: Sequence[torch.Tensor]) -> list[float]:
        return relative_errors([array[:, self.heads] for array in results], self.exact)

    def check(self, name: str, results: Sequence[torch.Tensor]) -> str:
        """The reason why a peer's results are wrong, or "". Raises Red if results of redblue are wrong."""
        return verdict(f"{name}, {self.call.title}", self.errors(results), self.allowed, ours=name == REDBLUE)


def gate(call: Call, heads: Sequence[int]) -> Gate:
    """The gate of a call, which compares these heads."""
    exact, rough = (by_heads(call, inputs(call, dtype), heads) for dtype in (torch.float64, None))
    return Gate(call, list(heads), exact, relative_errors(rough, exact))


def by_heads(call: Call, x: Inputs, heads: Sequence[int]) -> list[torch.Tensor]:
    """The results of the textbook expression in the type of x, head by head."""
    forward, results = partial(unfused, causal=call.causal), []
    for h in heads:
        head = Inputs(*(array[:, h : h + 1].detach().clone() for array in x))
        results.append(in_torch(call.direction, head, forward)())
    return [torch.cat(parts, 1) for parts in zip(*results, strict=True)]


def check(call: Call, peers: list[str]) -> tuple[dict[str, list[float]], dict[str, str]]:
    """(errors of the correct contenders and of "unfused", reasons why the others fail).

    Raises Red if redblue is wrong.
    """
    known = gate(call, range(call.heads))
    errors, wrong = {"unfused": known.allowed}, {}
    for peer in peers:
        try:
            results = as_tensors(contender(peer, call)())
        except Exception as failure:  # no failure of a peer may end the run
            if peer == REDBLUE:
                raise
            wrong[peer] = why(failure)
            continue
        if reason := known.check(peer, results):
            wrong[peer] = reason
        else:
            errors[peer] = known.errors(results)
    return errors, wrong
