"""flex_attention by the GPU kernels: under Triton's interpreter, or, with TRITON_INTERPRET=0, on a GPU."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
flex = pytest.importorskip("torch.nn.attention.flex_attention")

import redblue as rb
from redblue.op.pytorch.interpreted import interpreted
from support.flex import dense
from support.gpu import DEVICE, check_close, normal

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # the interpreter also computes masked lanes
    pytest.mark.filterwarnings("ignore:.torch.jit.script"),
]


@pytest.mark.thorough
@pytest.mark.parametrize("size", [(9, 21), (37, 37)])
def test_all_parts_together(size):
    torch.manual_seed(0)
    n_q, n_k = size
    q, k, v, table = normal(1, 2, n_q, 8), normal(1, 2, n_k, 8), normal(1, 2, n_k, 8), normal(2, 80)
    slopes = torch.tensor([0.25, 0.125], device=DEVICE, dtype=torch.float64)

    def score_mod(s, b, h, i, j):
        capped = 2 * torch.tanh(s * table[h, i] / 2) - slopes[h] * (i + n_k - n_q - j).abs()
        return torch.where(j % 5 != 2, capped + table[h, i - j + 40], -float("inf"))

    def mask_mod(b, h, i, j):
        return (i >= j) & (i - j < 4 + 2 * h)

    block_mask = flex.create_block_mask(mask_mod, 1, 2, n_q, n_k, device=DEVICE, BLOCK_SIZE=8)
    keeps = flex.create_mask(mask_mod, 1, 2, n_q, n_k, device=DEVICE)
    with interpreted() if DEVICE == "cpu" else nullcontext():
        got = rb.flex_attention(q, k, v, score_mod, block_mask, return_lse=True)
    expected = dense(q, k, v, score_mod, keeps)
    inputs = q, k, v, table
    attends = expected[1] > -float("inf")
    douts = torch.randn_like(expected[0]), torch.randn_like(expected[1]) * attends
    finite = expected[0], torch.where(attends, expected[1], 0.0)
    gradients = (
        torch.autograd.grad(got, inputs, [x.to(y) for x, y in zip(douts, got, strict=True)]),
        torch.autograd.grad(finite, inputs, douts),
    )
    for x, y in (*zip(got, expected, strict=True), *zip(*gradients, strict=True)):
        check_close(x, y, q.dtype)
