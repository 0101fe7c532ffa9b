"""Calls of redblue.distributed that each process of `support.processes` makes and checks."""

from __future__ import annotations

import re
import weakref

import numpy as np
import pytest
import torch
import torch.distributed as dist

import redblue as rb
from redblue import distributed
from redblue.distributed import background

N, HEADS, D, D_V = 37, 4, 8, 5
MASKS = {
    "full": rb.Mask.full(),
    "causal": rb.Mask.causal(),
    "window": rb.Mask.sliding_window(4),
    "documents": rb.Mask.documents([5, 20, 12]),
    "random": rb.Mask.from_dense(np.random.default_rng(0).random((N, N)) < 0.1),  # some rows have no keys
    "strided": rb.Mask.from_dense((np.arange(N)[:, None] % 3 == 0) & (np.arange(N) % 4 == 0)),
    "global": rb.Mask.from_dense(np.tril((np.arange(N)[:, None] % 9 == 5) | (np.arange(N) % 9 == 5), -1)),
    "per head": rb.Mask.per_head([rb.Mask.causal(), rb.Mask.full(), rb.Mask.sliding_window(2), rb.Mask.prefix(3)]),
}


def whole(kv_heads, dtype=torch.float64, n=N):
    generator = torch.Generator().manual_seed(0)
    shapes = (2, HEADS, n, D), (2, kv_heads, n, D), (2, kv_heads, n, D_V), (2, HEADS, n, D_V), (2, HEADS, n)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def options_named(names, placement):
    """Two sets of options: for a single process, and for this process of several."""
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
    on_one = {name: values[name] for name in names}
    own = dict(on_one)
    if "bias" in names:
        own["bias"] = distributed.shard(values["bias"], placement=placement)
    for options in (on_one, own):
        for name in {"sinks", "bias"} & set(names):
            options[name] = options[name].detach().clone().requires_grad_()
    return on_one, own


def compare(schedule, placement, mask_name, kv_heads=HEADS, names=(), dtype=torch.float64, tolerance=1e-12):
    """Compare this process's part of the outputs and gradients with those of one process."""
    mask = MASKS[mask_name]
    q, k, v, dout, dlse = whole(kv_heads, dtype)
    on_one, own = options_named(names, placement)

    def part(x, dim=-2):
        return distributed.shard(x, placement=placement, dim=dim)

    wide = [x.double().requires_grad_() for x in (q, k, v)]
    right = rb.attention(*wide, mask=mask, return_lse=True, **on_one)
    arrays = [on_one[name] for name in ("bias", "sinks") if name in names]
    right_gradients = torch.autograd.grad(right, (*wide, *arrays), (dout.double(), dlse.double()))
    narrow = [part(x).requires_grad_() for x in (q, k, v)]
    out, lse = distributed.attention(*narrow, mask=mask, placement=placement, schedule=schedule, return_lse=True, **own)
    own_arrays = [own[name] for name in ("bias", "sinks") if name in names]
    gradients = torch.autograd.grad((out, lse), (*narrow, *own_arrays), (part(dout), part(dlse, -1).to(lse.dtype)))
    expected = [part(x) for x in (right[0], *right_gradients[:3])]
    if "bias" in names:
        expected.append(part(right_gradients[3]))
    if "sinks" in names:  # each process has the contribution of its queries
        gradients = (*gradients[:-1], all_sum(gradients[-1]))
        expected.append(right_gradients[-1])
    for got, wanted in zip((lse, out, *gradients), (part(right[1], -1), *expected), strict=True):
        assert got.dtype == (lse.dtype if got is lse else dtype) or got.dtype == torch.float64
        torch.testing.assert_close(got.double(), wanted.double(), atol=tolerance, rtol=tolerance)


def all_sum(x):
    total = x.clone()
    dist.all_reduce(total)
    return total


def cross_attention():
    """Queries and keys of different lengths, each placed on its own; a bottom-right mask."""
    q, k, v, _, _ = whole(2)
    q, mask = q[..., :21, :], rb.Mask.causal("bottom-right")
    expected = rb.attention(q, k, v, mask=mask)
    for schedule in ("ring", "all_gather", "mesh", "head_parallel"):
        out = distributed.attention(*map(distributed.shard, (q, k, v)), mask=mask, schedule=schedule)
        torch.testing.assert_close(out, distributed.shard(expected), atol=1e-12, rtol=1e-12)


