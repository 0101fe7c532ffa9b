"""The attentions that training runs compare, by name; the model around them is the same."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from redblue.masks import Mask
from redblue.op.api import attention
from redblue.studies.training.model import Attend
from redblue.studies.training.names import NONE, REDBLUE, SDPA, UNFUSED


def unfused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, allowed: torch.Tensor | None) -> torch.Tensor:
    """The formula, with all scores in memory. allowed: True where a query attends a key."""
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if allowed is not None:
        scores = scores.masked_fill(~allowed, float("-inf"))
    return torch.softmax(scores, -1) @ v


def none(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """No attention. The time of a step with it is the time that all other parts of the step take."""
    return v


def causal(name: str, n: int) -> Attend:
    """Causal attention over n tokens."""
    if name == SDPA:
        return partial(functional.scaled_dot_product_attention, is_causal=True)
    return masked(name, Mask.causal(), torch.ones(n, n, dtype=torch.bool).tril() if name == UNFUSED else None)


def masked(name: str, mask: Mask | None, allowed: torch.Tensor | None) -> Attend:
    """Attention under a mask: redblue's takes `mask`; PyTorch's take `allowed`, the same mask as a boolean tensor."""
    known: dict[str, Any] = {
        REDBLUE: partial(attention, mask=mask),
        SDPA: partial(functional.scaled_dot_product_attention, attn_mask=allowed),
        UNFUSED: partial(unfused, allowed=allowed),
        NONE: none,
    }
    return known[name]


def gathered(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rows: torch.Tensor, cols: torch.Tensor) -> torch.Tensor:
    """Attention along the edges rows[e] -> cols[e] of a graph, as in graph libraries: gather, then scatter.

    All tensors have a batch of 1 and n nodes; each node occurs in `rows` at least once.
    """
    heads, n = q.shape[1], q.shape[2]
    scores = (q[:, :, rows] * k[:, :, cols]).sum(-1) / math.sqrt(q.shape[-1])
    index = rows.expand(1, heads, -1)
    peak = scores.new_full((1, heads, n), float("-inf")).scatter_reduce(2, index, scores.detach(), "amax")
    weights = torch.exp(scores - peak.gather(2, index))
    sums = weights.new_zeros(1, heads, n).scatter_add(2, index, weights)
    weighted = weights[..., None] * v[:, :, cols]
    return torch.zeros_like(v).index_add(2, rows, weighted.to(v.dtype)) / sums[..., None].to(v.dtype)
