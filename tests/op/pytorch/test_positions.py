"""Positions on PyTorch tensors: against float64 and the whole problem's dropout, and under PyTorch's transforms."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import redblue as rb
from redblue import Positions, RedblueError
from redblue.kernels.mask_argument import MaskArgument
from redblue.kernels.options import Options
from redblue.op.pytorch import dispatch
from redblue.op.pytorch.autograd import backward_op, forward_op
from redblue.op.pytorch.positions import packed
from support.positions import HEADS, KEY_HEADS, N_K, N_Q, PLACEMENTS, block
from support.textbook import TOLERANCE, check_close


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def tensors(cut, dtype=torch.float64):
    """The block's arrays as tensors, and its options with tensors."""
    arrays = [torch.tensor(x.astype(np.float64)).to(dtype) for x in cut.arrays]
    return arrays, cut.options | {"alibi": torch.tensor(cut.options["alibi"])}


def with_gradients(call, arrays):
    q, k, v = (x.detach().requires_grad_() for x in arrays[:3])
    out, lse = call(q, k, v)
    return [out, lse, *torch.autograd.grad(out, (q, k, v), arrays[3])]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("schedule", ["flash", "hybrid", "small_cache", "gather"])
def test_outputs_and_gradients(dtype, schedule):
    for (queries, keys), heads in zip([("contiguous", "zigzag"), ("random", "strided")], KEY_HEADS, strict=True):
        cut = block(queries, keys, heads)
        arrays, options = tensors(cut, dtype)
        bias = torch.randn(len(cut.queries), len(cut.keys), dtype=dtype, requires_grad=True)
        inputs = [x.requires_grad_() for x in (*arrays[:3], bias)]
        out, lse = rb.attention(*inputs[:3], bias=bias, return_lse=True, schedule=schedule, **options)
        got = out, lse, *torch.autograd.grad(out, inputs, arrays[3])
        cut = cut._replace(arrays=[x.detach().double().numpy() for x in arrays])
        expected = cut.expected(bias=bias.detach().double().numpy())
        for name, x in zip(("out", "lse", "dq", "dk", "dv", "dbias"), got, strict=True):
            check_close(x, torch.tensor(expected[name]), dtype)


def test_positions_of_every_kind():
    """Tensors of any integer type, arrays, lists and ranges mean the same."""
    arrays, options = tensors(block("strided", "strided"))
    of = options["positions"]
    expected = rb.attention(*arrays[:3], **options)
    for kind in (torch.tensor, lambda x: torch.tensor(x, dtype=torch.uint8), list, lambda x: x.astype(np.int16)):
        options["positions"] = of._replace(queries=kind(of.queries), keys=kind(of.keys))
        assert torch.equal(rb.attention(*arrays[:3], **options), expected)


def test_the_backward_function_for_parts_of_the_keys():
    """The gradients of blocks of keys, whose outputs are merged, add up to the gradient of the whole problem."""
    cut = block("whole", "whole")
    (q, k, v, dout), options = tensors(cut)
    out, lse = rb.attention(q, k, v, return_lse=True, **options | {"positions": None})
    expected = with_gradients(
        lambda *x: rb.attention(*x, return_lse=True, **options | {"positions": None}), (q, k, v, dout)
    )[2:]
    dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
    for rank in range(3):
        keys = np.arange(rank, N_K, 3)
        record = Options(**options | {"positions": Positions(range(N_Q), keys, N_Q, N_K)})
        part = dout, q, k[:, :, keys], v[:, :, keys], out, lse
        own_dq, dk[:, :, keys], dv[:, :, keys], _ = dispatch.attention_backward(*part, options=record)
        dq += own_dq
    for got, x in zip((dq, dk, dv), expected, strict=True):
        check_close(got, x)


@pytest.mark.filterwarnings("ignore:.torch.jit.script")
@pytest.mark.parametrize("dynamic", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_compile(dynamic):
    def call(q, k, alibi, queries, keys):
        places = Positions(queries, keys, N_Q, N_K)
        return rb.attention(q, k, k, alibi=alibi, dropout=0.3, seed=3, positions=places)

    compiled = torch.compile(call, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for rows, columns in (("strided", "zigzag"), ("contiguous", "random")):
        queries, keys = torch.tensor(PLACEMENTS[rows](N_Q)), torch.tensor(PLACEMENTS[columns](N_K))
        q = torch.randn(1, HEADS, len(queries), 4, dtype=torch.float64, requires_grad=True)
        k = torch.randn(1, 2, len(keys), 4, dtype=torch.float64, requires_grad=True)
        arguments = q, k, torch.rand(HEADS, dtype=torch.float64), queries, keys
        got, expected = compiled(*arguments), call(*arguments)
        check_close(got, expected)
        for x, y in zip(*(torch.autograd.grad(out.sin().sum(), (q, k)) for out in (got, expected)), strict=True):
            check_close(x, y)
        with pytest.raises(RedblueError, match=r"positions\.keys\[0\] must be at least 0"):
            compiled(*arguments[:-1], keys - N_K)


@pytest.mark.parametrize("in_dims", [(0, None, None), (0, 0, None), (0, None, 0)])
def test_vmap_and_gradients_within(in_dims):
    def shape(dim, *rest):
        return rest if dim is None else (3, *rest)

    q = torch.randn(shape(in_dims[0], 1, 2, 5, 4), dtype=torch.float64)
    k = torch.randn(shape(in_dims[1], 1, 2, 7, 4), dtype=torch.float64)
    queries = torch.randint(9, shape(in_dims[2], 5))

    def loss(q, k, queries):
        places = Positions(queries, torch.arange(7) * 2, 9, 20)
        alibi = torch.tensor([0.5, 0.1])
        return rb.attention(q, k, k, alibi=alibi, dropout=0.3, seed=3, positions=places).sin().sum()

    got = torch.func.vmap(torch.func.grad(loss, (0, 1)), in_dims)(q, k, queries)
    for i in range(3):
        entry = (x if dim is None else x[i] for x, dim in zip((q, k, queries), in_dims, strict=True))
        for x, y in zip(got, torch.func.grad(loss, (0, 1))(*entry), strict=True):
            check_close(x[i], y)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # raised within opcheck
def test_opcheck():
    (q, k, v, dout), options = tensors(block("strided", "strided"))
    places = packed(q, k, v, Options(**options))
    flat = Options(MaskArgument(), alibi=options["alibi"], dropout=0.3, seed=torch.tensor(3), positions=places).flat
    torch.library.opcheck(forward_op, (q, k, v, *flat))
    out, lse = forward_op(q, k, v, *flat)
    torch.library.opcheck(backward_op, (dout, torch.ones_like(lse), q, k, v, out, lse, *flat, False))


def test_autocast_and_meta_tensors():
    (q, k, v, _), options = tensors(block("strided", "strided"), torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert rb.attention(q, k, v, **options).dtype == torch.bfloat16
    q, k, v, options["alibi"] = (x.to("meta") for x in (q, k, v, options["alibi"]))
    assert rb.attention(q, k, v, **options).shape == (*q.shape[:-1], v.shape[-1])


def test_the_op_refuses_positions_that_are_not_packed():
    (q, k, v, _), _ = tensors(block("strided", "strided"))
    for wrong, message in ((torch.arange(5), "positions must have shape"), (torch.zeros(28), "must be of type int64")):
        with pytest.raises(RedblueError, match=message):
            forward_op(q, k, v, *Options(MaskArgument(), positions=wrong).flat)
