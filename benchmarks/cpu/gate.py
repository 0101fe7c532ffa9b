"""The gate of benchmarks on CPUs: every contender is held against float64 before it is timed; see common/gate.py."""

from __future__ import annotations

import torch  # pyright: ignore[reportMissingImports]

from benchmarks.common.gate import MAX_OURS, MAX_PEER, Red, relative_errors, within
from benchmarks.cpu.peers import REDBLUE, Call, Inputs, contender, gradients, inputs


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


def check(call: Call, peers: list[str]) -> tuple[dict[str, list[float]], dict[str, str]]:
    """(errors of those that are right, and of "unfused"; what is wrong with others). Raises Red if redblue is wrong."""
    reference = unfused(call, inputs(call, torch.float64))
    errors, wrong = {"unfused": relative_errors(unfused(call, inputs(call)), reference)}, {}
    for peer in peers:
        try:
            run = contender(peer, call)
            found = relative_errors(run(), reference) if run else None
        except Exception as failure:  # a peer's, of whatever kind, must not end the run
            if peer == REDBLUE:
                raise
            wrong[peer] = f"{type(failure).__name__}: {str(failure).splitlines()[0]}"
            continue
        if found is None:
            wrong[peer] = "cannot do this"
        elif within(found, errors["unfused"], MAX_OURS if peer == REDBLUE else MAX_PEER):
            errors[peer] = found
        elif peer == REDBLUE:
            raise Red(f"{peer}, {call.title}: errors {found}, of the unfused expression {errors['unfused']}")
        else:
            wrong[peer] = f"too far from float64, {max(found):.1e}"
    return errors, wrong
