"""`generate_batch` of transformers on redblue: its tokens, every layer's output, and that no mask or copy is made."""

import random
import time
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from transformers import AttentionInterface, ContinuousBatchingConfig, GenerationConfig
from transformers.generation.continuous_batching import cache as caches
from transformers.generation.continuous_batching import continuous_api, initialization, input_outputs, model_runner
from transformers.generation.continuous_batching.cache import PagedAttentionCache

from redblue.base.errors import RedblueError
from redblue.integrations.transformers import NAME, batching, paged, register, registration
from redblue.integrations.transformers.batching import ROUTED

VOCABULARY, EOS = 150, 149
TINY: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,  # with smaller weights, and with tied embeddings, a model repeats a token
    "tie_word_embeddings": False,
    "eos_token_id": EOS,
    "bos_token_id": 1,
    "pad_token_id": 0,
}


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY))


def mistral(window=11):
    return transformers.MistralForCausalLM(transformers.MistralConfig(**TINY, sliding_window=window))


def gemma2():
    config = transformers.Gemma2Config(
        **TINY, sliding_window=11, attn_logit_softcapping=1.5, query_pre_attn_scalar=4, final_logit_softcapping=None
    )
    return transformers.Gemma2ForCausalLM(config)


def gpt_oss():
    model = transformers.GptOssForCausalLM(transformers.GptOssConfig(**TINY, sliding_window=6, num_local_experts=4))
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.sinks)
    return model


MODELS = {"llama": llama, "mistral": mistral, "gemma2": gemma2, "gpt_oss": gpt_oss}
SMALL: dict[str, Any] = {"page_size": 4, "num_blocks": 80, "max_batch_tokens": 24}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """Registers redblue, turns off transformers' messages, and turns off managers' slow garbage collection."""
    from transformers.utils import logging

    monkeypatch.setattr(continuous_api, "gc", SimpleNamespace(collect=int))
    verbosity, threads = logging.get_verbosity(), torch.get_num_threads()
    logging.set_verbosity(logging.CRITICAL)
    torch.set_num_threads(1)
    with register():
        yield
    torch.set_num_threads(threads)
    logging.set_verbosity(verbosity)


def made(name, **arguments):
    torch.manual_seed(0)
    model = MODELS[name](**arguments).eval()
    model.set_attn_implementation("redblue")
    return model


def requests(count, longest=60):
    """Prompts and numbers of new tokens. A third of the prompts share their first 22 tokens."""
    chosen = random.Random(1)
    prefix = [chosen.randrange(2, EOS) for _ in range(22)]
    batch = []
    for i in range(count):
        own = [chosen.randrange(2, EOS) for _ in range(chosen.choice([1, 2, 3, 7, 16, chosen.randrange(1, longest)]))]
        batch.append((prefix + own if i % 3 == 0 else own, chosen.choice([1, 3, 8, 20])))
    return batch


def batched(model, batch, **config):
    """The tokens that continuous batching generates for each request."""
    settings = GenerationConfig(do_sample=False, eos_token_id=EOS, pad_token_id=0)
    batching_config = ContinuousBatchingConfig(**SMALL | config)
    tokens, end = {}, time.monotonic() + 60
    with model.continuous_batching_context_manager(settings, True, 5, batching_config) as manager:
        names = [manager.add_request(prompt, max_new_tokens=count) for prompt, count in batch]
        while len(tokens) < len(names) and manager.is_running() and time.monotonic() < end:
            result = manager.get_result(timeout=0.1)
            if result is not None and result.is_finished():
                assert result.error is None, result.error
                tokens[result.request_id] = result.generated_tokens
    return [tokens.get(name) for name in names]


