"""Transformers: every layout of config.json gives its shapes."""

import pytest

from redblue.base.errors import RedblueError
from redblue.catalogue.models import model
from redblue.masks import Mask
from support.configs import CONFIGS, GOOD, changed, fields_of, shapes

FULL, CAUSAL = Mask.full(), Mask.causal()


def window(keys: int) -> Mask:
    return Mask.sliding_window(left=keys - 1, right=0)


# name, layers, n_q, n_k, heads, kv_heads, d, d_v, mask of each shape
SHAPES = {
    "bamba_indices": [("attention", 2, 4096, 4096, 32, 8, 128, 128, CAUSAL)],
    "bart": [
        ("encoder self", 12, 1024, 1024, 16, 16, 64, 64, FULL),
        ("decoder self", 6, 1024, 1024, 16, 16, 64, 64, CAUSAL),
        ("cross", 6, 1024, 1024, 16, 16, 64, 64, FULL),
    ],
    "bert": [("attention", 24, 512, 512, 16, 16, 64, 64, FULL)],
    "chatglm": [("attention", 28, 4096, 4096, 32, 2, 128, 128, CAUSAL)],
    "chatglm_no_groups": [("attention", 28, 4096, 4096, 32, 32, 128, 128, CAUSAL)],
    "chunked": [
        ("chunked", 36, 4096, 4096, 40, 8, 128, 128, CAUSAL),
        ("global", 12, 4096, 4096, 40, 8, 128, 128, CAUSAL),
    ],
    "clip_both": [("attention", 12, 77, 77, 8, 8, 64, 64, CAUSAL)],
    "clip_text": [("attention", 12, 77, 77, 12, 12, 64, 64, CAUSAL)],
    "clip_vision": [("attention", 24, 577, 577, 16, 16, 64, 64, FULL)],
    "cohere2_pattern": [
        ("sliding", 24, 4096, 4096, 32, 8, 128, 128, window(4096)),
        ("global", 8, 4096, 4096, 32, 8, 128, 128, CAUSAL),
    ],
    "compressed": [("sliding", 2, 4096, 4096, 64, 1, 512, 512, window(128))],
    "dinov2_registers": [("attention", 12, 1374, 1374, 12, 12, 64, 64, FULL)],
    "embedding_bidirectional": [
        ("sliding", 5, 2048, 2048, 3, 1, 256, 256, Mask.sliding_window(left=256, right=256)),
        ("global", 1, 2048, 2048, 3, 1, 256, 256, FULL),
    ],
    "encoder_and_decoder": [
        ("encoder self", 12, 577, 577, 6, 6, 64, 64, FULL),
        ("decoder self", 6, 512, 512, 8, 8, 32, 32, CAUSAL),
        ("cross", 6, 512, 577, 8, 8, 32, 32, FULL),
    ],
    "falcon_first_names": [("attention", 60, 4096, 4096, 128, 8, 64, 64, CAUSAL)],
    "falcon_multi_query": [("attention", 32, 4096, 4096, 71, 1, 64, 64, CAUSAL)],
    "falcon_new_decoder": [("attention", 60, 4096, 4096, 128, 8, 64, 64, CAUSAL)],
    "falcon_no_groups": [("attention", 24, 4096, 4096, 32, 32, 64, 64, CAUSAL)],
    "gemma2_pattern_by_type": [
        ("sliding", 13, 4096, 4096, 8, 4, 256, 256, window(4096)),
        ("global", 13, 4096, 4096, 8, 4, 256, 256, CAUSAL),
    ],
    "gemma3_pattern": [
        ("sliding", 22, 4096, 4096, 4, 1, 256, 256, window(512)),
        ("global", 4, 4096, 4096, 4, 1, 256, 256, CAUSAL),
    ],
    "gemma3n_shared_kv": [
        ("sliding", 10, 4096, 4096, 8, 2, 256, 256, window(512)),
        ("global", 2, 4096, 4096, 8, 2, 256, 256, CAUSAL),
    ],
    "gemma4_global_head_dim": [
        ("sliding", 10, 4096, 4096, 32, 16, 256, 256, window(1024)),
        ("global", 2, 4096, 4096, 32, 4, 512, 512, CAUSAL),
    ],
    "gemma4_per_layer": [
        ("sliding", 2, 4096, 4096, 8, 1, 256, 256, window(512)),
        ("global 1", 1, 4096, 4096, 8, 1, 512, 512, CAUSAL),
        ("global 2", 1, 4096, 4096, 8, 2, 512, 512, CAUSAL),
    ],
    "gpt2": [("attention", 12, 1024, 1024, 12, 12, 64, 64, CAUSAL)],
    "gpt_bigcode_multi_query": [("attention", 40, 4096, 4096, 48, 1, 128, 128, CAUSAL)],
    "gpt_neo_attention_layers": [
        ("global", 2, 2048, 2048, 16, 16, 128, 128, CAUSAL),
        ("sliding", 2, 2048, 2048, 16, 16, 128, 128, window(256)),
    ],
    "gpt_oss_alternate": [
        ("sliding", 18, 4096, 4096, 64, 8, 64, 64, window(128)),
        ("global", 18, 4096, 4096, 64, 8, 64, 64, CAUSAL),
    ],
    "hybrid_linear": [("attention", 12, 4096, 4096, 16, 2, 256, 256, CAUSAL)],
    "jamba_period": [("attention", 1, 4096, 4096, 32, 8, 128, 128, CAUSAL)],
    "laguna_heads_per_layer": [
        ("global", 2, 4096, 4096, 48, 8, 128, 128, CAUSAL),
        ("sliding", 2, 4096, 4096, 64, 8, 128, 128, window(512)),
    ],
    "lfm2_indices": [("attention", 2, 4096, 4096, 32, 8, 64, 64, CAUSAL)],
    "llama4_no_rope_left_out": [
        ("chunked", 6, 2048, 2048, 40, 8, 128, 128, CAUSAL),
        ("global", 2, 4096, 4096, 40, 8, 128, 128, CAUSAL),
    ],
    "llama_gqa": [("attention", 32, 4096, 4096, 32, 8, 128, 128, CAUSAL)],
    "longcat_two_per_layer": [
        ("prefill (unabsorbed)", 6, 4096, 4096, 64, 64, 192, 128, CAUSAL),
        ("decode (absorbed)", 6, 1, 4096, 64, 1, 576, 512, FULL),
    ],
    "mimo_hybrid_pattern": [
        ("global", 2, 4096, 4096, 64, 4, 192, 128, CAUSAL),
        ("sliding", 4, 4096, 4096, 64, 8, 192, 128, window(128)),
    ],
    "minimax_type_list": [("attention", 1, 4096, 4096, 64, 8, 128, 128, CAUSAL)],
    "mistral_window": [("sliding", 32, 4096, 4096, 32, 8, 128, 128, window(512))],
    "mixtral_null_window": [("attention", 32, 4096, 4096, 32, 8, 128, 128, CAUSAL)],
    "mla": [
        ("prefill (unabsorbed)", 61, 4096, 4096, 128, 128, 192, 128, CAUSAL),
        ("decode (absorbed)", 61, 1, 4096, 128, 1, 576, 512, FULL),
    ],
    "mla_indexed": [
        ("prefill (unabsorbed)", 4, 4096, 4096, 64, 64, 256, 256, CAUSAL),
        ("decode (absorbed)", 4, 1, 4096, 64, 1, 576, 512, FULL),
    ],
    "mla_no_rope_dims": [
        ("prefill (unabsorbed)", 1, 4096, 4096, 64, 64, 256, 256, CAUSAL),
        ("decode (absorbed)", 1, 1, 4096, 64, 1, 512, 512, FULL),
    ],
    "mllama_cross_layers": [("attention", 8, 4096, 4096, 32, 8, 128, 128, CAUSAL)],
    "modernbert_decoder": [
        ("global", 8, 4096, 4096, 12, 12, 64, 64, CAUSAL),
        ("sliding", 14, 4096, 4096, 12, 12, 64, 64, window(64)),
    ],
    "modernbert_every_n": [
        ("global", 8, 4096, 4096, 12, 12, 64, 64, FULL),
        ("sliding", 14, 4096, 4096, 12, 12, 64, 64, Mask.sliding_window(left=64, right=64)),
    ],
    "modernbert_layer_types": [
        ("global", 2, 4096, 4096, 12, 12, 64, 64, FULL),
        ("sliding", 4, 4096, 4096, 12, 12, 64, 64, Mask.sliding_window(left=64, right=64)),
    ],
    "moonshine_sides": [
        ("encoder self", 6, 194, 194, 8, 2, 36, 36, FULL),
        ("decoder self", 7, 194, 194, 8, 4, 36, 36, CAUSAL),
        ("cross", 7, 194, 194, 8, 4, 36, 36, FULL),
    ],
    "mpt_attn_config": [("attention", 4, 2048, 2048, 8, 2, 64, 64, CAUSAL)],
    "mpt_multihead": [("attention", 32, 2048, 2048, 32, 32, 128, 128, CAUSAL)],
    "mpt_multiquery": [("attention", 4, 2048, 2048, 8, 1, 64, 64, CAUSAL)],
    "nemotron_h_pattern": [("attention", 2, 4096, 4096, 40, 8, 128, 128, CAUSAL)],
    "nemotron_nas_blocks": [
        ("attention 1", 2, 4096, 4096, 64, 8, 128, 128, CAUSAL),
        ("attention 2", 1, 4096, 4096, 64, 4, 128, 128, CAUSAL),
    ],
    "nested_llava": [("attention", 32, 4096, 4096, 32, 32, 128, 128, CAUSAL)],
    "nested_twice": [("attention", 28, 4096, 4096, 28, 4, 128, 128, CAUSAL)],
    "olmo3_no_layer_types": [
        ("sliding", 8, 4096, 4096, 32, 32, 128, 128, window(1024)),
        ("global", 2, 4096, 4096, 32, 32, 128, 128, CAUSAL),
    ],
    "openelm_lists": [
        ("attention 1", 2, 2048, 2048, 12, 3, 64, 64, CAUSAL),
        ("attention 2", 1, 2048, 2048, 16, 4, 64, 64, CAUSAL),
        ("attention 3", 1, 2048, 2048, 20, 5, 64, 64, CAUSAL),
    ],
    "opt": [("attention", 12, 2048, 2048, 12, 12, 64, 64, CAUSAL)],
    "pattern_letters": [
        ("sliding", 6, 4096, 4096, 40, 8, 128, 128, window(4096)),
        ("global", 2, 4096, 4096, 40, 8, 128, 128, CAUSAL),
    ],
    "phi3_window": [("sliding", 32, 4096, 4096, 32, 32, 96, 96, window(2047))],
    "qwen2_window_off": [("attention", 28, 4096, 4096, 28, 4, 128, 128, CAUSAL)],
    "qwen2_window_on": [
        ("global", 4, 2048, 2048, 8, 4, 64, 64, CAUSAL),
        ("sliding", 2, 2048, 2048, 8, 4, 64, 64, window(256)),
    ],
    "qwen3_next_layer_types": [("attention", 2, 4096, 4096, 16, 2, 256, 256, CAUSAL)],
    "siglip_text": [("attention", 12, 64, 64, 12, 12, 64, 64, FULL)],
    "siglip_vision": [("attention", 27, 729, 729, 16, 16, 72, 72, FULL)],
    "step_attention_groups": [("attention", 32, 4096, 4096, 48, 4, 64, 64, CAUSAL)],
    "t5": [
        ("encoder self", 8, 512, 512, 6, 6, 64, 64, FULL),
        ("decoder self", 10, 512, 512, 6, 6, 64, 64, CAUSAL),
        ("cross", 10, 512, 512, 6, 6, 64, 64, FULL),
    ],
    "t5_encoder_only": [("encoder self", 24, 4096, 4096, 64, 64, 64, 64, FULL)],
    "uneven_value_dim": [
        ("global", 1, 4096, 4096, 64, 4, 192, 128, CAUSAL),
        ("sliding", 3, 4096, 4096, 64, 8, 192, 128, window(128)),
    ],
    "vit": [("attention", 12, 197, 197, 12, 12, 64, 64, FULL)],
    "whisper": [
        ("encoder self", 4, 1500, 1500, 6, 6, 64, 64, FULL),
        ("decoder self", 5, 448, 448, 6, 6, 64, 64, CAUSAL),
        ("cross", 5, 448, 1500, 6, 6, 64, 64, FULL),
    ],
}


