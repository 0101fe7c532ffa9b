"""DTensors: attention on tensors that are distributed over a mesh of processes."""

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this PyTorch has no torch.distributed", allow_module_level=True)
pytest.importorskip("torch.distributed.tensor")

import torch.nn.functional as F  # noqa: N812
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

import redblue as rb
from redblue.kernels.mask_argument import MaskArgument
from redblue.kernels.options import Options
from redblue.op.pytorch.masks import name_of
from redblue.op.pytorch.sharding import backward_placements, forward_placements
from redblue.op.pytorch.usage import Usage


@contextmanager
def mesh_of(rank, world, meeting):
    """A mesh of `world` processes, including this one. meeting: a new file by which the processes find each other."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    try:
        yield init_device_mesh("cpu", (world,))
    finally:
        torch.distributed.destroy_process_group()


BIAS = torch.linspace(-1, 1, 35).reshape(5, 7)
OWN_BIAS = torch.linspace(-1, 1, 140).reshape(4, 5, 7)
CALLS = {
    "plain": (4, {}),
    "causal": (4, {"is_causal": True}),
    "grouped": (2, {"enable_gqa": True}),
    "one key head": (1, {"enable_gqa": True}),
    "bias": (4, {"attn_mask": BIAS}),
    "bias per head": (4, {"attn_mask": OWN_BIAS}),
    "boolean": (4, {"attn_mask": OWN_BIAS > 0.3}),
}
PLACEMENTS = [Replicate(), Shard(0), Shard(1), Shard(2)]


def check_calls(mesh, placements):
    """Compare outputs and gradients on DTensors with PyTorch's on whole tensors."""
    for placement in placements:
        for kv_heads, options in CALLS.values():
            torch.manual_seed(0)
            q, k, v = (torch.randn(3, h, n, 8) for h, n in ((4, 5), (kv_heads, 7), (kv_heads, 7)))
            whole = [x.requires_grad_() for x in (q, k, v)]
            parts = [distribute_tensor(x.detach(), mesh, [placement]).requires_grad_() for x in whole]
            results = []
            for inputs in (whole, parts):
                settings = dict(options)
                if (mask := settings.get("attn_mask")) is not None:
                    own = mask.clone() if inputs is whole else distribute_tensor(mask, mesh, [Replicate()])
                    settings["attn_mask"] = own.requires_grad_(own.is_floating_point())
                tensors = [*inputs, *(x for x in settings.values() if getattr(x, "requires_grad", False))]
                if inputs is whole:
                    out = F.scaled_dot_product_attention(*inputs, **settings)
                else:
                    with rb.sdpa() as used:
                        out = F.scaled_dot_product_attention(*inputs, **settings)
                    assert used == Usage(1), used
                results.append([out, *torch.autograd.grad(out.sin().sum(), tensors)])
            if placement == Shard(0) or (placement == Shard(1) and kv_heads > 1):
                assert results[1][0].placements == (placement,)  # nothing was gathered
            for x, y in zip(*results, strict=True):
                assert (x - y.full_tensor()).abs().max() < 5e-6, (placement, options)


def check_options(mesh):
    """Masks, sinks, slopes and dropout with a seed, by redblue's own function."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, n, 8) for n in (5, 7, 7))
    sinks = torch.linspace(0, 1, 4)
    replicated = {"sinks": distribute_tensor(sinks, mesh, [Replicate()])}
    slopes = torch.tensor([0.5, 0.2, 0.1, 0.3])
    two = rb.Mask.from_dense(torch.rand(2, 1, 5, 7).numpy() > 0.4)
    cases = [
        ({"sinks": sinks}, replicated),
        ({"alibi": slopes}, {"alibi": distribute_tensor(slopes, mesh, [Shard(0)])}),
        ({"mask": rb.Mask.documents([2, 3], [3, 4])},) * 2,
        ({"mask": two},) * 2,
        ({"dropout": 0.5, "seed": 3},) * 2,
    ]
    for placement in (Shard(0), Shard(1)):
        for whole, parts in cases:
            wanted = rb.attention(q, k, v, **whole)
            got = rb.attention(*(distribute_tensor(x, mesh, [placement]) for x in (q, k, v)), **parts)
            assert (got.full_tensor() - wanted).abs().max() < 5e-6, (placement, whole)
        leaf = sinks.clone().requires_grad_()
        rb.attention(q, k, v, sinks=leaf).sin().sum().backward()
        tensors = (distribute_tensor(x, mesh, [placement]) for x in (q, k, v))
        ours = replicated["sinks"].detach().requires_grad_()
        rb.attention(*tensors, sinks=ours).sin().sum().backward()
        assert (ours.grad.full_tensor() - leaf.grad).abs().max() < 5e-6


def check_flash_ops(mesh):
    """The flash ops use PyTorch's own sharding rules."""
    torch.manual_seed(0)
    whole = [torch.randn(2, 4, 5, 8, requires_grad=True) for _ in range(3)]
    for placement in (Shard(0), Shard(1)):
        parts = [distribute_tensor(x.detach(), mesh, [placement]).requires_grad_() for x in whole]
        with rb.flash_ops() as used:
            wanted, got = (
                torch.ops.aten._scaled_dot_product_flash_attention(*inputs, 0.0, True)[0] for inputs in (whole, parts)
            )
            gradients = [torch.autograd.grad(x.sin().sum(), y) for x, y in ((wanted, whole), (got, parts))]
        assert used == Usage(2)
        assert got.placements == (placement,)
        for x, y in zip((wanted, *gradients[0]), (got, *gradients[1]), strict=True):
            assert (x - y.full_tensor()).abs().max() < 5e-6