def whole_and_parts():
    """gather puts together the parts that shard makes, and adds up the gradients of all processes."""
    x = torch.randn(3, 11, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    best = distributed.best_placement(rb.Mask.causal(), 11, dist.get_world_size())
    for placement in ("contiguous", "zigzag", "striped", best):
        part = distributed.shard(x, placement=placement).requires_grad_()
        whole = distributed.gather(part, placement=placement)
        assert torch.equal(whole, x)
        (gradient,) = torch.autograd.grad((whole * x).sum() * (1 + dist.get_rank()), part)
        ranks = sum(1 + rank for rank in range(dist.get_world_size()))
        torch.testing.assert_close(gradient, ranks * part.detach())
    for dim in (0, np.int64(0), np.int32(-3)):
        assert torch.equal(distributed.gather(distributed.shard(x, dim=dim), dim=dim), x)
    refused(lambda: distributed.shard(x, dim=3), "dim must be a dimension of x, -3 to 2, got 3")
    for dim in (True, 1.0, "1"):
        refused(lambda dim=dim: distributed.shard(x, dim=dim), f"dim must be a whole number, got {dim!r}")
        refused(lambda dim=dim: distributed.gather(x, dim=dim), f"dim must be a whole number, got {dim!r}")
    refused(lambda: distributed.shard(x.numpy()), "x must be a PyTorch tensor, got ndarray")
    refused(lambda: distributed.gather(x[: dist.get_rank()], dim=0), "the ranks hold [0, 1] tokens")


def other_ranks():
    """One head without batch dimensions, and two batch dimensions."""
    q, k, v, _, _ = whole(HEADS)
    for arrays in ((q[0], k[0], v[0]), [x[None].expand(3, *x.shape) for x in (q, k, v)]):
        expected = rb.attention(*arrays, mask=rb.Mask.causal())
        out = distributed.attention(*map(distributed.shard, arrays), mask=rb.Mask.causal())
        torch.testing.assert_close(out, distributed.shard(expected), atol=1e-12, rtol=1e-12)


def dtensors():
    """DTensors that are sharded along their tokens, of a length that the processes do not divide."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for n in (36, 35):
        arrays = [x[..., :n, :].clone().requires_grad_() for x in whole(2)[:3]]
        expected = rb.attention(*arrays, mask=rb.Mask.causal())
        expected_gradients = torch.autograd.grad(expected.sum(), arrays)
        placed = [distribute_tensor(x.detach(), mesh, [Shard(2)]).requires_grad_() for x in arrays]
        out = distributed.attention(*placed, mask=rb.Mask.causal())
        assert out.placements == (Shard(2),)
        torch.testing.assert_close(out.full_tensor(), expected, atol=1e-12, rtol=1e-12)
        for got, wanted in zip(torch.autograd.grad(out.sum(), placed), expected_gradients, strict=True):
            torch.testing.assert_close(got.full_tensor(), wanted, atol=1e-12, rtol=1e-12)
    copies = [distribute_tensor(x.detach(), mesh, [Replicate()]) for x in arrays]
    refused(lambda: distributed.attention(*copies), "q must be sharded along its tokens, Shard(2)")
    refused(lambda: distributed.attention(placed[0], *arrays[1:]), "k must be a DTensor, because q, k and v must")


def drawn_seed():
    """Without a seed, all processes use rank 0's seed, and each call a new one."""
    q, k, v, _, _ = whole(2)
    parts = [distributed.shard(x) for x in (q, k, v)]
    torch.manual_seed(dist.get_rank())
    first = distributed.gather(distributed.attention(*parts, dropout=0.5))
    second = distributed.gather(distributed.attention(*parts, dropout=0.5))
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    seed = int(torch.randint(2**62, ()))
    torch.testing.assert_close(first, rb.attention(q, k, v, dropout=0.5, seed=seed), atol=1e-12, rtol=1e-12)


def repeated():
    """Calls with equal arguments give bitwise equal results and gradients."""
    q, k, v, dout, _ = whole(2, torch.float32)
    parts = [distributed.shard(x).requires_grad_() for x in (q, k, v)]
    for schedule in ("ring", "mesh"):
        runs = []
        for _ in range(3):
            out = distributed.attention(*parts, mask=rb.Mask.causal(), schedule=schedule)
            runs.append([out, *torch.autograd.grad(out, parts, distributed.shard(dout))])
        assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(runs[0], run, strict=True))


def refusals():
    """A wrong argument in one process raises an error in all processes before anything is sent."""
    rank = dist.get_rank()
    q, k, v = (distributed.shard(x) for x in whole(2)[:3])

    def call(q=q, k=k, v=v, **options):
        return distributed.attention(q, k, v, **options)

    refused(lambda: call(q.clone().requires_grad_(rank == 0)), "whether gradients are required must be the same on all")
    refused(lambda: call(schedule=["ring"] if rank else "ring"), "TypeError: unhashable type")
    refused(lambda: call(k=k.to("meta") if rank else k), "k must be on the device of q (cpu), got meta")
    planes = rb.Mask.per_head([rb.Mask.causal()] * 3)
    refused(
        lambda: call(mask=planes), "the mask has planes of shape (3,), which must broadcast to (..., heads) = (2, 4)"
    )
    refused(lambda: distributed.gather(q[..., rank:]), "other dimensions must be the same on all ranks")
    refused(lambda: distributed.gather(q, dim=9 if rank else 0), "dim must be a dimension of x")
    assert call().shape == v.shape[:1] + q.shape[1:3] + v.shape[3:]


