"""redblue.attention on PyTorch tensors, against float64 and PyTorch, and under PyTorch's transforms."""

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

import redblue as rb
from redblue.kernels.mask_argument import MaskArgument
from redblue.kernels.options import Options
from redblue.op.pytorch.autograd import backward_op, forward_op
from support.examples import thorough
from support.textbook import TOLERANCE, check, check_close, normal, textbook


def flat(mask=None, **options):
    """Return options in the form that the ops take."""
    return Options(mask or MaskArgument(), **options).flat


@pytest.fixture(autouse=True)
def nan_in_new_memory():
    """Fill new memory with NaN, which shows in every element that a kernel does not write."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


# Values ------------------------------------------------------------------------------------------------------------


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


# Dropout -----------------------------------------------------------------------------------------------------------


def test_dropout_follows_pytorchs_generator_and_the_seed():
    q = normal(2, 3, 40, 8)

    def drawn():
        return rb.attention(q, q, q, dropout=0.5)

    first, second = drawn(), drawn()
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    torch.randn(2, 3, 40, 8)
    torch.manual_seed(5)
    a, state = drawn(), torch.get_rng_state()
    torch.manual_seed(5)
    assert torch.equal(a, drawn())
    seeded_results = [rb.attention(q, q, q, dropout=0.5, seed=seed) for seed in (3, 3, 4, 2**64 - 1)]
    assert torch.equal(seeded_results[0], seeded_results[1])
    assert not torch.equal(seeded_results[0], seeded_results[2])
    assert torch.equal(torch.get_rng_state(), state)  # a call with a seed does not advance the generator
    arrays = [q.detach().numpy()] * 3
    assert np.array_equal(seeded_results[3].detach().numpy(), rb.attention(*arrays, dropout=0.5, seed=2**64 - 1))


def test_dropout_takes_its_share_and_keeps_the_mean():
    q, v = torch.zeros(1, 1, 200, 4), torch.eye(300)[None, None]
    p = rb.attention(q, torch.zeros(1, 1, 300, 4), v, dropout=0.3)  # the probabilities themselves
    assert float((p == 0).float().mean()) == pytest.approx(0.3, abs=0.01)
    assert torch.equal(p.unique(), torch.tensor([0.0, 1 / 0.7 / 300]).to(p)) or len(p.unique()) == 2
    assert float(p.sum(-1).mean()) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_repeats_the_dropout(use_reentrant):
    q = normal(2, 3, 9, 8)
    torch.manual_seed(1)
    (expected,) = torch.autograd.grad(rb.attention(q, q, q, dropout=0.4).sin().sum(), q)
    torch.manual_seed(1)
    checkpoint(lambda x: rb.attention(x, x, x, dropout=0.4), q, use_reentrant=use_reentrant).sin().sum().backward()
    assert torch.equal(q.grad, expected)


# The counterpart of F.scaled_dot_product_attention -------------------------------------------------------------------

PYTORCHS_CALLS = {
    "plain": ((2, 3, 5, 4), (2, 3, 7, 4), {}),
    "causal, more keys": ((2, 3, 5, 4), (2, 3, 7, 4), {"is_causal": True}),
    "causal, fewer keys": ((2, 3, 7, 4), (2, 3, 5, 4), {"is_causal": True}),
    "negative scale": ((2, 3, 5, 4), (2, 3, 7, 4), {"scale": -0.7}),
    "grouped": ((2, 6, 5, 4), (2, 2, 7, 4), {"enable_gqa": True}),
    "one key head": ((2, 6, 5, 4), (2, 1, 7, 4), {}),
    "2-D": ((5, 4), (7, 4), {"is_causal": True}),
    "3-D": ((3, 5, 4), (3, 7, 4), {}),
    "5-D": ((2, 2, 3, 5, 4), (2, 2, 3, 7, 4), {"is_causal": True}),
    "broadcast": ((2, 3, 5, 4), (1, 3, 7, 4), {}),
}


@pytest.mark.parametrize(("q", "k", "options"), PYTORCHS_CALLS.values(), ids=PYTORCHS_CALLS)
def test_scaled_dot_product_attention(q, k, options):
    q, k, v = normal(*q), normal(*k), normal(*k)
    ours = rb.scaled_dot_product_attention(q, k, v, **options)
    theirs = F.scaled_dot_product_attention(q, k, v, **options)
    check_close(ours, theirs)
    dout = torch.randn_like(ours)
    for x, y in zip(*(torch.autograd.grad(o, (q, k, v), dout) for o in (ours, theirs)), strict=True):
        check_close(x, y)


def test_scaled_dot_product_attention_with_masks():
    q, k, v = normal(2, 3, 5, 4), normal(2, 3, 7, 4), normal(2, 3, 7, 4)
    attends = torch.rand(2, 1, 5, 7) < 0.6
    attends[0, 0, 2] = False
    added = normal(3, 5, 7)
    for attn_mask, inputs in ((attends, (q, k, v)), (added, (q, k, v, added))):
        ours, theirs = (
            f(q, k, v, attn_mask=attn_mask) for f in (rb.scaled_dot_product_attention, F.scaled_dot_product_attention)
        )
        check_close(ours, theirs)
        for x, y in zip(*(torch.autograd.grad(o.sin().sum(), inputs) for o in (ours, theirs)), strict=True):
            check_close(x, y)


# PyTorch's transforms of an operator -------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # raised within opcheck
def test_opcheck():
    q, k, v, bias, sinks = normal(2, 4, 5, 8), normal(2, 2, 7, 8), normal(2, 2, 7, 3), normal(4, 1, 7), normal(4)
    torch.library.opcheck(forward_op, (q, k, v, *flat(bias=bias, sinks=sinks)))
    numbers = flat(MaskArgument(3, 0, True), seed=torch.tensor(5), scale=0.3, softcap=2.0, dropout=0.2)
    torch.library.opcheck(forward_op, (q, k, v, *numbers))
    with torch.no_grad():
        out, lse = forward_op(q, k, v, *flat(bias=bias, sinks=sinks))
        dout, dlse = torch.randn_like(out), torch.randn_like(lse)
        detached = [x.detach() for x in (dout, dlse, q, k, v, out, lse)]
    torch.library.opcheck(backward_op, (*detached, *flat(bias=bias.detach()), True))
    torch.library.opcheck(backward_op, (dout, None, *detached[2:], *flat(), False))


def test_the_op_and_the_short_way_around_the_dispatcher_agree():
    q, k, v, bias, sinks = normal(2, 4, 5, 8), normal(2, 2, 7, 8), normal(2, 2, 7, 3), normal(4, 1, 7), normal(4)
    inputs = q, k, v, bias, sinks
    short = rb.attention(q, k, v, bias=bias, sinks=sinks, mask=rb.Mask.causal(), return_lse=True)
    op = forward_op(q, k, v, *flat(MaskArgument(right=0), bias=bias, sinks=sinks))
    gradients = [torch.autograd.grad([out.sin().sum(), lse.sum()], inputs) for out, lse in (short, op)]
    for x, y in zip((*short, *gradients[0]), (*op, *gradients[1]), strict=True):
        assert torch.equal(x, y)


def test_torch_func():
    x, y = normal(3, 2, 5, 4, grad=False), normal(5, 5)

    def loss(q, bias):
        return rb.attention(q, q, q, bias=bias).sin().sum()

    z = x.clone().requires_grad_()
    expected = torch.autograd.grad(loss(z, y), (z, y))
    for got, reference in zip(torch.func.grad(loss, argnums=(0, 1))(x, y.detach()), expected, strict=True):
        check_close(got, reference)
    each = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1)), in_dims=(0, None))(x, y.detach())
    check_close(each[0], expected[0])
    check_close(each[1].sum(0), expected[1])
    out, pull = torch.func.vjp(lambda q: rb.attention(q, q, q), x)
    douts = torch.randn(4, *out.shape, dtype=out.dtype)
    (pulled,) = torch.func.vmap(pull)(douts)
    for dout, got in zip(douts, pulled, strict=True):
        check_close(got, pull(dout)[0])
    jacobian = torch.func.jacrev(lambda q: rb.attention(q, q, q))(x[0])
    check_close(jacobian, torch.func.jacrev(lambda q: textbook(q, q, q))(x[0]))


@pytest.mark.parametrize("direct", [False, True])
def test_vmap(direct):
    """direct: whether torch.ops.redblue.attention is called instead of redblue.attention."""
    q = normal(5, 2, 4, 6, 3, grad=False).transpose(-1, -2)
    k, v = normal(2, 2, 7, 6, grad=False), normal(2, 2, 7, 5, grad=False)
    bias, sinks = normal(7, 5, grad=False), normal(4, 5, grad=False)

    def call(q, k, v, bias, sinks):
        if direct:
            return forward_op(q, k, v, *flat(bias=bias, sinks=sinks))
        return rb.attention(q, k, v, bias=bias, sinks=sinks, return_lse=True)

    for in_dims, options in (
        ((0, None, None, None, None), (None, None)),
        ((0, None, None, 1, None), (bias, None)),
        ((0, None, None, None, None), (bias[:, 0], sinks[:, 0])),
        ((0, None, None, 1, 1), (bias, sinks)),
    ):
        got = torch.func.vmap(call, in_dims=in_dims)(q, k, v, *options)
        for i in range(5):
            one = [x if d is None else x.select(d, i) for x, d in zip((q, k, v, *options), in_dims, strict=True)]
            for x, y in zip(got, call(*one), strict=True):
                check_close(x[i], y)


def test_vmap_and_dropout():
    x = normal(1, 2, 9, 4, grad=False).expand(3, 2, 9, 4)

    def call(q):
        return rb.attention(q, q, q, dropout=0.5)

    same = torch.func.vmap(call, randomness="same")(x)
    assert torch.equal(same[0], same[1])
    other = torch.func.vmap(call, randomness="different")(x)
    assert not torch.equal(other[0], other[1])
    with pytest.raises(RuntimeError, match="randomness"):
        torch.func.vmap(call)(x)
    # The loss is linear in v, so it is gradient * v exactly if backward dropped the same probabilities as forward.
    for randomness in ("same", "different"):

        def loss(v):
            return rb.attention(x[0], x[0], v, dropout=0.5).sum()

        torch.manual_seed(1)
        gradient = torch.func.vmap(torch.func.grad(loss), randomness=randomness)(x)
        torch.manual_seed(1)
        values = torch.func.vmap(loss, randomness=randomness)(x)
        check_close((gradient * x).sum((1, 2, 3)), values)


@pytest.mark.filterwarnings("ignore:.torch.jit.script")
def test_second_and_forward_derivatives_are_refused_clearly():
    q = normal(1, 1, 3, 4)
    (gradient,) = torch.autograd.grad(rb.attention(q, q, q).sin().sum(), q, create_graph=True)
    with pytest.raises(rb.RedblueError, match="double backward is not supported"):
        gradient.sum().backward()
    with pytest.raises(rb.RedblueError, match="forward-mode"):
        torch.func.jvp(lambda x: rb.attention(x, x, x), (q.detach(),), (q.detach(),))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q.detach(), q.detach())
        with pytest.raises(rb.RedblueError, match="q has a forward-mode tangent"):
            rb.attention(dual, q, q)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    q, k, v = (normal(2, 3, 5, 4, dtype=torch.float32) for _ in range(3))
    bias = normal(5, 5, dtype=torch.float32)
    with torch.autocast("cpu", dtype=dtype):
        out = rb.attention(q, k.to(dtype), v, bias=bias)
        assert rb.attention(*(x.double() for x in (q, k, v))).dtype == torch.float64
    assert out.dtype == dtype
    check_close(out, textbook(q, k, v, bias=bias), dtype)
    assert torch.autograd.grad(out.sum(), q)[0].dtype == torch.float32


def test_meta_tensors_and_inference_mode():
    q = torch.empty(2, 3, 5, 4, device="meta")
    assert rb.attention(q, q, q).shape == (2, 3, 5, 4)
    q = normal(2, 3, 5, 4)
    with torch.inference_mode():
        out = rb.attention(q, q, q)
    assert not out.requires_grad
    check_close(out, textbook(q, q, q))


def test_default_device_changes_nothing():
    q = normal(1, 2, 5, 4)
    expected = rb.attention(q, q, q, dropout=0.2, seed=1)
    with torch.device("meta"):
        assert torch.equal(rb.attention(q, q, q, dropout=0.2, seed=1), expected)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_results_do_not_depend_on_threads(threads):
    q = normal(1, 3, 70, 16, dtype=torch.float32)
    expected = rb.attention(q, q, q)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        out = rb.attention(q, q, q)
        (gradient,) = torch.autograd.grad(out.sum(), q)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(out, expected)
    assert torch.equal(gradient, torch.autograd.grad(expected.sum(), q)[0])


class Gradients(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        torch.manual_seed(index)
        q = normal(1, 4, 200, 32, dtype=torch.float32)
        return torch.autograd.grad(rb.attention(q, q, q).sum(), q)[0]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", thorough("spawn")])
def test_inside_workers_of_a_data_loader(method):
    data = Gradients()
    expected = [data[index] for index in range(len(data))]
    loader = torch.utils.data.DataLoader(data, num_workers=2, multiprocessing_context=method, timeout=60)
    for (gradient,), right in zip(loader, expected, strict=True):
        assert torch.equal(gradient, right)


# Errors ------------------------------------------------------------------------------------------------------------

X = torch.zeros(2, 4, 5, 8)
REFUSED = {
    "d": ((X, X[..., :7], X), {}, r"head dimension of k \(7\) must equal that of q \(8\)"),
    "keys": ((X, X, X[:, :, :4]), {}, r"v must have as many keys as k \(5\), got 4"),
    "heads": ((X, X[:, :3], X[:, :3]), {}, r"heads of q \(4\) must be a multiple of the heads of k and v \(3\)"),
    "leading": ((X, X[:1].expand(3, -1, -1, -1), X), {}, "leading dimensions must broadcast"),
    "dimensions": ((X, X[0, 0, 0], X), {}, "k must have at least 2 dimensions"),
    "type": ((X, X.double(), X), {}, "q, k, v must be of one type, got float32 and, for k, float64"),
    "integers": ((X.int(), X.int(), X.int()), {}, "q must be of type float64, .*, got int32"),
    "complex": ((X, X, X.to(torch.complex64)), {}, "v must be of type .*, got complex64"),
    "device": ((X, X.to("meta"), X), {}, r"k must be on the device of q \(cpu\), got meta"),
    "sparse": ((X, X, X.to_sparse()), {}, "v must be dense, got a tensor of layout torch.sparse_coo"),
    "array": ((X, X.numpy(), X), {}, "k must be a PyTorch tensor like the others, got ndarray"),
    "wide": ((torch.zeros(1, 1, 2, 4097),) * 3, {}, "must be 1 to 4096 on the CPU, got 4097"),
    "no d": ((X[..., :0],) * 3, {}, "must be at least 1, got 0"),
    "ranks": ((torch.zeros([1] * 12),) * 3, {}, "q may have at most 11 dimensions"),
    "bias": ((X, X, X), {"bias": torch.zeros(4, 5)}, r"bias must broadcast to .* = \(2, 4, 5, 5\), got shape \(4, 5\)"),
    "bias's type": ((X, X, X), {"bias": torch.zeros(5, 5, dtype=torch.int64)}, "bias must be of type bool, .* int64"),
    "bias too wide": ((X, X, X), {"bias": torch.zeros(5, 5).double()}, "bias of type float64 needs float64"),
    "sinks": ((X, X, X), {"sinks": torch.zeros(3)}, r"sinks must have shape \(4,\), one per head of q, got \(3,\)"),
    "sinks' type": ((X, X, X), {"sinks": torch.zeros(4).int()}, "sinks must be of type float64, .*, got int32"),
    "dropout": ((X, X, X), {"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
    "dropout below": ((X, X, X), {"dropout": -0.1}, "dropout must be at least 0 and below 1, got -0.1"),
    "seed": ((X, X, X), {"dropout": 0.1, "seed": 0.5}, "seed must be a whole number, got 0.5"),
    "scale": ((X, X, X), {"scale": float("nan")}, "scale must be finite, got nan"),
    "softcap": ((X, X, X), {"softcap": 0}, "softcap must be above 0, or None, got 0"),
    "mask": ((X, X, X), {"mask": torch.ones(5, 5)}, "mask must be a redblue.Mask"),
    "schedule": (
        (X, X, X),
        {"schedule": "fast"},
        "schedule must be one of auto, flash, hybrid, small_cache, gather .*, got 'fast'",
    ),
}


@pytest.mark.parametrize(("inputs", "options", "message"), REFUSED.values(), ids=REFUSED)
def test_errors_name_the_argument_and_what_is_allowed(inputs, options, message):
    with pytest.raises(rb.RedblueError, match=message):
        rb.attention(*inputs, **options)


def test_errors_of_scaled_dot_product_attention():
    with pytest.raises(rb.RedblueError, match="attn_mask and is_causal=True were both given"):
        rb.scaled_dot_product_attention(X, X, X, attn_mask=torch.ones(5, 5), is_causal=True)
    with pytest.raises(rb.RedblueError, match=r"query has 4 heads, key 2 and value 2: .* enable_gqa=True"):
        rb.scaled_dot_product_attention(X, X[:, :2], X[:, :2])


def test_nested_tensors_are_refused():
    with warnings.catch_warnings():  # PyTorch warns once per process that nested tensors are a prototype
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([X[0], X[1]])
    with pytest.raises(rb.RedblueError, match="q is a nested tensor"):
        rb.attention(nested, X, X)


def test_the_op_itself_never_trusts_its_arguments():
    with pytest.raises(rb.RedblueError, match="takes equal leading dimensions"):
        forward_op(X, X[:1], X, *flat())
    out, lse = forward_op(X, X, X, *flat())
    with pytest.raises(rb.RedblueError, match="dout must be"):
        backward_op(out[:, :2], None, X, X, X, out, lse, *flat(), False)
    with pytest.raises(rb.RedblueError, match="lse must be"):
        backward_op(out, None, X, X, X, out, lse.double(), *flat(), False)


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale": torch.ones(3)}, "scale must be a number"),
        ({"scale": 10**400}, "scale must be a number"),
        ({"scale": torch.tensor(0.3, requires_grad=True)}, "scale has no gradient"),
        ({"seed": torch.tensor(1.5), "dropout": 0.5}, "seed must be a whole number"),
        ({"k": None}, "k must be a PyTorch tensor"),
    ],
)
def test_arguments_of_a_wrong_type_are_named(change, message):
    arguments = {name: torch.ones(1, 4, 8) for name in "qkv"} | change
    q, k, v = (arguments.pop(name) for name in "qkv")
    with pytest.raises(rb.RedblueError, match=message):
        rb.attention(q, k, v, **arguments)


def test_a_window_wider_than_any_integer_is_open():
    q = torch.ones(1, 4, 8, requires_grad=True)
    rb.attention(q, q, q, mask=rb.Mask.sliding_window(left=10**30, right=0)).sum().backward()
    assert torch.isfinite(q.grad).all()
