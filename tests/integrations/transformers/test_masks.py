"""Mask functions of transformers as redblue's masks: the same entries, and rules for known functions."""

import re

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from transformers import masking_utils as hf

from redblue import RedblueError
from redblue.integrations.transformers import mask_function, register, tiles
from redblue.integrations.transformers.mask_function import redblue_mask
from redblue.integrations.transformers.mask_tensor import MaskTensor
from redblue.masks.rules.packed import Documents
from redblue.masks.rules.stack import Stack

N = 23
PADDING = {
    "none": None,
    "all": torch.ones(2, N, dtype=torch.bool),
    "left": torch.arange(N) >= torch.tensor([[5], [0]]),
    "right": torch.arange(N) < torch.tensor([[N], [17]]),
    "holes": torch.arange(N) % torch.tensor([[3], [5]]) != 1,
    "short": torch.arange(N - 4) < torch.tensor([[9], [N]]),  # the keys beyond its end are padding
}
POSITIONS = torch.tensor([[*range(4), *range(11), *range(8)], [*range(20), *range(3)]])
PACKED = hf.find_packed_sequence_indices(POSITIONS)
BLOCKS = torch.full((2, N), -1)
BLOCKS[0, 2:7], BLOCKS[0, 7:9], BLOCKS[1, 20:] = 0, 1, 5


def packed(function):
    return hf.packed_sequence_compatibility_function(function, POSITIONS, PACKED)


def chunked(size):
    return hf.chunked_causal_mask_function(size, torch.tensor([5, 0]))


FUNCTIONS = {
    "causal": hf.causal_mask_function,
    "bidirectional": hf.bidirectional_mask_function,
    "window": hf.sliding_window_causal_mask_function(6),
    "window of both sides": hf.sliding_window_bidirectional_mask_function(3),
    "chunked": chunked(7),
    "blockwise": hf.or_masks(hf.causal_mask_function, hf.blockwise_overlay(BLOCKS)),
    "packed": packed(hf.causal_mask_function),
    "packed windows": packed(hf.sliding_window_causal_mask_function(3)),
    "packed chunks": packed(hf.chunked_causal_mask_function(4, torch.zeros(2, dtype=torch.int64))),
    "padding": hf.and_masks(hf.causal_mask_function, hf.padding_mask_function(PADDING["holes"])),
}


@pytest.fixture
def rules(monkeypatch):
    """Makes small masks rules, too, and lowers no mask by tiles."""
    monkeypatch.setattr(mask_function, "SMALL", 0)

    def refuse(*arguments):
        raise AssertionError("the mask function was not recognised")

    monkeypatch.setattr(mask_function, "lowered_by_tiles", refuse)


def both(function, padding, q_length=N, kv_length=N, q_offset=0, kv_offset=0, **more):
    """The MaskTensor, and the entries by transformers' own mask function."""
    arguments = {"kv_length": kv_length, "kv_offset": kv_offset, "mask_function": function, "attention_mask": padding}
    arguments |= {"batch_size": 2, "q_length": q_length, **more}
    mask = redblue_mask(q_offset=torch.tensor(q_offset), **arguments)
    expected = hf.sdpa_mask(q_offset=q_offset, allow_is_causal_skip=False, **arguments)
    return mask, expected.expand(2, 1, q_length, kv_length)


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_entries_and_rules(name, padding, rules):
    mask, expected = both(FUNCTIONS[name], PADDING[padding])
    assert type(mask) is MaskTensor
    assert mask.shape == expected.shape
    assert torch.equal(mask.dense(), expected)


@pytest.mark.parametrize("name", ["causal", "window", "chunked", "bidirectional"])
@pytest.mark.parametrize("place", [(5, 23, 18, 0), (4, 20, 6, 0), (4, 9, 16, 11), (9, 23, 0, 0)], ids=str)
def test_caches(name, place, rules):
    """Queries after cached keys, before the unused keys of a static cache, or in a sliding cache."""
    q_length, kv_length, q_offset, kv_offset = place
    mask, expected = both(FUNCTIONS[name], PADDING["left"], q_length, kv_length, q_offset, kv_offset)
    assert torch.equal(mask.dense(), expected)
    if name != "bidirectional":
        assert mask.used == min(kv_length, q_offset + q_length - kv_offset)


def test_simple_masks_stay_simple(rules):
    assert repr(both(FUNCTIONS["causal"], PADDING["all"])[0].mask) == "Mask.causal()"
    assert repr(both(FUNCTIONS["window"], None)[0].mask) == "Mask.sliding_window(left=5, right=0)"
    assert both(FUNCTIONS["bidirectional"], PADDING["all"])[0].mask is None
    packed_rule = both(FUNCTIONS["packed windows"], None)[0].mask.rule
    assert isinstance(packed_rule, Stack)
    assert all(isinstance(rule, Documents) for rule in packed_rule.rules)
    assert repr(both(FUNCTIONS["bidirectional"], PADDING["right"])[0].mask.plane(1)) == "Mask.prefix(17)"


