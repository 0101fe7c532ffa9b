"""The float64 reference, compared with hand-computed values, finite differences and, if installed, PyTorch."""

import numpy as np
import pytest

from redblue import Mask
from redblue.lab import reference


def sample(seed=0, n_q=5, n_k=7, d=3, d_v=4):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in ((n_q, d), (n_k, d), (n_k, d_v), (n_q, d_v))]


def test_one_query_two_keys_by_hand():
    out = reference.forward(np.array([[1.0]]), np.array([[0.0], [np.log(3.0)]]), np.array([[0.0], [4.0]]))
    assert out.p[0] == pytest.approx([0.25, 0.75])
    assert out.out[0, 0] == pytest.approx(3.0)
    assert out.lse[0] == pytest.approx(np.log(4.0))


def numeric_gradient(function, x):
    gradient = np.zeros_like(x)
    for index in np.ndindex(*x.shape):
        values = []
        for step in (1e-6, -1e-6):
            old, x[index] = x[index], x[index] + step
            values.append(function())
            x[index] = old
        gradient[index] = (values[0] - values[1]) / 2e-6
    return gradient


def test_gradients_equal_finite_differences():
    q, k, v, dout = sample()
    attends = Mask.causal(align="bottom-right").to_dense(5, 7)
    gradients = reference.backward(q, k, v, dout, attends)
    for x, gradient in zip((q, k, v), gradients[:3], strict=True):
        numeric = numeric_gradient(lambda: (reference.forward(q, k, v, attends).out * dout).sum(), x)
        assert np.abs(numeric - gradient).max() < 1e-7


def test_gradients_with_every_option_equal_finite_differences():
    # Two batches that share K, four query heads on two key heads, a bias for all batches and queries
    rng = np.random.default_rng(0)
    shapes = ((2, 4, 3, 2), (1, 2, 5, 2), (2, 5, 3), (2, 4, 3, 3), (4, 1, 5), (4,), (2, 4, 3))
    q, k, v, dout, bias, sinks, dlse = (rng.standard_normal(shape) for shape in shapes)
    options = {
        "scale": -0.7,
        "softcap": 1.5,
        "bias": bias,
        "sinks": sinks,
        "dropout": (rng.random((2, 4, 3, 5)) < 0.6) / 0.6,
        "attends": Mask.sliding_window(1, 1).to_dense(3, 5),
    }

    def total():
        result = reference.forward(q, k, v, **options)
        return (result.out * dout).sum() + (result.lse * dlse).sum()

    gradients = reference.backward(q, k, v, dout, dlse=dlse, **options)
    for x, gradient in zip((q, k, v, bias, sinks), gradients, strict=True):
        assert gradient.shape == x.shape
        assert np.abs(numeric_gradient(total, x) - gradient).max() < 1e-7


def test_a_boolean_bias_is_a_mask():
    q, k, v, dout = sample()
    attends = Mask.causal().to_dense(5, 7)
    assert np.array_equal(reference.forward(q, k, v, bias=attends).out, reference.forward(q, k, v, attends).out)
    assert reference.backward(q, k, v, dout, bias=attends).dbias is None


def test_a_sink_is_one_more_key_without_a_value():
    q, k, v, _ = (x[None] for x in sample())
    result = reference.forward(q, k, v, sinks=np.array([0.3]))
    p = np.exp(q @ k.swapaxes(-1, -2) / np.sqrt(3))
    assert result.out == pytest.approx(p / (p.sum(axis=-1, keepdims=True) + np.exp(0.3)) @ v)
    nothing = reference.forward(q, k, v, np.zeros((5, 7), bool), sinks=np.array([0.3]))
    assert nothing.lse == pytest.approx(0.3)
    assert (nothing.out == 0).all()


def test_no_keys():
    q, k, v, dout = sample(n_k=0)
    assert (reference.forward(q, k, v).out == 0).all()
    assert (reference.backward(q, k, v, dout).dq == 0).all()


def test_rows_that_attend_nothing_give_zero():
    q, k, v, dout = sample(n_q=5, n_k=2)
    attends = Mask.sliding_window(0, 0).to_dense(5, 2)
    result = reference.forward(q, k, v, attends)
    assert (result.out[2:] == 0).all()
    assert (result.lse[2:] == -np.inf).all()
    gradients = reference.backward(q, k, v, dout, attends)
    assert (gradients.dq[2:] == 0).all()
    assert all(np.isfinite(g).all() for g in gradients[:3])


def test_scores_that_overflow_a_naive_exponential():
    q, k, v, _ = sample()
    result = reference.forward(1e4 * q, 1e4 * k, v)
    assert np.isfinite(result.out).all()
    assert result.p.sum(axis=-1) == pytest.approx(1.0)


def test_it_is_what_pytorch_computes():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: the cross-check is left out")
    q, k, v, dout = (torch.tensor(x, requires_grad=True) for x in sample())
    attends = Mask.causal(align="bottom-right").to_dense(5, 7)
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=torch.tensor(attends))
    out.backward(dout.detach())
    arrays = [x.detach().numpy() for x in (q, k, v)]
    assert np.abs(reference.forward(*arrays, attends).out - out.detach().numpy()).max() < 1e-12
    gradients = reference.backward(*arrays, dout.detach().numpy(), attends)
    for x, gradient in zip((q, k, v), gradients[:3], strict=True):
        assert np.abs(x.grad.numpy() - gradient).max() < 1e-12
