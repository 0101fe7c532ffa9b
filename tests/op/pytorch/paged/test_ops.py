"""Paged caches in graphs of PyTorch: torch.compile, export and fake tensors. Eager calls bypass the ops."""

import pytest

torch = pytest.importorskip("torch")

import redblue as rb
from redblue import Mask, RedblueError
from redblue.op.pytorch.paged import ops
from support.examples import nightly, thorough

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script"),  # a warning of PyTorch, when it loads its compiler
]
attention_op = torch.ops.redblue.attention_paged.default
append_op = torch.ops.redblue.append_paged.default
TABLE = torch.tensor([[0, 1, 2], [3, 4, -1], [7, 8, 6]], dtype=torch.int32)
LENGTHS = torch.tensor([7, 3, 10])


def cache(heads=2, d=8, d_v=5):
    return torch.randn(9, 4, heads, d), torch.randn(9, 4, heads, d_v)


def step(q, k, v, k_pages, v_pages, table, lengths):
    """One layer of generation: append, then attend."""
    lengths = rb.append_paged(k, v, k_pages, v_pages, table, lengths)
    out, lse = rb.attention_paged(q * 2, k_pages, v_pages, table, lengths, return_lse=True, softcap=3.0)
    return out + 1, lse


def same_steps(compiled, arguments):
    """Whether the compiled and the eager step agree, in their results and in what they leave in the cache."""
    q, k, v, *caches, table, lengths = arguments
    runs = []
    for function in (compiled, step):
        own = [x.clone() for x in caches]
        runs.append([*function(q, k, v, *own, table, lengths), *own])
    return all(torch.equal(x, y) for x, y in zip(*runs, strict=True))


@pytest.mark.parametrize("backend", ["aot_eager", nightly("inductor")])
def test_a_step_of_generation_compiles_into_one_graph_for_all_sizes(backend):
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend=counter)
    graphs, table, lengths = [], torch.tensor([[0, 1, 2], [3, 4, 5], [7, 8, 6]]), torch.tensor([0, 1, 2])
    for n in (6, 7, 10):  # none equals another size, because PyTorch would assume that they are always equal
        q, k, v = torch.randn(3, n, 4, 8), torch.randn(3, n, 2, 8), torch.randn(3, n, 2, 5)
        assert same_steps(compiled, (q, k, v, *cache(), table, lengths))
        graphs.append(counter.frame_count)
    assert graphs[0] == graphs[-1]  # PyTorch may trace the first call twice, but must not trace the others


@pytest.mark.parametrize("backend", ["aot_eager", thorough("inductor")])
def test_values_that_are_columns_of_keys(backend):
    def call(q, k, latent, table, lengths):
        lengths = rb.append_paged(k, k[..., :5], latent, latent[..., :5], table, lengths)
        return rb.attention_paged(q, latent, latent[..., :5], table, lengths)

    q, k, (latent, _) = torch.randn(3, 1, 4, 8), torch.randn(3, 1, 1, 8), cache(heads=1)
    own = latent.clone()
    expected = call(q, k, latent, TABLE, LENGTHS)
    again = own.clone()
    compiled = torch.compile(call, fullgraph=True, backend=backend)
    assert torch.equal(compiled(q, k, again, TABLE, LENGTHS), expected)
    assert torch.equal(again, latent)