def unusual_arguments():
    """Two batch dimensions of masks, biases of fewer dimensions, and grouped heads with separate masks."""
    q, k, v, _, _ = whole(2)
    generator = np.random.default_rng(0)
    planes, of_heads = (rb.Mask.from_dense(generator.random((*lead, N, N)) < 0.3) for lead in ((2, 1), (HEADS,)))
    row, of_all = torch.randn(N, dtype=q.dtype), torch.tensor(0.5, dtype=q.dtype)
    dist.broadcast(row, 0)
    doubled = [torch.stack([x, 2 * x, -x]) for x in (q, k, v)]
    for arrays, options in (
        (doubled, {"mask": planes}),
        ((q, k, v), {"mask": of_heads}),
        ((q, k, v), {"bias": row}),
        (doubled, {"bias": row}),
        ((q, k, v), {"bias": of_all}),
        ((q, k, v), {"sinks": torch.full((HEADS,), float("-inf"), dtype=q.dtype), "mask": planes}),
        ([x[..., :1, :] for x in (q, k, v)], {}),  # one process has no tokens
        ((q, k[..., :0, :], v[..., :0, :]), {"sinks": row[:HEADS]}),
    ):
        on_one, own = (
            [x.clone().requires_grad_() for x in group] for group in (arrays, map(distributed.shard, arrays))
        )
        expected, out = rb.attention(*on_one, **options), distributed.attention(*own, **options)
        torch.testing.assert_close(out, distributed.shard(expected), atol=1e-12, rtol=1e-12)
        gradients = torch.autograd.grad(expected.sum(), on_one), torch.autograd.grad(out.sum(), own)
        for wanted, got in zip(*gradients, strict=True):
            torch.testing.assert_close(got, distributed.shard(wanted), atol=1e-12, rtol=1e-12)


def autocast():
    """Under autocast, outputs have its type, and gradients the types of the inputs."""
    q, k, v = (distributed.shard(x).float().requires_grad_() for x in whole(2)[:3])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = distributed.attention(q, k, v)
        expected = distributed.attention(q.bfloat16(), k.bfloat16(), v.bfloat16())
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, expected)
    assert all(x.dtype == torch.float32 for x in torch.autograd.grad(out.float().sum(), (q, k, v)))


def refused(call, message):
    """Assert that a call raises RedblueError with this message."""
    with pytest.raises(rb.RedblueError, match=re.escape(message)):
        call()


def second_derivatives():
    """Second derivatives of attention and of gather are refused, also if the gradient of the output is constant."""
    q, k, v = (distributed.shard(x).requires_grad_() for x in whole(2)[:3])
    for out in (distributed.attention(q, k, v).sum(), distributed.attention(q, k, v).sin().sum()):
        gradients = torch.autograd.grad(out, (q, k, v), create_graph=True)
        refused(lambda: gradients[0].sum().backward(), "double backward is not supported")  # noqa: B023
    (gradient,) = torch.autograd.grad(distributed.gather(q).sin().sum(), q, create_graph=True)
    refused(lambda: gradient.sum().backward(), "double backward is not supported")


def long_error():
    """An error text of many bytes reaches the other processes."""
    q, options = torch.ones(1, 1, 2, 4), {"é" * 3000: 1} if dist.get_rank() else {}
    with pytest.raises((rb.RedblueError, TypeError), match="éééé"):
        distributed.attention(q, q, q, **options)


def other_backends():
    """Groups whose backends are given by device, or not at all, wait in the background, too. Returns their names."""
    right, starts, names = background.Background.start, [], []

    def start(self, function):
        starts.append(function)
        return right(self, function)

    for backend in ("cpu:gloo", None):
        group = dist.new_group(backend=backend)
        names.append(dist.get_backend(group))
        parts = [distributed.shard(x, group=group) for x in whole(2)[:3]]
        background.Background.start = start
        try:
            starts.clear()
            distributed.attention(*parts, group=group)
            assert len(starts) >= 4
        finally:
            background.Background.start = right
    return names


def leaving_tensors():
    """The most tensors of this process's messages that are alive at once, in both passes of a ring."""
    right, sent, most = dist.batch_isend_irecv, [], [0]

    def watched(operations):
        sent.extend(weakref.ref(x.tensor) for x in operations if x.op is dist.isend)
        most.append(sum(x() is not None for x in sent))
        return right(operations)

    parts = [distributed.shard(x).requires_grad_() for x in whole(2)[:3]]
    out = distributed.attention(*parts, schedule="ring")  # the agreement and the first pass connect the processes
    dist.batch_isend_irecv = watched  # pyright: ignore
    try:
        out = distributed.attention(*parts, schedule="ring")
        out.sum().backward()
    finally:
        dist.batch_isend_irecv = right
    return max(most), len(sent)
