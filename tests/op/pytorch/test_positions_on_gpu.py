"""Positions in the GPU kernels: under Triton's interpreter, or, with TRITON_INTERPRET=0, on a GPU."""

from itertools import product

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import redblue as rb
from redblue import RedblueError
from redblue.op.pytorch import interpreted
from support.gpu import DEVICE
from support.positions import KEY_HEADS, PLACEMENTS, block
from support.textbook import check_close

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # the interpreter also computes masked lanes
    pytest.mark.filterwarnings("ignore:.torch.jit.script"),
]
MASKS = (None, rb.Mask.causal(), rb.Mask.dilated(9, 2))


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def check(cut, dtype=torch.float64, mask=None, **more):
    """Check results and gradients, also of a bias, against float64 and the whole problem's dropout."""
    q, k, v, dout = (torch.tensor(x.astype(np.float64), device=DEVICE).to(dtype) for x in cut.arrays)
    n_q, n_k = q.shape[-2], k.shape[-2]
    bias = torch.randn(n_q, n_k, dtype=torch.float64, device=DEVICE).to(dtype)
    inputs = [x.requires_grad_() for x in (q, k, v, bias)]
    alibi = torch.tensor(cut.options["alibi"], device=DEVICE)
    options = cut.options | {"alibi": alibi, "mask": mask, "bias": bias, **more}
    out, lse = interpreted.attention(q, k, v, return_lse=True, **options)
    gradients = torch.autograd.grad(out, inputs, dout)
    rounded = cut._replace(arrays=[x.detach().cpu().double().numpy() for x in (q, k, v, dout)])
    attends = None if mask is None else mask.to_dense(n_q, n_k)
    expected = rounded.expected(attends, bias=bias.detach().cpu().double().numpy())
    for name, got in zip(("out", "lse", "dq", "dk", "dv", "dbias"), (out, lse, *gradients), strict=True):
        check_close(got, torch.tensor(expected[name], device=DEVICE), dtype)


SCHEDULES = "flash", "hybrid", "small_cache"
FEW = [("contiguous", "flash"), ("zigzag", "hybrid"), ("any order", "small_cache")]
ALL = [pytest.param(*pair, marks=pytest.mark.thorough) for pair in product(PLACEMENTS, SCHEDULES) if pair not in FEW]


@pytest.mark.parametrize(("keys", "schedule"), [*FEW, *ALL])
def test_placements_and_schedules(schedule, keys):
    i = list(PLACEMENTS).index(keys)
    queries, heads = list(PLACEMENTS)[i - 1], list(KEY_HEADS)[i % 2]
    check(block(queries, keys, heads), schedule=schedule, mask=MASKS[i % 3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_types(dtype):
    check(block("zigzag", "strided"), dtype)


@pytest.mark.parametrize("schedule", ["flash", "small_cache"])
def test_the_pattern_of_dropout_is_the_wholes(schedule):
    """With scores of 0 and V the identity, the output holds the probabilities."""
    cut = block("random", "zigzag", "second key head")
    n_k = len(cut.keys)
    q, k = (torch.zeros_like(torch.tensor(x), device=DEVICE) for x in cut.arrays[:2])
    v = torch.eye(n_k, device=DEVICE, dtype=q.dtype).expand(*k.shape[:-1], n_k)
    options = cut.options | {"alibi": None}
    out = interpreted.attention(q, k, v, schedule=schedule, **options)
    assert np.array_equal(out.cpu().numpy() != 0, cut.pattern)


def test_places_outside_the_whole_are_named():
    cut = block("strided", "strided")
    q, k, v, _ = (torch.tensor(x, device=DEVICE) for x in cut.arrays)
    positions = cut.options["positions"]._replace(n_q=20)
    with pytest.raises(RedblueError, match=r"positions\.queries\[7\] must be at least 0 and below 20, got 22"):
        interpreted.attention(q, k, v, positions=positions)
