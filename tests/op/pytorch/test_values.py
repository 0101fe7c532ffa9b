"""Values and gradients of redblue.attention on PyTorch tensors, against float64."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: N812

import redblue as rb
from support.textbook import TOLERANCE, check, check_close, normal, textbook

pytestmark = pytest.mark.usefixtures("nan_in_new_memory")


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_outputs_and_gradients_in_every_type(dtype):
    q, k, v = normal(2, 4, 17, 9, dtype=dtype), normal(2, 2, 23, 9, dtype=dtype), normal(2, 2, 23, 5, dtype=dtype)
    bias, sinks = normal(4, 1, 23, dtype=dtype), normal(4, dtype=torch.float32)
    mask = rb.Mask.sliding_window(7, 3, align="bottom-right")
    check(q, k, v, bias, sinks, mask=mask, scale=0.3, softcap=4.0, bias=bias, sinks=sinks)


@pytest.mark.parametrize(
    ("q", "k", "v"),
    [
        ((5, 3), (7, 3), (7, 2)),
        ((3, 5, 3), (3, 7, 3), (3, 7, 2)),
        ((5, 3), (2, 7, 3), (2, 7, 2)),
        ((2, 3, 5, 3), (2, 3, 7, 3), (2, 1, 7, 2)),
        ((2, 1, 5, 3), (2, 3, 7, 3), (2, 3, 7, 2)),
        ((2, 6, 5, 3), (1, 2, 7, 3), (2, 7, 2)),
        ((2, 6, 5, 3), (4, 1, 1, 7, 3), (1, 2, 1, 7, 2)),
        ((1, 1, 1, 1), (1, 1, 1, 1), (1, 1, 1, 1)),
        ((2, 3, 0, 4), (2, 3, 7, 4), (2, 3, 7, 4)),
        ((2, 3, 5, 4), (2, 3, 0, 4), (2, 3, 0, 4)),
        ((0, 3, 5, 4), (0, 3, 7, 4), (0, 3, 7, 4)),
        ((2, 0, 5, 4), (2, 0, 7, 4), (2, 0, 7, 4)),
        ((1, 1, 1, 1, 1, 2, 1, 2, 3, 4), (1, 1, 1, 1, 2, 1, 1, 2, 3, 4), (1, 2, 3, 4)),
    ],
)
def test_shapes(q, k, v):
    if 0 in q or 0 in k:  # the textbook cannot take the maximum of an empty row
        q, k, v = normal(*q), normal(*k), normal(*v)
        out, lse = rb.attention(q, k, v, return_lse=True)
        assert out.shape == (*q.shape[:-1], v.shape[-1])
        assert not out.any()
        assert (lse == -torch.inf).all()
        for gradient in torch.autograd.grad(out, (q, k, v), torch.ones_like(out)):
            assert not gradient.any()
    else:
        check(normal(*q), normal(*k), normal(*v))


@pytest.mark.parametrize("shape", [(), (1,), (7,), (5, 1), (5, 7), (4, 1, 1), (4, 5, 7), (2, 1, 5, 7), (2, 4, 1, 7)])
def test_bias_of_any_broadcastable_shape(shape):
    bias = normal(*shape)
    check(normal(2, 4, 5, 3), normal(2, 2, 7, 3), normal(2, 2, 7, 3), bias, bias=bias, mask=rb.Mask.causal())


LAYOUTS = {
    "heads inside": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "columns outside": lambda x: x.mT.contiguous().mT,
    "every other": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "one head for all": lambda x: x[:, :1].expand(x.shape),
    "one row for all": lambda x: x[..., :1, :].expand(x.shape),
    "of one buffer": lambda x: torch.cat([x, x, x], -1)[..., x.shape[-1] : 2 * x.shape[-1]],
}


@pytest.mark.parametrize("lay_out", LAYOUTS.values(), ids=LAYOUTS)
def test_any_strides_of_inputs_and_of_the_gradient(lay_out):
    q, k, v = (lay_out(normal(2, 3, 5, 4)).detach().requires_grad_() for _ in range(3))
    out, expected = rb.attention(q, k, v), textbook(q, k, v)
    check_close(out, expected)
    dout = lay_out(torch.randn_like(out))
    for x, y in zip(
        torch.autograd.grad(out, (q, k, v), dout), torch.autograd.grad(expected, (q, k, v), dout), strict=True
    ):
        check_close(x, y)


@pytest.mark.parametrize("inside", [False, True])
def test_outputs_and_gradients_are_laid_out_as_inputs_are(inside):
    lay_out = LAYOUTS["heads inside"] if inside else torch.Tensor.contiguous
    q, k, v = (lay_out(normal(2, 3, n, 4, grad=False)).requires_grad_() for n in (5, 7, 7))
    ours, theirs = rb.attention(q, k, v), F.scaled_dot_product_attention(q, k, v)
    assert ours.stride() == theirs.stride()
    for x, y in zip(torch.autograd.grad(ours.sum(), (q, k, v)), (q, k, v), strict=True):
        assert x.stride() == y.stride()


def test_gradients_where_one_output_is_used():
    q, k, v, sinks = normal(2, 2, 5, 3), normal(2, 2, 7, 3), normal(2, 2, 7, 4), normal(2)
    check(q, k, v, sinks, sinks=sinks, lse_too=False)
    lse = rb.attention(q, k, v, sinks=sinks, return_lse=True)[1]
    expected = textbook(q, k, v, sinks=sinks, return_lse=True)[1]
    dlse = torch.randn_like(lse)
    got = torch.autograd.grad(lse, (q, k, sinks), dlse)
    for x, y in zip(got, torch.autograd.grad(expected, (q, k, sinks), dlse), strict=True):
        check_close(x, y)


def test_gradients_of_some_inputs_only():
    for i in range(3):
        inputs = [normal(1, 2, 4, 3, grad=i == j) for j in range(3)]
        check(*inputs, lse_too=False)


def test_gradcheck():
    q, k, v, bias, sinks = normal(1, 4, 3, 3), normal(1, 2, 5, 3), normal(1, 2, 5, 2), normal(4, 1, 5), normal(4)

    def call(q, k, v, bias, sinks):
        options = {"softcap": 3.0, "dropout": 0.3, "seed": 7, "mask": rb.Mask.causal(align="bottom-right")}
        return rb.attention(q, k, v, bias=bias, sinks=sinks, return_lse=True, **options)

    assert torch.autograd.gradcheck(call, (q, k, v, bias, sinks))


@pytest.mark.parametrize("schedule", ["hybrid", "small_cache"])
def test_requested_schedules(schedule):
    """Check the gradients of a requested schedule, eager and compiled."""
    q, k, v = normal(1, 4, 9, 5), normal(1, 2, 11, 5), normal(1, 2, 11, 3)

    def call(q, k, v):
        return rb.attention(q, k, v, softcap=3.0, mask=rb.Mask.causal(), schedule=schedule)

    assert torch.autograd.gradcheck(call, (q, k, v), fast_mode=True)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q, k, v), call(q, k, v))


def test_a_bias_with_heads_last_in_memory():
    """T5's bias has this layout. Kernels that read a bias more than once get a copy with dense rows."""
    q, k, v, memory = normal(3, 2, 5, 3), normal(3, 2, 7, 3), normal(3, 2, 7, 3), normal(5, 7, 2)
    for bias in (memory.permute(2, 0, 1)[None], memory.permute(2, 0, 1)[None].expand(3, 2, 5, 7)):
        check(q, k, v, memory, bias=bias)


