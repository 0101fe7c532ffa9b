"""Dropout on PyTorch tensors: its generator, its share, and its repetition under checkpointing."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint

import redblue as rb
from support.textbook import normal

pytestmark = pytest.mark.usefixtures("nan_in_new_memory")


def test_dropout_follows_pytorchs_generator_and_the_seed():
    q = normal(2, 3, 40, 8)

    def drawn():
        return rb.attention(q, q, q, dropout=0.5)

    first, second = drawn(), drawn()
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    torch.randn(2, 3, 40, 8)
    torch.manual_seed(5)
    a, state = drawn(), torch.get_rng_state()
    torch.manual_seed(5)
    assert torch.equal(a, drawn())
    seeded_results = [rb.attention(q, q, q, dropout=0.5, seed=seed) for seed in (3, 3, 4, 2**64 - 1)]
    assert torch.equal(seeded_results[0], seeded_results[1])
    assert not torch.equal(seeded_results[0], seeded_results[2])
    assert torch.equal(torch.get_rng_state(), state)  # a call with a seed does not advance the generator
    arrays = [q.detach().numpy()] * 3
    assert np.array_equal(seeded_results[3].detach().numpy(), rb.attention(*arrays, dropout=0.5, seed=2**64 - 1))


def test_dropout_takes_its_share_and_keeps_the_mean():
    q, v = torch.zeros(1, 1, 200, 4), torch.eye(300)[None, None]
    p = rb.attention(q, torch.zeros(1, 1, 300, 4), v, dropout=0.3)  # the probabilities themselves
    assert float((p == 0).float().mean()) == pytest.approx(0.3, abs=0.01)
    assert torch.equal(p.unique(), torch.tensor([0.0, 1 / 0.7 / 300]).to(p)) or len(p.unique()) == 2
    assert float(p.sum(-1).mean()) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_repeats_the_dropout(use_reentrant):
    q = normal(2, 3, 9, 8)
    torch.manual_seed(1)
    (expected,) = torch.autograd.grad(rb.attention(q, q, q, dropout=0.4).sin().sum(), q)
    torch.manual_seed(1)
    checkpoint(lambda x: rb.attention(x, x, x, dropout=0.4), q, use_reentrant=use_reentrant).sin().sum().backward()
    assert torch.equal(q.grad, expected)
