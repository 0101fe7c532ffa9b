"""FlashAttention's S_dmask: the probabilities of all pairs, negative where dropout removed them. For tests only."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from redblue.op.api import attention
from redblue.op.pytorch.layouts import sums_of

ROUNDED = 128  # FlashAttention rounds the numbers of queries and keys up to a multiple of this
COLUMNS = 2048  # keys whose probabilities one call computes


def empty(q: Tensor) -> Tensor:
    """The S_dmask of a call without dropout, which is an empty tensor as in FlashAttention."""
    return q.new_empty(0)


@torch.no_grad()
def signed(q: Tensor, k: Tensor, options: dict[str, Any]) -> Tensor:
    """The probabilities (..., H, n_q, n_k) in q's type, negative where dropout removes them.

    q, k: as in `attention`. options: the options of `attention`, with a dropout and a seed.
    """
    wide = sums_of(q.dtype)
    plain = {name: value for name, value in options.items() if name not in ("dropout", "seed")}
    dropped = {name: options[name] for name in ("dropout", "seed")}
    columns = []
    for first in range(0, k.shape[-2], COLUMNS):
        # With the identity as V, the output holds the probabilities
        keys = torch.arange(k.shape[-2], device=q.device)
        v = (keys[:, None] == keys[first : first + COLUMNS]).to(wide)
        v = v.expand(*k.shape[:-2], *v.shape)
        p = attention(q.to(wide), k.to(wide), v, **plain)
        # Scores of 0 give each key the same probability, so the output shows every pair that dropout keeps
        kept = attention(torch.zeros_like(q, dtype=wide), torch.zeros_like(k, dtype=wide), v, **dropped) != 0
        columns.append(torch.where(kept, p, -p).to(q.dtype))
    return torch.cat(columns, -1) if columns else q.new_empty(*q.shape[:-1], 0)


def rounded_up(probabilities: Tensor) -> Tensor:
    """The probabilities, padded with zeros to FlashAttention's rounded numbers of queries and keys."""
    n_q, n_k = probabilities.shape[-2:]
    return functional.pad(probabilities, (0, -n_k % ROUNDED, 0, -n_q % ROUNDED))