def test_a_mask_that_excludes_nothing_is_none_where_models_expect_it(rules):
    """As transformers does for sdpa.

    Informer's encoder halves its keys from layer to layer and checks a mask's shape.
    """
    arguments = {"batch_size": 2, "q_length": N, "kv_length": N, "mask_function": hf.bidirectional_mask_function}
    for padding, is_none in ((None, True), (PADDING["all"], True), (PADDING["left"], False)):
        mask = redblue_mask(attention_mask=padding, allow_is_bidirectional_skip=True, **arguments)
        assert (mask is None) == is_none
        assert redblue_mask(attention_mask=padding, allow_is_bidirectional_skip=False, **arguments) is not None


def anti_causal(batch_idx, head_idx, q_idx, kv_idx):
    return (kv_idx >= q_idx) & ((q_idx + kv_idx * (batch_idx + 1)) % 3 != 0)


@pytest.mark.parametrize("use_vmap", [False, True])
def test_unknown_functions_are_lowered_by_tiles(use_vmap, monkeypatch):
    monkeypatch.setattr(mask_function, "SMALL", 0)
    monkeypatch.setattr(tiles, "TILE", 8 * N)
    function = hf.and_masks(hf.bidirectional_mask_function, anti_causal)
    mask, expected = both(function, PADDING["right"], 19, N, 4, use_vmap=use_vmap)
    assert type(mask) is MaskTensor
    assert torch.equal(mask.dense(), expected)


def _bidirectional_window_overlay(sliding_window):
    """A factory of a custom model with the name of a factory of Gemma 3's, and with other windows."""

    def inner_mask(batch_idx, head_idx, q_idx, kv_idx):
        return abs(q_idx - kv_idx) < 2 * sliding_window

    return inner_mask


def sliding_window_mask_function(sliding_window, is_causal=True):
    """A factory of a custom model with the name of a factory of T5Gemma 2's, and with other windows."""

    def inner_mask(batch_idx, head_idx, q_idx, kv_idx):
        return (q_idx - kv_idx < sliding_window[0]) & (kv_idx - q_idx <= sliding_window[0]) & is_causal

    return inner_mask


@pytest.mark.parametrize("module", [__name__, "transformers.models.gemma3.modeling_gemma3", "transformers.models.none"])
@pytest.mark.parametrize("factory", [_bidirectional_window_overlay, sliding_window_mask_function])
def test_functions_that_only_share_the_name_of_a_known_function_are_lowered_by_tiles(factory, module, monkeypatch):
    monkeypatch.setattr(mask_function, "SMALL", 0)
    function = factory([3] if factory is sliding_window_mask_function else 3)
    function.__module__ = module
    mask, expected = both(function, PADDING["right"])
    assert torch.equal(mask.dense(), expected)


@pytest.mark.parametrize(
    ("module", "factory", "window"),
    [
        ("gemma3", "_bidirectional_window_overlay", (5,)),
        ("t5gemma2", "sliding_window_mask_function", (5, False)),
        ("t5gemma2", "sliding_window_mask_function", (5, True)),
        ("moonshine_streaming", "sliding_window_mask_function", ((5, 3),)),
    ],
)
def test_functions_of_single_models_are_known(module, factory, window, rules):
    model = pytest.importorskip(f"transformers.models.{module}.modeling_{module}")
    mask, expected = both(getattr(model, factory)(*window), None)
    assert torch.equal(mask.dense(), expected)


def recurring(batch_idx, head_idx, q_idx, kv_idx):
    return torch.zeros(()) / "no mask"


def test_a_function_that_fails_is_named(monkeypatch):
    monkeypatch.setattr(mask_function, "SMALL", 0)
    with pytest.raises(RedblueError, match="recurring"):
        redblue_mask(1, 8, 8, mask_function=recurring)


@pytest.mark.parametrize("shape", [(), (6,), (1, 6), (3, 6), (2, 1, 6), (2, 6, 6)], ids=str)
@pytest.mark.parametrize("q_length", [1, 6, 200])
def test_padding_of_another_shape_is_refused_by_name(shape, q_length):
    """At every size: small masks are made by transformers' function, which broadcasts some shapes."""
    shape = tuple(q_length if size == 6 else size for size in shape)
    got = re.escape("must be (batch, keys) = (2, keys), with 0 for padded keys, or a 4-D mask")
    with pytest.raises(RedblueError, match=f"{got}.*, got {re.escape(str(shape))}$"):
        redblue_mask(2, q_length, q_length, attention_mask=torch.ones(shape, dtype=torch.bool))


@pytest.mark.parametrize("n", [6, 200])
def test_a_model_refuses_masks_of_another_shape_by_name(n):
    config = transformers.LlamaConfig(hidden_size=16, num_attention_heads=2, num_hidden_layers=1, intermediate_size=16)
    with register():
        model = transformers.LlamaModel._from_config(config, attn_implementation="redblue")
        for shape in ((n,), (1, n), (2, 1, n)):
            with pytest.raises(RedblueError, match=re.escape(f"got {shape}")):
                model(torch.ones(2, n, dtype=torch.long), attention_mask=torch.ones(shape, dtype=torch.long))


