"""Packed sequences in graphs of PyTorch: torch.compile, export and fake tensors. Eager calls bypass the ops."""

import pytest

torch = pytest.importorskip("torch")

import redblue as rb
from redblue import Mask, RedblueError
from redblue.kernels.options import Options
from redblue.op.pytorch import varlen
from support.examples import thorough

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script"),  # a warning of PyTorch, when it loads its compiler
]
TOLERANCE = 1e-12
# Queries and keys of packed sequences. Sizes differ, because PyTorch would assume that equal sizes are always equal.
STARTS = [([0, 5, 5, 12], [0, 6, 7, 13]), ([0, 1, 4, 14], [0, 3, 9, 17]), ([0, 0, 15, 21], [0, 8, 18, 25])]
SLOPES = torch.linspace(0.1, 0.5, 12).reshape(3, 4).clone()  # one row per sequence
OPTIONS = {
    "window": {"mask": Mask.sliding_window(2, 1, align="bottom-right"), "softcap": 3.0, "scale": 0.4},
    "a slope per head": {"mask": Mask.causal(), "alibi": torch.linspace(0.1, 0.5, 4)},
    "slopes per sequence": {"alibi": SLOPES},
    "gathered": {"mask": Mask.causal(), "schedule": "gather"},
    "dropout": {"dropout": 0.3, "seed": 2**63 + 5, "alibi": SLOPES},
}


def normal(*shape):
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def inputs(starts, key_starts):
    q, k, v = normal(starts[-1], 4, 8), normal(key_starts[-1], 2, 8), normal(key_starts[-1], 2, 3)
    return q, k, v, normal(4), torch.tensor(starts, dtype=torch.int32), torch.tensor(key_starts, dtype=torch.int32)


def layer(options):
    def call(q, k, v, sinks, starts, key_starts):
        out, lse = rb.attention_varlen(q * 2, k, v, starts, key_starts, sinks=sinks, return_lse=True, **options)
        return out + 1, lse

    return call


def check_same(got, expected, tensors):
    for x, y in zip(got, expected, strict=True):
        assert (x - y).abs().max() < TOLERANCE
        assert x.stride() == y.stride()
    losses = [out.sin().sum() + lse.cos().sum() for out, lse in (got, expected)]
    for x, y in zip(*(torch.autograd.grad(loss, tensors) for loss in losses), strict=True):
        assert (x - y).abs().max() < TOLERANCE


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("window", "aot_eager"),
        *(thorough(name, "aot_eager") for name in OPTIONS if name != "window"),
        thorough("window", "inductor"),
        thorough("dropout", "inductor"),
    ],
)
def test_one_graph_for_all_sequences(name, backend):
    from torch._dynamo.testing import CompileCounterWithBackend

    counter, call = CompileCounterWithBackend(backend), layer(OPTIONS[name])
    compiled, graphs = torch.compile(call, fullgraph=True, dynamic=True, backend=counter), []
    for starts in STARTS:
        tensors = inputs(*starts)
        check_same(compiled(*tensors), call(*tensors), tensors[:4])
        graphs.append(counter.frame_count)
    assert graphs[0] == graphs[-1]  # PyTorch may trace the first call twice, but must not trace the others


def test_only_the_lse_or_only_the_keys_are_used():
    call = layer({"mask": Mask.causal()})
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    q, k, v, sinks, *starts = inputs(*STARTS[2])
    for output, x in ((0, k), (1, q), (1, sinks)):
        gradients = [torch.autograd.grad(run(q, k, v, sinks, *starts)[output].sum(), x) for run in (compiled, call)]
        torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("slopes", [thorough(None), SLOPES])
def test_opcheck(slopes):
    q, k, v, sinks, starts, key_starts = inputs(*STARTS[2])
    arrays = [x.detach().transpose(0, 1)[None].requires_grad_() for x in (q, k, v)]
    tail = (-1, 0, False, "", "auto", None, 3.0, 0.0, None, sinks, slopes)
    torch.library.opcheck(varlen.forward_op, (*arrays, starts, key_starts, True, *tail))
    longer = [torch.cat([x, x], 2).detach().requires_grad_() for x in arrays]
    torch.library.opcheck(varlen.forward_op, (*longer, starts, key_starts, False, *tail))


def test_the_memory_of_starts_may_be_used_again_before_the_backward_pass():
    call = layer({})
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    q, k, v, sinks, starts, key_starts = inputs(*STARTS[0])
    gradients = []
    for run in (call, compiled):
        used, losses = starts.clone(), []
        for x in (starts, torch.tensor([0, 2, 7, 12])):
            used.copy_(x)
            losses.append(run(q, k, v, sinks, used, key_starts)[0].sin().sum())
        gradients.append(torch.autograd.grad(sum(losses), q)[0])
    torch.testing.assert_close(*gradients)


def test_no_cuda_graph_contains_an_op_that_reads_numbers_on_the_host():
    from redblue.op.pytorch.paged import ops as paged_ops  # noqa: F401 (defines the ops for pages)

    redblue_ops = torch.ops.redblue
    for op in (
        varlen.forward_op,
        varlen.backward_op,
        redblue_ops.attention_paged.default,
        redblue_ops.append_paged.default,
    ):
        assert torch.Tag.cudagraph_unsafe in op.tags


