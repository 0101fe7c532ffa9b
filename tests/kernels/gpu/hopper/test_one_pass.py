"""flash_onepass on Hopper: its plan, the calls that its kernels support, and its results (on such a GPU)."""

import math
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton.experimental.gluon")

import torch

import redblue as rb
from redblue.kernels.gpu.hopper.sums import finish_run, prepare_run, workspace
from redblue.kernels.gpu.launch import PlanOptions, Task
from redblue.kernels.gpu.planning import by_gluon, hopper, one_pass
from redblue.kernels.gpu.planning.card import Card
from redblue.kernels.gpu.planning.plan import _for_hopper, candidates
from redblue.kernels.sizes import Sizes
from support.gpu import DEVICE, interpreted_only
from support.textbook import check_close, textbook

ON_HOPPER = DEVICE == "cuda" and torch.cuda.get_device_capability()[0] == 9
FULL, BAND = (PlanOptions(by_gluon=mask, any_order=True) for mask in ("full", "band"))


@pytest.fixture
def compiled(monkeypatch):
    """Plan as if Triton did not interpret."""
    monkeypatch.setattr(hopper, "available", lambda: True)
    _for_hopper.cache_clear()
    yield
    _for_hopper.cache_clear()


def kernels(direction="backward", d=128, n=8192, heads=32, dtype="bfloat16", card=None, options=BAND, schedule="auto"):
    sizes = Sizes((1,), heads, 1, n, n, d, d)
    return [launch.kernel for launch in candidates(direction, sizes, dtype, card or Card(), options, schedule)]


@pytest.mark.parametrize("schedule", ["auto", "flash"])
def test_one_pass_comes_before_flash_where_it_was_faster(compiled, schedule):
    for options, d in ((FULL, 128), (BAND, 128), (BAND, 64)):
        planned = kernels(d=d, schedule=schedule, options=options)
        assert planned[0] == "flash_onepass"
        assert "flash" in planned


@pytest.mark.parametrize(
    "call",
    [
        {"options": BAND._replace(any_order=False)},
        {"options": BAND._replace(by_gluon="")},
        {"options": FULL, "d": 64},
        {"direction": "forward"},
        {"d": 80},
        {"d": 256},
        {"dtype": "float32"},
        {"card": Card(arch=80)},
        {"card": Card(arch=100)},
        {"card": Card(shared_bytes=99 << 10)},
        {"schedule": "hybrid"},
        {"n": 256, "heads": 2},
    ],
    ids=str,
)
def test_other_calls_are_not_planned_so(compiled, call):
    assert "flash_onepass" not in kernels(**call)


@interpreted_only
def test_the_interpreter_plans_two_passes():
    assert "flash_onepass" not in kernels()


def task_of(n_q=70, d=64, **more):
    arrays = {name: torch.randn(1, 2, n_q, d, dtype=torch.float16, device=DEVICE) for name in ("q", "k", "v", "out")}
    numbers = {name: torch.randn(1, 2, n_q, device=DEVICE) for name in ("lse", "delta")}
    arrays |= {"dout": torch.randn_like(arrays["q"]), "dq": torch.full_like(arrays["q"], math.nan)}
    return Task.of(sizes=Sizes((1,), 2, 1, n_q, n_q, d, d), **arrays, **numbers, **more)


def can_take_one_pass(task):
    return bool(task.plan_options.by_gluon) and task.plan_options.any_order


