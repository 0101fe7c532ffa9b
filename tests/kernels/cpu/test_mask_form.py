"""Choice between the two forms of a mask in the core: runs of keys in tiles, or single pairs."""

import numpy as np
import pytest

import redblue as rb
from redblue import Mask
from redblue.kernels.cpu.call import Sizes
from redblue.kernels.cpu.mask_form import gathers

RNG = np.random.default_rng(0)


def planned(mask, n, heads=1, d=64):
    sizes = Sizes((1,), heads, 1, n, n, d, d)
    return [gathers(mask, sizes, 64, direction) for direction in ("forward", "backward")]


@pytest.mark.parametrize(
    "mask",
    [
        Mask.sliding_window(64, 64) | Mask.global_tokens([0]),
        Mask.sliding_window(64, 64) | Mask.global_tokens([5003]),
        Mask.documents([100] * 100 + [6384]),
        Mask.random_blocks(0.05, block=64),
    ],
    ids=["hub first", "hub inside", "documents", "blocks"],
)
def test_tiles_where_panels_are_full(mask):
    assert planned(mask, 16_384) == [False, False]


def test_pairs_where_panels_are_nearly_empty():
    edges = RNG.integers(0, 16_384, (2, 100_000))
    assert planned(Mask.from_coo(*np.unique(edges, axis=1), (16_384, 16_384)), 16_384) == [True, True]


@pytest.mark.parametrize(
    ("density", "forward", "backward"), [(0.03, True, True), (0.1, True, False), (0.3, False, False)]
)
def test_scattered_pairs_are_gathered_as_long_as_that_is_cheaper(density, forward, backward):
    assert planned(Mask.from_dense(RNG.random((1024, 1024)) < density), 1024) == [forward, backward]


@pytest.mark.parametrize("first", [True, False])
def test_heads_are_weighted_by_their_pairs_in_any_order(first):
    thin = [Mask.dilated(4, 64)] * 7
    masks = [Mask.causal(), *thin] if first else [*thin, Mask.causal()]
    assert planned(Mask.per_head(masks), 2048, heads=8) == [False, False]


@pytest.mark.parametrize("lengths", [[1, 2], [3, 8]])
def test_no_queries_and_several_planes(lengths):
    q, k = np.ones((2, 2, 0, 4)), RNG.random((2, 2, 8, 4))
    mask = Mask.key_lengths(lengths)
    out, lse = rb.attention(q, k, k, mask=mask, return_lse=True)
    dq, dk, dv = rb.attention_backward(out, q, k, k, out, lse, mask=mask)
    assert dq.shape == q.shape
    assert not dk.any()
    assert not dv.any()


def test_a_gradient_of_a_bias_is_refused_where_pairs_and_tiles_round_scores_too_differently():
    torch = pytest.importorskip("torch")
    mask = Mask.from_dense(RNG.random((64, 64)) < 0.1)
    k, v = (torch.from_numpy(RNG.standard_normal((1, 64, 8)).astype(np.float32)) for _ in range(2))

    def gradients(size, schedule):
        q, bias = size * torch.ones(1, 64, 8, requires_grad=True), torch.zeros(64, 64, requires_grad=True)
        out = rb.attention(q, k, v, mask=mask, bias=bias, schedule=schedule)
        return torch.autograd.grad(out.sum(), (q, bias))

    for ours, expected in zip(gradients(1.0, "gather"), gradients(1.0, "flash"), strict=True):
        torch.testing.assert_close(ours, expected)
    gradients(1e4, "flash")
    with pytest.raises(rb.RedblueError, match=r'no gradient of a bias for scores this large.* give schedule="flash"'):
        gradients(1e4, "gather")