def test_rows_after_the_last_sequence():
    q, k, v, _, starts, key_starts = inputs(*STARTS[0])
    q_longer, k_longer, v_longer = (torch.cat([x, x]).detach().requires_grad_() for x in (q, k, v))

    def call(q, k, v):
        return varlen.attention_varlen(q, k, v, starts, key_starts, Options(), all_rows=False)

    out, lse = call(q_longer, k_longer, v_longer)
    expected, expected_lse = rb.attention_varlen(q, k, v, starts, key_starts, return_lse=True)
    n = len(q)
    assert torch.equal(out[:n], expected)
    assert torch.equal(lse[:, :n], expected_lse)
    assert not out[n:].any()
    assert (lse[:, n:] == -float("inf")).all()
    gradients = torch.autograd.grad(out.sin().sum(), (q_longer, k_longer, v_longer))
    for x, y in zip(gradients, torch.autograd.grad(expected.sin().sum(), (q, k, v)), strict=True):
        assert torch.equal(x[: len(y)], y)
        assert not x[len(y) :].any()


def test_wrong_starts_are_named_when_a_graph_runs():
    call = layer({})
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    *tensors, starts, key_starts = inputs(*STARTS[0])
    compiled(*tensors, starts, key_starts)
    for wrong, message in (
        (torch.tensor([0, 9, 5, 12]), r"cu_seqlens_q must not descend, but cu_seqlens_q\[2\] = 5 follows 9"),
        (torch.tensor([1, 5, 5, 12]), r"cu_seqlens_q\[0\] must be 0, got 1"),
        (torch.tensor([0, 5, 5, 11]), "cu_seqlens_q must end at 12, the rows of q, got 11"),
    ):
        with pytest.raises(RedblueError, match=message):
            compiled(*tensors, wrong.int(), key_starts)
    with pytest.raises(RedblueError, match=r"for as many sequences as cu_seqlens_q \(3\), got 2"):
        compiled(*tensors, starts, torch.tensor([0, 6, 13], dtype=torch.int32))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mask": Mask.prefix(3)}, "mask must be a window within each sequence"),
        ({"alibi": torch.ones(4, requires_grad=True)}, "alibi has no gradient"),
        ({"k": torch.ones(13, 3, 8)}, r"v must have as many heads as k \(3\), got 2"),
        ({"softcap": -1.0}, "softcap must be above 0"),
    ],
)
def test_wrong_arguments_are_refused_when_a_graph_is_made(change, message):
    q, k, v, _, starts, key_starts = (x.detach().float() if x.is_floating_point() else x for x in inputs(*STARTS[0]))
    arguments = {"q": q, "k": k, "v": v} | change

    def call(arguments):
        return rb.attention_varlen(**arguments, cu_seqlens_q=starts, cu_seqlens_k=key_starts)

    with pytest.raises(RedblueError, match=message):
        call(arguments)
    with pytest.raises(Exception, match=message):
        torch.compile(call, fullgraph=True, backend="aot_eager")(arguments)


@pytest.mark.thorough
def test_autocast_vmap_and_lists_of_starts():
    def call(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return rb.attention_varlen(x, x, x, [0, 4, 9])

    def mapped(x):
        return torch.vmap(lambda x: rb.attention_varlen(x, x, x, [0, 4, 9]))(x)

    x = torch.randn(9, 2, 8)
    out = torch.compile(call, fullgraph=True, backend="aot_eager")(x)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, call(x))
    several = torch.randn(3, 9, 2, 8)
    assert torch.equal(torch.compile(mapped, fullgraph=True, backend="aot_eager")(several), mapped(several))


def test_dropout_follows_the_generator():
    def call(v):
        return rb.attention_varlen(x, x, v, starts, dropout=0.5)

    x, starts = torch.randn(9, 2, 8), torch.tensor([0, 4, 9])
    v = torch.randn(9, 2, 8).double().float().requires_grad_()
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    torch.manual_seed(1)
    first, second = compiled(v), compiled(v)
    torch.manual_seed(1)
    assert torch.equal(first, compiled(v))
    assert not torch.equal(first, second)
    # The sum is linear in v, so it is gradient * v if backward dropped the same probabilities as forward
    (gradient,) = torch.autograd.grad(first.sum(), v)
    assert float((gradient * v).sum().detach()) == pytest.approx(float(first.sum().detach()), abs=1e-4)


def test_eager_calls_do_without_the_op(monkeypatch):
    monkeypatch.setattr(varlen, "attention_varlen", None)
    tensors = inputs(*STARTS[0])
    layer({})(*tensors)[0].sum().backward()


def test_exported_graphs_and_fake_tensors(tmp_path):
    from torch._subclasses.fake_tensor import FakeTensorMode

    class Layer(torch.nn.Module):
        def forward(self, *tensors):
            return layer({"mask": Mask.causal()})(*tensors)

    tensors = [x.detach() for x in inputs(*STARTS[0])]
    expected = Layer()(*tensors)
    for strict in (False, True):
        torch.export.save(torch.export.export(Layer(), tuple(tensors), strict=strict), tmp_path / "layer.pt2")
        for x, y in zip(torch.export.load(tmp_path / "layer.pt2").module()(*tensors), expected, strict=True):
            assert torch.equal(x, y)
    with FakeTensorMode() as mode:
        fake = Layer()(*map(mode.from_tensor, tensors))
    for x, y in zip(fake, expected, strict=True):
        assert (x.shape, x.dtype, x.stride()) == (y.shape, y.dtype, y.stride())
