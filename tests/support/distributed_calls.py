"""Calls of redblue.distributed that each process of `support.processes` makes and checks."""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist

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


def options_named(names, placement):
    """Two sets of options: those of one process, and those of this process of several."""
    generator = torch.Generator().manual_seed(1)
    values = {
        "scale": 0.3,
        "softcap": 2.0,
        "sinks": torch.randn(HEADS, generator=generator, dtype=torch.float64),
        "alibi": torch.rand(2, HEADS, generator=generator, dtype=torch.float64),
        "dropout": 0.3,
        "seed": 5,
        "bias": torch.randn(1, HEADS, N, N, generator=generator, dtype=torch.float64),
    }
    one = {name: values[name] for name in names}
    own = dict(one)
    if "bias" in names:
        own["bias"] = distributed.shard(values["bias"], placement=placement)
    for each in (one, own):
        for name in {"sinks", "bias"} & set(names):
            each[name] = each[name].detach().clone().requires_grad_()
    return one, own


def compare(schedule, placement, mask_name, kv_heads=HEADS, names=(), dtype=torch.float64, tolerance=1e-12):
    """Compare this process's part of the outputs and gradients with those of one process."""
    mask = MASKS[mask_name]
    q, k, v, dout, dlse = whole(kv_heads, dtype)
    one, own = options_named(names, placement)

    def part(x, dim=-2):
        return distributed.shard(x, placement=placement, dim=dim)

    wide = [x.double().requires_grad_() for x in (q, k, v)]
    right = rb.attention(*wide, mask=mask, return_lse=True, **one)
    arrays = [one[name] for name in ("bias", "sinks") if name in names]
    right_gradients = torch.autograd.grad(right, (*wide, *arrays), (dout.double(), dlse.double()))
    narrow = [part(x).requires_grad_() for x in (q, k, v)]
    out, lse = distributed.attention(*narrow, mask=mask, placement=placement, schedule=schedule, return_lse=True, **own)
    own_arrays = [own[name] for name in ("bias", "sinks") if name in names]
    gradients = torch.autograd.grad((out, lse), (*narrow, *own_arrays), (part(dout), part(dlse, -1).to(lse.dtype)))
    expected = [part(x) for x in (right[0], *right_gradients[:3])]
    if "bias" in names:
        expected.append(part(right_gradients[3]))
    if "sinks" in names:  # each process has the part of its queries
        gradients = (*gradients[:-1], all_sum(gradients[-1]))
        expected.append(right_gradients[-1])
    for got, wanted in zip((lse, out, *gradients), (part(right[1], -1), *expected), strict=True):
        assert got.dtype == (lse.dtype if got is lse else dtype) or got.dtype == torch.float64
        torch.testing.assert_close(got.double(), wanted.double(), atol=tolerance, rtol=tolerance)


def all_sum(x):
    total = x.clone()
    dist.all_reduce(total)
    return total