@torch.no_grad()
def eager(model, batch):
    """The tokens that transformers' eager attention generates, one request at a time."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    settings = {"do_sample": False, "eos_token_id": EOS, "pad_token_id": 0}
    tokens = []
    for prompt, count in batch:
        ids = torch.tensor([prompt])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, **settings)
        tokens.append(out[0, len(prompt) :].tolist())
    model.set_attn_implementation(before)
    return tokens


def check_tokens(name, count):
    model = made(name)
    batch = requests(count)
    expected = eager(model, batch)
    assert len({token for tokens in expected for token in tokens}) > min(count, 40)
    assert batched(model, batch) == expected
    assert model.config._attn_implementation == NAME


def test_tokens_are_those_of_eager():
    check_tokens("llama", 9)


@pytest.mark.thorough
@pytest.mark.parametrize("name", MODELS)
def test_tokens_of_fifty_mixed_requests_are_those_of_eager(name):
    check_tokens(name, 50)


def dense(module, query, keys, values, scaling, softcap, s_aux, bounds, key_bounds, window):
    """Float64 attention of each sequence on the keys that transformers has gathered."""
    heads = query.shape[1]
    q, k, v = (x[0].double() for x in (query, keys, values))
    k, v = (x.repeat_interleave(heads // x.shape[0], 0) for x in (k, v))
    out = torch.zeros_like(q)
    for (first, stop), (k_first, k_stop) in zip(bounds, key_bounds, strict=True):
        scores = q[:, first:stop] @ k[:, k_first:k_stop].mT * scaling
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        n_q, n_k = scores.shape[1:]
        behind = torch.arange(n_q)[:, None] + n_k - n_q - torch.arange(n_k)
        scores = scores.masked_fill((behind < 0) | (behind >= (window or n_k)), -torch.inf)
        if s_aux is not None:
            scores = torch.cat([scores, s_aux.double().reshape(-1, 1, 1).expand(-1, n_q, 1)], -1)
        out[:, first:stop] = scores.softmax(-1)[..., :n_k] @ v[:, k_first:k_stop]
    return out.transpose(0, 1)[None]


class Comparison:
    """Compares each call of `paged_forward` with float64 attention on the keys that transformers' own cache returns."""

    def __init__(self, monkeypatch, window=None):
        self.window = window
        self.calls, self.failures, self.kinds = 0, [], set()
        monkeypatch.setitem(AttentionInterface._global_mapping, ROUTED, self)

    def __call__(self, module, query, key, value, attention_mask, **keywords):
        try:
            return self.compare(module, query, key, value, attention_mask, keywords)
        except BaseException as failure:
            self.failures.append(failure)  # the manager's thread would only log it
            raise

    def compare(self, module, query, key, value, attention_mask, keywords):
        cache = keywords["cache"]
        before = cache.cache_tensor.clone()
        group = cache.layer_to_allocator[module.layer_idx]
        keys, values = cache.update(key, value, module.layer_idx, dict(keywords))
        after = cache.cache_tensor.clone()
        cache.cache_tensor.copy_(before)
        out, _ = paged.paged_forward(module, query, key, value, attention_mask, **keywords)
        assert torch.equal(cache.cache_tensor, after)
        window = getattr(group, "sliding_window", self.window)
        bounds, key_bounds = (
            list(pairwise(x))
            for x in (keywords["cu_seq_lens_q"].tolist(), keywords["cu_seq_lens_k"][group.layer_type].tolist())
        )
        options = [keywords["scaling"], keywords.get("softcap"), keywords.get("s_aux")]
        expected = dense(module, query, keys, values, *options, bounds, key_bounds, window)
        assert out.shape == expected.shape
        assert out.is_contiguous()
        torch.testing.assert_close(out.double(), expected, atol=1e-4, rtol=1e-4)
        self.calls += 1
        self.kinds |= {
            (window is not None, n_q > 1, n_k > n_q)
            for n_q, n_k in ((b - a, d - c) for (a, b), (c, d) in zip(bounds, key_bounds, strict=True))
        }
        return out, None


@pytest.mark.parametrize(
    ("name", "arguments", "config"),
    [
        ("llama", {}, {}),
        ("gemma2", {}, {}),
        ("gpt_oss", {}, {"page_size": 8}),
        ("mistral", {"window": 3}, {"page_size": 8, "max_batch_tokens": 16}),
        ("mistral", {"window": 16}, {"max_batch_tokens": 9}),
    ],
)
def test_every_layer_is_exact(name, arguments, config, monkeypatch):
    comparison = Comparison(monkeypatch)
    tokens = batched(made(name, **arguments), requests(6), **config)
    assert comparison.failures == []
    assert None not in tokens
    slides = name != "llama"
    # Prompts, chunks of prompts that continue others, and single tokens
    assert {(slides, True, False), (slides, True, True), (slides, False, True)} <= comparison.kinds


def test_padded_inputs(monkeypatch):
    """Compiled models get padding after the tokens, the positions and the sequences."""
    comparison = Comparison(monkeypatch)
    make = model_runner.ModelRunner.__init__

    def padding(self, *args, **kwargs):
        make(self, *args, **kwargs)
        self.pad_inputs = True

    monkeypatch.setattr(model_runner.ModelRunner, "__init__", padding)
    model, batch = made("gemma2"), requests(5)
    config = {"q_padding_interval_size": 8, "kv_padding_interval_size": 16}
    assert batched(model, batch, **config) == eager(model, batch)
    assert comparison.failures == []


def test_block_tables(monkeypatch):
    """transformers passes block tables only to flash-attn on GPUs. Here it passes them to redblue."""
    monkeypatch.setattr(initialization, "ensure_decode_fast_path_is_available", lambda *args: None)
    used = []
    append = paged.append_paged
    monkeypatch.setattr(paged, "append_paged", lambda *args: used.append(1) or append(*args))
    model, batch = made("llama"), requests(6)
    assert batched(model, batch, max_blocks_per_request=40) == eager(model, batch)
    assert used


def refuse(*args, **kwargs):
    raise AssertionError("the cache is gathered, or a dense mask is built")