def test_labels_that_recur_are_lowered_by_tiles(monkeypatch):
    monkeypatch.setattr(mask_function, "SMALL", 0)
    labels = torch.tensor([[0, 0, 1, 1, 0, -1, 2, 2]]).repeat(2, 1)
    mask, expected = both(hf.blockwise_overlay(labels), None, 8, 8)
    assert torch.equal(mask.dense(), expected)


def test_plain_tensors():
    """Masks of a generation step, and small masks other than windows, are plain boolean tensors."""
    assert redblue_mask(2, 1, 9, q_offset=8) is None
    step = redblue_mask(2, 1, N, q_offset=N - 1, attention_mask=PADDING["left"])
    assert type(step) is torch.Tensor
    assert torch.equal(step[:, 0, 0], PADDING["left"])
    small, expected = both(FUNCTIONS["chunked"], PADDING["left"])
    assert type(small) is torch.Tensor
    assert torch.equal(small, expected)
    assert type(redblue_mask(2, N, N)) is MaskTensor


class FloatingConfig:
    """A config of a model without SDPA: BigBirdPegasus computes with floating masks."""


def test_floating_masks(rules):
    from transformers.models.bigbird_pegasus import modeling_bigbird_pegasus

    FloatingConfig.__module__ = modeling_bigbird_pegasus.__name__.replace(".modeling_", ".configuration_")
    arguments = {"attention_mask": PADDING["left"], "config": FloatingConfig(), "dtype": torch.float64}
    mask = redblue_mask(2, N, N, **arguments)
    expected = hf.eager_mask(2, N, N, attention_mask=PADDING["left"], dtype=torch.float64)
    assert mask.dtype == torch.float64
    assert torch.equal(mask.dense(), expected)
    assert torch.equal(mask + 1, expected + 1)
    assert redblue_mask(2, 1, N, q_offset=N - 1, **arguments).dtype == torch.float64


def test_questions_need_no_entries(rules):
    mask, _ = both(FUNCTIONS["causal"], PADDING["left"])
    assert (mask.shape, mask.dim(), mask.ndim, mask.size(-1), len(mask)) == ((2, 1, N, N), 4, 4, N, 2)
    assert mask.dtype == torch.bool
    assert mask.device.type == "cpu"
    assert not mask.requires_grad
    assert not mask.is_floating_point()
    assert mask.detach() is mask.contiguous() is mask.to("cpu") is mask.to(torch.bool) is mask
    assert mask[:, :, :, :N] is mask[:, :, :N] is mask
    assert "causal" in repr(mask)
    assert mask.entries is None


def test_operations_see_the_entries(rules):
    mask, expected = both(FUNCTIONS["window"], PADDING["left"])
    assert torch.equal(mask[:, :, -3:], expected[:, :, -3:])
    assert torch.equal(mask[..., :1], expected[..., :1])
    assert torch.equal(~mask, ~expected)
    assert torch.equal(torch.cat([mask, expected], -1), torch.cat([expected, expected], -1))
    assert torch.equal(torch.where(mask, 1.0, 2.0), torch.where(expected, 1.0, 2.0))
    assert torch.equal(mask.to(torch.float32), expected.float())
    assert torch.equal(mask.expand(2, 3, N, N), expected.expand(2, 3, N, N))
    assert torch.equal(mask & torch.tensor(True), expected)
    assert torch.equal(torch.zeros(2, 1, N, N).masked_fill(mask, 1.0), expected.float())
    assert type(mask[0]) is torch.Tensor


@pytest.mark.parametrize("small", [0, mask_function.SMALL])
def test_a_mask_that_leaves_out_no_key_is_none_where_the_model_allows_it(small, monkeypatch):
    """Layers that add keys after the mask is made depend on it, for example drafts in speculative decoding."""
    monkeypatch.setattr(mask_function, "SMALL", small)
    allowed = {"allow_is_bidirectional_skip": True}
    assert redblue_mask(2, N, N, mask_function=hf.bidirectional_mask_function, **allowed) is None
    assert redblue_mask(2, N, N, mask_function=hf.bidirectional_mask_function) is not None
    for window, leaves_out_none in [(N + 1, True), (N - 1, False)]:
        function = hf.sliding_window_bidirectional_mask_function(window)
        mask = redblue_mask(2, N, N, mask_function=function, local_size=window, **allowed)
        assert (mask is None) == leaves_out_none
        function = hf.sliding_window_causal_mask_function(window)
        assert redblue_mask(2, N, N, mask_function=function, local_size=window) is not None
    padded = {"attention_mask": PADDING["left"], "local_size": N + 1}
    assert redblue_mask(2, N, N, mask_function=hf.bidirectional_mask_function, **padded, **allowed) is not None
