"""Correctness first: nothing is timed that has not been held against float64.

redblue must be no further from float64 than twice the unfused PyTorch expression in the same type, as everywhere in
this project. A peer must be near enough to be doing the same thing; if it is not, it is left out of its row.
"""

from __future__ import annotations

import torch  # pyright: ignore[reportMissingImports]
from peers import REDBLUE, Call, Inputs, contender, gradients, inputs

MOST = {REDBLUE: 2.0}  # times the error of the unfused expression
MOST_PEER = 4.0


class Red(Exception):
    """redblue gave a wrong result: no number is worth printing."""


def unfused(call: Call, x: Inputs) -> list[torch.Tensor]:
    """The textbook's expression in the type of x, head by head."""

    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q @ k.transpose(-1, -2) * call.d**-0.5
        if call.causal:
            scores = scores.masked_fill(torch.ones(call.n_q, call.n_k, dtype=torch.bool).triu(1), float("-inf"))
        return scores.softmax(-1) @ v

    heads = []
    for h in range(call.heads):
        one = Inputs(*(array[:, h : h + 1].detach().clone() for array in x))
        heads.append(gradients(forward, one)() if call.direction == "backward" else [forward(*one[:3])])
    return [torch.cat(parts, 1) for parts in zip(*heads, strict=True)]


def error(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> list[float]:
    """Of each result, relative, in the Frobenius norm."""
    pairs = zip(found, wanted, strict=True)
    return [float((a.double() - b.double()).norm() / b.double().norm()) for a, b in pairs]


def within(found: list[float], allowed: list[float], most: float) -> bool:
    return all(a <= most * b for a, b in zip(found, allowed, strict=True))  # False for NaN


def check(call: Call, peers: list[str]) -> tuple[dict[str, list[float]], dict[str, str]]:
    """(errors of those that are right, and of "unfused"; what is wrong with others). Raises Red if redblue is wrong."""
    reference = unfused(call, inputs(call, torch.float64))
    errors, wrong = {"unfused": error(unfused(call, inputs(call)), reference)}, {}
    for peer in peers:
        try:
            run = contender(peer, call)
            found = error(run(), reference) if run else None
        except Exception as failure:  # a peer's, of whatever kind, must not end the run
            if peer == REDBLUE:
                raise
            wrong[peer] = f"{type(failure).__name__}: {str(failure).splitlines()[0]}"
            continue
        if found is None:
            wrong[peer] = "cannot do this"
        elif within(found, errors["unfused"], MOST.get(peer, MOST_PEER)):
            errors[peer] = found
        elif peer == REDBLUE:
            raise Red(f"{peer}, {call.title}: errors {found}, of the unfused expression {errors['unfused']}")
        else:
            wrong[peer] = f"too far from float64, {max(found):.1e}"
    return errors, wrong
