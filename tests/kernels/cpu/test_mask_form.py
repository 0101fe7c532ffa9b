"""Choice between the two forms of a mask in the core: runs of keys in tiles, or single pairs."""

import numpy as np
import pytest

import redblue as rb
from redblue import Mask
from redblue.kernels.cpu.mask_form import gathers
from redblue.kernels.sizes import Sizes

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


@pytest.mark.parametrize("schedule", ["auto", "gather"])
def test_gradients_beside_that_of_a_bias_round_as_the_forward_pass_does(schedule):
    """At scores of 1e4, pairs and tiles round P so differently that dQ would be off by more than its own size."""
    torch = pytest.importorskip("torch")
    n, d = 512, 64
    mask = Mask.from_dense((RNG.random((n, n)) < 0.004) | np.eye(n, dtype=bool))
    noise, v, dout = (torch.from_numpy(RNG.standard_normal((1, n, d)).astype(np.float32)) for _ in range(3))
    k, q = 1 + 1e-3 * noise, torch.full((1, n, d), 1e4 / d**0.5)

    def gradients(dtype, schedule):
        x = [t.detach().to(dtype).requires_grad_() for t in (q, k, v, torch.zeros(n, n))]
        out = rb.attention(*x[:3], mask=mask, bias=x[3], schedule=schedule)
        return torch.autograd.grad(out, x, dout.to(dtype))

    right = gradients(torch.float64, "flash")
    tiles, ours = gradients(torch.float32, "flash"), gradients(torch.float32, schedule)
    for name, a, b, c in zip(("q", "k", "v", "bias"), right, tiles, ours, strict=True):
        error, error_of_tiles = ((x - a).norm() / a.norm() for x in (c, b))
        assert error <= max(4 * error_of_tiles, 1e-4), name