def test_every_good_config_has_its_shapes_here():
    assert sorted(SHAPES) == [name for name in GOOD if "_class_name" not in fields_of(name)]
    assert len(SHAPES) >= 60


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name):
    assert shapes(model(CONFIGS / f"{name}.json")) == SHAPES[name]


TWICE = {"cross", "decode (absorbed)"}  # layers that appear in more than one use
COUNTED = [
    name for name in SHAPES if "num_hidden_layers" in fields_of(name) and not TWICE & {row[0] for row in SHAPES[name]}
]


@pytest.mark.parametrize("name", COUNTED)
def test_layer_counts_add_up(name):
    loaded = model(CONFIGS / f"{name}.json")
    unlisted = sum(int(note.split()[0]) for note in loaded.notes if "are not listed: they have" in note)
    assert sum(entry.layers for entry in loaded) + unlisted == fields_of(name)["num_hidden_layers"]


def test_gemma4_ignores_global_kv_heads_unless_k_is_v(tmp_path):
    text = fields_of("gemma4_global_head_dim")["text_config"]
    path = changed(tmp_path, "gemma4_global_head_dim", text_config={**text, "attention_k_eq_v": False})
    assert [p.kv_heads for p in model(path).problems] == [16, 16]


@pytest.mark.parametrize("name", ["gemma3n_shared_kv", "gemma4_per_layer"])
def test_layers_that_share_k_and_v_still_read_them(tmp_path, name):
    assert shapes(model(changed(tmp_path, name, num_kv_shared_layers=0))) == SHAPES[name]