@pytest.mark.filterwarnings("ignore")  # PyTorch's warnings about its own process groups
def test_one_process(tmp_path):
    q = torch.randn(1, 2, 4, 8)
    with mesh_of(0, 1, tmp_path / "meeting") as mesh:
        check_calls(mesh, [Shard(1)])
        part = distribute_tensor(q, mesh, [Shard(1)])
        with pytest.raises(rb.RedblueError, match="dropout of DTensors needs a seed"):
            rb.attention(part, part, part, dropout=0.5)
        with pytest.raises(rb.RedblueError, match="score_mod is for tensors of one process, not for DTensors"):
            rb.flex_attention(part, part, part, lambda score, b, h, q_idx, kv_idx: score + h)
        with rb.sdpa() as used:  # PyTorch computes what redblue refuses
            F.scaled_dot_product_attention(part, part, part, dropout_p=0.5)
        assert list(used.reasons) == ["dropout of DTensors needs a seed, which all processes share: give one"]


@pytest.mark.thorough
def test_two_processes(tmp_path):
    command = [sys.executable, "-W", "ignore", __file__, str(tmp_path / "meeting")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(rb.__file__).parents[1])}
    processes = [
        subprocess.Popen([*command, rank], stderr=subprocess.PIPE, text=True, env=environment) for rank in ("0", "1")
    ]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors


# The rules themselves ------------------------------------------------------------------------------------------------


def spec(*shape, world=2):
    return SimpleNamespace(shape=shape, ndim=len(shape), mesh=SimpleNamespace(size=lambda: world))


def dims(rows):
    """The dimension along which the output of each rule is sharded."""
    return [outputs[0].dim if isinstance(outputs[0], Shard) else None for outputs, _ in rows]


@pytest.mark.parametrize(
    ("kv_heads", "world", "options", "sharded"),
    [
        (4, 3, {}, [None, 0, 1]),
        (2, 2, {}, [None, 0, 1]),
        (2, 4, {}, [None, 0]),
        (1, 2, {}, [None, 0]),
        (4, 2, {"dropout": 0.5, "seed": spec()}, [None]),
    ],
)
def test_rules(kv_heads, world, options, sharded):
    q, k = spec(3, 4, 5, 8, world=world), spec(3, kv_heads, 7, 8, world=world)
    assert dims(forward_placements(q, k, k, *Options(**options).flat)) == sharded


def test_rules_of_masks():
    q = spec(3, 4, 5, 8)
    shared, own = rb.Mask.documents([2, 3]), rb.Mask.key_lengths([1, 2, 3])
    for mask, sharded in ((shared, [None, 0, 1]), (own, [None])):
        rows = forward_placements(q, q, q, *Options(mask=MaskArgument(name=name_of(mask))).flat)
        assert dims(rows) == sharded


def test_rules_of_arrays():
    """An array is sharded like q along dimensions that it has. Along others, its gradient is a partial sum."""
    q, lse = spec(3, 4, 5, 8), spec(3, 4, 5)
    flat = Options(bias=spec(4, 5, 5), sinks=spec(4), alibi=spec(3, 1), positions=spec(14)).flat
    _, batch, heads = forward_placements(q, q, q, *flat)
    assert batch[1][-4:] == [Replicate(), Replicate(), Shard(0), Replicate()]
    assert heads[1][-4:] == [Shard(0), Shard(0), Replicate(), Replicate()]
    for bias_grad in (True, False):
        rows = backward_placements(q, None, q, q, q, q, lse, *flat, bias_grad)
        wanted = [Replicate(), Partial(), Shard(0)] if bias_grad else [Replicate()] * 3
        assert [outputs[3] for outputs, _ in rows] == wanted
        assert all(len(inputs) == 7 + len(flat) + 1 for _, inputs in rows)


if __name__ == "__main__":
    with mesh_of(int(sys.argv[2]), 2, sys.argv[1]) as everyone:
        check_calls(everyone, PLACEMENTS)
        check_options(everyone)
        check_flash_ops(everyone)
