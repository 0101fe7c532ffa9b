"""Checks an installed redblue from outside the repository: make wheel runs this file in an empty environment.

Arguments name the installed extras; only torch has checks here.
"""

import json
import platform
import subprocess
import sys
from importlib.metadata import files
from pathlib import Path

import numpy as np

import redblue as rb

RNG = np.random.default_rng(0)


def reference(q, k, v, mask):
    """Attention with causal mask in float64, and its log-sum-exp, for the heads of q over grouped heads of k and v."""
    k, v = (np.repeat(x, q.shape[0] // x.shape[0], axis=0).astype(np.float64) for x in (k, v))
    scores = np.where(mask, q.astype(np.float64) @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1]), -np.inf)
    lse = np.log(np.exp(scores - scores.max(-1, keepdims=True)).sum(-1)) + scores.max(-1)
    return np.exp(scores - lse[..., None]) @ v, lse


def arrays(n=67, d=40, heads=4, kv_heads=2):
    return [RNG.standard_normal((h, n, d), dtype=np.float32) for h in (heads, kv_heads, kv_heads, heads)]


def check_numpy():
    """Attention and its gradients on NumPy arrays; the gradient is compared with a difference quotient."""
    q, k, v, dout = arrays()
    mask, seen = rb.Mask.causal(), np.tri(67, dtype=bool)
    out, lse = rb.attention(q, k, v, mask=mask, return_lse=True)
    np.testing.assert_allclose(out, reference(q, k, v, seen)[0], rtol=0, atol=5e-6)
    np.testing.assert_allclose(lse, reference(q, k, v, seen)[1], rtol=0, atol=5e-6)
    grads = rb.attention_backward(dout, q, k, v, out, lse, mask=mask)
    step = 1e-4
    for i, grad in enumerate(grads):
        way = RNG.standard_normal(grad.shape)
        ends = []
        for sign in (1, -1):
            inputs = [x.astype(np.float64) for x in (q, k, v)]
            inputs[i] += sign * step * way
            ends.append((reference(*inputs, seen)[0] * dout).sum())
        np.testing.assert_allclose((grad * way).sum(), (ends[0] - ends[1]) / (2 * step), rtol=1e-4)


def check_torch():
    """Attention and its gradients on PyTorch tensors, through the public function and under rb.sdpa()."""
    import torch

    q, k, v, dout = map(torch.from_numpy, arrays(kv_heads=4))
    for x in (q, k, v):
        x.requires_grad_()
    sdpa = torch.nn.functional.scaled_dot_product_attention
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        theirs = sdpa(q.double(), k.double(), v.double(), is_causal=True)
    with rb.sdpa() as record:
        swapped = sdpa(q[None], k[None], v[None], is_causal=True)[0]
    assert record.served == 1, f"under rb.sdpa(): {record}"
    expected = torch.autograd.grad((theirs * dout).sum(), (q, k, v))
    for ours in (rb.attention(q, k, v, mask=rb.Mask.causal()), swapped):
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=1e-5)
        for grad, right in zip(torch.autograd.grad((ours * dout).sum(), (q, k, v)), expected, strict=True):
            torch.testing.assert_close(grad, right, rtol=0, atol=1e-4)


def main():
    extras = sys.argv[1:]
    home = Path(rb.__file__).resolve()
    assert home.is_relative_to(Path(sys.prefix).resolve()), f"redblue was imported from {home}"
    assert not {"torch", "jax", "transformers", "triton"} & set(sys.modules), "import redblue loads a framework"
    names = {str(file) for file in files("redblue")}
    assert {"redblue/py.typed", "redblue/catalogue/memories.toml", "redblue/studies/report/page.css"} <= names
    check_numpy()
    if "torch" in extras:
        check_torch()
    info = json.loads(
        subprocess.run([Path(sys.prefix, "bin", "redblue"), "info", "--json"], check=True, capture_output=True).stdout
    )
    rows = info["instruction_sets"]
    if platform.machine() == "x86_64":
        assert {"avx2", "avx512", "avx512_bf16", "amx_bf16"} <= {row["name"] for row in rows}, "left out of the wheel"
    chosen = next(row["name"] for row in rows if row["chosen"])
    print(f"  redblue {rb.__version__} with {chosen}: {' and '.join(['NumPy', *extras])} agree with float64")


main()
