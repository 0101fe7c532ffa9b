"""flex_attention's other arguments, types, sizes and transforms, and its refusals."""

from __future__ import annotations

import copy
import inspect
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
flex = pytest.importorskip("torch.nn.attention.flex_attention")

import redblue as rb
from redblue import RedblueError
from support.flex import check, dense, eager, tensors

INFINITY = float("inf")
TABLE = torch.nn.Parameter(torch.randn(4, 60, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))


def mixed(s, b, h, i, j):
    """Every supported operation in order: factor, softcap, bias, alibi, mask."""
    added = 2 * torch.tanh(s * TABLE[h, i] / 2) + TABLE[h, i - j + 30] - 0.25 * (i - j).abs()
    return torch.where(((i - j).abs() < 9) & (j % 5 != 2), added, -INFINITY)


@pytest.fixture(autouse=True)
def plain_eager(monkeypatch):
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def test_the_signature_is_pytorchs():
    ours, theirs = (inspect.signature(f).parameters.values() for f in (rb.flex_attention, flex.flex_attention))
    assert [(p.name, p.kind, p.default) for p in ours] == [(p.name, p.kind, p.default) for p in theirs]


@pytest.mark.parametrize(("dtype", "close"), [("float32", 2e-5), ("bfloat16", 0.05), ("float16", 0.006)])
def test_types(dtype, close):
    call = tensors(kv_heads=2, dtype=getattr(torch, dtype))
    check(*call, mixed, captured=(TABLE,), close=close)
    out, lse = rb.flex_attention(*call, mixed, enable_gqa=True, return_lse=True)
    assert (out.dtype, lse.dtype) == (getattr(torch, dtype), torch.float32)


@pytest.mark.parametrize("scale", [None, 0.7, -1.0, 0.0, 1])
def test_scale(scale):
    check(*tensors(), mixed, captured=(TABLE,), scale=scale)
    check(*tensors(), None, scale=scale)


@pytest.mark.parametrize("sizes", [(1, 1), (1, 23), (23, 1), (29, 17)])
@pytest.mark.parametrize("batch", [1, 2])
def test_sizes(sizes, batch):
    check(*tensors(*sizes, batch=batch, kv_heads=1), mixed, captured=(TABLE,))


@pytest.mark.parametrize(("n_q", "n_k", "batch"), [(0, 5, 2), (5, 0, 2), (5, 5, 0)])
def test_empty_calls(n_q, n_k, batch):
    q, k, v = tensors(n_q, n_k, batch=batch)
    out, lse = rb.flex_attention(q, k, v, mixed, return_lse=True)
    assert out.shape == (batch, 4, n_q, 5)
    assert not out.any()
    assert torch.all(lse == -INFINITY)
    out.sum().backward()
    assert not k.grad.any()


def test_one_batch_entry_of_keys_for_all():
    q, k, v = tensors()
    check(q, k[:1].detach().requires_grad_(), v[:1].detach().requires_grad_(), mixed, captured=(TABLE,))


def test_rows_without_keys_are_as_in_pytorch():
    call = tensors()
    keep_none = lambda s, b, h, i, j: torch.where(i > 3, s, -INFINITY)  # noqa: E731
    block_mask = flex.create_block_mask(lambda b, h, i, j: i > 3, None, None, 19, 23, device="cpu")
    for options in ({"score_mod": keep_none}, {"block_mask": block_mask}):
        out, lse = rb.flex_attention(*call, return_lse=True, **options)
        expected, expected_lse = eager(*call, **options)
        assert not out[:, :, :4].any()
        assert torch.all(lse[:, :, :4] == -INFINITY)
        torch.testing.assert_close((out, lse), (expected, expected_lse), rtol=1e-12, atol=1e-12)