def test_chunks_count_as_batch():
    chunked, last, all_keys = model(CONFIGS / "chunked.json", n=20_000, batch=3)
    assert (chunked.name, chunked.problem.n_q, chunked.problem.batch) == ("chunked", 8192, 6)
    assert (last.name, last.problem.n_q, last.problem.batch) == ("chunked, last", 20_000 - 2 * 8192, 3)
    assert (all_keys.name, all_keys.problem.n_q, all_keys.problem.batch) == ("global", 20_000, 3)


def test_decoding_has_no_gradient():
    loaded = model(CONFIGS / "mla.json", direction="backward")
    assert [entry.name for entry in loaded] == ["prefill (unabsorbed)"]
    assert any("no gradient" in note for note in loaded.notes)


@pytest.mark.parametrize(
    ("fields", "mask"),
    [
        ({"is_causal": True, "architectures": ["BertForMaskedLM"]}, CAUSAL),
        ({"is_causal": False, "architectures": ["LlamaForCausalLM"]}, FULL),
        ({"is_decoder": True, "architectures": None}, CAUSAL),
        ({"architectures": ["BertLMHeadModel"]}, CAUSAL),
        ({"architectures": ["SomethingForMaskedLM"], "model_type": "something"}, FULL),
        ({"architectures": None, "model_type": "qwen3"}, CAUSAL),
        ({"architectures": None, "model_type": "qwen2_audio_encoder"}, FULL),
    ],
)
def test_what_says_whether_tokens_see_later_ones(tmp_path, fields, mask):
    (entry,) = model(changed(tmp_path, "bert", **fields))
    assert entry.problem.mask == mask


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("mimo_hybrid_pattern", "hybrid_layer_pattern"),
        ("gemma4_per_layer", "layer_types"),
        ("qwen3_next_layer_types", "linear_key_head_dim"),
        ("falcon_multi_query", "multi_query"),
        ("bamba_indices", "attn_layer_indices"),
        ("moonshine_sides", "decoder_num_hidden_layers"),
        ("dinov2_registers", "num_register_tokens"),
    ],
)
def test_a_field_without_which_a_guess_would_be_wrong_is_asked_for(tmp_path, name, field):
    left_out = {"layer_types": ...} if field == "linear_key_head_dim" else {field: ...}
    with pytest.raises(RedblueError, match=field):
        model(changed(tmp_path, name, **left_out))
