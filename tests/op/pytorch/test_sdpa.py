"""redblue.scaled_dot_product_attention, against PyTorch's function."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: N812

import redblue as rb
from support.textbook import check_close, normal

pytestmark = pytest.mark.usefixtures("nan_in_new_memory")
PYTORCHS_CALLS = {
    "plain": ((2, 3, 5, 4), (2, 3, 7, 4), {}),
    "causal, more keys": ((2, 3, 5, 4), (2, 3, 7, 4), {"is_causal": True}),
    "causal, fewer keys": ((2, 3, 7, 4), (2, 3, 5, 4), {"is_causal": True}),
    "negative scale": ((2, 3, 5, 4), (2, 3, 7, 4), {"scale": -0.7}),
    "grouped": ((2, 6, 5, 4), (2, 2, 7, 4), {"enable_gqa": True}),
    "one key head": ((2, 6, 5, 4), (2, 1, 7, 4), {}),
    "2-D": ((5, 4), (7, 4), {"is_causal": True}),
    "3-D": ((3, 5, 4), (3, 7, 4), {}),
    "5-D": ((2, 2, 3, 5, 4), (2, 2, 3, 7, 4), {"is_causal": True}),
    "broadcast": ((2, 3, 5, 4), (1, 3, 7, 4), {}),
}


@pytest.mark.parametrize(("q", "k", "options"), PYTORCHS_CALLS.values(), ids=PYTORCHS_CALLS)
def test_scaled_dot_product_attention(q, k, options):
    q, k, v = normal(*q), normal(*k), normal(*k)
    ours = rb.scaled_dot_product_attention(q, k, v, **options)
    theirs = F.scaled_dot_product_attention(q, k, v, **options)
    check_close(ours, theirs)
    dout = torch.randn_like(ours)
    for x, y in zip(*(torch.autograd.grad(o, (q, k, v), dout) for o in (ours, theirs)), strict=True):
        check_close(x, y)


def test_scaled_dot_product_attention_with_masks():
    q, k, v = normal(2, 3, 5, 4), normal(2, 3, 7, 4), normal(2, 3, 7, 4)
    attends = torch.rand(2, 1, 5, 7) < 0.6
    attends[0, 0, 2] = False
    added = normal(3, 5, 7)
    for attn_mask, inputs in ((attends, (q, k, v)), (added, (q, k, v, added))):
        ours, theirs = (
            f(q, k, v, attn_mask=attn_mask) for f in (rb.scaled_dot_product_attention, F.scaled_dot_product_attention)
        )
        check_close(ours, theirs)
        for x, y in zip(*(torch.autograd.grad(o.sin().sum(), inputs) for o in (ours, theirs)), strict=True):
            check_close(x, y)


def test_errors_of_scaled_dot_product_attention():
    x = torch.zeros(2, 4, 5, 8)
    with pytest.raises(rb.RedblueError, match="attn_mask and is_causal=True were both given"):
        rb.scaled_dot_product_attention(x, x, x, attn_mask=torch.ones(5, 5), is_causal=True)
    with pytest.raises(rb.RedblueError, match=r"query has 4 heads, key 2 and value 2: .* enable_gqa=True"):
        rb.scaled_dot_product_attention(x, x[:, :2], x[:, :2])
