"""Boolean biases that become masks, so that kernels skip unattended tiles."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import redblue as rb
from redblue.op.pytorch import boolean
from redblue.op.pytorch.boolean import MIN_PAIRS, mask_of
from support.textbook import check, normal

B, H, NQ, NK = 2, 4, 7, 9
ALLOWED = torch.rand(B, 1, NQ, NK, generator=torch.Generator().manual_seed(0)) < 0.6
FORMS = {
    "each batch entry": ALLOWED,
    "one for all": ALLOWED[0, 0],
    "a row of keys": ALLOWED[:, :, :1],
    "expanded": ALLOWED[:, :, :1].expand(B, H, NQ, NK),
    "strided": ALLOWED.mT.contiguous().mT,
    "nothing": torch.zeros(NQ, NK, dtype=torch.bool),
}


@pytest.fixture(autouse=True)
def small_ones_become_masks(monkeypatch):
    monkeypatch.setattr(boolean, "MIN_PAIRS", 0)


@pytest.mark.parametrize("allowed", FORMS.values(), ids=FORMS)
def test_outputs_and_gradients_against_float64(allowed):
    torch.manual_seed(0)
    q, k, v, sinks = normal(B, H, NQ, 8), normal(B, 2, NK, 8), normal(B, 2, NK, 5), normal(H)
    assert mask_of(allowed, (B, H, NQ, NK)) is not None
    check(q, k, v, bias=allowed)
    check(q, k, v, sinks, bias=allowed, sinks=sinks, mask=rb.Mask.causal(align="bottom-right"))


def test_what_stays_a_bias(monkeypatch):
    scores = (B, H, NQ, NK)
    for other in (ALLOWED.expand(B, H, NQ, NK).contiguous(), ALLOWED[..., 1:], ALLOWED[:, :, 1:], ALLOWED[0, 0, 0]):
        assert mask_of(other, scores) is None
    assert mask_of(ALLOWED[None], scores) is None
    monkeypatch.setattr(boolean, "MIN_PAIRS", MIN_PAIRS)
    assert mask_of(ALLOWED, scores) is None
    assert mask_of(torch.ones(256, 64, dtype=torch.bool), (H, 256, 64)) is not None


@pytest.mark.parametrize("scores", [(0, H, NQ, NK), (B, 0, NQ, NK), (B, H, 0, NK), (B, H, NQ, 0)])
def test_empty_scores(scores):
    batch, heads, n_q, n_k = scores
    q, k, v = normal(batch, heads, n_q, 8), normal(batch, heads, n_k, 8), normal(batch, heads, n_k, 5)
    out, lse = rb.attention(q, k, v, bias=torch.ones(batch, 1, n_q, n_k, dtype=torch.bool), return_lse=True)
    assert (out.shape, lse.shape) == ((batch, heads, n_q, 5), (batch, heads, n_q))
    assert not out.any()
    out.sum().backward()
    assert not any(x.grad.any() for x in (q, k, v))


def test_one_that_does_not_fit_is_refused_by_name():
    q, k, v = normal(B, H, NQ, 8), normal(B, H, NK, 8), normal(B, H, NK, 5)
    for wrong in (ALLOWED[..., 1:], ALLOWED[:, :, 1:], ALLOWED[None], torch.ones(3, 1, NQ, NK, dtype=torch.bool)):
        with pytest.raises(rb.RedblueError, match="bias"):
            rb.attention(q, k, v, bias=wrong)


def test_memory_that_changes_unseen_is_read_again():
    """Writing through NumPy does not change the tensor's version."""
    q, k, v = (normal(B, H, n, 8, grad=False) for n in (NQ, NK, NK))
    memory = np.ones((NQ, NK), bool)
    allowed = torch.from_numpy(memory)
    with rb.sdpa():
        before = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        memory[:, 3:] = False
        after = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, rb.attention(q, k[..., :3, :], v[..., :3, :]))


def test_backward_uses_the_mask_of_forward():
    """The mask may be overwritten between the passes."""
    q, k, v = normal(B, H, NQ, 8), normal(B, H, NK, 8), normal(B, H, NK, 8)
    allowed = ALLOWED.clone()
    expected = torch.autograd.grad(rb.attention(q, k, v, bias=allowed).sin().sum(), (q, k, v))
    out = rb.attention(q, k, v, bias=allowed)
    allowed.fill_(True)
    for x, y in zip(torch.autograd.grad(out.sin().sum(), (q, k, v)), expected, strict=True):
        assert torch.equal(x, y)
