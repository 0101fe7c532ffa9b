"""The GPU kernels with the planner's tiles, under Triton's interpreter. Other tests use tiny tiles."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import redblue as rb
from redblue.op.pytorch import interpreted
from support.drawn_pages import draw
from support.examples import thorough

DENSE = np.random.default_rng(0).random((64, 64)) < 0.5
CALLS = [
    (64, 64, 96, 96, "auto", rb.Mask.from_dense(DENSE)),
    (33, 64, 17, 17, "auto", rb.Mask.causal(align="bottom-right")),
    (5, 67, 17, 200, "small_cache", None),
    (70, 64, 16, 16, "hybrid", None),
    thorough((80, 80, 128, 128, "auto", rb.Mask.causal())),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: "-".join(map(str, call[:5])))
def test_planned_tiles_agree_with_the_cpu(call, monkeypatch):
    monkeypatch.setenv("REDBLUE_TUNE", "0")
    n_q, n_k, d, d_v, schedule, mask = call
    generator = torch.Generator().manual_seed(0)
    arrays = [torch.randn(1, n, width, generator=generator) for n, width in ((n_q, d), (n_k, d), (n_k, d_v))]
    dout = torch.randn(1, n_q, d_v, generator=generator)
    results = []
    for attention, dtype, options in (
        (interpreted.attention, torch.float32, {"schedule": schedule}),
        (rb.attention, torch.float64, {}),
    ):
        q, k, v = (x.to(dtype).requires_grad_() for x in arrays)
        out = attention(q, k, v, mask=mask, **options)
        results.append((out, *torch.autograd.grad(out, (q, k, v), dout.to(dtype))))
    for ours, reference in zip(*results, strict=True):
        torch.testing.assert_close(ours.double(), reference, atol=2e-5, rtol=2e-5)


@pytest.mark.usefixtures("bfloat16_to_nearest")
def test_dropout_of_probabilities_spilled_in_16_bits(monkeypatch):
    monkeypatch.setenv("REDBLUE_TUNE", "0")
    generator = torch.Generator().manual_seed(0)
    arrays = [torch.randn(1, 16, d, generator=generator).bfloat16() for d in (16, 16, 130)]
    gradients = []
    for attention, schedule in (
        (interpreted.attention, "small_cache"),
        (interpreted.attention, "hybrid"),
        (rb.attention, "auto"),
    ):
        q, k, v = (x.clone().requires_grad_() for x in arrays)
        attention(q, k, v, dropout=0.5, seed=1, schedule=schedule).sum().backward()
        gradients.append(v.grad)
    for ours in gradients[:2]:
        torch.testing.assert_close(ours, gradients[2], atol=0.005, rtol=0.01)


@pytest.mark.parametrize(("heads", "widths", "kind"), [((16, 1), (576, 512), "alias"), ((6, 2), (80, 80), "normal")])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter computes masked lanes, too
def test_planned_tiles_for_pages(heads, widths, kind):
    call = draw(0, [70, 33], [1, 12], page=16, heads=heads, widths=widths, kind=kind, dtype=torch.float32)
    with interpreted.interpreted():
        results = rb.attention_paged(*call.arguments, return_lse=True)
    for ours, reference in zip(results, call.expected(), strict=True):
        torch.testing.assert_close(ours.double(), reference, atol=2e-5, rtol=2e-5)
