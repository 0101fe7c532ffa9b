"""Results of PyTorch's flash-attention ops on the CPU, for which redblue registers kernels, against float64."""

import pytest

torch = pytest.importorskip("torch")

import redblue as rb
from support.flash_ops import (
    KEY_STARTS,
    SCHEMA,
    STARTS,
    TOLERANCE,
    aten,
    close,
    expected,
    forward,
    packed,
    padded,
    randn,
)

WINDOWS = {
    "full": ({}, {}),
    "causal": ({"causal": True}, {"right": 0}),
    "left": ({"causal": True, "window_size_left": 3}, {"left": 3, "right": 0}),
    "both": ({"window_size_left": 2, "window_size_right": 1}, {"left": 2, "right": 1}),
    "scale": ({"scale": -0.3, "window_size_left": -1}, {"scale": -0.3}),
}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("options", "meaning"), WINDOWS.values(), ids=WINDOWS)
def test_packed(options, meaning, dtype):
    q, k, v = packed(dtype)
    dout = randn(21, 4, 16, dtype=dtype, seed=3).detach()
    with rb.flash_ops():
        out, lse, *_ = forward(q, k, v, STARTS, KEY_STARTS, **options)
        gradients = torch.autograd.grad(out, (q, k, v), dout)
    assert out.dtype == dtype
    assert lse.dtype == torch.float32
    wanted, wanted_lse, wanted_gradients = expected(q, k, v, STARTS, KEY_STARTS, dout, **meaning)
    close(out, wanted, TOLERANCE[dtype])
    close(lse, wanted_lse, 1e-5)
    for x, y in zip(gradients, wanted_gradients, strict=True):
        close(x, y, TOLERANCE[dtype])


@pytest.mark.parametrize("sdpa", [False, True], ids=["flash", "sdpa"])
@pytest.mark.parametrize("causal", [False, True])
def test_padded(causal, sdpa):
    """Padded batches in both layouts, with any strides; each batch entry is a sequence."""
    inputs = padded()
    dout = randn(2, 9, 4, 16, seed=5).detach()
    with rb.flash_ops():
        if sdpa:
            across = (x.transpose(1, 2) for x in inputs)
            out, lse, starts, key_starts, n_q, n_k, *_ = aten._scaled_dot_product_flash_attention(*across, 0.0, causal)
            assert (starts, key_starts, n_q, n_k) == (None, None, 9, 11)
            out = out.transpose(1, 2)
        else:
            out, lse, *_ = forward(*inputs, causal=causal)
        gradients = torch.autograd.grad(out, inputs, dout)
    assert lse.shape == (2, 4, 9)
    for b in range(2):
        wanted, wanted_lse, wanted_gradients = expected(
            *(x[b] for x in inputs), [0, 9], [0, 11], dout[b], right=0 if causal else -1
        )
        close(out[b], wanted, TOLERANCE[torch.float32])
        close(lse[b], wanted_lse, 1e-5)
        for x, y in zip(gradients, wanted_gradients, strict=True):
            close(x[b], y, TOLERANCE[torch.float32])


def test_strides_are_those_that_compiled_graphs_expect():
    """Inputs are parts of one projection, for which empty_like is dense."""
    whole = torch.randn(2, 4, 9, 3, 16).permute(0, 2, 3, 1, 4)  # (batch, n, 3, heads, d), heads outside
    q, k, v = whole.unbind(2)
    with rb.flash_ops():
        out, lse, state, unused, _ = forward(q, k, v)
        gradients = aten._flash_attention_backward(
            torch.ones_like(out), q, k, v, out, lse, None, None, 9, 9, 0.0, False, state, unused
        )
    for x, y in ((q, out), *zip((q, k, v), gradients, strict=True)):
        assert y.stride() == torch.empty_like(x).stride()


def test_values_of_another_width():
    """In PyTorch 2.15 and later, the output is declared with the width of the values."""
    q, k, _ = packed()
    v = randn(30, 2, 10)
    dout = randn(21, 4, 10, seed=3).detach()
    padded_q, padded_k, _ = (x.transpose(1, 2) for x in padded())
    with rb.flash_ops():
        if torch.__version__ < (2, 15):
            with pytest.raises(rb.RedblueError, match=r"head dimension of query, 16, .* got 10"):
                forward(q, k, v, STARTS, KEY_STARTS)
            return
        out, lse, *_ = forward(q, k, v, STARTS, KEY_STARTS)
        gradients = torch.autograd.grad(out, (q, k, v), dout)
        other = aten._scaled_dot_product_flash_attention(padded_q, padded_k, padded_k[..., :10])[0]
    wanted, wanted_lse, wanted_gradients = expected(q, k, v, STARTS, KEY_STARTS, dout)
    for x, y in zip((out, lse, *gradients), (wanted, wanted_lse, *wanted_gradients), strict=True):
        close(x, y, 1e-5)
    meta = (x.to("meta") for x in (padded_q, padded_k, padded_k[..., :10]))
    assert other.stride() == aten._scaled_dot_product_flash_attention(*meta)[0].stride()


@pytest.mark.parametrize("starts", [[0], [0, 0], [0, 0, 0]])
def test_nothing(starts):
    q, k = torch.empty(0, 2, 8), torch.empty(0, 2, 8)
    with rb.flash_ops():
        out, lse, *_ = forward(q, k, k, starts, starts)
        assert (out.shape, lse.shape) == ((0, 2, 8), (2, 0))
        if "num_splits" in SCHEMA:
            assert forward(q, k, k, starts, starts, num_splits=1)[0].shape == (0, 2, 8)


def test_a_block_of_keys_of_a_ring():
    """Ring attention gives the backward op the output and lse of all keys, and one block of them."""
    q, k, v = padded()
    dout = randn(2, 9, 4, 16, seed=7).detach()
    empty = torch.empty(0)
    with rb.flash_ops():
        out, lse, state, *_ = forward(q, k, v)
        whole = torch.autograd.grad(out, (q, k, v), dout)
        blocks = [
            aten._flash_attention_backward(
                dout, q, k[:, part], v[:, part], out, lse, None, None, 9, 5, 0.0, False, state, empty
            )
            for part in (slice(0, 5), slice(5, 11))
        ]
    assert (blocks[0][0] + blocks[1][0] - whole[0]).abs().max() < 1e-6
    for i in (1, 2):
        assert (torch.cat([block[i] for block in blocks], 1) - whole[i]).abs().max() < 1e-6


@pytest.mark.parametrize("layout", ["packed", "padded", "sdpa"])
def test_dropout(layout):
    """The backward op drops the same pairs as the forward op: out is linear in v, so v's gradient yields out again."""

    def run(q, k, v):
        if layout == "packed":
            return forward(q, k, v, STARTS, KEY_STARTS, dropout=0.4)[0]
        if layout == "padded":
            return forward(q, k, v, dropout=0.4)[0]
        return aten._scaled_dot_product_flash_attention(*(x.transpose(1, 2) for x in (q, k, v)), 0.4)[0]

    inputs = packed() if layout == "packed" else padded()
    with rb.flash_ops():
        torch.manual_seed(1)
        out = run(*inputs)
        (dv,) = torch.autograd.grad(out, inputs[2], weight := torch.randn(out.shape), retain_graph=True)
        assert torch.allclose((dv * inputs[2]).sum(), (out * weight).sum(), rtol=1e-4)
        torch.manual_seed(1)
        assert torch.equal(run(*inputs), out)
        assert not torch.equal(run(*inputs), out)