def test_results():
    q, k, v = tensors()
    out, lse = rb.flex_attention(q, k, v, return_lse=True)
    assert torch.equal(rb.flex_attention(q, k, v), out)
    torch.testing.assert_close(lse, dense(q, k, v)[1])
    for request in (flex.AuxRequest(lse=True), flex.AuxRequest()):
        again, aux = rb.flex_attention(q, k, v, return_aux=request)
        assert isinstance(aux, flex.AuxOutput)
        assert torch.equal(again, out)
        assert aux.max_scores is None
        assert torch.equal(aux.lse, lse) if request.lse else aux.lse is None


def test_kernel_options():
    q, k, v = tensors()
    known = set(flex.FlexKernelOptions.__annotations__) - {"BACKEND"}
    options = {"fwd_num_stages": 2, "bwd_BLOCK_M1": 32, "BACKEND": "AUTO", **dict.fromkeys(known, 1)}
    assert torch.equal(rb.flex_attention(q, k, v, kernel_options=options), rb.flex_attention(q, k, v))


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch.compile hides it, unless warnings are errors
def test_in_compiled_functions():
    call = tensors(9, 9)
    block_mask = flex.create_block_mask(lambda b, h, i, j: i >= j, None, None, 9, 9, device="cpu")

    def model(q, k, v, slopes):
        def score_mod(s, b, h, i, j):
            return s * 2 + TABLE[h, i - j + 30] * slopes[h]

        return rb.flex_attention(q + 1, k, v, score_mod, block_mask) * 2

    slopes = torch.rand(4, dtype=torch.float64, requires_grad=True)
    inputs = (*call, slopes, TABLE)
    expected = model(*call, slopes)
    gradients = torch.autograd.grad(expected.square().sum(), inputs)
    out = torch.compile(model, backend="eager")(*call, slopes)
    assert torch.equal(out, expected)
    for got, wanted in zip(torch.autograd.grad(out.square().sum(), inputs), gradients, strict=True):
        assert torch.equal(got, wanted)


def test_under_autocast():
    call = tensors(dtype=torch.float32)
    score_mod = lambda s, b, h, i, j: s + (50 + 0.1 * (j % 7))  # noqa: E731 (bfloat16 would round 50.1 to 50)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = rb.flex_attention(*call, score_mod)
    expected = rb.flex_attention(*(x.bfloat16() for x in call), score_mod)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, expected)


def test_without_gradients_and_recomputed():
    call = tensors()
    out = rb.flex_attention(*call, mixed)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            assert torch.equal(rb.flex_attention(*call, mixed), out)
    again = torch.utils.checkpoint.checkpoint(lambda *x: rb.flex_attention(*x, mixed), *call, use_reentrant=False)
    for got, wanted in zip(*(torch.autograd.grad(x.sum(), (*call, TABLE)) for x in (again, out)), strict=True):
        assert torch.equal(got, wanted)


def test_gradients_that_score_mod_stops():
    call = tensors()
    with_table = rb.flex_attention(*call, lambda s, b, h, i, j: s + TABLE[h, j])

    def stopped(s, b, h, i, j):
        with torch.no_grad():
            return torch.add(TABLE[h, j], 0)

    out = rb.flex_attention(*call, lambda s, b, h, i, j: s + stopped(s, b, h, i, j))
    torch.testing.assert_close(out, with_table)
    assert torch.autograd.grad(out.sum(), TABLE, allow_unused=True) == (None,)
    out = rb.flex_attention(*call, lambda s, b, h, i, j: s + TABLE[h, j].detach())
    assert torch.autograd.grad(out.sum(), TABLE, allow_unused=True) == (None,)


