"""The operations of all processes, run in one process: any grid, fewer tokens than processes, rows without keys."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import redblue as rb
from redblue.schedules import network
from redblue.schedules.network import Grid, placement_of
from support import network_calls as calls
from support.examples import examples

MASKS = ("full", "causal", "window", "few", "none", "planes", "head planes")


def mask_of(kind, heads, n_q, n_k):
    generator = np.random.default_rng(n_q + 100 * n_k)
    shape = {"planes": (2, heads, n_q, n_k), "head planes": (heads, n_q, n_k)}.get(kind, (n_q, n_k))
    made = {
        "full": rb.Mask.full(),
        "causal": rb.Mask.causal("bottom-right"),
        "window": rb.Mask.sliding_window(2, 1),
        "none": ~rb.Mask.full(),
    }
    return made[kind] if kind in made else rb.Mask.from_dense(generator.random(shape) < 0.1)


def layout_of(grid, travel, placement, mask, heads, kv_heads, n_q, n_k):
    of_all = rb.Mask.full() if mask.lead else mask
    sizes = {"n_q": n_q, "n_k": n_k, "d": 3, "d_v": 2, "batch": 2, "heads": heads, "kv_heads": kv_heads}
    problem = rb.Problem(**sizes, dtype="float64", mask=of_all)
    queries, keys = (placement_of(placement, n, grid.processes) for n in (n_q, n_k))
    return network.Layout(problem, grid, queries, keys, travel, mask if mask.lead else None)


def compare(layout, mask):
    """Compare the outputs and gradients of a layout with those of one process."""
    p, generator = layout.problem, torch.Generator().manual_seed(0)
    shapes = (p.heads, p.n_q, 3), (p.kv_heads, p.n_k, 3), (p.kv_heads, p.n_k, 2), (p.heads, p.n_q, 2), (p.heads, p.n_q)
    *inputs, dout, dlse = (torch.randn(2, *shape, generator=generator, dtype=torch.float64) for shape in shapes)
    inputs = [x.requires_grad_() for x in inputs]
    expected = rb.attention(*inputs, mask=mask, return_lse=True)
    dlse = torch.where(torch.isinf(expected[1]), 0, dlse)
    gradients = torch.autograd.grad(expected, inputs, (dout, dlse))
    got = calls.forward_and_backward(layout, *(x.detach() for x in inputs), dout, dlse)
    for x, wanted in zip(got, (*expected, *gradients), strict=True):
        torch.testing.assert_close(x, wanted.detach(), atol=1e-11, rtol=1e-11)


@examples(15)
@given(st.data())
def test_equals_one_process(data):
    heads, kv_heads = data.draw(st.sampled_from([(1, 1), (2, 1), (4, 2), (4, 4), (6, 3)]))
    parts = data.draw(st.sampled_from([i for i in (1, 2, 3, 4, 6) if heads % i == 0]))
    grid = Grid(parts, data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3)))
    n_q, n_k = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 20))
    mask = mask_of(data.draw(st.sampled_from(MASKS)), heads, n_q, n_k)
    travel = data.draw(st.sampled_from(["ring", "direct", "gather"]))
    placement = data.draw(st.sampled_from(["contiguous", "zigzag", "striped"]))
    if kv_heads % parts == 0 or parts % kv_heads == 0:
        compare(layout_of(grid, travel, placement, mask, heads, kv_heads, n_q, n_k), mask)


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize(
    ("grid", "travel", "sizes"),
    [
        (Grid(1, 4, 1), "ring", (3, 2)),  # processes without tokens
        (Grid(4, 1, 1), "direct", (9, 9)),  # more head parts than key heads
        (Grid(2, 2, 2), "ring", (5, 11)),
    ],
)
def test_few_tokens_and_key_heads(grid, travel, sizes, kind):
    mask = mask_of(kind, 4, *sizes)
    compare(layout_of(grid, travel, "zigzag", mask, 4, 2, *sizes), mask)
