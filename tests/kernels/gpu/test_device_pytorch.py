"""PyTorch's functions and transforms on a real GPU: SDPA, autocast, torch.compile and torch.func."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import torch.nn.functional as F  # noqa: N812
from packaging.version import Version

import redblue as rb
from support.on_device import MASKS, N_K, N_Q, ON_GPU, check_close, normal
from support.textbook import OpRecorder

pytestmark = ON_GPU


SDPA = {
    "wide": ((1, 2, N_Q, 512), {}),
    "wide, causal": ((1, 2, N_Q, 512), {"is_causal": True}),
    "masked": ((1, 2, N_Q, 64), {"attn_mask": "bool"}),
    "added": ((1, 2, N_Q, 64), {"attn_mask": "float"}),
    "plain": ((2, 2, N_Q, 64), {}),
}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize(("shape", "options"), SDPA.values(), ids=SDPA)
def test_scaled_dot_product_attention_is_replaced(shape, options, inference):
    q, k, v = (normal(*shape) for _ in range(3))
    if options.get("attn_mask"):
        mask = normal(N_Q, N_Q, grad=False)
        options = {"attn_mask": mask > 0 if options["attn_mask"] == "bool" else mask}
    theirs = F.scaled_dot_product_attention(q, k, v, **options)
    with rb.sdpa(), torch.inference_mode(inference):
        ours = F.scaled_dot_product_attention(q, k, v, **options)
    check_close(ours, theirs, q.dtype)
    with rb.sdpa(), OpRecorder() as recorder:
        F.scaled_dot_product_attention(q, k, v, **options)
    assert recorder.ours
    if not inference:
        dout = torch.randn_like(ours)
        for x, y in zip(*(torch.autograd.grad(out, (q, k, v), dout) for out in (ours, theirs)), strict=True):
            check_close(x, y, q.dtype)


def test_autocast():
    q, k, v = (normal(1, 2, 70, 64, dtype=torch.float32) for _ in range(3))
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = rb.attention(q, k, v)
    assert out.dtype == torch.bfloat16
    check_close(out, rb.attention(q, k, v), torch.bfloat16)
    assert torch.autograd.grad(out.sum(), q)[0].dtype == torch.float32


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # PyTorch warms up with an empty graph
@pytest.mark.skipif(Version(torch.__version__).release < (2, 13), reason="the compiler of PyTorch 2.11 refuses masks")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("mask", [None, MASKS["blocks"]], ids=["full", "blocks"])
def test_torch_compile(mode, mask):
    torch._dynamo.reset()

    def call(q, k, v):
        return rb.attention(q * 2, k, v, mask=mask, softcap=8.0) + 1

    compiled = torch.compile(call, fullgraph=True, mode=mode)
    for _ in range(4):  # warm-up, capture and replays
        q, k, v = (normal(1, 2, n, 64) for n in (N_Q, N_K, N_K))
        out = compiled(q, k, v).clone()
        expected = call(q, k, v)
        check_close(out, expected, q.dtype)
        dout = torch.randn_like(out)
        gradients = [x.clone() for x in torch.autograd.grad(out, (q, k, v), dout)]
        for x, y in zip(gradients, torch.autograd.grad(expected, (q, k, v), dout), strict=True):
            check_close(x, y, q.dtype)


def test_vmap_and_grad():
    q = normal(3, 2, 70, 64, grad=False)
    gradients = torch.func.vmap(torch.func.grad(lambda x: rb.attention(x, x, x).float().sin().sum()))(q)
    for got, entry in zip(gradients, q, strict=True):
        entry = entry.clone().requires_grad_()
        (expected,) = torch.autograd.grad(rb.attention(entry, entry, entry).float().sin().sum(), entry)
        check_close(got, expected, torch.float16)
