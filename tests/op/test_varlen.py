"""Packed sequences and nested tensors, against one call for each sequence."""

import numpy as np
import pytest

import redblue as rb
from redblue import Mask

LENGTHS, KEY_LENGTHS = (5, 0, 9, 1), (5, 3, 2, 30)
STARTS, KEY_STARTS = (np.append(0, np.cumsum(x)) for x in (LENGTHS, KEY_LENGTHS))
WINDOWS = [None, Mask.causal(), Mask.causal(align="bottom-right"), Mask.sliding_window(2, 1)]


def packed(rng, heads=4, kv_heads=2):
    q = rng.standard_normal((STARTS[-1], heads, 6))
    return q, rng.standard_normal((KEY_STARTS[-1], kv_heads, 6)), rng.standard_normal((KEY_STARTS[-1], kv_heads, 3))


@pytest.mark.parametrize("mask", WINDOWS)
def test_each_sequence_attends_itself(mask):
    q, k, v = packed(np.random.default_rng(0))
    out, lse = rb.attention_varlen(q, k, v, STARTS, KEY_STARTS, mask=mask, softcap=5.0, return_lse=True)
    assert (out.shape, lse.shape) == ((15, 4, 3), (4, 15))
    for a, b, c, d in zip(STARTS, STARTS[1:], KEY_STARTS, KEY_STARTS[1:], strict=False):
        alone = (x.swapaxes(0, 1) for x in (q[a:b], k[c:d], v[c:d]))
        expected, expected_lse = rb.attention(*alone, mask=mask, softcap=5.0, return_lse=True)
        np.testing.assert_allclose(out[a:b].swapaxes(0, 1), expected, atol=1e-12)
        np.testing.assert_allclose(lse[:, a:b], expected_lse, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cu_seqlens_q": [0, 5, 4, 15]}, r"cu_seqlens_q must not descend, but cu_seqlens_q\[2\] = 4 follows 5"),
        ({"cu_seqlens_q": [1, 15]}, r"cu_seqlens_q\[0\] must be 0, got 1"),
        ({"cu_seqlens_q": []}, r"cu_seqlens_q\[0\] must be 0, got an empty array"),
        ({"cu_seqlens_q": [0, 5.5]}, r"cu_seqlens_q must be a list of whole numbers"),
        ({"cu_seqlens_k": [0, 4]}, r"cu_seqlens_k must end at 40, the rows of k, got 4"),
        ({"cu_seqlens_k": [0, 40]}, r"cu_seqlens_k must be for as many sequences as cu_seqlens_q \(4\), got 1"),
        ({"cu_seqlens_k": None}, r"cu_seqlens_q must end at 40, the rows of k, got 15"),
        ({"mask": Mask.prefix(3)}, r"mask must be a window within each sequence.*got Mask.prefix\(3\)"),
        ({"q": np.zeros((15, 6))}, r"q must be packed as \(total, heads, d\), got shape \(15, 6\)"),
        ({"v": None}, r"v must be packed as \(total, heads, d\), got NoneType"),
    ],
)
def test_bad_input_is_named(change, message):
    q, k, v = packed(np.random.default_rng(0))
    arguments = {"q": q, "k": k, "v": v, "cu_seqlens_q": STARTS, "cu_seqlens_k": KEY_STARTS} | change
    with pytest.raises(rb.RedblueError, match=message):
        rb.attention_varlen(**arguments)


def test_gradients_of_tensors():
    torch = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(x).requires_grad_() for x in packed(np.random.default_rng(0)))
    starts, key_starts = (torch.from_numpy(x).int() for x in (STARTS, KEY_STARTS))
    out = rb.attention_varlen(q, k, v, starts, key_starts, mask=Mask.causal())
    assert out.is_contiguous()
    gradients = torch.autograd.grad(out.sin().sum(), (q, k, v))
    loss = 0
    for a, b, c, d in zip(STARTS, STARTS[1:], KEY_STARTS, KEY_STARTS[1:], strict=False):
        alone = (x.transpose(0, 1) for x in (q[a:b], k[c:d], v[c:d]))
        loss = loss + rb.attention(*alone, mask=Mask.causal()).sin().sum()
    for x, y in zip(gradients, torch.autograd.grad(loss, (q, k, v)), strict=True):
        torch.testing.assert_close(x, y)


