"""Packing and padding of batches."""

import pytest

torch = pytest.importorskip("torch")

from redblue import RedblueError
from redblue.integrations.flash_attn import bert_padding

MASK = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [0, 1, 1, 0]])


@pytest.mark.parametrize("mask", [MASK, MASK.bool()])
@pytest.mark.parametrize("shape", [(3, 4, 2), (3, 4, 2, 5)])
def test_unpadded_and_padded_again(mask, shape):
    x = torch.randn(shape).requires_grad_()
    packed, indices, starts, longest, used = bert_padding.unpad_input(x, mask)
    assert torch.equal(packed, x[mask.bool()])
    assert indices.tolist() == [0, 1, 3, 9, 10]
    assert (starts.tolist(), starts.dtype) == ([0, 3, 3, 5], torch.int32)
    assert longest == 3
    assert used.tolist() == [3, 0, 2]
    padded = bert_padding.pad_input(packed, indices, 3, 4)
    weights = mask.bool().reshape(3, 4, *[1] * (len(shape) - 2))
    assert torch.equal(padded, x * weights)
    (dx,) = torch.autograd.grad((padded * padded.detach()).sum(), x)
    assert torch.equal(dx, x.detach() * weights)


def test_unused_positions_are_packed_but_not_counted():
    x, unused = torch.randn(3, 4, 2), torch.tensor([[0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]])
    packed, indices, starts, longest, used = bert_padding.unpad_input(x, MASK, unused)
    assert indices.tolist() == [0, 1, 2, 3, 4, 9, 10]
    assert torch.equal(packed, x.flatten(0, 1)[indices])
    assert starts.tolist() == [0, 4, 5, 7]
    assert longest == 4
    assert used.tolist() == [3, 0, 2]


def test_rows_of_several_sequences():
    lengths = torch.tensor([[2, 3, 0, 0, 0, 0], [3, 2, 0, 0, 0, 0], [6, 0, 0, 0, 0, 0]])
    x = torch.randn(3, 6, 2)
    packed, indices, starts, longest = bert_padding.unpad_input_for_concatenated_sequences(x, lengths)
    assert starts.tolist() == [0, 2, 5, 8, 10, 16]
    assert longest == 6
    assert torch.equal(packed, torch.cat([x[0, :5], x[1, :5], x[2]]))
    assert torch.equal(bert_padding.pad_input(packed, indices, 3, 6)[0, :5], x[0, :5])


def test_rows_by_index():
    x = torch.randn(5, 3).requires_grad_()
    index = torch.tensor([4, 0])
    rows, same = bert_padding.index_first_axis_residual(x, index)
    assert same is x
    assert torch.equal(rows, x[index])
    (dx,) = torch.autograd.grad(rows.sum(), x)
    assert dx.sum(1).tolist() == [3, 0, 0, 0, 3]
    put = bert_padding.index_put_first_axis(rows, index, 6)
    assert put.shape == (6, 3)
    assert torch.equal(put[index], rows)
    assert put.count_nonzero() == 6


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bert_padding.unpad_input(torch.zeros(3, 4, 2), MASK[:2]), r"attention_mask must be \(batch, n\) for"),
        (lambda: bert_padding.unpad_input(torch.zeros(3, 4, 2), None), "attention_mask must be a PyTorch tensor"),
        (lambda: bert_padding.unpad_input(torch.zeros(3, 4, 2), MASK, MASK[0]), "unused_mask must be"),
        (
            lambda: bert_padding.pad_input(torch.zeros(3, 2), MASK, 3, 4),
            r"indices must be a tensor \(n,\) of int32 or int64",
        ),
        (
            lambda: bert_padding.pad_input(torch.zeros(4, 2), MASK[0] + 12, 3, 4),
            "indices must be 0 to 11, got 12 to 13",
        ),
        (lambda: bert_padding.index_first_axis(torch.zeros(3, 2), MASK[0] - 1), "indices must be 0 to 2, got -1 to 0"),
        (
            lambda: bert_padding.pad_input(torch.zeros(3, 2), MASK[0], 3.5, 4),
            "batch must be a whole number of at least 0, got 3.5",
        ),
        (
            lambda: bert_padding.unpad_input_for_concatenated_sequences(torch.zeros(3, 4, 2), 2 * MASK),
            "attention_mask_in_length must fill at most 4 positions of a row, got 6",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(RedblueError, match=message):
        call()
