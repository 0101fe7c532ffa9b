"""Packed sequences against float64 on padded batches: outputs, log-sum-exps and gradients."""

import pytest

torch = pytest.importorskip("torch")

from redblue import RedblueError
from redblue.integrations.flash_attn import (
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)
from redblue.integrations.flash_attn.bert_padding import pad_input, unpad_input
from support.flash_reference import check_close, gradients, reference, with_slopes

LENGTHS, KEY_LENGTHS = torch.tensor([30, 0, 17, 5, 12]), torch.tensor([44, 9, 17, 0, 3])
OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window_size": (6, 3)},
    "softcap": {"softcap": 3.0, "softmax_scale": 0.7, "causal": True},
    "alibi": {"alibi": (4,)},
    "alibi by sequence": {"alibi": (5, 4), "causal": True, "window_size": (20, -1)},
}


def padded(lengths, heads, d=16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(lengths), int(lengths.max()), heads, d, generator=generator).requires_grad_()


def attends(lengths):
    return torch.arange(int(lengths.max())) < lengths[:, None]


def tensors():
    return [padded(LENGTHS, 4), padded(KEY_LENGTHS, 2, seed=1), padded(KEY_LENGTHS, 2, seed=2)]


def packed(q, k, v):
    """Return the arguments of flash_attn_varlen_func, and the function that pads its output."""
    rows, indices, starts, longest, used = unpad_input(q, attends(LENGTHS))
    assert torch.equal(used, LENGTHS.int())
    (keys, _, key_starts, longest_k, _), (values, *_) = (unpad_input(x, attends(KEY_LENGTHS)) for x in (k, v))
    arguments = rows, keys, values, starts, key_starts, longest, longest_k
    return arguments, lambda out: pad_input(out, indices, *q.shape[:2])


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_outputs_and_gradients(options):
    options, inputs = with_slopes(options), tensors()
    arguments, pad = packed(*inputs)
    out, lse, s_dmask = flash_attn_varlen_func(*arguments, **options, return_attn_probs=True)
    expected, expected_lse = reference(*inputs, **options, lengths=LENGTHS, key_lengths=KEY_LENGTHS)
    assert lse.shape == (4, int(LENGTHS.sum()))
    assert s_dmask.shape == (0,)
    check_close(pad(out), expected, torch.float32)
    check_close(lse, expected_lse.transpose(1, 2)[attends(LENGTHS)].T, torch.float32)
    for got, right in zip(gradients(pad(out), inputs), gradients(expected, inputs), strict=True):
        check_close(got, right, torch.float32)


@pytest.mark.parametrize("options", [{"causal": True}, {"alibi": (5, 4)}])
def test_dropout_and_the_signs_of_s_dmask(options):
    options, inputs, share = with_slopes(options), tensors(), 0.3
    arguments, pad = packed(*inputs)
    out, _, s_dmask = flash_attn_varlen_func(*arguments, share, **options, return_attn_probs=True)
    assert s_dmask.shape == (5, 4, 128, 128)
    kept = ~s_dmask[:, :, :30, :44].signbit()
    lengths = {"lengths": LENGTHS, "key_lengths": KEY_LENGTHS}
    expected, _ = reference(*inputs, **options, **lengths, kept=kept, dropout_p=share)
    check_close(pad(out), expected, torch.float32)
    for got, right in zip(gradients(pad(out), inputs), gradients(expected, inputs), strict=True):
        check_close(got, right, torch.float32)
    attended = s_dmask[:, :, :30, :44] != 0
    assert abs(1 - kept[attended].double().mean() - share) < 0.03