PACKED = {"cu_seqlens_q": torch.tensor([0, 2, 2, 5])}
OPTIONS = {
    "full": {"mask": Mask.full()},
    "window": {"mask": Mask.sliding_window(4, 0, align="bottom-right"), "scale": 0.3, "prefix_pages": 0},
    "tree": {"mask": torch.tensor([[[True, False]], [[False, True]], [[True, True]]])},
    "arrays": {"bias": torch.randn(3, 4, 1, 10), "alibi": torch.rand(3, 4), "sinks": torch.randn(4)},
    "packed": PACKED,
    "lists": {"page_table": [[0, 1, 2], [3, 4, 0], [7, 8, 6]], "lengths_k": [7, 3, 10], "prefix_pages": None},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_in_a_graph(name):
    k_pages, v_pages = cache()
    q = torch.randn(5, 4, 8) if name == "packed" else torch.randn(3, 1, 4, 8)
    options = {"page_table": TABLE, "lengths_k": LENGTHS} | OPTIONS[name]

    def call(q):
        return rb.attention_paged(q, k_pages, v_pages, **options, return_lse=True)

    for x, y in zip(torch.compile(call, fullgraph=True, backend="aot_eager")(q), call(q), strict=True):
        assert torch.equal(x, y)


def test_opcheck():
    k_pages, v_pages = cache()
    q, tail = torch.randn(3, 2, 4, 8), (None, -1, 0, None, 0.3, None, None, torch.randn(4), None)
    torch.library.opcheck(attention_op, (q, k_pages, v_pages, TABLE, LENGTHS, None, *tail))
    packed = (q.flatten(0, 1).bfloat16(), k_pages.bfloat16(), v_pages.bfloat16(), TABLE, LENGTHS)
    torch.library.opcheck(attention_op, (*packed, torch.tensor([0, 1, 2, 6]), 0, *tail[1:]))
    new = torch.randn(3, 2, 2, 8), torch.randn(3, 2, 2, 5)
    table = torch.tensor([[0, 1, 2], [3, 4, 5], [7, 8, 6]])
    torch.library.opcheck(append_op, (*new, k_pages, v_pages, table, LENGTHS, None))


def test_eager_calls_do_without_the_ops(monkeypatch):
    monkeypatch.setattr(ops, "attention_paged", None)
    monkeypatch.setattr(ops, "append_paged", None)
    k_pages, v_pages = cache()
    step(torch.randn(3, 1, 4, 8), torch.randn(3, 1, 2, 8), torch.randn(3, 1, 2, 5), k_pages, v_pages, TABLE, LENGTHS)


def test_appending_counts_as_a_change_of_the_tensors():
    k_pages, v_pages = cache()
    new = torch.randn(3, 1, 2, 8), torch.randn(3, 1, 2, 5)
    for append in (rb.append_paged, lambda *a: append_op(*a, None)):
        before = k_pages._version, v_pages._version
        append(*new, k_pages, v_pages, TABLE, LENGTHS)
        assert k_pages._version > before[0]
        assert v_pages._version > before[1]


def test_exported_graphs_run_after_saving(tmp_path):
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            k_pages, v_pages = cache()
            self.register_buffer("k_pages", k_pages)
            self.register_buffer("v_pages", v_pages)

        def forward(self, q, k, v, table, lengths):
            rb.append_paged(k, v, self.k_pages, self.v_pages, table, lengths)
            return rb.attention_paged(q, self.k_pages, self.v_pages, table, lengths + k.shape[1])

    layer = Layer()
    before = [x.clone() for x in (layer.k_pages, layer.v_pages)]
    inputs = torch.randn(3, 1, 4, 8), torch.randn(3, 1, 2, 8), torch.randn(3, 1, 2, 5), TABLE, LENGTHS
    for strict in (False, True):
        torch.export.save(torch.export.export(layer, inputs, strict=strict), tmp_path / "layer.pt2")
        loaded = torch.export.load(tmp_path / "layer.pt2").module()
        assert torch.equal(layer.k_pages, before[0])  # tracing writes nothing
        got = loaded(*inputs)
        buffers = dict(loaded.named_buffers())
        again = Layer()
        again.k_pages, again.v_pages = (x.clone() for x in before)
        assert torch.equal(got, again(*inputs))
        assert torch.equal(buffers["k_pages"], again.k_pages)
        assert torch.equal(buffers["v_pages"], again.v_pages)


def test_fake_and_meta_tensors_have_the_shapes_and_types_of_results():
    from torch._subclasses.fake_tensor import FakeTensorMode

    k_pages, v_pages = cache()
    q = torch.randn(3, 2, 4, 8)
    expected = rb.attention_paged(q, k_pages, v_pages, TABLE, LENGTHS, return_lse=True)
    tensors = q, k_pages, v_pages, TABLE, LENGTHS
    with FakeTensorMode() as mode:
        fake = rb.attention_paged(*map(mode.from_tensor, tensors), return_lse=True)
    meta = rb.attention_paged(*(x.to("meta") for x in tensors), return_lse=True)
    for results in (fake, meta):
        for x, y in zip(results, expected, strict=True):
            assert (x.shape, x.dtype, x.stride()) == (y.shape, y.dtype, y.stride())


# Refused -----------------------------------------------------------------------------------------------------------


def test_values_are_checked_when_a_graph_runs():
    def call(q, table, lengths):
        return rb.attention_paged(q, k_pages, v_pages, table, lengths)

    k_pages, v_pages = cache()
    q, compiled = torch.randn(3, 1, 4, 8), torch.compile(call, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q, TABLE, LENGTHS), call(q, TABLE, LENGTHS))
    with pytest.raises(RedblueError, match=r"page_table\[2, 0\] must be a page, 0 to 8, got 9"):
        compiled(q, TABLE + 2, LENGTHS)
    with pytest.raises(RedblueError, match=r"page_table has 3 pages .* lengths_k\[2\] = 17 keys need 5 pages of 4"):
        compiled(q, TABLE, LENGTHS + 7)


