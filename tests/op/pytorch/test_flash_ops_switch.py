"""Calls that redblue's flash-attention ops refuse, the switch that puts them in force, and PyTorch's transforms."""

import threading

import pytest

torch = pytest.importorskip("torch")

import redblue as rb
from redblue.op.pytorch.usage import Usage
from support.flash_ops import aten, forward, padded

OPS = (
    "_flash_attention_forward",
    "_flash_attention_backward",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_backward",
)
ROWS = torch.zeros(4, 2, 8)
REFUSED = {
    "float64": ("query must be of type float32.*float64", lambda: forward(*(torch.zeros(1, 4, 2, 8).double(),) * 3)),
    "debug mask": ("return_debug_mask", lambda: forward(*(torch.zeros(1, 4, 2, 8),) * 3, debug=True)),
    "rank": ("query must have 4 dimensions", lambda: forward(ROWS, ROWS, ROWS)),
    "packed rank": ("key must have 3 dimensions", lambda: forward(ROWS, ROWS[0], ROWS, [0, 4], [0, 4])),
    "one of two": ("packed sequences need", lambda: forward(ROWS, ROWS, ROWS, [0, 4])),
    "the other": ("packed sequences need", lambda: forward(ROWS, ROWS, ROWS, None, [0, 4])),
    "end": ("cum_seq_q must end at 4, the rows of query", lambda: forward(ROWS, ROWS, ROWS, [0, 3], [0, 4])),
    "sequences": ("cum_seq_k must be for as many", lambda: forward(ROWS, ROWS, ROWS, [0, 4], [0, 2, 4])),
    "longest": (
        "max_k must be at least .*, 21, got 20",
        lambda: forward(ROWS, *[torch.zeros(21, 2, 8)] * 2, [0, 4], [0, 21]),
    ),
    "batch": ("equal leading dimensions", lambda: forward(torch.zeros(2, 4, 2, 8), *[torch.zeros(1, 4, 2, 8)] * 2)),
    "debug mask of sdpa": (
        "return_debug_mask",
        lambda: aten._scaled_dot_product_flash_attention(*(torch.zeros(1, 2, 4, 8),) * 3, 0.0, False, True),
    ),
    "no seed": (
        "rng_state",
        lambda: aten._flash_attention_backward(
            *[ROWS[None]] * 5, torch.zeros(1, 2, 4), None, None, 4, 4, 0.5, False, torch.empty(0), torch.empty(0)
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("message", "call"), REFUSED.values(), ids=REFUSED)
def test_refused_by_name(message, call):
    with rb.flash_ops() as used, pytest.raises(rb.RedblueError, match=message):
        call()
    assert used.served == 0
    assert used.refused == (message != "rng_state")  # only forward ops count


def test_in_force_while_requested():
    before = {name: torch._C._dispatch_dump(f"aten::{name}") for name in OPS}
    q, k, v = (x.detach() for x in padded())
    with pytest.raises(NotImplementedError):
        forward(q, k, v)
    override = rb.enable_flash_ops()
    with rb.flash_ops() as used:
        thread = threading.Thread(target=forward, args=(q, k, v))
        thread.start()
        thread.join()
        torch.nn.functional.scaled_dot_product_attention(q, q, q)  # does not call these ops
    assert used == Usage(1)
    with torch.inference_mode():
        forward(q, k, v)
    override.disable()
    assert override.used == Usage(2)
    with pytest.raises(NotImplementedError):
        forward(q, k, v)
    assert before == {name: torch._C._dispatch_dump(f"aten::{name}") for name in OPS}


def test_both_overrides_at_once():
    q = torch.randn(1, 2, 4, 8)
    with rb.sdpa() as ours, rb.flash_ops() as flash:
        torch.nn.functional.scaled_dot_product_attention(q, q, q)
        aten._scaled_dot_product_flash_attention(q, q, q)
    assert (ours, flash) == (Usage(1), Usage(1))


def test_transforms():
    q, k, v = (x.detach() for x in padded())

    def loss(q, k, v):
        return forward(q, k, v, causal=True)[0].sin().sum()

    with rb.flash_ops():
        gradients = torch.func.grad(loss, (0, 1, 2))(q, k, v)
        inputs = [x.clone().requires_grad_() for x in (q, k, v)]
        for x, y in zip(gradients, torch.autograd.grad(loss(*inputs), inputs), strict=True):
            assert torch.equal(x, y)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")  # warnings of PyTorch's compiler
def test_compiled():
    q, k, v = padded()

    def run(q, k, v):
        out, lse, *_ = forward(q, k, v, causal=True, window_size_left=4)
        across = (x.transpose(1, 2) for x in (q, k, v))
        out2, lse2, *_ = aten._scaled_dot_product_flash_attention(*across, 0.0, True)
        return (out.sin() + lse.mT[..., None]) * (out2.cos() + lse2[..., None]).transpose(1, 2)

    def dropped(q, k, v):
        return forward(q, k, v, dropout=0.5)[0]

    with rb.flash_ops():
        outputs = [f(q, k, v) for f in (run, torch.compile(run, fullgraph=True))]
        gradients = [torch.autograd.grad(out.sum(), (q, k, v)) for out in outputs]
        for x, y in zip((outputs[0], *gradients[0]), (outputs[1], *gradients[1]), strict=True):
            assert (x - y).abs().max() < 1e-5
        compiled = torch.compile(dropped, fullgraph=True, backend="aot_eager")
        assert not torch.equal(compiled(q, k, v), compiled(q, k, v))
        out = compiled(q, k, v)
        (dv,) = torch.autograd.grad(out.sum(), v)
        assert torch.allclose((dv * v).sum(), out.sum(), rtol=1e-4)