def test_tables_are_indexed_in_every_way():
    table = torch.randn(3, 4, 23, 19, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).requires_grad_()
    h, i, j = torch.meshgrid(*map(torch.arange, (4, 19, 23)), indexing="ij")
    for score_mod, expected in (
        (lambda s, b, h, i, j: s * 0 + table[1, h, j, i], table[1, h, j, i]),
        (lambda s, b, h, i, j: s * 0 + table[1][h][j][i], table[1, h, j, i]),
        (lambda s, b, h, i, j: s * 0 + table[..., i][1, h, j], table[1, h, j, i]),
        (lambda s, b, h, i, j: s * 0 + table[:, h][1, j, i], table[1, h, j, i]),
        (lambda s, b, h, i, j: s * 0 + table[None, 2, h, :, i][0, j], table[2, h, j, i]),
        (lambda s, b, h, i, j: s * 0 + table[:, :, j, i][torch.tensor(2), h], table[2, h, j, i]),
        (lambda s, b, h, i, j: s * 0 + table[2].transpose(1, 2)[h, i, j], table[2, h, j, i]),
        (lambda s, b, h, i, j: s * 0 + torch.index_select(table[0, 1], 0, j)[0, i], table[0, 1, j, i]),
        (lambda s, b, h, i, j: s * 0 + table.flatten()[(h * 23 + j) * 19 + i], table[0, h, j, i]),
        (lambda s, b, h, i, j: s * 0 + table[0, h][[1, 2], i].sum(), table[0, h, 1, i] + table[0, h, 2, i]),
    ):
        q, k, v = tensors()
        out = rb.flex_attention(q, k, v, score_mod)
        wanted = torch.softmax(expected, -1) @ v
        torch.testing.assert_close(out, wanted)
        gradients = (torch.autograd.grad(x.cos().sum(), table, retain_graph=True)[0] for x in (out, wanted))
        torch.testing.assert_close(*gradients)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient


SLOPES = torch.rand(4, requires_grad=True)
REFUSED = {
    "score_mod applies relu to the scores, in relu(score)": lambda s, b, h, i, j: s.relu(),
    "score_mod multiplies scores by scores, in score * score": lambda s, b, h, i, j: s * s,
    "score_mod divides by the scores, in (score * 0 + 1) / (score + 1)": lambda s, b, h, i, j: torch.div(
        s * 0 + 1, s + 1
    ),
    "score_mod is tanh((score + tensor(4, 60)[h, q_idx - kv_idx + 30]) / 2) * 2": (
        lambda s, b, h, i, j: 2 * torch.tanh((s + TABLE[h, i - j + 30]) / 2)
    ),
    "score_mod caps scores after an addition: cap first": lambda s, b, h, i, j: torch.tanh(s + j),
    "score_mod caps scores after a mask: cap first": lambda s, b, h, i, j: torch.where(i > j, s, -INFINITY).tanh(),
    "score_mod applies tanh twice": lambda s, b, h, i, j: s.tanh().tanh(),
    "score_mod multiplies a softcap by something": lambda s, b, h, i, j: s.tanh() * TABLE[h, i],
    "score_mod caps some scores and not others": lambda s, b, h, i, j: torch.where(h > 1, s.tanh(), s),
    "score_mod adds scores to a softcap": lambda s, b, h, i, j: s.tanh() + s,
    "score_mod multiplies scores after it has masked": lambda s, b, h, i, j: -torch.where(i > j, s, -INFINITY),
    "depends on both q_idx and kv_idx": lambda s, b, h, i, j: s * torch.exp(-(i - j).abs()),
    "masked scores must be float('-inf')": lambda s, b, h, i, j: torch.where(i >= j, s, -1e9),
    "score_mod applies gt to the scores, in score > 0": lambda s, b, h, i, j: torch.where(s > 0, s, -INFINITY),
    "score_mod applies detach to the scores": lambda s, b, h, i, j: s.detach(),
    "score_mod rounds the scores to bfloat16": lambda s, b, h, i, j: s.bfloat16(),
    "score_mod divides by 0": lambda s, b, h, i, j: s / 0,
    "score_mod reads the value of q_idx > kv_idx": lambda s, b, h, i, j: s if i > j else s + 1,
    "score_mod reads the value of h": lambda s, b, h, i, j: s + [1, 2, 3, 4][h],
    "score_mod reads the value of kv_idx": lambda s, b, h, i, j: s + float(j),
    "score_mod uses tolist": lambda s, b, h, i, j: s + i.tolist(),
    "score_mod uses numpy": lambda s, b, h, i, j: s + float(i.numpy()),
    "score_mod uses __array__": lambda s, b, h, i, j: s + np.asarray(i),
    "score_mod uses tensor on a list, which takes": lambda s, b, h, i, j: s + torch.tensor([i, j]).sum(),
    "score_mod uses as_tensor on a list": lambda s, b, h, i, j: s + torch.as_tensor([h, 1])[0],
    "score_mod uses new_tensor on a list": lambda s, b, h, i, j: s + TABLE.new_tensor([h, j]).sum(),
    "score_mod copies the memory of a tensor": lambda s, b, h, i, j: s + copy.deepcopy(i),
    "which does not return tensors": lambda s, b, h, i, j: s + torch.equal(i, j),
    "score_mod draws random numbers": lambda s, b, h, i, j: s + torch.rand_like(s),
    "score_mod changes a tensor in place": lambda s, b, h, i, j: s + i.add_(1),
    "score_mod uses a torch.autograd.Function, which has a custom gradient": lambda s, b, h, i, j: Doubled.apply(s),
    "which has a custom gradient, in tensor(4,)[h] * 2": lambda s, b, h, i, j: s + Doubled.apply(SLOPES[h]),
    "score_mod must return one real number for one score, got a tensor of shape (60,)": lambda s, b, h, i, j: (
        s + TABLE[h]
    ),
    "got None": lambda s, b, h, i, j: None,
    "cannot be traced: TypeError": lambda b, h, i, j: i >= j,
    "score_mod's tensor(4, 60)[h, q_idx + 50] cannot be evaluated for h = 0 .. 3": lambda s, b, h, i, j: (
        s + TABLE[h, i + 50]
    ),
    "score_mod's tensor(2, 60)[h, kv_idx] cannot be evaluated": lambda s, b, h, i, j: s + TABLE[:2][h, j],
    "softcap must be 1e-30 to 1e+38 in size": lambda s, b, h, i, j: 1e-32 * torch.tanh(s * 1e20),
}


