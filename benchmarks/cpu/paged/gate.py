"""Compare results with the textbook expression in float64, on the first and the last head of keys."""

from __future__ import annotations

from typing import NamedTuple

import torch  # pyright: ignore[reportMissingImports]

from benchmarks.common.gate import relative_errors, unfused, verdict
from benchmarks.cpu.paged.calls import Call, Inputs, attended, sequence
from benchmarks.cpu.paged.contenders import CONTIGUOUS, REDBLUE

OURS = (REDBLUE, CONTIGUOUS)


class Gate(NamedTuple):
    """exact: float64 results (B, n_q, heads, d_v) for some heads of queries. allowed: the textbook's error."""

    heads: list[int]
    exact: torch.Tensor
    allowed: float

    def check(self, name: str, result: torch.Tensor) -> str:
        """The reason why a peer's result is wrong, or "" if it is right. Raises Red if a result of redblue is wrong."""
        errors = relative_errors([result[:, :, self.heads]], [self.exact])
        return verdict(name, errors, [self.allowed], ours=name.startswith(OURS))


def gate(call: Call, x: Inputs) -> Gate:
    keys = sorted({0, call.kv_heads - 1})
    heads = [h * call.group + i for h in keys for i in range(call.group)]
    exact, rough = (_textbook(call, x, keys, dtype) for dtype in (torch.float64, call.torch_dtype))
    (allowed,) = relative_errors([rough], [exact])
    return Gate(heads, exact, allowed)


def _textbook(call: Call, x: Inputs, keys: list[int], dtype: torch.dtype) -> torch.Tensor:
    """Results (B, n_q, heads, d_v) for the queries of these key heads, computed by the textbook expression."""
    outs = []
    own = x.q.view(call.batch, call.n_q, call.kv_heads, call.group, call.d)[:, :, keys].to(dtype) * call.d**-0.5
    for b, n in enumerate(call.lengths):
        k, v = (sequence(pages[:, :, keys], x, b).to(dtype).transpose(0, 1) for pages in (x.k, x.v))
        attends = attended(call, n).repeat(call.group, 1) if call.n_q > 1 else None
        out = unfused(own[b].permute(1, 2, 0, 3).flatten(1, 2), k, v, attends=attends, scale=1.0)
        out = out.view(len(keys) * call.group, call.n_q, call.width_v)
        outs.append(out.transpose(0, 1))
    return torch.stack(outs)
