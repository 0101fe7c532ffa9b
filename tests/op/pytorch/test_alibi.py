"""ALiBi on PyTorch tensors: against float64, and under PyTorch's transforms."""

import pytest

torch = pytest.importorskip("torch")

import redblue as rb
from redblue.kernels.mask_argument import MaskArgument
from redblue.kernels.options import Options
from redblue.op.pytorch.autograd import backward_op, forward_op
from support.textbook import TOLERANCE, check, check_close, normal, textbook


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def slopes(*shape, dtype=torch.float64):
    return torch.rand(shape, dtype=dtype) / 4


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", [(4,), (2, 4), (2, 1)])
def test_outputs_and_gradients_in_every_type(dtype, shape):
    q, k, v = normal(2, 4, 17, 9, dtype=dtype), normal(2, 2, 23, 9, dtype=dtype), normal(2, 2, 23, 5, dtype=dtype)
    bias, sinks = normal(4, 1, 23, dtype=dtype), normal(4, dtype=torch.float32)
    options = {"mask": rb.Mask.sliding_window(7, 3, align="bottom-right"), "scale": 0.3, "softcap": 4.0}
    alibi = slopes(*shape, dtype=torch.float32)
    check(q, k, v, bias, sinks, bias=bias, sinks=sinks, alibi=alibi, **options)


@pytest.mark.parametrize("schedule", ["auto", "gather", "hybrid", "small_cache"])
def test_gradcheck(schedule):
    q, k, v, alibi = normal(2, 4, 3, 3), normal(2, 2, 5, 3), normal(2, 2, 5, 2), slopes(2, 4)

    def call(q, k, v):
        options = {"softcap": 3.0, "dropout": 0.3, "seed": 7, "mask": rb.Mask.documents([1, 2], [2, 3])}
        return rb.attention(q, k, v, alibi=alibi, schedule=schedule, return_lse=True, **options)

    assert torch.autograd.gradcheck(call, (q, k, v), fast_mode=True)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # raised within opcheck
def test_opcheck():
    q, k, v, alibi = normal(2, 4, 5, 8), normal(2, 2, 7, 8), normal(2, 2, 7, 3), slopes(2, 4)
    flat = Options(MaskArgument(), alibi=alibi).flat
    torch.library.opcheck(forward_op, (q, k, v, *flat))
    with torch.no_grad():
        out, lse = forward_op(q, k, v, *flat)
    detached = [x.detach() for x in (torch.randn_like(out), torch.randn_like(lse), q, k, v, out, lse)]
    torch.library.opcheck(backward_op, (*detached, *flat, False))


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.torch.jit.script")
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(dynamic):
    def call(q, k, alibi):
        return rb.attention(q, k, k, alibi=alibi, mask=rb.Mask.causal(align="bottom-right"))

    compiled = torch.compile(call, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for n in (5, 9):
        q, k, alibi = normal(2, 4, n, 8), normal(2, 2, n + 2, 8), slopes(2, 4)
        got, expected = compiled(q, k, alibi), call(q, k, alibi)
        check_close(got, expected)
        for x, y in zip(*(torch.autograd.grad(out.sin().sum(), (q, k)) for out in (got, expected)), strict=True):
            check_close(x, y)


@pytest.mark.parametrize("in_dims", [(0, None, None), (0, 0, 1), (None, None, 0), (1, None, 0)])
@pytest.mark.parametrize("shape", [(4,), (2, 4)])
def test_vmap_and_gradients_within(in_dims, shape):
    def full(dim, *rest):
        return (*rest[:dim], 3, *rest[dim:])

    q = normal(*((2, 4, 5, 6) if in_dims[0] is None else full(in_dims[0], 2, 4, 5, 6)), grad=False)
    k = normal(*((2, 2, 7, 6) if in_dims[1] is None else full(in_dims[1], 2, 2, 7, 6)), grad=False)
    alibi = slopes(*(shape if in_dims[2] is None else full(in_dims[2], *shape)))

    def loss(q, k, alibi):
        return rb.attention(q, k, k, alibi=alibi).sin().sum()

    got = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1)), in_dims=in_dims)(q, k, alibi)
    for i in range(3):
        entry = [x if d is None else x.select(d, i) for x, d in zip((q, k, alibi), in_dims, strict=True)]
        leaves = [x.clone().requires_grad_() for x in entry[:2]]
        expected = textbook(leaves[0], leaves[1], leaves[1], alibi=entry[2]).sin().sum()
        for x, y in zip(got, torch.autograd.grad(expected, leaves), strict=True):
            check_close(x[i], y)


def test_autocast_keeps_the_slopes():
    q, alibi = normal(2, 3, 40, 4, dtype=torch.float32), slopes(3, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = rb.attention(q, q, q, alibi=alibi)
    assert out.dtype == torch.bfloat16
    check_close(out, textbook(q, q, q, alibi=alibi), torch.bfloat16)
    half = q.detach().bfloat16()
    assert torch.equal(out, rb.attention(half, half, half, alibi=alibi))


def test_meta_tensors():
    q = torch.empty(2, 3, 5, 4, device="meta")
    assert rb.attention(q, q, q, alibi=torch.empty(3, device="meta")).shape == (2, 3, 5, 4)


X = torch.zeros(2, 4, 5, 8)


@pytest.mark.parametrize(
    ("alibi", "message"),
    [
        (torch.zeros(4, requires_grad=True), "alibi has no gradient: detach it, or give a bias"),
        (torch.zeros(3), r"alibi must broadcast to \(..., heads\) = \(2, 4\), got shape \(3,\)"),
        (torch.zeros(4).int(), "alibi must be of type float64, .*, got int32"),
        (torch.zeros(4, device="meta"), r"alibi must be on the device of q \(cpu\), got meta"),
        (0.5, "alibi must be a PyTorch tensor like the others, got float"),
    ],
)
def test_bad_slopes_are_named(alibi, message):
    with pytest.raises(rb.RedblueError, match=message):
        rb.attention(X, X, X, alibi=alibi)


def test_the_op_refuses_to_leave_out_the_slopes_gradient():
    q, alibi = normal(1, 2, 3, 4), slopes(2).requires_grad_()
    out, _ = forward_op(q, q, q, *Options(MaskArgument(), alibi=alibi).flat)
    with pytest.raises(rb.RedblueError, match="alibi has no gradient"):
        out.sum().backward()
    with pytest.raises(rb.RedblueError, match="alibi has no gradient"):
        torch.func.grad(lambda x: rb.attention(q.detach(), q.detach(), q.detach(), alibi=x).sum())(alibi.detach())


def test_packed_sequences():
    lengths, starts = (5, 9, 2), torch.tensor([0, 5, 14, 16])
    q, k, v, alibi = normal(16, 4, 6), normal(16, 2, 6), normal(16, 2, 3), slopes(4)
    out = rb.attention_varlen(q, k, v, starts, mask=rb.Mask.causal(), alibi=alibi)
    parts = zip(*(x.transpose(0, 1).split(lengths, 1) for x in (q, k, v)), strict=True)
    expected = torch.cat([rb.attention(*part, mask=rb.Mask.causal(), alibi=alibi) for part in parts], 1).transpose(0, 1)
    check_close(out, expected)
    for x, y in zip(*(torch.autograd.grad(result.sin().sum(), (q, k, v)) for result in (out, expected)), strict=True):
        check_close(x, y)