@pytest.mark.parametrize("says", REFUSED)
def test_refused_score_mods_say_what_they_compute(says):
    with pytest.raises(RedblueError) as error:
        rb.flex_attention(*tensors(), REFUSED[says])
    assert says in str(error.value)


def adding(change, weight):
    """A score_mod that changes a tensor, which the score has read before, in place."""

    def score_mod(s, b, h, i, j):
        for _ in range(3):
            s = s + weight * (i - j)
            change(weight)
        return s

    return score_mod


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        lambda w: w.add_(0.5),
        lambda w: w.view(1)[:1].add_(0.5),
        lambda w: w.data.add_(0.5),
        lambda w: w.copy_(torch.ones(())),
        lambda w: torch.add(w, 0.5, out=w),
        lambda w: torch._foreach_add_([torch.zeros(()), w], 0.5),
    ],
    ids=["itself", "a view", "its data", "a copy", "out", "a list"],
)
def test_constants_that_change_in_place_after_they_were_read_are_refused(change, inference):
    with torch.inference_mode(inference):
        weight = torch.zeros((), dtype=torch.float64)
        with pytest.raises(RedblueError, match="score_mod changes a tensor in place"):
            rb.flex_attention(*tensors(), adding(change, weight))


def test_constants_may_change_in_place_before_they_are_read():
    table, reads = torch.zeros(60, dtype=torch.float64), torch.zeros(())

    def score_mod(s, b, h, i, j):
        bias = table.clone()
        bias[:30] = 1.0
        bias += table
        reads.add_(1)
        return s + bias[i - j + 30]

    call = tensors()
    distance = torch.arange(call[0].shape[-2])[:, None] - torch.arange(call[1].shape[-2])
    expected = rb.attention(*call, bias=(distance < 0).double())
    torch.testing.assert_close(rb.flex_attention(*call, score_mod), expected)
    assert reads == 1


