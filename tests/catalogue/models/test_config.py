"""Config files: fields that are read, noted or assumed, and fields that are refused by name."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redblue.base.errors import RedblueError, UnknownName
from redblue.catalogue.models import model
from redblue.catalogue.models.kinds import NO_SHAPE
from redblue.masks import Mask
from support.configs import CONFIGS, GOOD, changed, fields_of, shapes
from support.examples import examples


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("llama_gqa", "bfloat16"), ("nested_llava", "bfloat16"), ("vit", "float32"), ("bert", "float16")],
)
def test_dtype_comes_from_the_config_or_the_caller(name, dtype):
    path = CONFIGS / f"{name}.json"
    assert {p.dtype for p in model(path).problems} == {dtype}
    assert {p.dtype for p in model(path, dtype="float64").problems} == {"float64"}


def test_unknown_dtype_in_a_config_is_noted(tmp_path):
    loaded = model(changed(tmp_path, "bert", torch_dtype="int4"))
    assert loaded[0].problem.dtype == "float16"
    assert any("int4" in note for note in loaded.notes)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hybrid_linear", "36 layers of kind linear_attention are not listed"),
        ("compressed", "1 layers of kind compressed by 4 are not listed"),
        ("nemotron_nas_blocks", "1 layers of kind no_op are not listed"),
        (
            "mllama_cross_layers",
            "2 layers of kind cross-attention to the image (cross_attention_layers) are not listed",
        ),
        ("nested_llava", "give vision_config"),
        ("nested_twice", "give audio_config"),
        ("clip_both", "give vision_config"),
        ("gemma4_global_head_dim", "count as two arrays"),
        ("gemma4_per_layer", "num_kv_shared_layers"),
        ("mla", "quantised"),
        ("mla_indexed", "index_topk"),
        ("falcon_new_decoder", "declares no number of positions"),
        ("unet_sd15", "77 text tokens"),
        ("flux", "declares no sample_size"),
        ("lumina2_groups", "num_refiner_layers"),
    ],
)
def test_what_is_not_listed_or_assumed_is_noted(name, words):
    notes = model(CONFIGS / f"{name}.json").notes
    assert any(words in note for note in notes), notes


def test_more_tokens_than_positions_is_noted():
    assert any("more than the 512 positions" in note for note in model(CONFIGS / "bert.json", n=1000).notes)


@pytest.mark.parametrize(
    ("name", "wrong", "words"),
    [
        ("siglip_vision", {"image_size": 3}, r"image_size \[3, 3\] holds no patch of patch_size \[14, 14\]"),
        ("lumina2_groups", {"num_attention_heads": 3}, r"number of heads \(3\) must be a multiple"),
        ("bamba_indices", {"attn_layer_indices": 7}, "attn_layer_indices must be a list of at least one entry"),
        (
            "mistral_window",
            {"sliding_window": -4},
            r"sliding_window must be a whole number of at least 1, got -4 \(0 or -1: none\)",
        ),
        (
            "mistral_window",
            {"sliding_window": -1},
            "its layers need a sliding window, but sliding_window = -1 means that there is none: give one",
        ),
        (
            "llama_gqa",
            {"hidden_size": 10**30},
            r"hidden_size must be at most 1,152,.* got 1,000,000,000,000,000,000,000,000,000,000",
        ),
        (
            "mistral_window",
            {"head_dim": 64, "hidden_size": -1},
            "hidden_size must be a whole number of at least 1, got -1",
        ),
        ("flux", {"num_layers": 2**61}, r"num_layers must be at most 1,152,921,504,606,846,976 .*got 2,305,"),
        ("siglip_vision", {"image_size": 2**40}, r"siglip_vision\.json: n_q must be at most"),
        (
            "qwen3_next_layer_types",
            {"layer_types": ["linear_attention", "full_attention", "weird", "linear_attention", "full_attention"]},
            "layer_types has the entry 'weird', which is not supported: give one of full_attention, .*linear_attention",
        ),
        (
            "qwen3_next_layer_types",
            {"layer_types": ["linear_attention", "full_attention", "linear_attention", 7, None]},
            "layer_types has the entry 7, which is not supported",
        ),
        (
            "llama_gqa",
            {"num_hidden_layers": ...},
            r"llama_gqa\.json has no number of layers: looked for num_hidden_layers, n_layer, .*: add the field",
        ),
        ("bart", {"decoder_layers": None, "num_hidden_layers": None}, "has no number of layers"),
    ],
)
def test_wrong_values_are_named(tmp_path, name, wrong, words):
    with pytest.raises(RedblueError, match=words):
        model(changed(tmp_path, name, **wrong))


@pytest.mark.parametrize("kind", NO_SHAPE)
def test_layers_of_known_kinds_without_a_shape_are_noted(tmp_path, kind):
    kinds = ["full_attention", kind, kind, kind, "full_attention"]
    loaded = model(changed(tmp_path, "qwen3_next_layer_types", layer_types=kinds))
    assert [layers.layers for layers in loaded] == [2]
    assert any(f"3 layers of kind {kind} are not listed" in note for note in loaded.notes)


@pytest.mark.parametrize("wrong", [{"n": 2**61}, {"batch": 2**61}])
def test_too_many_tokens_are_refused_with_the_name_of_the_config(wrong):
    with pytest.raises(RedblueError, match=r"config .*llama_gqa\.json: (n|batch) must be at most"):
        model(CONFIGS / "llama_gqa.json", **wrong)


def test_a_folder_stands_for_its_config(tmp_path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(fields_of("bert")))
    loaded = model(folder)
    assert loaded.name == "my-model"
    assert loaded.title == "BertForMaskedLM"
    assert shapes(loaded) == shapes(model(str(folder / "config.json"))) == shapes(model(CONFIGS / "bert.json"))
    assert shapes(loaded) == [("attention", 24, 512, 512, 16, 16, 64, 64, Mask.full())]


REFUSED = {
    "bad_block_convolution": "the layout given by block_configs is not supported",
    "bad_block_no_group": "has no n_heads_in_group in block_configs",
    "bad_block_sparse": "attention_type = 'block_sparse' is not supported",
    "bad_block_window": "window_length in block_configs is not supported",
    "bad_bottleneck": "given by true_hidden_size is not supported",
    "bad_diffusion_no_single_layers": "has no num_single_layers",
    "bad_head_ratio": "head_ratio = 2 is not supported",
    "bad_heads_list_length": "num_query_heads must have 3 entries, has 2",
    "bad_heads_not_multiple": r"number of heads \(32\) must be a multiple of the number of KV heads \(5\)",
    "bad_hidden_not_multiple": r"no head_dim, and the hidden size \(4096\) is no multiple of the heads \(96\)",
    "bad_hybrid_unsaid": "with linear_key_head_dim not every layer attends, but none of layer_types, .* says which",
    "bad_indices": "an index of attn_layer_indices must be at most 3, got 4",
    "bad_layer_types_length": "layer_types has 2 entries, but the number of layers is 3",
    "bad_left_out_head_dim": "has no head_dim",
    "bad_left_out_kv_heads": "has no num_key_value_heads",
    "bad_left_out_window": "has no sliding_window",
    "bad_linear_diffusion": "_class_name SanaTransformer2DModel is not supported",
    "bad_linear_only": "no layer has full, sliding or chunked attention; layer_types or the like gives linear",
    "bad_list": "holds a JSON list",
    "bad_local_encoder": "given by encoder_attention_type is not supported",
    "bad_mla_layers_without_rope": r"latent attention \(kv_lora_rank\) with no_rope_layers is not supported",
    "bad_no_decoder_layers": "has no decoder_layers",
    "bad_no_direction": "has no field that says whether tokens attend later ones: looked for is_causal",
    "bad_no_heads": r"config .*bad_no_heads\.json has no number of heads: looked for num_attention_heads, n_head",
    "bad_no_window": "has no sliding window: looked for sliding_window",
    "bad_not_json": "is not JSON",
    "bad_object_queries": "model_type detr is not supported",
    "bad_pattern_letter": "hybrid_override_pattern has the entry 'X', which is not supported",
    "bad_scheduler": "_class_name DDIMScheduler is not supported",
    "bad_state_space": "model_type mamba2 is not supported: its attention is not softmax",
    "bad_string_heads": "num_attention_heads must be a whole number of at least 1, got '32'",
    "bad_two_hidden_sizes": "hidden_size and embed_dim differ: add head_dim",
    "bad_unet_block": "block type 'AttnDownBlock2D' is not supported",
    "bad_unet_gated": "attention_type = 'gated' is not supported",
    "bad_unread_mix": "layout given by block_types is not supported: name each layer's kind in layer_types",
    "bad_vae_without_attention": "mid_block_add_attention is false",
    "bad_window_both_ways": "sliding_window is not supported when tokens look both ways",
    "bad_windowed_vision": "given by global_attn_indexes is not supported",
    "bad_zero_heads": "num_attention_heads must be a whole number of at least 1, got 0",
}


def test_every_bad_config_has_its_words_here():
    assert sorted(REFUSED) == sorted(path.stem for path in CONFIGS.glob("bad_*.json"))


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    with pytest.raises(RedblueError, match=REFUSED[name]):
        model(CONFIGS / f"{name}.json")


@pytest.mark.parametrize("n", [0, -1, 1.5, "8", True])
def test_bad_n(n):
    with pytest.raises(RedblueError, match="n must be a whole number of at least 1"):
        model("gpt2", n=n)


@pytest.mark.parametrize("batch", [0, -3, None, "2"])
def test_bad_batch(batch):
    with pytest.raises(RedblueError, match="batch must be a whole number of at least 1"):
        model("gpt2", batch=batch)


@pytest.mark.parametrize("wrong", [{"dtype": "int4"}, {"direction": "sideways"}])
def test_bad_dtype_and_direction(wrong):
    with pytest.raises(RedblueError, match=f"{next(iter(wrong))} must be one of"):
        model("gpt2", **wrong)


@pytest.mark.parametrize("name", ["lama-3-8b", "gtp2", "", "GPT2"])
def test_unknown_name(name):
    with pytest.raises(UnknownName, match=r"unknown model .*give the path of a config\.json"):
        model(name)


def test_unknown_name_names_the_nearest():
    with pytest.raises(UnknownName, match="nearest: llama-3-8b"):
        model("lama-3-8b")


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(RedblueError, match=r"cannot read .*nowhere\.json"):
        model(tmp_path / "nowhere.json")
    with pytest.raises(RedblueError, match=r"cannot read .*config\.json"):
        model(tmp_path)
    with pytest.raises(RedblueError, match="name_or_path must be text or a path, got 5"):
        model(5)  # pyright: ignore[reportArgumentType]
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RedblueError, match=r"config\.json at .* is not JSON"):
        model(tmp_path)


def test_a_pipeline_names_its_parts(tmp_path):
    (tmp_path / "model_index.json").write_text("{}")
    with pytest.raises(RedblueError, match="is a pipeline: give the folder of one of its parts"):
        model(tmp_path)


@examples(200)
@given(
    st.sampled_from(GOOD),
    st.data(),
    st.sampled_from(
        [None, 0, -1, -4, 3, 2.5, "8", "", True, False, [], [1, 2], [3], [[]], {}, {"a": 1}, [None], 10**12, 10**30]
    ),
)
def test_a_wrong_value_is_refused_or_read_never_a_crash(tmp_path_factory, name, data, value):
    fields = fields_of(name)
    inner = fields.get("text_config", fields)
    inner[data.draw(st.sampled_from(sorted(inner)))] = value
    path = tmp_path_factory.mktemp("config") / "config.json"
    path.write_text(json.dumps(fields))
    try:
        layers = len(model(path))
    except RedblueError as error:
        layers = str(path) in str(error)  # then the error names the file
    assert layers