def test_nothing_is_gathered_and_no_mask_is_built(monkeypatch):
    """The operator reads the cache's own memory; sequences with a common prefix share pages."""
    monkeypatch.setattr(PagedAttentionCache, "update", refuse)
    monkeypatch.setattr(input_outputs, "build_attention_mask", refuse)
    attend, read = paged.attention_paged, []

    def spy(q, k_pages, v_pages, table, *args, **options):
        memory = storages[0]
        in_place = all(x.untyped_storage().data_ptr() == memory for x in (k_pages, v_pages))
        shared = len(set(table[:, 0])) < len(table)
        read.append((in_place, k_pages.shape[1], shared))
        return attend(q, k_pages, v_pages, table, *args, **options)

    storages = []
    make = caches.PagedAttentionCache.__init__

    def remember(self, *args, **kwargs):
        make(self, *args, **kwargs)
        storages.append(self.cache_tensor.untyped_storage().data_ptr())

    monkeypatch.setattr(caches.PagedAttentionCache, "__init__", remember)
    monkeypatch.setattr(paged, "attention_paged", spy)
    model, batch = made("llama"), requests(9)
    assert None not in batched(model, batch)
    assert len(storages) == 1
    assert all(in_place for in_place, _, _ in read)
    assert {page for _, page, _ in read} == {SMALL["page_size"]}
    assert any(shared for _, _, shared in read)


def test_generate_batch_itself():
    model = made("mistral")
    batch = [(prompt, 4) for prompt, _ in requests(4)]
    settings = GenerationConfig(do_sample=False, eos_token_id=EOS, pad_token_id=0, max_new_tokens=4)
    out = model.generate_batch(
        [prompt for prompt, _ in batch], settings, ContinuousBatchingConfig(**SMALL, use_async_batching=False)
    )
    assert [x.generated_tokens for x in out.values()] == eager(model, batch)
    assert model.config._attn_implementation == NAME


def call(**changes):
    """A call of `paged_forward` outside of continuous batching, or with other arguments."""
    x = torch.zeros(1, 2, 3, 4)
    arguments = {"module": torch.nn.Identity(), "query": x, "key": x, "value": x, "attention_mask": None}
    return paged.paged_forward(**arguments | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "cache must be transformers' PagedAttentionCache, got NoneType"),
        ({"cache": {}}, "got dict: this attention serves generate_batch only"),
        ({"attention_mask": torch.ones(1, 1, 3, 3)}, "attention_mask must be None in continuous batching, got Tensor"),
        ({"dropout": 0.1}, "dropout must be 0 in continuous batching, got 0.1"),
        ({"is_causal": False}, "is_causal must be True in continuous batching, got False"),
        ({"output_attentions": True}, "does not take output_attentions=True"),
        ({"position_bias": torch.zeros(3)}, "does not take position_bias=<tensor"),
        ({"new_option": 1}, "does not take new_option=1: it is unknown here"),
    ],
)
def test_what_is_not_served_is_refused_by_name(changes, message):
    if changes and "cache" not in changes:
        changes = changes | {"cache": object.__new__(PagedAttentionCache)}
    with pytest.raises(RedblueError, match=message):
        call(**changes)


def test_arguments_that_do_not_fit_a_ring_are_refused():
    ring = SimpleNamespace(sliding_window=11)
    with pytest.raises(RedblueError, match="sliding_window must equal the window of the layer's cache, 11, got 5"):
        paged._window(ring, 5, None)
    with pytest.raises(RedblueError, match="block_table must be None for layers with a sliding window"):
        paged._window(ring, 11, torch.zeros(1, 1))


def test_a_layer_with_a_window_on_a_cache_of_all_keys(monkeypatch):
    """The layer's window applies, as in transformers' path for flash-attn."""
    comparison = Comparison(monkeypatch, window=6)
    model = made("llama")
    for layer in model.model.layers:
        monkeypatch.setattr(layer.self_attn, "forward", partial(layer.self_attn.forward, sliding_window=6))
    assert None not in batched(model, requests(4))
    assert comparison.failures == []


def test_a_model_that_was_left_on_the_route_serves_again():
    """This happens if the cache cannot be allocated."""
    model, batch = made("llama"), requests(3)
    model.config._attn_implementation = ROUTED
    with pytest.raises(RedblueError, match='set_attn_implementation\\("redblue"\\)'):
        model(torch.tensor([[3, 4]]))
    assert batched(model, batch) == eager(model, batch)
    assert model.config._attn_implementation == NAME


def test_the_route_goes_with_the_last_registration():
    from transformers.generation.continuous_batching.continuous_api import ContinuousBatchingManager as Manager

    routed = getattr(Manager, batching.METHOD)
    with register():
        assert getattr(Manager, batching.METHOD) is routed
    assert getattr(Manager, batching.METHOD) is routed
    assert ROUTED in AttentionInterface._global_mapping
    for request in list(registration._requests):
        request.undo()
    assert ROUTED not in AttentionInterface._global_mapping
    assert getattr(Manager, batching.METHOD) is routed.__wrapped__


def test_other_names_are_as_before():
    model, batch = made("llama"), requests(2)
    for name in ("eager", "sdpa"):
        model.set_attn_implementation(name)
        assert batched(model, batch) == eager(model, batch)
        assert model.config._attn_implementation == name
    model.set_attn_implementation("flex_attention")
    with pytest.raises(ValueError, match="is not supported for continuous batching"):
        batched(model, batch)