def test_options_that_need_two_passes():
    assert can_take_one_pass(task_of())
    seed = torch.zeros(1, dtype=torch.int64)
    slopes = torch.ones(1, 2)
    for more in (
        {"mask": rb.Mask.dilated(4, step=3)},
        {"softcap": 5.0},
        {"dropout": 0.1, "seed": seed},
        {"alibi": slopes},
    ):
        assert not can_take_one_pass(task_of(**more))
    torch.use_deterministic_algorithms(True)
    try:
        assert not can_take_one_pass(task_of())
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("rows", [64, 128])
def test_statistics_and_sums(rows):
    """prepare and finish_dq, with sums in the order in which the threads of a product hold them."""
    torch.manual_seed(0)
    task = task_of(dlse=torch.randn(1, 2, 70, device=DEVICE))
    task.lse[0, 1, 3] = -math.inf
    work = workspace(task, rows)
    work.sums.fill_(math.nan)
    prepare_run(task, work)()
    delta = (task.dout.double() * task.out.double()).sum(-1) - task.dlse
    check_close(task.delta, delta, torch.float32)
    assert not work.sums.any()
    stats = work.stats.view(2, -1, 2, rows)
    log2s = task.lse[0] * math.log2(math.e)
    log2s[1, 3] = math.inf
    for head in range(2):
        torch.testing.assert_close(stats[head, :, 0].flatten()[:70], log2s[head])
        check_close(stats[head, :, 1].flatten()[:70], delta[0, head], torch.float32)
        assert stats[head, :, 0].flatten()[70:].eq(math.inf).all()
        assert not stats[head, :, 1].flatten()[70:].any()
    tiles = torch.randn(2, stats.shape[1], rows // 16, 2, 8, 64 // 8, 4, 2, device=DEVICE)
    work.sums.copy_(tiles.permute(0, 1, 2, 5, 4, 6, 3, 7).reshape(work.sums.shape))
    finish_run(task, work)()
    expected = tiles.reshape(2, -1, 64)[:, :70] * 64**-0.5
    torch.testing.assert_close(task.dq[0], expected.half())


COMPILED = """
from redblue.kernels.sizes import Sizes
from redblue.kernels.gpu.planning import fit, one_pass
from redblue.kernels.gpu.planning.card import Card
from redblue.kernels.gpu.planning.plan import Launch

for d, shared_bytes in one_pass.SHARED_BYTES.items():
    launch = Launch("flash_onepass", one_pass.TILES, 8, one_pass.STAGES)
    for band in ({}, {"end": 1}, {"first": -100, "end": 30}):
        for each in fit.fits("backward", Sizes((1,), 4, 2, 1000, 1000, d, d), "bfloat16", Card(), launch, **band):
            good = not each.serialized and each.spilled_bytes <= 64 and each.shared_bytes <= shared_bytes
            print("good" if good else (d, band, each))
"""


@pytest.mark.thorough
def test_compiled_kernels_fit_and_are_not_serialized():
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    run = subprocess.run([sys.executable, "-c", COMPILED], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["good"] * (2 * 3 * 3)


BANDS = {
    "full": {},
    "causal": {"mask": rb.Mask.causal()},
    "causal, bottom-right": {"mask": rb.Mask.causal(align="bottom-right")},
    "window": {"mask": rb.Mask.sliding_window(100, 20)},
    "window, bottom-right": {"mask": rb.Mask.sliding_window(100, 20, align="bottom-right")},
}


@pytest.mark.skipif(not ON_HOPPER, reason="needs a Hopper GPU, and TRITON_INTERPRET=0")
@pytest.mark.parametrize("band", BANDS)
@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_on_a_hopper_gpu(monkeypatch, d, band, dtype):
    monkeypatch.setenv("REDBLUE_TUNE", "0")
    for planning in (by_gluon, one_pass):
        monkeypatch.setattr(planning, "BUSY", 0.0)
    _for_hopper.cache_clear()
    torch.manual_seed(0)
    for (n_q, n_k), heads, kv_heads in (((333, 517), 4, 2), ((517, 333), 2, 2), ((1, 77), 3, 1)):
        q = torch.randn(2, n_q, heads, d, dtype=dtype, device="cuda").transpose(1, 2).requires_grad_()
        k, v = (torch.randn(2, kv_heads, n_k, d, dtype=dtype, device="cuda", requires_grad=True) for _ in range(2))
        out, lse = rb.attention(q, k, v, **BANDS[band], return_lse=True)
        doubles = [x.detach().cpu().double().requires_grad_() for x in (q, k, v)]
        exact, exact_lse = textbook(*doubles, **BANDS[band], return_lse=True)
        dlse = torch.where(exact_lse.isfinite(), torch.randn_like(exact_lse), 0.0)
        dout = torch.randn_like(out)
        gradients = torch.autograd.grad((out, lse), (q, k, v), (dout, dlse.to(lse)))
        expected = torch.autograd.grad((exact, exact_lse), doubles, (dout.cpu().double(), dlse))
        for x, y in zip((out, *gradients), (exact, *expected), strict=True):
            check_close(x, y, dtype)
