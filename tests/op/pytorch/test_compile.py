"""redblue under torch.compile: whole graphs, any sizes, forward and backward."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: N812

import redblue as rb
from redblue.kernels.cpu import call as cpu
from support.examples import thorough

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script"),  # a warning of PyTorch, when it loads its compiler
]
TOLERANCE = 1e-12


def normal(*shape):
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def close(x, y):
    return x.shape == y.shape and bool((x - y).abs().max() < TOLERANCE)


@pytest.mark.thorough
def test_calls_outside_a_graph_do_not_load_the_compiler():
    """PyTorch's compiler takes nearly a second to import."""
    calls = "q = torch.ones(2, 3, 4).requires_grad_(); rb.attention(q, q, q, mask=rb.Mask.prefix(2)).sum().backward()"
    script = f"import sys, torch, redblue as rb; {calls}; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def causal_on_itself(x, factor):
    return rb.attention(x, x, x, mask=rb.Mask.causal(align="bottom-right"), softcap=3.0) * factor


def with_everything(q, k, v, bias, sinks):
    options = {"mask": rb.Mask.sliding_window(3, 1), "scale": 0.4, "return_lse": True}
    out, lse = rb.attention(q, k, v, bias=bias, sinks=sinks, **options)
    return out.sin().sum() + lse.cos().sum()


def counting(backend):
    """Return a counting backend, and the list of the graphs that it compiled."""
    from torch._dynamo.testing import CompileCounterWithBackend

    return CompileCounterWithBackend(backend)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.thorough)])
def test_one_tensor_as_q_k_and_v_with_marked_dynamic_length(backend):
    counter = counting(backend)
    compiled = torch.compile(causal_on_itself, fullgraph=True, backend=counter)
    for n in (6, 9, 33):
        x = normal(2, 3, n, 8)
        torch._dynamo.mark_dynamic(x, 2)
        got, expected = compiled(x, 2.0), causal_on_itself(x, 2.0)
        assert close(got, expected)
        assert close(*(torch.autograd.grad(out.sin().sum(), x)[0] for out in (got, expected)))
    assert counter.frame_count == 1


@pytest.mark.thorough
def test_dynamic_shapes_bias_sinks_groups_and_broadcasting():
    counter = counting("aot_eager")
    compiled = torch.compile(with_everything, fullgraph=True, dynamic=True, backend=counter)
    graphs = []
    for n in (6, 9, 14):
        inputs = normal(2, 4, n, 8), normal(1, 2, n + 1, 8), normal(2, 2, n + 1, 3), normal(n + 1), normal(4)
        got, expected = compiled(*inputs), with_everything(*inputs)
        assert close(got, expected)
        for x, y in zip(*(torch.autograd.grad(loss, inputs) for loss in (got, expected)), strict=True):
            assert close(x, y)
        graphs.append(counter.frame_count)
    assert graphs[0] == graphs[-1]  # the first call may trace twice, the others must not trace


@pytest.mark.thorough
def test_two_dimensions_and_scaled_dot_product_attention():
    def call(q, k):
        return rb.scaled_dot_product_attention(q, k, k, is_causal=True) + rb.attention(q, k, k)

    q, k = normal(5, 8), normal(7, 8)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    assert close(compiled(q, k), call(q, k))
    with torch.no_grad():
        assert close(compiled(q, k), call(q, k))


def test_a_bool_mask_in_inference_mode():
    def call(q, attends):
        return rb.scaled_dot_product_attention(q, q, q, attn_mask=attends)

    q, attends = normal(2, 3, 5, 8), torch.rand(5, 5) < 0.5
    with torch.inference_mode():
        assert close(torch.compile(call, fullgraph=True, backend="aot_eager")(q, attends), call(q, attends))


@pytest.mark.parametrize("backend", ["aot_eager", thorough("inductor")])
def test_dropout_draws_anew_in_each_run_and_follows_the_generator(backend):
    def call(v):
        return rb.attention(q, q, v, dropout=0.5)

    q, v = normal(2, 3, 6, 8).detach(), normal(2, 3, 6, 8)
    compiled = torch.compile(call, fullgraph=True, backend=backend)
    torch.manual_seed(1)
    first, second = compiled(v), compiled(v)
    torch.manual_seed(1)
    again = compiled(v)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    # The sum is linear in v, so it is gradient * v exactly if backward dropped the same probabilities as forward.
    (gradient,) = torch.autograd.grad(first.sum(), v)
    assert float((gradient * v).sum().detach() - first.sum().detach()) == pytest.approx(0, abs=1e-10)


def test_a_given_seed_is_the_same_compiled_or_not():
    def call(x):
        return rb.attention(x, x, x, dropout=0.5, seed=2**63 + 5)

    x = normal(1, 2, 9, 4)
    assert torch.equal(torch.compile(call, fullgraph=True, backend="aot_eager")(x), call(x))


def test_errors_come_through():
    def call(x):
        return rb.attention(x, x[..., :3], x)

    with pytest.raises(Exception, match=r"head dimension of k \(3\) must equal that of q \(4\)|Observed exception"):
        torch.compile(call, fullgraph=True, backend="aot_eager")(normal(1, 2, 9, 4))


def test_autocast_inside():
    def call(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return rb.attention(x, x, x)

    x = torch.randn(1, 2, 9, 4)
    out = torch.compile(call, fullgraph=True, backend="aot_eager")(x)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, call(x))


def test_the_override_of_pytorchs_function(monkeypatch):
    calls = []
    kernel = cpu.forward
    monkeypatch.setattr(cpu, "forward", lambda *a, **k: calls.append(1) or kernel(*a, **k))

    def call(x):
        return F.scaled_dot_product_attention(x, x, x, is_causal=True) * 2

    x = normal(2, 3, 9, 8)
    expected = call(x)
    with rb.sdpa():
        compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
        got = compiled(x)
        assert close(got, expected)
        assert close(*(torch.autograd.grad(out.sin().sum(), x)[0] for out in (got, expected)))
        with torch.no_grad():
            compiled(x)
        with torch.inference_mode():
            compiled(x)
    assert len(calls) == 3
    torch._dynamo.reset()
    assert close(torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")(x), expected)
    assert len(calls) == 3