WRONG = [
    ({"q": torch.ones(3, 1, 4, 7)}, r"head dimension of k_pages \(8\) must equal that of q \(7\)"),
    ({"q": torch.ones(3, 1, 3, 8)}, r"heads of q \(3\) must be a multiple of the heads of k_pages \(2\)"),
    ({"q": torch.ones(3, 1, 4, 8).double()}, r"must be of one type"),
    ({"mask": Mask.causal()}, r"mask must count from the last query and key"),
    ({"sinks": 1.0}, r"sinks must be a PyTorch tensor"),
    ({"q": torch.ones(3, 1, 4, 8, requires_grad=True)}, r"q requires a gradient, but a paged cache has no backward"),
    ({"sinks": torch.ones(4, requires_grad=True)}, r"sinks requires a gradient, but a paged cache has no backward"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_wrong_arguments_are_refused_when_a_graph_is_made(change, message):
    k_pages, v_pages = cache()
    arguments = {"q": torch.ones(3, 1, 4, 8), "k_pages": k_pages, "v_pages": v_pages} | change

    def call(arguments):
        return rb.attention_paged(**arguments, page_table=TABLE, lengths_k=LENGTHS)

    with pytest.raises(RedblueError, match=message):
        call(arguments)
    with pytest.raises(Exception, match=message):
        torch.compile(call, fullgraph=True, backend="aot_eager")(arguments)


def test_without_gradients_recorded_a_graph_takes_parameters():
    k_pages, v_pages = cache()
    q = torch.nn.Parameter(torch.randn(3, 1, 4, 8))

    def call(q):
        return rb.attention_paged(q, k_pages, v_pages, TABLE, LENGTHS)

    for context in (torch.no_grad, torch.inference_mode):
        with context():
            assert torch.equal(torch.compile(call, fullgraph=True, backend="aot_eager")(q), call(q))


def test_transforms_are_refused():
    k_pages, v_pages = cache()
    q = torch.randn(3, 1, 4, 8)

    def call(q):
        return rb.attention_paged(q, k_pages, v_pages, TABLE, LENGTHS)

    with pytest.raises(RedblueError, match="vmap is not for paged caches"):
        torch.vmap(call)(q[None])
    with pytest.raises(RedblueError, match="q requires a gradient, but a paged cache has no backward pass"):
        torch.func.grad(lambda q: call(q).sum())(q)
    with pytest.raises(RedblueError, match="q has a forward-mode tangent, but a paged cache has no derivatives"):
        torch.func.jvp(call, (q,), (q,))
    new = torch.randn(2, 3, 1, 2, 8)
    with pytest.raises(RedblueError, match="vmap is not for paged caches"):
        torch.vmap(lambda k: torch.as_tensor(rb.append_paged(k, k, k_pages, k_pages.clone(), TABLE, LENGTHS)))(new)
