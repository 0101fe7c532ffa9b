"""The gate of a call on contiguous arrays; common/gate.py has the allowed errors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch  # pyright: ignore[reportMissingImports]

from benchmarks.common.gate import Gate, correct, gate_of, unfused
from benchmarks.cpu.calls import DTYPES, Call, Inputs, in_torch, inputs
from benchmarks.cpu.peers import as_tensors, contender


def gate(call: Call, heads: Sequence[int]) -> Gate:
    """The gate of a call, which compares these heads."""
    heads = list(heads)

    def compared(results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [array[:, heads] for array in results]

    return gate_of(call.title, lambda dtype: by_heads(call, inputs(call, dtype), heads), DTYPES[call.dtype], compared)


def by_heads(call: Call, x: Inputs, heads: Sequence[int]) -> list[torch.Tensor]:
    """The results of the textbook expression in the type of x, head by head."""
    forward, results = partial(unfused, causal=call.causal), []
    for h in heads:
        head = Inputs(*(array[:, h : h + 1].detach().clone() for array in x))
        results.append(in_torch(call.direction, head, forward)())
    return [torch.cat(parts, 1) for parts in zip(*results, strict=True)]


def check(call: Call, names: Sequence[str]) -> tuple[dict[str, list[float]], dict[str, str]]:
    """(errors of the correct contenders and of "unfused", reasons why the others fail).

    Raises Red if redblue is wrong.
    """
    known, wrong = gate(call, range(call.heads)), {}

    def prepared(name: str) -> tuple[list[torch.Tensor], list[float]]:
        results = as_tensors(contender(name, call)())
        return results, known.errors(results)

    errors = correct(known, {name: partial(prepared, name) for name in names}, wrong)
    return {"unfused": known.allowed} | errors, wrong