def test_packed_tensors():
    starts, kwargs = torch.tensor([0, 9, 9, 30], dtype=torch.int32), {"causal": True, "softcap": 5.0}
    qkv = torch.randn(30, 3, 4, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    q, k, v = (x.detach().requires_grad_() for x in qkv.unbind(1))
    kv = torch.stack([k, v], 1).detach().requires_grad_()
    expected = flash_attn_varlen_func(q, k, v, starts, starts, 21, 21, **kwargs)
    right = gradients(expected, [q, k, v])
    out = flash_attn_varlen_qkvpacked_func(qkv, starts, 21, **kwargs)
    assert torch.equal(out, expected)
    assert torch.equal(gradients(out, [qkv])[0], torch.stack(right, 1))
    out = flash_attn_varlen_kvpacked_func(q, kv, starts, starts, 21, 21, **kwargs)
    assert torch.equal(out, expected)
    dq, dkv = gradients(out, [q, kv])
    assert torch.equal(dq, right[0])
    assert torch.equal(dkv, torch.stack(right[1:], 1))


def paged(k, page, generator):
    """Return the rows of packed sequences in pages of a shuffled pool, and the table of their blocks."""
    parts = k.split(KEY_LENGTHS.tolist())
    blocks = [-(-len(part) // page) for part in parts]
    order = torch.randperm(sum(blocks) + 2, generator=generator)
    pool = torch.full((len(order), page, *k.shape[1:]), float("nan"))  # unused rows must not matter
    table = torch.full((len(parts), max(blocks)), -1, dtype=torch.int32)
    taken = iter(order.tolist())
    for i, part in enumerate(parts):
        for j, rows in enumerate(part.split(page) if len(part) else ()):
            block = next(taken)
            pool[block, : len(rows)], table[i, j] = rows, block
    return pool, table


def test_pages_of_keys():
    (q, k, v, starts, key_starts, *longest), _ = packed(*(x.detach() for x in tensors()))
    expected = flash_attn_varlen_func(q, k, v, starts, key_starts, *longest, causal=True)
    pages, table = paged(k, 16, torch.Generator().manual_seed(0))
    value_pages, same_table = paged(v, 16, torch.Generator().manual_seed(0))
    assert torch.equal(table, same_table)
    pages.requires_grad_()
    out = flash_attn_varlen_func(q, pages, value_pages, starts, key_starts, *longest, causal=True, block_table=table)
    assert torch.equal(out, expected)
    (dpages,) = torch.autograd.grad(out.sum(), pages)
    k.requires_grad_()
    expected = flash_attn_varlen_func(q, k, v, starts, key_starts, *longest, causal=True)
    (dk,) = torch.autograd.grad(expected.sum(), k)
    assert torch.equal(paged(dk, 16, torch.Generator().manual_seed(0))[0].nan_to_num(0.0), dpages)


def test_sinks_are_redblues():
    arguments, pad = packed(*(x.detach() for x in tensors()))
    sinks = torch.tensor([0.5, 2.0, -1.0, 0.0])
    out = flash_attn_varlen_func(*arguments, causal=True, s_aux=sinks)
    plain, lse = reference(*tensors(), causal=True, lengths=LENGTHS, key_lengths=KEY_LENGTHS)
    check_close(pad(out), plain * (lse - sinks[:, None]).sigmoid().transpose(1, 2)[..., None], torch.float32)


def test_rows_after_the_last_sequence_give_0():
    starts = [0, 4, 10]
    q, k = torch.randn(13, 2, 8), torch.randn(15, 2, 8)
    out, lse, _ = flash_attn_varlen_func(q, k, k, starts, starts, 6, 6, return_attn_probs=True)
    assert torch.equal(out[:10], flash_attn_varlen_func(q[:10], k[:10], k[:10], starts, starts, 6, 6))
    assert not out[10:].any()
    assert (lse[:, 10:] == -float("inf")).all()


def test_no_sequences():
    q, k = torch.zeros(3, 2, 8), torch.zeros(2, 2, 8)
    out, lse, _ = flash_attn_varlen_func(q, k, k, [0], [0], 0, 0, causal=True, return_attn_probs=True)
    assert out.shape == q.shape
    assert not out.any()
    assert (lse == -float("inf")).all()


X = torch.zeros(7, 2, 4)
PAGES = torch.zeros(3, 4, 2, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.zeros(2, 7, 2, 4)}, r"q must be \(total, heads, d\), got shape"),
        ({"v": torch.zeros(6, 2, 4)}, r"v must have the keys and heads of k, \(7, 2\), got \(6, 2\)"),
        ({"cu_seqlens_q": [1, 7]}, r"cu_seqlens_q\[0\] must be 0, got 1"),
        ({"cu_seqlens_q": []}, r"cu_seqlens_q\[0\] must be 0, got an empty array"),
        ({"cu_seqlens_q": [0, 5, 3]}, r"cu_seqlens_q must not descend, but cu_seqlens_q\[2\] = 3 follows 5"),
        ({"cu_seqlens_q": [0, 3, 9]}, "q must have the rows of its sequences, 9, got 7"),
        ({"cu_seqlens_k": [0, 3, 9]}, "k must have the rows of its sequences, 9, got 7"),
        ({"cu_seqlens_k": [0, 7]}, "cu_seqlens_k must describe the 2 sequences of q, got 1"),
        ({"max_seqlen_q": 3}, "max_seqlen_q must be at least the longest sequence, 4, got 3"),
        ({"max_seqlen_k": 2.5}, "max_seqlen_k must be a whole number of at least 0, got 2.5"),
        ({"alibi_slopes": torch.zeros(3, 2)}, r"alibi_slopes must be a tensor \(2,\) or \(2, 2\), got \(3, 2\)"),
        ({"k": PAGES, "v": PAGES}, r"k must be \(total, heads, d\), got shape \(3, 4, 2, 4\)"),
        ({"block_table": [[0], [1]]}, r"k must be \(pages, page, heads, d\), got shape \(7, 2, 4\)"),
        ({"k": PAGES, "v": PAGES, "block_table": [[0], [3]]}, r"block_table\[1, 0\] must be a page, 0 to 2, got 3"),
        ({"k": PAGES, "v": PAGES, "block_table": [[0]]}, r"block_table must be whole numbers \(2 sequences"),
        ({"k": PAGES, "v": PAGES, "block_table": [[], []]}, r"block_table must be whole numbers"),
        (
            {"k": PAGES, "v": PAGES, "block_table": [[0], [1]], "cu_seqlens_k": [0, 3, 12]},
            r"block_table has 1 pages for each sequence, but the lengths of cu_seqlens_k\[1\] = 9 keys need 3",
        ),
    ],
)
def test_bad_input_is_named(change, message):
    arguments = {"q": X, "k": X, "v": X, "cu_seqlens_q": [0, 3, 7], "cu_seqlens_k": [0, 3, 7]}
    with pytest.raises(RedblueError, match=message):
        flash_attn_varlen_func(**{**arguments, "max_seqlen_q": 9, "max_seqlen_k": 9} | change)
