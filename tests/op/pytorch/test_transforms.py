"""redblue.attention under PyTorch's transforms, autocast, devices, threads and data loaders."""

import pytest

torch = pytest.importorskip("torch")

import redblue as rb
from redblue.kernels.mask_argument import MaskArgument
from redblue.op.pytorch.autograd import backward_op, forward_op
from support.examples import thorough
from support.op_options import flat_options
from support.textbook import check_close, normal, textbook

pytestmark = pytest.mark.usefixtures("nan_in_new_memory")


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # raised within opcheck
def test_opcheck():
    q, k, v, bias, sinks = normal(2, 4, 5, 8), normal(2, 2, 7, 8), normal(2, 2, 7, 3), normal(4, 1, 7), normal(4)
    torch.library.opcheck(forward_op, (q, k, v, *flat_options(bias=bias, sinks=sinks)))
    numbers = flat_options(MaskArgument(3, 0, True), seed=torch.tensor(5), scale=0.3, softcap=2.0, dropout=0.2)
    torch.library.opcheck(forward_op, (q, k, v, *numbers))
    with torch.no_grad():
        out, lse = forward_op(q, k, v, *flat_options(bias=bias, sinks=sinks))
        dout, dlse = torch.randn_like(out), torch.randn_like(lse)
        detached = [x.detach() for x in (dout, dlse, q, k, v, out, lse)]
    torch.library.opcheck(backward_op, (*detached, *flat_options(bias=bias.detach()), True))
    torch.library.opcheck(backward_op, (dout, None, *detached[2:], *flat_options(), False))


def test_the_op_and_the_short_way_around_the_dispatcher_agree():
    q, k, v, bias, sinks = normal(2, 4, 5, 8), normal(2, 2, 7, 8), normal(2, 2, 7, 3), normal(4, 1, 7), normal(4)
    inputs = q, k, v, bias, sinks
    short = rb.attention(q, k, v, bias=bias, sinks=sinks, mask=rb.Mask.causal(), return_lse=True)
    op = forward_op(q, k, v, *flat_options(MaskArgument(right=0), bias=bias, sinks=sinks))
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
    by_entry = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1)), in_dims=(0, None))(x, y.detach())
    check_close(by_entry[0], expected[0])
    check_close(by_entry[1].sum(0), expected[1])
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
            return forward_op(q, k, v, *flat_options(bias=bias, sinks=sinks))
        return rb.attention(q, k, v, bias=bias, sinks=sinks, return_lse=True)

    for in_dims, options in (
        ((0, None, None, None, None), (None, None)),
        ((0, None, None, 1, None), (bias, None)),
        ((0, None, None, None, None), (bias[:, 0], sinks[:, 0])),
        ((0, None, None, 1, 1), (bias, sinks)),
    ):
        got = torch.func.vmap(call, in_dims=in_dims)(q, k, v, *options)
        for i in range(5):
            entry = [x if d is None else x.select(d, i) for x, d in zip((q, k, v, *options), in_dims, strict=True)]
            for x, y in zip(got, call(*entry), strict=True):
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
