"""Check every contender on CPUs against float64 before it is timed; common/gate.py has the allowed errors."""

from __future__ import annotations

from functools import partial

import torch  # pyright: ignore[reportMissingImports]

from benchmarks.common.gate import MAX_OURS, MAX_PEER, Red, relative_errors, unfused, within
from benchmarks.cpu.peers import REDBLUE, Call, Inputs, contender, gradients, inputs


def by_heads(call: Call, x: Inputs) -> list[torch.Tensor]:
    """The results of the textbook expression in the type of x, head by head."""
    forward, heads = partial(unfused, causal=call.causal), []
    for h in range(call.heads):
        one = Inputs(*(array[:, h : h + 1].detach().clone() for array in x))
        heads.append(gradients(forward, one)() if call.direction == "backward" else [forward(*one[:3])])
    return [torch.cat(parts, 1) for parts in zip(*heads, strict=True)]


def check(call: Call, peers: list[str]) -> tuple[dict[str, list[float]], dict[str, str]]:
    """(errors of the correct contenders and of "unfused", reasons why the others fail).

    Raises Red if redblue is wrong.
    """
    reference = by_heads(call, inputs(call, torch.float64))
    errors, wrong = {"unfused": relative_errors(by_heads(call, inputs(call)), reference)}, {}
    for peer in peers:
        try:
            run = contender(peer, call)
            error = relative_errors(run(), reference) if run else None
        except Exception as failure:  # no failure of a peer may end the run
            if peer == REDBLUE:
                raise
            wrong[peer] = f"{type(failure).__name__}: {str(failure).splitlines()[0]}"
            continue
        if error is None:
            wrong[peer] = "does not support this call"
        elif within(error, errors["unfused"], MAX_OURS if peer == REDBLUE else MAX_PEER):
            errors[peer] = error
        elif peer == REDBLUE:
            raise Red(f"{peer}, {call.title}: errors {error}, errors of the unfused expression {errors['unfused']}")
        else:
            wrong[peer] = f"too far from float64, {max(error):.1e}"
    return errors, wrong