def test_rows_without_keys():
    bias = torch.ones(5, 7, dtype=torch.bool)
    bias[2] = False
    q, k, v = normal(1, 2, 5, 3), normal(1, 2, 7, 3), normal(1, 2, 7, 3)
    sinks = torch.tensor([-torch.inf, 0.5], dtype=torch.float64, requires_grad=True)
    out, lse = rb.attention(q, k, v, bias=bias, sinks=sinks, return_lse=True)
    assert not out[:, :, 2].any()
    assert lse[0, 0, 2] == -torch.inf
    gradients = torch.autograd.grad(out.sum(), (q, k, v, sinks))
    assert all(x.isfinite().all() for x in gradients)
    assert not gradients[0][:, :, 2].any()


@pytest.mark.parametrize("shape", [(4, 1), (1, 1), (4, 0)])
def test_a_bias_without_pairs_has_gradient_zero(shape):
    bias = torch.zeros(shape, requires_grad=True)
    q, k, v = torch.ones(1, 4, 8), torch.ones(1, 0, 8), torch.ones(1, 0, 8)
    (gradient,) = torch.autograd.grad(rb.attention(q, k, v, bias=bias).sum(), bias)
    assert gradient.shape == shape
    assert not gradient.any()


@pytest.mark.parametrize("size", [1e3, 1e5, 1e6, 1e15])
@pytest.mark.parametrize("rows", [1, 20])
@pytest.mark.parametrize("scale", [1.0, 72**-0.5])
def test_scores_of_any_finite_size(size, rows, scale):
    q, k = torch.full((1, rows, 1), size), torch.full((1, 5, 1), size)
    v = torch.arange(5.0).reshape(1, 5, 1)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out = rb.attention(*inputs, scale=scale)
    assert out.flatten().tolist() == pytest.approx([2.0] * rows)
    dq, dk, dv = torch.autograd.grad(out.sum(), inputs)
    assert torch.isfinite(dq).all()
    assert torch.isfinite(dk).all()
    assert torch.isfinite(dv).all()


def test_a_window_wider_than_any_integer_is_open():
    q = torch.ones(1, 4, 8, requires_grad=True)
    rb.attention(q, q, q, mask=rb.Mask.sliding_window(left=10**30, right=0)).sum().backward()
    assert torch.isfinite(q.grad).all()