@pytest.mark.parametrize(
    ("says", "options"),
    [
        ("return_aux asks for max_scores", {"return_aux": flex.AuxRequest(max_scores=True)}),
        ("return_lse and return_aux were both given", {"return_aux": flex.AuxRequest(lse=True), "return_lse": True}),
        ("return_aux must be an AuxRequest", {"return_aux": True}),
        ("BACKEND must be 'AUTO', got 'FLASH'", {"kernel_options": {"BACKEND": "FLASH"}}),
        ("unknown option of kernel_options 'BLOCK_X'", {"kernel_options": {"BLOCK_X": 1}}),
        ("unknown option of kernel_options 'OUTPUT_MAX'", {"kernel_options": {"OUTPUT_MAX": True}}),
        ("kernel_options must be a dictionary", {"kernel_options": 3}),
        ("score_mod must be a function", {"score_mod": 3}),
        ("scale must be a number, got 'x'", {"scale": "x"}),
        ("scale must be a number, got 'x'", {"scale": "x", "score_mod": mixed}),
        ("scale must be finite", {"scale": INFINITY, "score_mod": mixed}),
        ("enable_gqa must be True or False", {"enable_gqa": 1}),
        ("return_lse must be True or False", {"return_lse": None}),
        ("query must be a PyTorch tensor, got list", {"query": [1]}),
        ("query must have 4 dimensions (B, H, L, E)", {"query": torch.zeros(4, 19, 8, dtype=torch.float64)}),
        ("key must have the batch size of query, 2, or 1; got 3", {"key": torch.zeros(3, 4, 23, 8)}),
        ("query has 4 heads, key 2 and value 4: they must be equal", {"key": torch.zeros(2, 2, 23, 8)}),
        ("must be of one type", {"key": torch.zeros(2, 4, 23, 8)}),
        ("value must be on the device of query (cpu), got meta", {"value": torch.zeros(2, 4, 23, 5, device="meta")}),
        ("head dimension of k (7)", {"key": torch.zeros(2, 4, 23, 7)}),
    ],
)
def test_refused_arguments(says, options):
    q, k, v = tensors()
    with pytest.raises(RedblueError) as error:
        rb.flex_attention(**({"query": q, "key": k, "value": v} | options))
    assert says in str(error.value)


def test_without_pytorch_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    x = np.zeros((1, 2, 3, 4), np.float32)
    with pytest.raises(RedblueError, match=r"flex_attention needs PyTorch: pip install 'redblue\[torch\]'"):
        rb.flex_attention(x, x, x)


def test_a_list_of_positions_is_an_index():
    call = tensors()
    out = rb.flex_attention(*call, lambda s, b, h, i, j: s + TABLE[0, [i, j]].sum())
    stacked = rb.flex_attention(*call, lambda s, b, h, i, j: s + TABLE[0, torch.stack([i, j])].sum())
    torch.testing.assert_close(out, stacked, rtol=0, atol=0)
    assert (out - rb.flex_attention(*call)).abs().max() > 0.01


def test_a_table_in_the_type_of_a_position():
    call = tensors()
    places = (TABLE * 9).detach().long()
    out = rb.flex_attention(*call, lambda s, b, h, i, j: s + places.type_as(i)[h, j])
    torch.testing.assert_close(out, rb.flex_attention(*call, lambda s, b, h, i, j: s + places[h, j]), rtol=0, atol=0)


def test_inside_torch_func():
    q, k, v = tensors()
    loss = torch.func.grad(lambda q: rb.flex_attention(q, k, v).sum())
    torch.testing.assert_close(loss(q), torch.autograd.grad(rb.flex_attention(q, k, v).sum(), q)[0])
    with pytest.raises(RedblueError, match=r"score_mod cannot be traced inside torch\.func"):
        torch.func.grad(lambda q: rb.flex_attention(q, k, v, mixed).sum())(q)
    with pytest.raises(TypeError):
        rb.flex_attention(q, k, v, dropout=0.1)
