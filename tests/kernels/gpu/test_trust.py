"""Unusual inputs that every Triton kernel must handle: any strides, empty arrays, large sizes, extreme numbers.

They run under Triton's interpreter, or, with TRITON_INTERPRET=0, on a GPU. Devices and types are tested in
op/pytorch/test_cuda.py.
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import redblue as rb
from redblue.kernels.gpu import bias_gradient
from redblue.kernels.gpu.planning.plan import Launch
from redblue.op.pytorch import gpu, interpreted
from redblue.schedules import flash, hybrid, small_cache
from redblue.schedules.spilled import ForwardTiles
from support.examples import thorough
from support.gpu import DEVICE, SPARSE, check, check_close, check_forward, interpreted_only, normal

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # the interpreter computes masked lanes, too
    pytest.mark.usefixtures("nan_in_new_memory"),
]

SPILLED = ForwardTiles(rows=16, cols=16, depth=16, out_rows=16, out_cols=16, span=32)
GRADIENTS = {"dq_rows": 16, "dq_cols": 16, "dk_rows": 16, "dk_cols": 16, "chunk": 16, "span": 32}
TILES = {
    "flash": (flash.ForwardTiles(16, 16), flash.BackwardTiles(16, 16, 16, 16)),
    "flash in spans": (flash.ForwardTiles(16, 16, 16), flash.BackwardTiles(16, 16, 16, 16)),
    "hybrid": (SPILLED, hybrid.BackwardTiles(16, 16, 16, **GRADIENTS)),
    "small_cache": (SPILLED, small_cache.BackwardTiles(16, 16, 16, dv_rows=16, dv_cols=16, **GRADIENTS)),
}


@pytest.fixture(params=TILES, autouse=True)
def kernel(request, monkeypatch):
    """Use small tiles, so that tiny calls have many tiles."""
    forward, backward = TILES[request.param]
    chunk = getattr(backward, "chunk", 0)
    name = request.param.split()[0]
    planned = {"forward": Launch(name, forward, chunk=chunk), "backward": Launch(name, backward, chunk=chunk)}
    monkeypatch.setattr(gpu, "plan", lambda direction, *_: planned[direction])
    monkeypatch.setattr(bias_gradient, "EDGE", 16)
    return request.param


# Layouts -----------------------------------------------------------------------------------------------------------


def strided_columns(x):
    return torch.stack([x, x + 1], -1).flatten(-2)[..., ::2]


LAYOUTS = {
    "transposed": lambda x: x.mT.contiguous().mT,
    "rows before heads": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "strided columns": strided_columns,
    "reversed": lambda x: x.flip(1, 2),
    "one row": lambda x: x[:, :, :1].expand_as(x),
    "one head": lambda x: x[:, :1].expand_as(x),
    "one number": lambda x: x[:1, :1, :1, :1].expand_as(x),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_any_strides_of_inputs_and_output_gradient(layout):
    shapes = (2, 2, 17, 5), (2, 1, 19, 5), (2, 1, 19, 4)
    q, k, v = (layout(normal(*shape).detach()).requires_grad_() for shape in shapes)
    got, expected = check_forward(q, k, v, mask=rb.Mask.causal(align="bottom-right"))
    dout, dlse = layout(torch.randn_like(got[0])), torch.randn(1, device=DEVICE, dtype=torch.float64).expand(2, 2, 17)
    gradients = torch.autograd.grad(got, (q, k, v), (dout, dlse))
    references = torch.autograd.grad(expected, (q, k, v), (dout.to(expected[0].device), dlse.to(expected[0].device)))
    for x, y in zip(gradients, references, strict=True):
        torch.testing.assert_close(x, y.to(x.device), atol=1e-11, rtol=1e-11)


def test_output_gradient_and_bias_that_are_expanded_scalars():
    q, k, v, scalar = normal(1, 17, 5), normal(1, 19, 5), normal(1, 19, 4), normal(1)
    out = interpreted.attention(q, k, v, bias=scalar.expand(1, 17, 19))
    expected = rb.attention(*(x.cpu() for x in (q, k, v)), bias=scalar.cpu().expand(1, 17, 19))
    for x, y in zip(*(torch.autograd.grad(x.sum(), (q, k, v, scalar)) for x in (out, expected)), strict=True):
        torch.testing.assert_close(x, y.to(x.device), atol=1e-11, rtol=1e-11)


# Empty arrays ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", ["full", "causal", "documents"])
@pytest.mark.parametrize(
    ("q", "k"),
    [((2, 4, 0, 5), (2, 2, 7, 5)), ((2, 4, 6, 5), (2, 2, 0, 5)), ((0, 4, 6, 5), (0, 2, 7, 5)), ((0, 5), (0, 5))],
    ids=str,
)
def test_empty_arrays(q, k, mask):
    masks = {"full": rb.Mask.full(), "causal": rb.Mask.causal(), "documents": rb.Mask.documents([q[-2]], [k[-2]])}
    inputs = normal(*q), normal(*k), normal(*k)
    out, lse = interpreted.attention(*inputs, mask=masks[mask], return_lse=True)
    assert out.shape == q
    assert not out.any()
    assert (lse == -torch.inf).all()
    for x, gradient in zip(inputs, torch.autograd.grad((out, lse), inputs, (out + 1, lse * 0)), strict=True):
        assert gradient.shape == x.shape
        assert not gradient.any()


@pytest.mark.parametrize("shape", [(), (2, 1, 6, 1)], ids=str)
@pytest.mark.parametrize("mask", [None, rb.Mask.documents([6], [0])], ids=["full", "listed"])
def test_no_keys_and_a_bias_with_a_gradient(mask, shape):
    q, k, v, bias = normal(2, 2, 6, 5), normal(2, 1, 0, 5), normal(2, 1, 0, 4), normal(*shape)
    out = interpreted.attention(q, k, v, mask=mask, bias=bias)
    (gradient,) = torch.autograd.grad(out.sum(), bias)
    assert gradient.shape == bias.shape
    assert not gradient.any()


@pytest.mark.parametrize("sinks", [None, torch.tensor([0.5, -1.0])], ids=["", "sinks"])
@pytest.mark.parametrize("right", [0, 3])
def test_rows_beyond_the_last_key_of_a_window(right, sinks):
    """Whole blocks of rows have no key. Merging the spans of keys must not read their unwritten results."""
    sinks = None if sinks is None else sinks.to(DEVICE)
    mask = rb.Mask.sliding_window(2, right)
    check(normal(1, 2, 90, 5), normal(1, 1, 40, 5), normal(1, 1, 40, 4), mask=mask, sinks=sinks)


def masks_with_unattended_keys():
    """Return masks of 21 rows and 40 keys in which no row attends some of the keys."""
    dense = np.random.default_rng(0).random((2, 1, 21, 40)) < 0.3
    dense[..., 33:] = dense[0, :, :, 3:9] = dense[1, :, :, 20] = False
    return {
        "top left": rb.Mask.causal(),
        "window": rb.Mask.sliding_window(4, 2),
        "late window": rb.Mask.sliding_window(2, 1, align="bottom-right"),
        "nothing": rb.Mask.key_lengths([0, 0]),
        "lengths": rb.Mask.key_lengths([18, 33]),
        "dense": rb.Mask.from_dense(dense),
    }


@pytest.mark.parametrize("options", [thorough({}), {"softcap": 2.0, "dropout": 0.3, "seed": 3}], ids=["", "options"])
@pytest.mark.parametrize("name", masks_with_unattended_keys())
def test_keys_that_no_query_attends_may_hold_nan(name, options):
    mask = masks_with_unattended_keys()[name]
    q, k, v, bias = normal(2, 1, 21, 5), normal(2, 1, 40, 5), normal(2, 1, 40, 4), normal(2, 1, 21, 40)
    dense = mask.to_dense(21, 40)
    attended = torch.from_numpy(dense.any(-2)).reshape(-1, 1, 40, 1).to(DEVICE)
    nan_k, nan_v = ((x.detach().where(attended, torch.nan)).requires_grad_() for x in (k, v))
    assert nan_k.isnan().any()
    with_nan, without_nan = (
        interpreted.attention(q, *keys_and_values, mask=mask, bias=bias, return_lse=True, **options)
        for keys_and_values in ((nan_k, nan_v), (k, v))
    )
    douts = [torch.randn_like(x) for x in with_nan]
    gradients = (
        torch.autograd.grad(results, (q, *keys_and_values, bias), douts)
        for results, keys_and_values in ((with_nan, (nan_k, nan_v)), (without_nan, (k, v)))
    )
    for x, y in zip((*with_nan, *next(gradients)), (*without_nan, *next(gradients)), strict=True):
        assert torch.equal(x, y)


def test_masks_per_batch_entry_with_one_key_head():
    q, k, v, bias = normal(2, 2, 20, 5), normal(2, 1, 20, 5), normal(2, 1, 20, 4), normal(2, 2, 20, 20)
    for mask in (rb.Mask.key_lengths([5, 17]), rb.Mask.per_batch([rb.Mask.causal(), rb.Mask.documents([7, 13])])):
        check(q, k, v, bias, bias=bias, mask=mask)


# Sizes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["small_cache"], indirect=True)  # the others keep whole rows on chip
def test_head_dimensions_beyond_those_of_the_cpu(kernel, monkeypatch):
    edges = {"rows": 64, "cols": 64, "depth": 64, "span": 64}
    wide = dict.fromkeys(("dq_cols", "dk_cols", "dv_cols"), 256)
    planned = {
        "forward": Launch(kernel, SPILLED._replace(**edges, out_cols=256), chunk=64),
        "backward": Launch(kernel, TILES[kernel][1]._replace(**edges, **wide, chunk=64), chunk=64),
    }
    monkeypatch.setattr(gpu, "plan", lambda direction, *_: planned[direction])
    check(normal(1, 3, 4112), normal(1, 18, 4112), normal(1, 18, 4100))


def spread_out(shape, dim):
    """Return a random tensor whose last index along `dim` has an offset beyond 2^31, in sparsely used memory."""
    step = 2**31 // (shape[dim] - 1) + 5
    strides = list(torch.empty(shape, device="meta").stride())
    strides[dim] = step
    memory = np.empty(step * (shape[dim] - 1) + int(np.prod(shape)), np.float16)
    return torch.from_numpy(memory).as_strided(shape, strides).normal_()


DIMENSIONS = {"batch": 0, "head": 1, "row": 2, "column": 3}


@interpreted_only  # needs sparsely used memory; test_device_values.py has a test for GPUs
@pytest.mark.parametrize("mask", [thorough(rb.Mask.causal()), rb.Mask.documents([9, 9])], ids=["causal", "listed"])
@pytest.mark.parametrize("dim", DIMENSIONS.values(), ids=DIMENSIONS)
def test_offsets_beyond_two_to_the_31(dim, mask):
    heads, kv_heads = (4, 2) if dim == DIMENSIONS["head"] else (2, 1)
    batch = 2 if dim == DIMENSIONS["batch"] else 1
    shapes = ((heads, 18, 5), (kv_heads, 18, 5), (kv_heads, 18, 4), (heads, 18, 4), (heads, 18, 18))
    q, k, v, dout, bias = (spread_out((batch, *shape), dim) for shape in shapes)
    results = []
    for tensors in ((q, k, v, bias, dout), [x.contiguous() for x in (q, k, v, bias, dout)]):
        *inputs, gradient = tensors
        inputs = [x.detach().requires_grad_() for x in inputs]
        out = interpreted.attention(*inputs[:3], bias=inputs[3], mask=mask)
        results.append((out, *torch.autograd.grad(out, inputs, gradient)))
    for x, y in zip(*results, strict=True):
        assert torch.equal(x, y)


# Numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("scale", [thorough(1e20), -1e30])
@pytest.mark.parametrize("mask", [rb.Mask.causal(), SPARSE["documents"]], ids=["band", "listed"])
def test_a_dominant_score_gets_weight_1(scale, dtype, mask):
    """Only dV is checked: dQ and dK are rounding errors times the scale, as in the unfused expression."""
    q, k, v = (normal(1, 37, d, dtype=dtype) for d in (5, 5, 4))
    got, expected = check_forward(q, k, v, scale=scale, mask=mask)
    dout = torch.randn_like(got[0])
    (dv,) = torch.autograd.grad(got[0], v, dout)
    (reference,) = torch.autograd.grad(expected[0], v, dout.double().to(expected[0].device))
    atol = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-2}[dtype]
    torch.testing.assert_close(dv.double(), reference.double(), atol=atol, rtol=atol)


def test_infinities_and_nan_stay_in_their_rows():
    """The output and the log-sum-exp of such a row are NaN, and so are the gradients that it contributes to."""
    q, k, v = (normal(2, 37, 5, dtype=torch.float32).detach() for _ in range(3))
    expected = interpreted.attention(q, k, v, scale=2e3, return_lse=True)
    q[0, 3, 1], q[1, 20, 0] = torch.nan, torch.inf
    inputs = [x.requires_grad_() for x in (q, k, v)]
    got = interpreted.attention(*inputs, scale=2e3, return_lse=True)
    broken = torch.zeros(2, 37, dtype=torch.bool, device=DEVICE)
    broken[0, 3] = broken[1, 20] = True
    for x, y in zip(got, expected, strict=True):
        assert x[broken].isnan().all()
        assert torch.equal(x[~broken], y[~broken])
    dq, dk, dv = torch.autograd.grad(got[0].sum(), inputs)
    assert dq[broken].isnan().all()
    assert dq[~broken].isfinite().all()
    assert dk.isnan().any((1, 2)).all()
    assert dv.isnan().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_row_of_the_lowest_finite_bias_attends_its_keys(kernel, dtype):
    """Such a row gets the mean of V, as on the CPU. A bias of -inf hides a key, and NaN stays NaN.

    Kernels that spill P, on the CPU too, and merges of spans of unequal lengths weigh such keys by their log-sum-exp.
    This number is too large to hold the number of keys, so only the schedule `flash` and equal spans are checked.
    """
    q, k, v = (normal(1, 32, d, dtype=dtype).detach() for d in (5, 5, 4))
    bias = torch.zeros(32, 32, dtype=dtype, device=DEVICE)
    bias[1], bias[2], bias[3] = torch.finfo(dtype).min, -torch.inf, torch.nan
    bias[4, :20] = torch.finfo(dtype).min
    out, lse = interpreted.attention(q, k, v, bias=bias, return_lse=True)
    expected, expected_lse = rb.attention(
        *(x.cpu().double() for x in (q, k, v)), bias=bias.cpu().double(), return_lse=True
    )
    rows = [i for i in range(32) if i != 3 and (i != 1 or kernel.startswith("flash"))]
    check_close(out[:, rows], expected[:, rows], dtype)
    assert out[0, 3].isnan().all()
    assert -torch.inf < lse[0, 1] < torch.finfo(lse.dtype).min / 4
    check_close(
        torch.cat((lse[:, 2:3], lse[:, 4:]), 1), torch.cat((expected_lse[:, 2:3], expected_lse[:, 4:]), 1), dtype
    )
