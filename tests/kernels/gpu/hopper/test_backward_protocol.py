"""The backward kernel's own source, run by a model of its barriers, copies and products on the CPU."""

import math
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton.experimental.gluon")

from redblue.kernels.gpu.hopper import backward as hopper
from redblue.kernels.gpu.launch import Task
from redblue.kernels.gpu.planning.one_pass import STAGES, TILES
from redblue.kernels.gpu.planning.plan import Launch
from redblue.kernels.sizes import Sizes
from redblue.schedules.flash_onepass import BackwardTiles
from support.gluon_model import BANDS, ModelError, kernel_source, run_kernel

SOURCE = kernel_source(Path(hopper.__file__).with_name("backward_kernel.py"))


def exact(q, k, v, dout, first, end):
    """out, lse, dq, dk, dv in float64, and whether some query attends each key."""
    group = q.shape[1] // k.shape[1]
    q, dout = q.double(), dout.double()
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None, :]
    attends = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    attends &= j >= i + first if first is not None else attends
    attends &= j < i + end if end is not None else attends
    scale = q.shape[3] ** -0.5
    s = (q @ k.mT * scale).masked_fill(~attends, -math.inf)
    lse = torch.logsumexp(s, -1)
    p = torch.where(attends, torch.exp(s - lse[..., None]), 0.0)
    out = p @ v
    ds = p * (dout @ v.mT - (dout * out).sum(-1, keepdim=True))
    dk, dv = ((x.mT @ y).unflatten(1, (-1, group)).sum(2) for x, y in ((ds * scale, q), (p, dout)))
    return out, lse, ds @ k * scale, dk, dv, attends.any(0)


def prepared(work, lse, delta):
    """Fill what the first launch prepares."""
    n_q = lse.shape[-1]
    rows = torch.zeros(2, *lse.shape[:2], work.padded)
    rows[0] = math.inf
    rows[0, ..., :n_q] = torch.where(lse.isinf(), math.inf, lse * math.log2(math.e))
    rows[1, ..., :n_q] = delta
    work.stats.copy_(rows.unflatten(-1, (-1, work.rows)).movedim(0, -2).flatten(-2))
    work.sums.zero_()


def in_rows(work, d):
    """The sums of dQ as (batch, heads, rows, features)."""
    parts = work.sums.view(*work.sums.shape[:3], work.rows // 16, d // 8, 8, 4, 2, 2)
    return parts.permute(0, 1, 2, 3, 7, 5, 4, 6, 8).reshape(*work.sums.shape[:2], -1, d)


def check(monkeypatch, n=(150, 200), heads=(2, 1), d=64, first=None, end=None, tiles=TILES, source=SOURCE, seed=0):
    torch.manual_seed(0)
    q, dout = (torch.randn(1, heads[0], n[0], d, dtype=torch.bfloat16) for _ in range(2))
    k, v = (torch.randn(1, heads[1], n[1], d, dtype=torch.bfloat16) for _ in range(2))
    out, lse, *right, attended = exact(q, k, v, dout, first, end)
    k[:, :, ~attended], v[:, :, ~attended] = math.nan, math.nan
    dq, dk, dv = (torch.full_like(x, math.nan) for x in (q, k, v))
    sizes = Sizes((1,), heads[1], heads[0] // heads[1], *n, d, d)
    arrays = {"q": q, "k": k, "v": v, "out": out.bfloat16(), "lse": lse.float(), "dout": dout}
    results = {"dq": dq, "dk": dk, "dv": dv, "delta": torch.empty(lse.shape)}
    works = []
    workspace = hopper.workspace
    monkeypatch.setattr(hopper, "workspace", lambda *x: works.append(workspace(*x)) or works[-1])
    task = Task.of(sizes=sizes, first=first, end=end, **arrays, **results)
    runs = hopper.backward(task, Launch("flash_onepass", tiles, 8, STAGES))
    monkeypatch.undo()
    (work,) = works
    prepared(work, lse, (dout.double() * out).sum(-1))
    for launch in runs[1:-1]:
        run_kernel(source, "hopper_backward", launch.grid, launch.arguments, seed)
    gradients = in_rows(work, d)[:, :, : n[0]] * d**-0.5, dk, dv
    for x, y in zip(gradients, right, strict=True):
        assert not torch.isnan(x).any()
        torch.testing.assert_close(x.double(), y, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize(("first", "end"), BANDS)
def test_bands_are_right_whatever_the_order_of_warps(monkeypatch, first, end):
    check(monkeypatch, first=first, end=end)


@pytest.mark.parametrize("n", [(1, 1), (300, 67), (64, 128), (70, 400)])
@pytest.mark.parametrize("end", [None, 1])
def test_ragged_lengths(monkeypatch, n, end):
    check(monkeypatch, n=n, end=end)


@pytest.mark.parametrize("heads", [(1, 1), (6, 2), (10, 5)])
def test_heads_that_share_keys(monkeypatch, heads):
    check(monkeypatch, n=(70, 140), heads=heads, end=100)


def test_wider_features_and_longer_tiles(monkeypatch):
    check(monkeypatch, d=128, end=1)
    check(monkeypatch, tiles=BackwardTiles(128, 128), first=-50, end=11)


FREE = "mbarrier.wait(ring.empty.index(stage), phase ^ 1)"
RELEASE = "        meet()\n        mbarrier.arrive(ring.empty.index(stage), count=1)\n"
LAST_WAIT = "        dk = warpgroup_mma_wait(0, deps=[dk])\n"
MUTATIONS = {
    "tiles are loaded before they are free": (FREE, "pass"),
    "a wrong phase": (FREE, "mbarrier.wait(ring.empty.index(stage), phase)"),
    "queries are not waited for": ("mbarrier.wait(ring.q_full.index(stage), phase)", "pass"),
    "dout is not waited for": ("mbarrier.wait(ring.dout_full.index(stage), phase)", "pass"),
    "tiles are free while a product reads them": (LAST_WAIT + RELEASE, RELEASE + LAST_WAIT),
    "tiles are not counted": ("        count += 1\n    return", "        count += 0\n    return"),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_model_notices_wrong_barriers(monkeypatch, mutation):
    before, after = MUTATIONS[mutation]
    assert before in SOURCE

    def check_mutant():
        for seed in range(5):
            check(monkeypatch, n=(300, 130), heads=(1, 1), source=SOURCE.replace(before, after), seed=seed)

    with pytest.raises((ModelError, AssertionError)):
        check_mutant()
