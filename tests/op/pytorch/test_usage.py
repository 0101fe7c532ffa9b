"""The record that `with rb.sdpa() as used:` yields, and the precedence of a user's choice among PyTorch's kernels."""

import itertools
import threading
from contextlib import suppress

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel

import redblue as rb
from redblue.op.pytorch.sdpa_override import CHOSEN, TRANSFORMED
from redblue.op.pytorch.usage import MAX_REASONS, OTHER, Usage

CHOICES = {
    "math": lambda: sdpa_kernel(SDPBackend.MATH),
    "two": lambda: sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]),
    "priority": lambda: sdpa_kernel([SDPBackend.MATH, *set(SDPBackend.__members__.values())], set_priority=True),
}


@pytest.fixture
def q():
    torch.manual_seed(0)
    return torch.randn(2, 3, 6, 8, dtype=torch.float64, requires_grad=True)


def attend(q, **options):
    return F.scaled_dot_product_attention(q, q, q, **options)


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])
def test_an_explicit_choice_wins(q, choice, inside):
    blocks = (rb.sdpa, CHOICES[choice]) if inside else (CHOICES[choice], rb.sdpa)
    with blocks[0]() as first, blocks[1]() as second:
        attend(q)
        used = first if inside else second
        assert (used.served, used.reasons) == (0, {CHOSEN: 1})
    with rb.sdpa() as used:
        attend(q)
    assert (used.served, used.refused) == (1, 0)


def test_a_choice_by_switch_wins(q):
    torch.backends.cuda.enable_flash_sdp(False)
    try:
        with rb.sdpa() as used:
            attend(q)
    finally:
        torch.backends.cuda.enable_flash_sdp(True)
    assert used.reasons == {CHOSEN: 1}


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])
def test_double_backward_under_the_math_kernel(q, inside):
    """redblue has no second derivatives; PyTorch's math kernel has."""

    def second():
        (gradient,) = torch.autograd.grad(attend(q).sin().sum(), q, create_graph=True)
        return torch.autograd.grad(gradient.sin().sum(), q)[0]

    with sdpa_kernel(SDPBackend.MATH):
        expected = second()
    blocks = [rb.sdpa(), sdpa_kernel(SDPBackend.MATH)]
    with blocks[1 - inside], blocks[inside]:
        assert torch.equal(second(), expected)


def test_served_and_refused_with_reasons(q):
    wide = torch.randn(1, 1, 2, 4100)
    with rb.sdpa() as outer:
        attend(q)
        with rb.sdpa() as inner:
            attend(q.detach(), is_causal=True)
            attend(wide)
            attend(wide)
            torch.func.grad(lambda x: attend(x).sum())(q.detach())
        attend(q)
    attend(q)
    (too_wide,) = inner.reasons.keys() - {TRANSFORMED}
    assert "4096 on the CPU, got 4100" in too_wide
    assert inner == Usage(1, {too_wide: 2, TRANSFORMED: 1})
    assert outer == Usage(3, {too_wide: 2, TRANSFORMED: 1})
    assert repr(inner) == f"1 calls served, 3 refused\n  2 x {too_wide}\n  1 x {TRANSFORMED}"
    override = rb.enable_sdpa()
    attend(q)
    override.disable()
    attend(q)
    assert override.used == Usage(1)


def test_no_call_is_lost_or_refused_twice(q):
    """Many threads call, each inside its own `with rb.sdpa()`."""
    x, choices = q.detach(), itertools.cycle([{}, {"attn_mask": torch.ones(6, 6, dtype=torch.int64)}])

    def work(calls):
        with rb.sdpa():
            for options in calls:
                with suppress(RuntimeError):  # PyTorch's error for a mask of integers
                    attend(x, **options)

    with rb.sdpa() as used:
        threads = [threading.Thread(target=work, args=(list(itertools.islice(choices, 50)),)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (used.served, used.refused) == (200, 200)


def test_reasons_do_not_grow_without_end():
    used = Usage()
    for shape in range(3 * MAX_REASONS):
        used.add(f"shape {shape}")
    assert used.refused == 3 * MAX_REASONS
    assert len(used.reasons) == MAX_REASONS + 1
    assert used.reasons[OTHER] == 2 * MAX_REASONS


# The bypasses that docs/guide/pytorch.md names -------------------------------------------------------------------


def test_modules_that_do_not_call_the_function():
    layer, x = torch.nn.MultiheadAttention(16, 4, batch_first=True), torch.randn(2, 5, 16)
    with rb.sdpa() as used:
        for mode in (True, False):
            layer.train(mode)
            layer(x, x, x, need_weights=True)
    assert used == Usage()


@pytest.mark.filterwarnings("ignore")
def test_models_that_compute_attention_themselves():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = transformers.Gemma2Config(vocab_size=31, num_hidden_layers=2, head_dim=8, **sizes)
    ids = torch.tensor([[1, 2, 3]])
    config._attn_implementation = "eager"
    model = transformers.Gemma2ForCausalLM(config)
    with rb.sdpa() as used:
        model(input_ids=ids)
    assert used == Usage()
