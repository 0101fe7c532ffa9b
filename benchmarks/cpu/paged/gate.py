"""The gate of a call on a paged cache, which compares the queries of the first and of the last head of keys."""

from __future__ import annotations

from collections.abc import Sequence

import torch  # pyright: ignore[reportMissingImports]

from benchmarks.common.gate import REDBLUE, Gate, gate_of, unfused
from benchmarks.cpu.paged.calls import Call, Inputs, attended, sequence
from benchmarks.cpu.paged.contenders import CONTIGUOUS


def gate(call: Call, x: Inputs) -> Gate:
    keys = sorted({0, call.kv_heads - 1})
    heads = [h * call.group + i for h in keys for i in range(call.group)]

    def compared(results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [out[:, :, heads] for out in results]

    def textbook(dtype: torch.dtype) -> list[torch.Tensor]:
        return [_textbook(call, x, keys, dtype)]

    return gate_of(f"{call.dtype}, {call.title}", textbook, call.torch_dtype, compared, (REDBLUE, CONTIGUOUS))


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
