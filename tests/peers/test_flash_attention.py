"""flash_attn_func on FlashAttention's own kinds of cases, against float64: outputs, log-sum-exps and gradients.

FlashAttention's tests (its file test_flash_attn.py) and ours:

    test_flash_attn_output            test_outputs_and_gradients, test_head_dimensions_in_16_bits
    test_flash_attn_varlen_output     test_packed_sequences_in_16_bits, and integrations/flash_attn/test_packed.py
    test_flash_attn_causal            test_head_dimensions_in_16_bits
    test_flash_attn_varlen_causal     test_packed_sequences_in_16_bits
    test_flash_attn_qkvpacked, ...    integrations/flash_attn/test_batched.py and test_packed.py
    test_flash_attn_kvcache           integrations/flash_attn/test_kv_cache.py
    test_flash_attn_bwd_overflow      integrations/flash_attn/test_batched.py
    test_flash_attn_bwd_varlen_overflow   test_sequences_of_one_key_have_finite_gradients
    test_flash_attn_bwd_transpose     op/pytorch/test_values.py, with every layout
    race conditions, determinism      kernels/cpu/test_threads.py: results are bitwise equal
"""

from itertools import cycle

import pytest

torch = pytest.importorskip("torch")

from redblue.integrations.flash_attn import flash_attn_func, flash_attn_varlen_func
from support.examples import thorough
from support.flash_reference import OPTIONS, case, check_close, gradients, reference, with_slopes

SIZES = [(1, 1), (1, 239), (3, 17), (17, 3), (64, 64), (113, 203), (108, 1)]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize(("n_q", "n_k"), SIZES)
def test_outputs_and_gradients(n_q, n_k, options):
    options = with_slopes(options)
    tensors = case(n_q, n_k)
    out, lse, s_dmask = flash_attn_func(*tensors, **options, return_attn_probs=True)
    expected, expected_lse = reference(*tensors, **options)
    assert out.is_contiguous()
    assert lse.dtype == torch.float32
    assert s_dmask.shape == (0,)
    check_close(out, expected, torch.float32)
    check_close(lse, expected_lse, torch.float32)
    both = zip(gradients(out, tensors), gradients(expected, tensors), "qkv", strict=True)
    for got, right, name in both:
        check_close(got, right, torch.float32, f"d{name}", rows=n_q)


# FlashAttention's lists of widths, lengths and heads. Widths and lengths take turns instead of forming all pairs.
WIDTHS = (32, 59, 64, 80, 96, 111, 128, 160, 192, 224, 256)
LONGER = (
    (113, 203),
    (128, 217),
    (113, 211),
    (108, 256),
    (256, 512),
    (512, 256),
    (1024, 1024),
    (1023, 1024),
    (1024, 1023),
)
KV_HEADS = (6, 2, 1)  # of 6 heads: multi-head, grouped-query and multi-query attention
DROPOUT = 0.17
TURNS = [
    *zip(
        (*WIDTHS, *WIDTHS),
        cycle(LONGER),
        cycle(KV_HEADS),
        (*[torch.float16] * len(WIDTHS), *[torch.bfloat16] * len(WIDTHS)),
        cycle((0.0, DROPOUT)),
        strict=False,
    )
]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("d", "sizes", "kv_heads", "dtype", "dropout"), [TURNS[0], *(thorough(*x) for x in TURNS[1:])])
def test_head_dimensions_in_16_bits(d, sizes, kv_heads, dtype, dropout, causal):
    n_q, n_k = sizes
    tensors = case(n_q, n_k, dtype, heads=6, kv_heads=kv_heads, batch=1, d=d)
    torch.manual_seed(0)
    out, lse, s_dmask = flash_attn_func(*tensors, dropout, causal=causal, return_attn_probs=True)
    kept = ~s_dmask[:, :, :n_q, :n_k].signbit() if dropout else None
    expected, expected_lse = reference(*tensors, causal=causal, kept=kept, dropout_p=dropout)
    check_close(out, expected, dtype)
    check_close(lse, expected_lse, torch.float32)
    for got, right, name in zip(gradients(out, tensors), gradients(expected, tensors), "qkv", strict=True):
        check_close(got, right, dtype, f"d{name}", rows=n_q)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("d", "kv_heads", "dtype"), [thorough(d, h, dtype) for d, _, h, dtype, _ in TURNS[::2]])
def test_packed_sequences_in_16_bits(d, kv_heads, dtype, causal):
    lengths, key_lengths = torch.tensor([113, 1, 64, 200]), torch.tensor([203, 17, 64, 199])
    q, k, v = case(200, 203, dtype, heads=6, kv_heads=kv_heads, batch=4, d=d)
    rows, keys = (torch.arange(x.shape[1]) < ends[:, None] for x, ends in ((q, lengths), (k, key_lengths)))
    starts, key_starts = (torch.nn.functional.pad(x.cumsum(0), (1, 0)).int() for x in (lengths, key_lengths))
    out = flash_attn_varlen_func(q[rows], k[keys], v[keys], starts, key_starts, 200, 203, causal=causal)
    expected, _ = reference(q, k, v, causal=causal, lengths=lengths, key_lengths=key_lengths)
    check_close(out, expected[rows], dtype)
    results = gradients(out, [q, k, v]), gradients(expected[rows], [q, k, v])
    for got, right, name in zip(*results, "qkv", strict=True):
        check_close(got, right, dtype, f"d{name}", rows=200)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_sequences_of_one_key_have_finite_gradients(causal, dtype):
    """Each sequence has one key and many queries with scores of some hundreds."""
    q, k, v = (x.detach() for x in case(256, 3, dtype, heads=5, kv_heads=5, batch=1, d=64))
    tensors = [(8 * x[0]).requires_grad_() for x in (q, k, v)]
    starts, key_starts = torch.tensor([0, 76, 110, 256], dtype=torch.int32), torch.arange(4, dtype=torch.int32)
    out = flash_attn_varlen_func(*tensors, starts, key_starts, 146, 1, causal=causal)
    for gradient in gradients(out, tensors):
        assert gradient.isfinite().all()
