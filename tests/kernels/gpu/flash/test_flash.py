"""The Triton kernels of `flash` against float64: under Triton's interpreter, or, with TRITON_INTERPRET=0, on a GPU."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from triton.language import constexpr

import redblue as rb
from redblue.kernels.gpu import bias_gradient
from redblue.kernels.gpu.flash import forward as flash_kernels
from redblue.kernels.gpu.launch import Task
from redblue.kernels.gpu.planning.plan import Launch
from redblue.kernels.gpu.table import Passes
from redblue.kernels.sizes import Sizes
from redblue.lab import reference
from redblue.op.pytorch import gpu, interpreted
from redblue.schedules import flash
from support.attention import DTYPES, Case
from support.gpu import DEVICE, MASKS, SPARSE, check, check_forward, interpreted_only, normal
from support.textbook import TOLERANCE
from support.tolerances import check_close as check_at_most_twice
from support.tolerances import floors, in_sums, unfused

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # the interpreter computes masked lanes, too
    pytest.mark.usefixtures("bfloat16_to_nearest", "nan_in_new_memory"),
]

TILES = {"forward": flash.ForwardTiles(16, 16), "backward": flash.BackwardTiles(16, 16, 16, 16)}


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(gpu, "plan", lambda direction, *_: Launch("flash", TILES[direction]))
    monkeypatch.setattr(bias_gradient, "EDGE", 16)


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_bands(mask):
    check(normal(1, 2, 21, 5), normal(1, 1, 37, 5), normal(1, 1, 37, 4), mask=mask)


@pytest.mark.parametrize("mask", MASKS[2:], ids=str)
def test_bands_with_more_queries_than_keys(mask):
    check(normal(1, 35, 5), normal(1, 18, 5), normal(1, 18, 4), mask=mask)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_dtypes(dtype):
    q, k, v = normal(2, 17, 9, dtype=dtype), normal(2, 33, 9, dtype=dtype), normal(2, 33, 24, dtype=dtype)
    out, lse = check(q, k, v, scale=-0.3)
    assert out.dtype == dtype
    assert lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize(("d", "d_v"), [(1, 16), (16, 17), (40, 33), (80, 72), (72, 48)])
def test_head_dimensions(d, d_v):
    check(normal(1, 5, d), normal(1, 18, d), normal(1, 18, d_v))


@pytest.mark.parametrize(
    ("q", "k"),
    [
        ((5, 3), (7, 3)),
        ((2, 3, 1, 5, 3), (2, 3, 1, 7, 3)),
        ((2, 2, 5, 3), (2, 1, 1, 7, 3)),
        ((2, 2, 2, 5, 3), (2, 1, 1, 7, 3)),  # leading dimensions that cannot be flattened into one
        ((2, 3, 0, 4), (2, 3, 7, 4)),
        ((2, 3, 5, 4), (2, 3, 0, 4)),
        ((0, 3, 5, 4), (0, 3, 7, 4)),
    ],
)
def test_shapes(q, k):
    if 0 in q or 0 in k:
        q, k, v = normal(*q), normal(*k), normal(*k)
        out, lse = interpreted.attention(q, k, v, return_lse=True)
        assert not out.any()
        assert (lse == -torch.inf).all()
        for gradient in torch.autograd.grad(out, (q, k, v), torch.ones_like(out)):
            assert not gradient.any()
    else:
        check(normal(*q), normal(*k), normal(*k))


def test_strided_inputs():
    q = normal(2, 5, 3, 8).transpose(1, 2)[..., ::2]
    k = normal(2, 3, 4, 19).mT
    v = normal(1, 1, 19, 8)[..., ::2].expand(2, 3, 19, 4)
    out, _ = check(q, k, v)
    assert out.stride() == q.new_empty(2, 5, 3, 4).transpose(1, 2).stride()


def test_softcap_bias_and_sinks():
    q, k, v = normal(1, 4, 9, 5), normal(1, 2, 19, 5), normal(1, 2, 19, 4)
    sinks = torch.tensor([-1.0, 0.5, -torch.inf, 20.0], device=DEVICE, requires_grad=True)
    check(q, k, v, softcap=0.7, scale=2.0)
    bias = normal(4, 9, 19)
    check(q, k, v, bias, sinks, softcap=3.0, bias=bias, sinks=sinks, mask=rb.Mask.causal(align="bottom-right"))


@pytest.mark.parametrize("shape", [(), (19,), (17, 1), (2, 1, 19), (2, 1, 17, 19)], ids=str)
def test_bias_of_any_broadcastable_shape(shape):
    q, k, v = normal(2, 2, 17, 5), normal(2, 1, 19, 5), normal(2, 1, 19, 4)
    bias = normal(*shape)
    check(q, k, v, bias, bias=bias)


@pytest.mark.thorough
def test_gradient_of_a_bias_with_all_other_options():
    q, k, v = normal(2, 2, 2, 18, 3), normal(2, 1, 1, 18, 3), normal(2, 1, 1, 18, 3)
    bias = normal(2, 1, 1, 18, 18)
    check(q, k, v, bias, bias=bias, mask=rb.Mask.documents([7, 11]), softcap=2.0, dropout=0.2, seed=1)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_bias_of_any_dtype(dtype):
    q, k, v = (normal(1, n, 5, dtype=torch.float32) for n in (9, 19, 19))
    bias = normal(9, 19).detach() > 0.5 if dtype == torch.bool else normal(9, 19).detach().to(dtype)
    bias[3] = False if dtype == torch.bool else -torch.inf
    out, lse = check(q, k, v, bias=bias)
    assert not out[:, 3].any()
    assert (lse[:, 3] == -torch.inf).all()


@pytest.mark.parametrize("size", [1e-3, 0.5, 3.0])
def test_softcap_in_float32(size):
    q, k, v = (normal(1, n, 5, dtype=torch.float32) * size for n in (9, 19, 19))
    check(q, k, v, softcap=2.0)


def test_dropout_drops_the_same_pairs_as_on_the_cpu():
    q, k, v = torch.zeros(2, 2, 9, 1), torch.zeros(2, 1, 19, 1), torch.eye(19).expand(2, 1, 19, 19)
    for seed, dropout in ((2**40 + 7, 0.7), (-5, 0.2)):
        ours = interpreted.attention(*(x.to(DEVICE) for x in (q, k, v)), dropout=dropout, seed=seed)
        assert torch.equal(ours.cpu() == 0, rb.attention(q, k, v, dropout=dropout, seed=seed) == 0)
    # The pairs dropped differ from row to row, even if the leading dimensions cannot be flattened
    check(normal(2, 2, 2, 5, 3), normal(2, 1, 1, 18, 3), normal(2, 1, 1, 18, 3), dropout=0.3, seed=3)


@pytest.mark.parametrize("mask", SPARSE.values(), ids=SPARSE)
def test_listed_masks(mask):
    n = 48 if mask is SPARSE["blocks"] else 37
    check(normal(1, 2, n, 5), normal(1, 1, n, 5), normal(1, 1, n, 4), mask=mask)


@pytest.mark.parametrize(("rows", "cols"), [(64, 128), (128, 64), (32, 128)])
def test_listed_masks_in_tiles_of_several_words(monkeypatch, rows, cols):
    monkeypatch.setitem(TILES, "forward", flash.ForwardTiles(rows, cols))
    monkeypatch.setitem(TILES, "backward", flash.BackwardTiles(rows, cols, rows, cols))
    dense = np.random.default_rng(0).random((150, 150)) < 0.5
    mask = rb.Mask.from_dense(dense) | rb.Mask.blocks([[True, False]], (150, 130))
    check(normal(1, 150, 3), normal(1, 150, 3), normal(1, 150, 3), mask=mask)


@pytest.mark.parametrize("mask", [*MASKS, *SPARSE.values()][:-2], ids=str)
@pytest.mark.parametrize("span", [16, 32])
def test_keys_in_spans(monkeypatch, mask, span):
    monkeypatch.setitem(TILES, "forward", flash.ForwardTiles(16, 16, span))
    n_q, n_k = (48, 48) if mask is SPARSE["blocks"] else (37, 37) if mask in SPARSE.values() else (3, 37)
    sinks = torch.tensor([0.5, -torch.inf], device=DEVICE)
    check_forward(normal(1, 2, n_q, 5), normal(1, 1, n_k, 5), normal(1, 1, n_k, 4), mask=mask, sinks=sinks)


def test_spans_with_dropout_and_bias(monkeypatch):
    monkeypatch.setitem(TILES, "forward", flash.ForwardTiles(16, 16, 16))
    q, k, v = normal(2, 2, 2, 3, 3), normal(2, 1, 1, 35, 3), normal(2, 1, 1, 35, 3)
    check_forward(q, k, v, dropout=0.3, seed=3, bias=normal(3, 35), softcap=2.0)


def test_masks_per_head_and_per_batch_entry():
    masks = [rb.Mask.documents([7, 30]), rb.Mask.causal(), rb.Mask.from_dense(np.eye(37, dtype=bool))]
    q, k, v = normal(1, 3, 37, 5), normal(1, 3, 37, 5), normal(1, 3, 37, 4)
    check(q, k, v, mask=rb.Mask.per_head(masks))
    check(*(torch.cat([x, x + 1]) for x in (q[:, :1], k[:, :1], v[:, :1])), mask=rb.Mask.per_batch(masks[:2]))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_errors_are_no_larger_than_twice_those_of_the_unfused_expression(dtype):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((2, n, 24)).astype(DTYPES[dtype]) for n in (37, 53, 53, 37)]
    case = Case(*arrays, options={"softcap": 2.0, "mask": rb.Mask.causal()})
    q, k, v, dout = (torch.from_numpy(x.astype(np.float32)).to(DEVICE, getattr(torch, dtype)) for x in arrays)
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    out, lse = interpreted.attention(q, k, v, **case.options, return_lse=True)
    results = {"out": out, "lse": lse} | dict(
        zip(("dq", "dk", "dv"), torch.autograd.grad(out, (q, k, v), dout), strict=True)
    )
    exact = reference.forward(case.q, case.k, case.v, **case.arguments())._asdict()
    exact |= reference.backward(case.q, case.k, case.v, case.dout, **case.arguments())._asdict()
    naive, floor = unfused(case) | {"lse": unfused(in_sums(case))["lse"]}, floors(case)
    for name, got in results.items():
        check_at_most_twice(name, got.detach().double().cpu().numpy(), exact[name], naive[name], floor[name])


def test_two_runs_are_bitwise_equal():
    q, k, v, bias = (normal(*shape, dtype=torch.float32) for shape in ((2, 19, 5), (2, 35, 5), (2, 35, 4), (2, 1, 35)))
    dout = torch.randn(2, 19, 4, device=DEVICE)

    def run():
        out = interpreted.attention(q, k, v, bias=bias)
        return out, *torch.autograd.grad(out, (q, k, v, bias), dout)

    assert all(torch.equal(x, y) for x, y in zip(run(), run(), strict=True))


def test_64_bit_offsets(monkeypatch):
    sizes = Sizes((1,), 1, 1, 2**26, 2, 64, 64)
    q, k, lse = (torch.empty(shape, device="meta") for shape in ((1, 1, 2**26, 64), (1, 1, 2, 64), (1, 1, 2**26)))
    assert Task(sizes, q, k, k, q, lse).wide
    assert not Task(sizes, q[:, :, : 2**25], k, k, k, lse).wide
    assert Task(sizes, k, torch.empty(1, 1, 64, 2**26, device="meta").mT, k, k, lse).wide  # strided columns
    monkeypatch.setattr(Task, "wide", True)
    bias = normal(2, 19, 35)
    check(normal(2, 19, 40), normal(1, 35, 40), normal(1, 35, 5), bias, bias=bias, mask=rb.Mask.causal())
    check(normal(1, 37, 5), normal(1, 37, 5), normal(1, 37, 5), mask=SPARSE["dots"])


def test_pytorchs_tf32_setting_is_followed(monkeypatch):
    precisions, forward = [], flash_kernels.forward

    def recording(task, launch, precision):
        precisions.append(precision)
        return forward(task, launch, precision)

    monkeypatch.setitem(gpu.KERNELS, "flash", Passes(recording, None))
    q, matmul = torch.randn(1, 3, 5, device=DEVICE), torch.backends.cuda.matmul
    before = matmul.allow_tf32
    try:
        for allowed in (False, True):
            matmul.allow_tf32 = allowed
            interpreted.attention(q, q, q)
        interpreted.attention(*3 * [q.half()])
    finally:
        matmul.allow_tf32 = before
    assert precisions == ["ieee", "tf32", "ieee"]


def test_gradients_run_on_the_device_of_the_outputs(monkeypatch):
    q, k, v = normal(1, 3, 5), normal(1, 7, 5), normal(1, 7, 5)
    out, plan = interpreted.attention(q, k, v), gpu.plan
    planned = []
    monkeypatch.setattr(gpu, "plan", lambda direction, *more: planned.append(direction) or plan(direction, *more))
    out.sum().backward()
    rb.attention(*(x.detach().cpu() for x in (q, k, v)))
    assert planned == ["backward"]  # once, and not for the call on the CPU


def test_numpy_arrays_are_refused():
    with pytest.raises(rb.RedblueError, match="take PyTorch tensors, got ndarray"):
        interpreted.attention(*3 * [np.zeros((2, 3), np.float32)])


@interpreted_only
def test_the_interpreter_must_be_on(monkeypatch):
    monkeypatch.setattr(interpreted, "INTERPRETED", constexpr(False))
    with pytest.raises(rb.RedblueError, match="TRITON_INTERPRET=1"):
        interpreted.attention(normal(2, 3), normal(2, 3), normal(2, 3))


def test_calls_that_old_versions_of_triton_cannot_compile_are_refused(monkeypatch):
    monkeypatch.setattr("triton.__version__", "3.3.1")
    q = torch.randn(1, 5, 8, requires_grad=True, device=DEVICE)
    out = interpreted.attention(q, q, q, dropout=0.5, seed=1)
    with pytest.raises(rb.RedblueError, match=r"gradients with dropout need Triton 3\.4 or newer, got 3\.3\.1"):
        out.sum().backward()
    interpreted.attention(q, q, q).sum().backward()
