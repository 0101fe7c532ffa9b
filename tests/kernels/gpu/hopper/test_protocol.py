"""The Hopper kernel's own source, run by a model of its barriers, copies and products on the CPU."""

import math
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton.experimental.gluon")

from redblue.kernels.gpu.hopper import forward as hopper
from redblue.kernels.gpu.hopper.forward import Settings, prepare
from support.gluon_model import BANDS, ModelError, kernel_source, run_kernel

SOURCE = kernel_source(Path(hopper.__file__).with_name("forward_kernel.py"))


def attend(q, k, v, first, end, settings, multiprocessors=3, source=SOURCE, seed=0):
    out = torch.full((*q.shape[:3], v.shape[3]), math.nan, dtype=q.dtype)
    lse = torch.full(q.shape[:3], math.nan)
    launch = prepare(q, k, v, out, lse, 0.2, first, end, settings._replace(multiprocessors=multiprocessors))
    run_kernel(source, "hopper_forward", launch.grid[0], launch.arguments, seed)
    return out, lse


def expected(q, k, v, first, end):
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1).double() for x in (k, v))
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None, :]
    keep = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    keep &= j >= i + first if first is not None else keep
    keep &= j < i + end if end is not None else keep
    s = (q.double() @ k.mT * 0.2).masked_fill(~keep, -math.inf)
    return torch.softmax(s, -1).nan_to_num(0.0) @ v, torch.logsumexp(s, -1)


def check(heads=(2, 2), n=(130, 200), d=(64, 64), first=None, end=None, settings=None, **more):
    torch.manual_seed(0)
    q = torch.randn(2, heads[0], n[0], d[0], dtype=torch.bfloat16)
    k, v = (torch.randn(2, heads[1], n[1], x, dtype=torch.bfloat16) for x in d)
    settings = settings or Settings(cols=32, stages=2)
    for x, y in zip(attend(q, k, v, first, end, settings, **more), expected(q, k, v, first, end), strict=True):
        assert not torch.isnan(x).any()
        torch.testing.assert_close(x.double(), y, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize(("first", "end"), BANDS)
@pytest.mark.parametrize("n", [(130, 200), (200, 67), (1, 1)])
def test_bands_and_ragged_lengths_are_right_whatever_the_order_of_warps(n, first, end):
    check(n=n, first=first, end=end)


@pytest.mark.parametrize(
    "settings",
    [
        Settings(cols=32, stages=3),
        Settings(cols=32, stages=1),
        Settings(cols=32, stages=2, ping_pong=False),
        Settings(cols=32, stages=2, persistent=False),
        Settings(cols=32, stages=2, consumers=3),
        Settings(cols=32, stages=4, consumers=3, ping_pong=False),
        Settings(cols=64, stages=2, section=1),
        Settings(cols=64, stages=2, section=3),
    ],
    ids=str,
)
@pytest.mark.parametrize(("first", "end"), [(None, None), (None, 1), (-50, 11)])
def test_settings_do_not_change_results(settings, first, end):
    check(n=(200, 200), heads=(4, 2), settings=settings, first=first, end=end)


def test_heads_that_share_keys_may_be_stacked():
    for pack, heads in ((2, (4, 2)), (4, (8, 2)), (1, (6, 2))):
        check(n=(70, 90), heads=heads, end=1, settings=Settings(cols=32, pack=pack))


def test_widths_are_padded():
    check(d=(72, 40), end=1)
    check(d=(128, 64))


def test_keys_that_no_query_attends_may_be_nan():
    q, k, v = (torch.randn(1, 1, n, 64, dtype=torch.bfloat16) for n in (40, 200, 200))
    before = attend(q, k, v, 50, 60, Settings(cols=32))
    for x in (k, v):
        x[:, :, :50] = math.nan
        x[:, :, 99:] = math.nan
    after = attend(q, k, v, 50, 60, Settings(cols=32))
    torch.testing.assert_close(after, before)


def test_nan_in_a_query_shows_in_its_row_alone():
    q, k, v = (torch.randn(1, 1, 70, 64, dtype=torch.bfloat16) for _ in range(3))
    q[:, :, 5, 3] = math.nan
    out, lse = attend(q, k, v, None, 1, Settings(cols=32))
    assert out[:, :, 5].isnan().all()
    assert lse[:, :, 5].isnan().all()
    assert out.isnan().sum() == 64
    assert lse.isnan().sum() == 1


@pytest.mark.parametrize(("first", "end"), [(200, 210), (None, -40), (3, 3)])
def test_queries_that_attend_nothing_get_0_whatever_the_keys_hold(first, end):
    q = torch.randn(1, 1, 40, 64, dtype=torch.bfloat16)
    k = v = torch.full((1, 1, 200, 64), math.nan, dtype=torch.bfloat16)
    out, lse = attend(q, k, v, first, end, Settings(cols=32))
    assert not out.any()
    assert torch.equal(lse, torch.full_like(lse, -math.inf))


K_FREE, K_READ = "mbarrier.wait(free.k.index(stage), parity ^ 1)", "mbarrier.arrive(free.k.index(k_stage), count=1)"
S_DONE = "s = warpgroup_mma_wait(1, deps=[s])\n        "
MUTATIONS = {
    "keys are loaded before they are free": (K_FREE, "pass"),
    "values are loaded before they are free": ("mbarrier.wait(free.v.index(stage), parity ^ 1)", "pass"),
    "queries are loaded before they are free": ("mbarrier.wait(free.q.index(i), (blocks_done & 1) ^ 1)", "pass"),
    "a wrong phase of keys": (K_FREE, K_FREE.replace(" ^ 1", "")),
    "values are not waited for": ("mbarrier.wait(filled.v.index(v_stage), v_parity)", "pass"),
    "keys are freed while they are read": (S_DONE + K_READ, K_READ + "\n        " + S_DONE),
    "turns begin with nobody": ("(uses & 1) ^ (0 if CONSUMER else 1)", "(uses & 1)"),
    "uses are not counted from block to block": ("        uses += high - low\n", "        uses += high - low + 1\n"),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_model_notices_wrong_barriers(mutation):
    before, after = MUTATIONS[mutation]
    assert before in SOURCE
    with pytest.raises((ModelError, AssertionError)):
        check_often(n=(300, 230), end=31, source=SOURCE.replace(before, after))


def check_often(**more):
    for seed in range(5):
        check(seed=seed, **more)
