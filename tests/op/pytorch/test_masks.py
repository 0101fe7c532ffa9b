"""Masks other than bands, on PyTorch tensors: gradients, compiling, names, and separate masks per head."""

import gc

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import redblue as rb
from redblue import Mask
from redblue.kernels.cpu import mask_form
from redblue.kernels.mask_argument import MaskArgument
from redblue.kernels.options import Options
from redblue.op.pytorch import masks
from redblue.op.pytorch.autograd import backward_op, forward_op
from support.attention import running
from support.textbook import check, check_close, normal, textbook

RNG = np.random.default_rng(0)
MASKS = {
    "documents": Mask.documents([3, 0, 4], [4, 2, 3]),
    "blocks": Mask.random_blocks(0.5, block=2),
    "thin": Mask.from_dense(RNG.random((7, 9)) < 0.1),
    "per head": Mask.from_dense(RNG.random((4, 7, 9)) < 0.4),
    "per batch": Mask.key_lengths([9, 3]),
    "both": Mask.from_dense(RNG.random((2, 4, 7, 9)) < 0.4),
    "composed": ~Mask.dilated(2, 3) & Mask.causal(align="bottom-right"),
    "nothing": Mask.from_dense(np.zeros((7, 9), bool)),
}


@pytest.mark.parametrize("gathers", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_outputs_and_gradients_against_float64(name, gathers):
    torch.manual_seed(0)
    q, k, v = normal(2, 4, 7, 8), normal(2, 2, 9, 8), normal(2, 2, 9, 5)
    bias, sinks = normal(4, 1, 9), normal(4)
    with running(gathers=gathers):
        check(q, k, v, mask=MASKS[name])
        check(q, k, v, sinks, mask=MASKS[name], sinks=sinks, softcap=3.0, scale=0.4, bias=bias.detach())
        check(q, k, v, bias, mask=MASKS[name], bias=bias)


def test_gradcheck():
    q, k, v = normal(1, 2, 7, 3), normal(1, 1, 9, 3), normal(1, 1, 9, 2)
    for mask in MASKS["documents"], MASKS["composed"]:
        assert torch.autograd.gradcheck(
            lambda *x, mask=mask: rb.attention(*x, mask=mask, return_lse=True)[0], (q, k, v)
        )


@pytest.mark.parametrize("gathers", [False, True])
def test_dropout_drops_the_same_pairs_whatever_the_kernel(gathers):
    q, k, v = normal(2, 2, 7, 8), normal(2, 2, 9, 8), normal(2, 2, 9, 5)
    mask = MASKS["thin"] | Mask.prefix(5)
    with running(gathers=gathers):
        out = rb.attention(q, k, v, mask=mask, dropout=0.4, seed=3)
        gradients = torch.autograd.grad(out.sum(), (q, k, v))
    dense = torch.from_numpy(mask.to_dense(7, 9))
    same = rb.attention(q, k, v, bias=dense, dropout=0.4, seed=3)
    check_close(out, same)
    for x, y in zip(gradients, torch.autograd.grad(same.sum(), (q, k, v)), strict=True):
        check_close(x, y)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # raised within opcheck
def test_opcheck():
    q, k, v = normal(2, 4, 7, 8), normal(2, 2, 9, 8), normal(2, 2, 9, 3)
    mask = MASKS["documents"]
    flat = Options(MaskArgument(name=masks.name_of(mask))).flat
    torch.library.opcheck(forward_op, (q, k, v, *flat))
    with torch.no_grad():
        out, lse = forward_op(q, k, v, *flat)
    inputs = [x.detach() for x in (torch.randn_like(out), torch.randn_like(lse), q, k, v, out, lse)]
    torch.library.opcheck(backward_op, (*inputs, *flat, False))


def test_vmap_and_func():
    x, mask = normal(3, 2, 7, 4, grad=False), Mask.documents([3, 4])

    def loss(q):
        return rb.attention(q, q, q, mask=mask).sin().sum()

    gradients = torch.func.vmap(torch.func.grad(loss))(x)
    for got, x_entry in zip(gradients, x, strict=True):
        x_entry = x_entry.clone().requires_grad_()
        textbook(x_entry, x_entry, x_entry, mask).sin().sum().backward()
        check_close(got, x_entry.grad)


@pytest.mark.thorough
def test_compiled_with_the_mask_as_argument_attribute_and_constant():
    q = normal(1, 2, 7, 4)

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.mask = Mask.documents([3, 4])

        def forward(self, x, other):
            return rb.attention(x, x, x, mask=self.mask) + rb.attention(x, x, x, mask=other)

    layer = Layer()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for other in Mask.strided(2), Mask.documents([5, 2]), Mask.causal():
        got, expected = compiled(q, other), layer(q, other)
        check_close(got, expected)
        check_close(*(torch.autograd.grad(x.sum(), q)[0] for x in (got, expected)))


def test_a_mask_made_while_compiling_is_refused():
    q = normal(1, 2, 7, 4)
    compiled = torch.compile(
        lambda x: rb.attention(x, x, x, mask=Mask.strided(2) & Mask.causal()), fullgraph=True, backend="eager"
    )
    with pytest.raises(Exception, match="must be made outside"):
        compiled(q)


def test_a_mask_that_nobody_holds_lasts_until_the_backward_pass():
    q = normal(1, 1, 7, 4)
    out = rb.attention(q, q, q, mask=Mask.documents([3, 4]))
    for cached in (mask_form.gathers, mask_form.in_tiles, mask_form.in_pairs):
        cached.cache_clear()
    gc.collect()
    (got,) = torch.autograd.grad(out.sum(), q)
    (expected,) = torch.autograd.grad(textbook(q, q, q, Mask.documents([3, 4])).sum(), q)
    check_close(got, expected)


def test_names_are_of_values_and_last_as_long_as_any_equal_mask():
    first, second = Mask.documents([2, 5]), Mask.documents([2, 5])
    name = masks.name_of(first)
    assert name == masks.name_of(second) != masks.name_of(Mask.documents([5, 2]))
    del first
    gc.collect()
    assert masks.mask_named(name) is second
    del second
    gc.collect()
    with pytest.raises(rb.RedblueError, match=f"the mask of this call, {name}, is gone"):
        masks.mask_named(name)


@pytest.mark.parametrize("mask", [None, Mask.causal(), Mask.documents([3, 4])])
def test_every_schedule_may_be_requested(mask):
    q = normal(2, 2, 7, 4)
    expected = textbook(q, q, q, mask)
    for schedule in "flash", "gather", "auto":
        out = rb.attention(q, q, q, mask=mask, schedule=schedule)
        check_close(out, expected)
        check_close(*(torch.autograd.grad(x.sum(), q, retain_graph=True)[0] for x in (out, expected)))


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("gathers", [False, True])
def test_results_do_not_depend_on_threads(threads, gathers):
    torch.manual_seed(0)
    q, k, v = (normal(2, 3, 300, 8, dtype=torch.float32) for _ in range(3))
    mask = Mask.bigbird(block=16, random=1) & ~Mask.from_dense(np.random.default_rng(0).random((300, 300)) < 0.1)

    def results():
        out = rb.attention(q, k, v, mask=mask)
        return (out, *torch.autograd.grad(out.sin().sum(), (q, k, v)))

    before = torch.get_num_threads()
    try:
        with running(gathers=gathers):
            torch.set_num_threads(1)
            expected = results()
            torch.set_num_threads(threads)
            assert all(torch.equal(x, y) for x, y in zip(results(), expected, strict=True))
    finally:
        torch.set_num_threads(before)


def test_masks_that_do_not_fit_are_named():
    q = normal(2, 4, 7, 8)
    for mask, message in (
        (Mask.documents([3, 3]), r"mask of documents is for n_q = 6, but n_q = 7 was given"),
        (Mask.key_lengths([7, 7, 7]), r"the mask has planes of shape \(3, 1\), which must broadcast to .* \(2, 4\)"),
        (Mask.causal().for_group(2), r"mask must have one row per query, got 2"),
    ):
        with pytest.raises(rb.RedblueError, match=message):
            rb.attention(q, q, q, mask=mask)


def test_nan_in_unattended_keys_does_not_spread():
    q, k, v = (normal(1, 1, 70, 8, grad=False) for _ in range(3))
    k[..., 40:, :] = v[..., 40:, :] = torch.nan
    with running(gathers=True):
        out = rb.attention(q, k, v, mask=Mask.prefix(40) & Mask.from_dense(np.ones((70, 70), bool)))
    assert out.isfinite().all()
