"""The attention function for transformers against the expression of eager models in float64."""

import math
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sliding_window_causal_mask_function

from redblue.base.errors import RedblueError
from redblue.integrations.transformers import NAME, mask_function, register, registration
from redblue.integrations.transformers.attention import attention_forward
from redblue.integrations.transformers.mask_function import redblue_mask
from redblue.masks import Mask
from redblue.op.pytorch import boolean

B, H, HKV, NQ, NK, D, DV = 2, 4, 2, 7, 11, 6, 5


class Layer(torch.nn.Module):
    """An attention module with the attributes that attention functions read."""

    is_causal = True


def tensors(n_q=NQ, n_k=NK, batch=B, **shapes):
    """Transposed q, k, v, as models pass them, and further tensors. All require gradients."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"query": (batch, n_q, H, D), "key": (batch, n_k, HKV, D), "value": (batch, n_k, HKV, DV)} | shapes
    made = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
    return {
        name: (x.transpose(1, 2) if name in ("query", "key", "value") else x).requires_grad_()
        for name, x in made.items()
    }


def eager(query, key, value, *, allowed=None, bias=None, scaling=None, softcap=None, sinks=None):
    """softmax(softcap(scaling q k^T) + bias) v with sinks, over the allowed pairs."""
    key, value = (x.repeat_interleave(H // HKV, 1) for x in (key, value))
    scores = query @ key.transpose(-1, -2) * (D**-0.5 if scaling is None else scaling)
    scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    scores = scores if bias is None else scores + bias
    scores = scores if allowed is None else scores.masked_fill(~allowed, -math.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.expand(*scores.shape[:-1], 1)], -1)
    weights = scores.softmax(-1)[..., : key.shape[2]]
    return (weights @ value).transpose(1, 2)


def check(inputs, mask, reference, layer=None, **keywords):
    """Compare outputs and the gradients of all tensors with those of a reference function."""
    layer = Layer() if layer is None else layer
    out, weights = attention_forward(layer, inputs["query"], inputs["key"], inputs["value"], mask, **keywords)
    assert weights is None
    assert out.is_contiguous()
    expected = reference(inputs)
    assert out.shape == expected.shape
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=0)
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=out.dtype)
    leaves = list(inputs.values())
    for name, a, b in zip(
        inputs,
        torch.autograd.grad((out * direction).sum(), leaves),
        torch.autograd.grad((expected * direction).sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(a, b, atol=1e-11, rtol=0, msg=lambda text, name=name: f"{name}: {text}")


def only(inputs, *names):
    return {name: inputs[name] for name in ("query", "key", "value", *names)}


@pytest.mark.parametrize("kind", ["rule", "boolean", "boolean rule", "floating", "none"])
@pytest.mark.parametrize("option", ["plain", "softcap", "scaling", "s_aux", "sinks", "position_bias"])
def test_options_and_masks(option, kind, monkeypatch):
    monkeypatch.setattr(mask_function, "SMALL", 0)
    monkeypatch.setattr(boolean, "MIN_PAIRS", 0 if kind == "boolean rule" else 1 << 16)
    padding = torch.ones(B, NK, dtype=torch.bool)
    padding[0, :2] = False
    function = sliding_window_causal_mask_function(6)
    rule = redblue_mask(B, NQ, NK, NK - NQ, mask_function=function, attention_mask=padding)
    allowed = rule.dense()
    mask = {
        "rule": rule,
        "floating": torch.where(allowed, 0.0, -math.inf).double(),
        "none": None,
    }.get(kind, allowed)
    inputs = tensors(s_aux=(H,), sinks=(B, H, NQ, 1), position_bias=(1, H, NQ, NK))
    inputs = only(inputs, *([option] if option in inputs else []))
    keywords, reference = {}, {"allowed": None if mask is None else allowed}
    if option in inputs:
        keywords[option] = inputs[option]
    elif option in ("softcap", "scaling"):
        keywords[option] = reference[option] = 0.7
    if mask is None:
        keywords["is_causal"] = False

    def expected(inputs):
        more = {"bias": inputs.get("position_bias"), "sinks": inputs.get("sinks")}
        if "s_aux" in inputs:
            more["sinks"] = inputs["s_aux"].view(1, H, 1, 1)
        return eager(inputs["query"], inputs["key"], inputs["value"], **reference, **more)

    check(inputs, mask, expected, **keywords)


def test_a_causal_layer_without_a_mask():
    inputs = tensors(NQ, NQ)
    causal = torch.ones(NQ, NQ, dtype=torch.bool).tril()
    check(inputs, None, lambda inputs: eager(**inputs, allowed=causal))
    check(inputs, None, lambda inputs: eager(**inputs), is_causal=False)
    single = tensors(1, NK)
    check(single, None, lambda inputs: eager(**inputs))  # a step of generation attends all keys


def test_keys_of_a_fixed_cache_are_not_read():
    inputs = tensors()
    mask = redblue_mask(B, NQ, NK, 1)
    assert mask.used == 8
    for name in ("key", "value"):
        with torch.no_grad():
            inputs[name][:, :, 8:] = math.nan
    out, _ = attention_forward(Layer(), *inputs.values(), mask)
    assert out.isfinite().all()
    bias = torch.randn(1, H, NQ, NK, dtype=torch.float64)
    with_bias, _ = attention_forward(Layer(), *inputs.values(), mask, position_bias=bias)
    assert with_bias.isfinite().all()


@pytest.mark.parametrize("is_causal", [False, True])
def test_packed_sequences(is_causal):
    starts, key_starts = torch.tensor([0, 3, 3, NQ]), torch.tensor([0, 4, 5, NK])
    same, key_same = (torch.bucketize(torch.arange(n), x[1:], right=True) for n, x in ((NQ, starts), (NK, key_starts)))
    allowed = same[:, None] == key_same
    if is_causal:  # from each sequence's last query and key
        i, j = torch.arange(NQ)[:, None] - starts[same + 1][:, None], torch.arange(NK) - key_starts[key_same + 1]
        allowed = allowed & (j <= i)
    inputs = tensors(batch=1)
    keywords = {"cu_seq_lens_q": starts, "cu_seq_lens_k": key_starts, "max_length_q": 4, "max_length_k": 6}
    check(inputs, None, lambda inputs: eager(**inputs, allowed=allowed), is_causal=is_causal, **keywords)


def test_descending_bounds_of_sequences_are_refused_by_name():
    keywords = {"cu_seq_lens_q": torch.tensor([0, 3, NQ]), "cu_seq_lens_k": torch.tensor([0, NK + 1, NK])}
    with pytest.raises(RedblueError, match=r"cu_seq_lens_k must not descend, but cu_seq_lens_k\[2\] = 11 follows 12"):
        attention_forward(Layer(), *tensors(batch=1).values(), None, **keywords)


def test_packed_sequences_and_a_mask(monkeypatch):
    monkeypatch.setattr(mask_function, "SMALL", 0)
    starts = torch.tensor([0, 3, NQ])
    inputs = tensors(NQ, NQ, batch=1)
    allowed = torch.block_diag(*[torch.ones(n, n) for n in (3, NQ - 3)]).bool().tril()
    for mask in (redblue_mask(1, NQ, NQ), torch.ones(NQ, NQ, dtype=torch.bool).tril()[None, None]):
        check(inputs, mask, lambda inputs: eager(**inputs, allowed=allowed), cu_seq_lens_q=starts, cu_seq_lens_k=starts)


def test_selected_keys_and_blocks():
    causal = torch.ones(NQ, NK, dtype=torch.bool).tril(NK - NQ)
    indices = torch.rand(B, NQ, NK, generator=torch.Generator().manual_seed(2)).topk(5).indices
    indices[..., 0] = 0
    chosen = torch.zeros(B, NQ, NK, dtype=torch.bool).scatter(-1, indices, True)[:, None]
    for mask in (causal[None, None], redblue_mask(B, NQ, NK, NK - NQ)):
        check(tensors(), mask, lambda inputs: eager(**inputs, allowed=chosen & causal), indices=indices.int())
    layer = Layer()
    layer.indexer = torch.nn.Module()
    layer.indexer.block_size = 4
    blocks = torch.tensor([0, 2, -1]).expand(B, 2, NQ, 3).clone()
    blocks[:, 1, :, 1] = 1  # the second group of heads
    numbers = torch.arange(NK) // 4
    chosen = torch.stack([(numbers == 0) | (numbers == n) for n in (2, 2, 1, 1)]).view(1, H, 1, NK)
    floating = torch.where(causal, 0.0, -math.inf).double()[None, None]
    for mask in (redblue_mask(B, NQ, NK, NK - NQ), floating):
        check(tensors(), mask, lambda inputs: eager(**inputs, allowed=chosen & causal), layer, block_indices=blocks)


def test_a_scaling_that_is_a_tensor_has_a_gradient():
    inputs = tensors(scaling=())
    scaling = inputs["scaling"]
    check(
        inputs,
        None,
        lambda inputs: eager(inputs["query"], inputs["key"], inputs["value"], scaling=inputs["scaling"]),
        scaling=scaling,
        is_causal=False,
    )


def test_both_kinds_of_sinks():
    inputs = tensors(s_aux=(H,), sinks=(B, H, NQ, 1))

    def expected(inputs):
        both = torch.logaddexp(inputs["s_aux"].view(1, H, 1, 1), inputs["sinks"])
        return eager(*(inputs[name] for name in ("query", "key", "value")), sinks=both)

    check(inputs, None, expected, is_causal=False, s_aux=inputs["s_aux"], sinks=inputs["sinks"])


def test_dropout_follows_the_generator_and_keeps_the_mean():
    inputs = [x.detach() for x in tensors(64, 64).values()]
    results = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        results.append(attention_forward(Layer(), *inputs, None, dropout=0.5)[0])
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    many = torch.stack([attention_forward(Layer(), *inputs, None, dropout=0.5)[0] for _ in range(200)]).mean(0)
    torch.testing.assert_close(many, attention_forward(Layer(), *inputs, None)[0], atol=0.5, rtol=0)


MASK = torch.ones(B, 1, NQ, NK, dtype=torch.bool)


@pytest.mark.parametrize(
    ("mask", "keywords", "message"),
    [
        (MASK, {"output_attentions": True}, "does not take output_attentions=True: redblue never holds"),
        (MASK, {"cache": object()}, "only `generate_batch`"),
        (MASK, {"new_kernel_option": 3}, "does not take new_kernel_option=3: it is unknown here"),
        (MASK, {"head_mask": torch.ones(H)}, re.escape("does not take head_mask=<tensor (4,)>")),
        (MASK.long(), {}, "attention_mask must be boolean .* got torch.int64"),
        ({"full_attention": MASK}, {}, "attention_mask must be boolean .* got dict"),
        (None, {}, "7 queries and 11 keys without a mask"),
        (redblue_mask(B, NQ, NQ), {}, "attention_mask is for 7 queries and 7 keys, but there are 7 and 11"),
        (None, {"cu_seq_lens_q": torch.tensor([0, NQ])}, "cu_seq_lens_q must go from 0 to the 7 tokens of a batch"),
        (MASK, {"indices": torch.zeros(B, 3)}, "indices must be"),
        (MASK, {"block_indices": torch.zeros(B, H, NQ, 1)}, "a module whose `indexer` has a block_size"),
        (MASK, {"softcap": -1.0}, "softcap must be above 0"),
        (MASK, {"cu_seq_lens_k": torch.tensor([0, NK])}, "cu_seq_lens_k needs cu_seq_lens_q"),
        (MASK[..., 1:], {}, "attention_mask must broadcast to .* got"),
        (MASK, {"position_bias": torch.zeros(1, H, NQ, NK + 1)}, "position_bias must broadcast to .* got"),
        (MASK, {"sinks": torch.zeros(H - 1)}, "sinks must broadcast to .* got"),
    ],
)
def test_what_is_not_served_is_refused_by_name(mask, keywords, message):
    inputs = [x.detach() for x in tensors().values()]
    with pytest.raises(RedblueError, match=message):
        attention_forward(Layer(), *inputs, mask, **keywords)


def test_harmless_keywords_are_taken():
    inputs = [x.detach() for x in tensors().values()]
    keywords = {"position_ids": torch.zeros(1), "use_cache": True, "output_attentions": False, "head_mask": None}
    keywords |= {"sliding_window": 4, "max_length_q": NQ}
    assert torch.equal(
        attention_forward(Layer(), *inputs, MASK, **keywords)[0], attention_forward(Layer(), *inputs, MASK)[0]
    )


def test_windows_come_from_the_mask_only():
    """As with eager and sdpa: DiffusionGemma gives a window, without a mask, where every key is attended."""
    inputs = [x.detach() for x in tensors().values()]
    out, _ = attention_forward(Layer(), *inputs, None, is_causal=False, sliding_window=4)
    torch.testing.assert_close(out, eager(*inputs), atol=1e-12, rtol=0)


def test_a_changed_boolean_mask_is_read_again(monkeypatch):
    monkeypatch.setattr(boolean, "MIN_PAIRS", 0)
    inputs = [x.detach() for x in tensors().values()]
    mask = MASK.clone()
    before, _ = attention_forward(Layer(), *inputs, mask)
    assert torch.equal(before, attention_forward(Layer(), *inputs, mask)[0])
    mask[..., 3:] = False
    after, _ = attention_forward(Layer(), *inputs, mask)
    torch.testing.assert_close(after, eager(*inputs, allowed=mask), atol=1e-12, rtol=0)


def test_a_boolean_mask_of_inference_mode(monkeypatch):
    monkeypatch.setattr(boolean, "MIN_PAIRS", 0)
    inputs = [x.detach() for x in tensors().values()]
    with torch.inference_mode():
        mask = torch.ones(NQ, NK, dtype=torch.bool).tril(NK - NQ)
        out, _ = attention_forward(Layer(), *inputs, mask)
        torch.testing.assert_close(out, eager(*inputs, allowed=mask), atol=1e-12, rtol=0)


CHANGES = {
    "entry": lambda mask: mask.__setitem__((..., slice(3, None)), False),
    "operation": lambda mask: mask.masked_fill_(torch.arange(NK) >= 3, False),
    "view": lambda mask: mask[..., 3:].fill_(False),
}


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_model_that_writes_into_its_mask(change, context, monkeypatch):
    monkeypatch.setattr(mask_function, "SMALL", 0)
    inputs = [x.detach() for x in tensors(batch=1).values()]
    with context():
        mask = redblue_mask(1, NQ, NK, NK - NQ)
        copied = mask.clone(), mask.to(torch.bool, copy=True)
        change(mask)
        allowed = torch.ones(NQ, NK, dtype=torch.bool).tril(NK - NQ)
        for made, expected in (
            (mask, allowed & (torch.arange(NK) < 3)),
            *((mask_copy, allowed) for mask_copy in copied),
        ):
            out, _ = attention_forward(Layer(), *inputs, made)
            torch.testing.assert_close(out, eager(*inputs, allowed=expected), atol=1e-12, rtol=0)


@pytest.fixture
def unregistered():
    """Undoes the requests of other tests in this process: the programs of the guide and the examples leave theirs."""
    for request in list(registration._requests):
        request.undo()


def is_registered():
    names = [NAME in interface._global_mapping for interface in (AttentionInterface, AttentionMaskInterface)]
    assert names in ([True] * 2, [False] * 2)
    return names[0]


def test_registration(unregistered):
    with register() as registered:
        assert AttentionInterface._global_mapping[NAME] is attention_forward
        assert AttentionMaskInterface._global_mapping[NAME] is redblue_mask
        registered.undo()
        assert not is_registered()
        registered.undo()


def test_a_request_does_not_undo_the_registration_of_another(unregistered):
    first = register()
    with register() as second:
        pass
    assert is_registered()
    second.undo()  # for the second time
    assert is_registered()
    third = register()
    first.undo()
    assert is_registered()
    third.undo()
    assert not is_registered()


def test_requests_of_several_threads(unregistered):
    def requests(_):
        for _ in range(50):
            with register():
                assert is_registered()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(requests, range(8)))
    assert not is_registered()


def test_a_name_that_is_taken_is_refused(unregistered, monkeypatch):
    monkeypatch.setitem(AttentionInterface._global_mapping, NAME, print)
    with pytest.raises(RedblueError, match='already has another implementation named "redblue"'):
        register()
    assert NAME not in AttentionMaskInterface._global_mapping
    assert not registration._requests


def test_a_missing_package_is_named(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(RedblueError, match=re.escape("pip install 'redblue[transformers]'")):
        register()


def test_an_old_transformers_is_named(monkeypatch):
    from transformers import masking_utils

    monkeypatch.setattr(masking_utils, "sdpa_mask", lambda batch_size, cache_position: None)
    with pytest.raises(RedblueError, match=r"needs PyTorch and transformers 5.6 or newer, got transformers 5"):
        register()


def test_masks_are_redblues_own():
    assert isinstance(redblue_mask(B, NQ, NQ).mask, Mask)
