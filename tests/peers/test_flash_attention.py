"""flash_attn_func on FlashAttention's own kinds of cases, against float64: outputs, log-sum-exps and gradients."""

import pytest

torch = pytest.importorskip("torch")

from redblue.integrations.flash_attn import flash_attn_func
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
