"""Checks of GPU kernels: under Triton's interpreter, or, with TRITON_INTERPRET=0, on a GPU."""

from functools import partial

import numpy as np
import pytest
import torch

import redblue as rb
from redblue.kernels.gpu.scores import INTERPRETED
from redblue.op.pytorch import interpreted
from support.textbook import TOLERANCE, textbook
from support.textbook import check_close as check_to

DEVICE = "cpu" if INTERPRETED.value else "cuda"
interpreted_only = pytest.mark.skipif(DEVICE == "cuda", reason="tests the interpreter only")
NEAR = TOLERANCE | {torch.float16: 2e-3, torch.bfloat16: 1.2e-2}  # truncation instead of rounding gives bfloat16 1.5e-2
check_close = partial(check_to, tolerance=NEAR)


def normal(*shape, dtype=torch.float64):
    return torch.randn(shape, dtype=dtype, device=DEVICE, requires_grad=True)


def check_forward(q, k, v, **options):
    """Check out and lse; return them and their references."""
    got = interpreted.attention(q, k, v, **options, return_lse=True)
    if options.get("dropout"):  # other tests compare the CPU's dropout with the textbook
        on_cpu = {name: x.cpu() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
        expected = rb.attention(*(x.cpu().double() for x in (q, k, v)), **on_cpu, return_lse=True)
    else:
        expected = textbook(q, k, v, **options, return_lse=True)
    for x, y in zip(got, expected, strict=True):
        check_close(x, y, q.dtype)
    return got, expected


def check(q, k, v, *more, **options):
    """Check outputs, and gradients of q, k, v and `more` (the options that have gradients)."""
    got, expected = check_forward(q, k, v, **options)
    douts = [torch.randn_like(x) for x in got]
    gradients = torch.autograd.grad(got, (q, k, v, *more), douts)
    references = torch.autograd.grad(
        expected, (q, k, v, *more), [x.double().to(y.device) for x, y in zip(douts, expected, strict=True)]
    )
    for x, y, z in zip(gradients, references, (q, k, v, *more), strict=True):
        assert x.dtype == z.dtype
        check_close(x, y, q.dtype)
    return got


MASKS = [
    rb.Mask.full(),
    rb.Mask.causal(),
    rb.Mask.causal(align="bottom-right"),
    rb.Mask.sliding_window(5, 3),
    rb.Mask.sliding_window(20, 2, align="bottom-right"),
]
SPARSE = {
    "documents": rb.Mask.documents([3, 20, 14]),
    "causal documents": rb.Mask.documents([3, 20, 14]) & rb.Mask.causal(),
    "blocks": rb.Mask.blocks([[True, False, True], [False, False, True], [False, False, False]], 16),
    "dots": rb.Mask.from_dense(np.random.default_rng(0).random((37, 37)) < 0.1),
    "nothing": rb.Mask.from_dense(np.zeros((37, 37), bool)),
}
