"""Calls of redblue.distributed that each process of `support.processes` makes and checks."""

from __future__ import annotations

import numpy as np
import torch

import redblue as rb
from redblue import distributed

N, HEADS, D, D_V = 37, 4, 8, 5
MASKS = {
    "full": rb.Mask.full(),
    "causal": rb.Mask.causal(),
    "window": rb.Mask.sliding_window(4),
    "documents": rb.Mask.documents([5, 20, 12]),
    "random": rb.Mask.from_dense(np.random.default_rng(0).random((N, N)) < 0.1),
    "per head": rb.Mask.per_head([rb.Mask.causal(), rb.Mask.full(), rb.Mask.sliding_window(2), rb.Mask.prefix(3)]),
}


def whole(kv_heads, dtype=torch.float64, n=N):
    generator = torch.Generator().manual_seed(0)
    shapes = (2, HEADS, n, D), (2, kv_heads, n, D), (2, kv_heads, n, D_V), (2, HEADS, n, D_V), (2, HEADS, n)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def compare(schedule, placement, mask_name, kv_heads, dtype=torch.float64, tolerance=1e-12, **options):
    """Compare this process's part of the outputs and gradients with those of one process."""
    mask = MASKS[mask_name]
    q, k, v, dout, dlse = whole(kv_heads, dtype)
    for x in (q, k, v):
        x.requires_grad_()
    right = rb.attention(*(x.double() for x in (q, k, v)), mask=mask, return_lse=True, **options)
    right_gradients = torch.autograd.grad(right, (q, k, v), (dout.double(), dlse.double()))
    parts = [distributed.shard(x.detach(), placement=placement).requires_grad_() for x in (q, k, v)]
    out, lse = distributed.attention(
        *parts, mask=mask, placement=placement, schedule=schedule, return_lse=True, **options
    )
    weights = distributed.shard(dout, placement=placement), distributed.shard(dlse, placement=placement, dim=-1)
    gradients = torch.autograd.grad((out, lse), parts, (weights[0], weights[1].to(lse.dtype)))
    for got, expected in zip((out, *gradients), (right[0], *right_gradients), strict=True):
        torch.testing.assert_close(
            got.double(), distributed.shard(expected, placement=placement).double(), atol=tolerance, rtol=tolerance
        )
    lse_part = distributed.shard(right[1], placement=placement, dim=-1)
    torch.testing.assert_close(lse.double(), lse_part.double(), atol=tolerance, rtol=tolerance)