@pytest.mark.parametrize("library", ["NumPy", "PyTorch"])
def test_no_sequences_with_a_row_of_slopes_per_sequence(library):
    zeros = pytest.importorskip("torch").zeros if library == "PyTorch" else np.zeros
    q, slopes = zeros((0, 2, 4)), zeros((0, 2))
    out, lse = rb.attention_varlen(q, q, q, [0], alibi=slopes, return_lse=True)
    assert (out.shape, lse.shape) == ((0, 2, 4), (2, 0))
    with pytest.raises(rb.RedblueError, match="alibi must broadcast to"):
        rb.attention_varlen(q, q, q, [0], alibi=zeros((0, 3)))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:Sparse CSR")
def test_starts_without_whole_numbers_in_memory_are_refused_by_name():
    torch = pytest.importorskip("torch")
    x, starts = torch.zeros(2, 1, 4), torch.tensor([0, 2])
    wrong = {
        "bfloat16": starts.bfloat16(),
        "complex64": starts.to(torch.complex64).conj(),
        "meta device": starts.to("meta"),
        "sparse_coo": starts.to_sparse(),
        "sparse_csr": starts[None].to_sparse_csr(),
        "int64": torch.nested.nested_tensor([starts]),
    }
    for kind, cu_seqlens in wrong.items():
        with pytest.raises(
            rb.RedblueError, match=rf"cu_seqlens_q must be a dense tensor of whole numbers.* got .*{kind}"
        ):
            rb.attention_varlen(x, x, x, cu_seqlens)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", ["jagged", "strided"])
def test_nested_tensors_go_through_scaled_dot_product_attention(layout):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    lengths = (5, 2, 9)
    sequences = [[torch.from_numpy(rng.standard_normal((n, 2, 4))).requires_grad_() for n in lengths] for _ in range(3)]
    nested = [torch.nested.as_nested_tensor(x, layout=getattr(torch, layout)).transpose(1, 2) for x in sequences]
    parts = [[x.detach() for x in sequences[0][:2]], [x.detach()[:, :1] for x in sequences[1]]]
    fewer, grouped = (torch.nested.as_nested_tensor(x, layout=getattr(torch, layout)).transpose(1, 2) for x in parts)
    out = rb.scaled_dot_product_attention(*nested, is_causal=True)
    assert out.is_nested
    assert out.layout == nested[0].layout
    loss = sum(part.sin().sum() for part in out.unbind())
    gradients = torch.autograd.grad(loss, [x for of in sequences for x in of])
    alone = [
        torch.nn.functional.scaled_dot_product_attention(*(x.transpose(0, 1) for x in sequence), is_causal=True)
        for sequence in zip(*sequences, strict=True)
    ]
    for part, expected in zip(out.unbind(), alone, strict=True):
        torch.testing.assert_close(part, expected)
    expected = torch.autograd.grad(sum(x.sin().sum() for x in alone), [x for of in sequences for x in of])
    for x, y in zip(gradients, expected, strict=True):
        torch.testing.assert_close(x, y)
    with pytest.raises(rb.RedblueError, match="attn_mask is not supported for nested tensors"):
        rb.scaled_dot_product_attention(*nested, attn_mask=torch.ones(2, 2))
    dense = torch.ones(3, 2, 5, 4).double()
    for inputs, message in (
        ((nested[0], dense, nested[2]), "key must be a nested tensor like the others"),
        ((dense, nested[1], nested[2]), "query must be a nested tensor like the others"),
        ((nested[0], fewer, fewer), r"key must have as many sequences as query \(3\), got 2"),
        ((nested[0], grouped, grouped), "query has 2 heads, key 1 and value 1: they must be equal, or give enable_gqa"),
    ):
        with pytest.raises(rb.RedblueError, match=message):
            rb.scaled_dot_product_attention(*inputs)
    assert rb.scaled_dot_product_attention(nested[0], grouped, grouped, enable_gqa=True).is_nested
