"""Helpers of the tests on a real GPU: masks, tensors, and checks of values and gradients against float64."""

import numpy as np
import pytest
import torch
import triton

import redblue as rb
from support.textbook import textbook

ON_GPU = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU"),
    pytest.mark.skipif(triton.knobs.runtime.interpret, reason="Triton interprets: set TRITON_INTERPRET=0"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script"),
    pytest.mark.usefixtures("nan_in_new_memory"),
]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 6e-3, torch.bfloat16: 4e-2}
BLOCK_LAYOUT = np.random.default_rng(0).random((8, 11)) < 0.4
MASKS = {
    "full": None,
    "causal": rb.Mask.causal(),
    "window": rb.Mask.sliding_window(100, 20, align="bottom-right"),
    "documents": rb.Mask.documents([100, 33, 200, 1, 166], [200, 40, 160, 99, 201]) & rb.Mask.causal(),
    "blocks": rb.Mask.blocks(BLOCK_LAYOUT, 64),
}
N_Q, N_K = 500, 700


def normal(*shape, dtype=torch.float16, grad=True, device="cuda"):
    return torch.randn(shape, dtype=dtype, device=device, requires_grad=grad)


def check_close(got, expected, dtype):
    assert got.shape == expected.shape
    got, expected = got.detach().double().cpu(), expected.detach().double().cpu()
    finite = expected.isfinite()
    assert torch.equal(got[~finite], expected[~finite])
    size = max(1.0, float(expected[finite].abs().max())) if finite.any() else 1.0
    error = float((got - expected)[finite].abs().max()) if finite.any() else 0.0
    assert error <= TOLERANCE[dtype] * size, f"error {error:.2e} of {size:.2e}"


def check(q, k, v, *more, **options):
    """Check outputs and gradients against float64 on the CPU."""
    inputs = [x for x in (q, k, v, *more) if x.requires_grad]
    doubles = [x.detach().cpu().double().requires_grad_() for x in inputs]
    double_of = {id(x): y for x, y in zip(inputs, doubles, strict=True)}
    on_cpu = {name: double_of.get(id(x), x.cpu() if isinstance(x, torch.Tensor) else x) for name, x in options.items()}
    got = rb.attention(q, k, v, **options, return_lse=True)
    expected = textbook(*doubles[:3], **on_cpu, return_lse=True)
    for x, y in zip(got, expected, strict=True):
        check_close(x, y, q.dtype)
    douts = [torch.randn_like(x) for x in got]
    gradients = torch.autograd.grad(got, inputs, douts)
    references = torch.autograd.grad(expected, doubles, [x.double().cpu() for x in douts])
    for x, y in zip(gradients, references, strict=True):
        check_close(x, y, q.dtype)
