"""Masks from PyTorch: FlexAttention's BlockMask, and boolean tensors."""

from types import SimpleNamespace

import numpy as np
import pytest

from redblue import Mask, RedblueError

torch = pytest.importorskip("torch")
flex = pytest.importorskip("torch.nn.attention.flex_attention")

DOCUMENT = torch.tensor(np.repeat([0, 1, 2], [100, 150, 50]))
MODS = {
    "causal": lambda b, h, q, k: q >= k,
    "documents": lambda b, h, q, k: DOCUMENT[q] == DOCUMENT[k],
    "wider by head": lambda b, h, q, k: (q - k).abs() <= (h + 1) * 20,
    "prefix by batch entry": lambda b, h, q, k: (k < 50 * b) | (q >= k),
    "all": flex.noop_mask,
    "none": lambda b, h, q, k: q < 0,
}


def dense(mod, batch, heads, n_q, n_k):
    q, k, number = torch.arange(n_q)[:, None], torch.arange(n_k)[None], torch.tensor
    planes = [mod(number(b), number(h), q, k).expand(n_q, n_k) for b in range(batch) for h in range(heads)]
    return torch.stack(planes).reshape(batch, heads, n_q, n_k).numpy()


@pytest.mark.parametrize("mod", MODS)
@pytest.mark.parametrize(("n_q", "n_k"), [(300, 300), (256, 300)])
@pytest.mark.parametrize(("batch", "heads"), [(None, None), (2, 3)])
def test_block_masks_are_read(mod, n_q, n_k, batch, heads):
    block_mask = flex.create_block_mask(MODS[mod], batch, heads, n_q, n_k, device="cpu", BLOCK_SIZE=(64, 32))
    mask, expected = Mask.from_block_mask(block_mask), dense(MODS[mod], batch or 1, heads or 1, n_q, n_k)
    assert mask.lead == (() if batch is None else (batch, heads))
    assert np.array_equal(mask.to_dense(n_q, n_k), expected if batch else expected[0, 0])


def test_block_masks_without_full_blocks():
    count, indices = torch.tensor([[[1, 2]]], dtype=torch.int32), torch.tensor([[[[1, 0], [0, 1]]]], dtype=torch.int32)
    block_mask = flex.BlockMask.from_kv_blocks(
        count, indices, BLOCK_SIZE=4, mask_mod=MODS["causal"], seq_lengths=(8, 8)
    )
    expected = np.tril(np.ones((8, 8), bool))
    expected[:4, :4] = False  # a block that is not listed
    assert np.array_equal(Mask.from_block_mask(block_mask).to_dense(), expected)


def test_a_mask_mod_that_takes_one_pair_only_is_refused():
    block_mask = flex.create_block_mask(MODS["causal"], None, None, 64, 64, device="cpu", BLOCK_SIZE=32)
    block_mask.mask_mod = lambda b, h, q, k: q >= k if q > 3 else k < 3
    with pytest.raises(RedblueError, match="mask_mod cannot be evaluated for many pairs at once"):
        Mask.from_block_mask(block_mask)
    with pytest.raises(RedblueError, match="got SimpleNamespace without kv_num_blocks"):
        Mask.from_block_mask(SimpleNamespace())


def test_boolean_tensors_are_dense_masks():
    array = torch.rand(2, 1, 3, 5) < 0.5
    assert np.array_equal(Mask.from_dense(array).to_dense(), array.numpy())
    assert Mask.documents(torch.tensor([2, 3])) == Mask.documents([2, 3])
