"""Models: every layout of config.json gives its shapes, and every bad one is refused by name."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redblue.errors import RedblueError, UnknownName
from redblue.masks import Mask
from redblue.models import list_models, model

CONFIGS = Path(__file__).parent / "data" / "configs"
GOOD = sorted(path.stem for path in CONFIGS.glob("*.json") if not path.stem.startswith("bad_"))
FULL, CAUSAL = Mask.full(), Mask.causal()


def window(keys: int) -> Mask:
    return Mask.sliding_window(left=keys - 1, right=0)


# name, layers, n_q, n_k, heads, kv_heads, d, d_v, mask of each shape
SHAPES = {
    "gpt2": [("attention", 12, 1024, 1024, 12, 12, 64, 64, CAUSAL)],
    "llama_gqa": [("attention", 32, 4096, 4096, 32, 8, 128, 128, CAUSAL)],
    "mistral_window": [("sliding", 32, 4096, 4096, 32, 8, 128, 128, window(512))],
    "qwen2_window_off": [("attention", 28, 4096, 4096, 28, 4, 128, 128, CAUSAL)],
    "qwen2_window_on": [
        ("global", 4, 2048, 2048, 8, 4, 64, 64, CAUSAL),
        ("sliding", 2, 2048, 2048, 8, 4, 64, 64, window(256)),
    ],
    "gemma2_pattern_by_type": [
        ("sliding", 13, 4096, 4096, 8, 4, 256, 256, window(4096)),
        ("global", 13, 4096, 4096, 8, 4, 256, 256, CAUSAL),
    ],
    "gemma3_pattern": [
        ("sliding", 22, 4096, 4096, 4, 1, 256, 256, window(512)),
        ("global", 4, 4096, 4096, 4, 1, 256, 256, CAUSAL),
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
    "mla": [
        ("prefill (unabsorbed)", 61, 4096, 4096, 128, 128, 192, 128, CAUSAL),
        ("decode (absorbed)", 61, 1, 4096, 128, 1, 576, 512, FULL),
    ],
    "mla_indexed": [
        ("prefill (unabsorbed)", 4, 4096, 4096, 64, 64, 256, 256, CAUSAL),
        ("decode (absorbed)", 4, 1, 4096, 64, 1, 576, 512, FULL),
    ],
    "compressed": [("sliding", 2, 4096, 4096, 64, 1, 512, 512, window(128))],
    "falcon_multi_query": [("attention", 32, 4096, 4096, 71, 1, 64, 64, CAUSAL)],
    "falcon_new_decoder": [("attention", 60, 4096, 4096, 128, 8, 64, 64, CAUSAL)],
    "chatglm": [("attention", 28, 4096, 4096, 32, 2, 128, 128, CAUSAL)],
    "mpt_attn_config": [("attention", 4, 2048, 2048, 8, 2, 64, 64, CAUSAL)],
    "bert": [("attention", 24, 512, 512, 16, 16, 64, 64, FULL)],
    "vit": [("attention", 12, 197, 197, 12, 12, 64, 64, FULL)],
    "embedding_bidirectional": [
        ("sliding", 5, 2048, 2048, 3, 1, 256, 256, Mask.sliding_window(left=256, right=256)),
        ("global", 1, 2048, 2048, 3, 1, 256, 256, FULL),
    ],
    "t5": [
        ("encoder self", 8, 512, 512, 6, 6, 64, 64, FULL),
        ("decoder self", 10, 512, 512, 6, 6, 64, 64, CAUSAL),
        ("cross", 10, 512, 512, 6, 6, 64, 64, FULL),
    ],
    "whisper": [
        ("encoder self", 4, 1500, 1500, 6, 6, 64, 64, FULL),
        ("decoder self", 5, 448, 448, 6, 6, 64, 64, CAUSAL),
        ("cross", 5, 448, 1500, 6, 6, 64, 64, FULL),
    ],
    "encoder_and_decoder": [
        ("encoder self", 12, 577, 577, 6, 6, 64, 64, FULL),
        ("decoder self", 6, 512, 512, 8, 8, 32, 32, CAUSAL),
        ("cross", 6, 512, 577, 8, 8, 32, 32, FULL),
    ],
    "nested_llava": [("attention", 32, 4096, 4096, 32, 32, 128, 128, CAUSAL)],
    "nested_twice": [("attention", 28, 4096, 4096, 28, 4, 128, 128, CAUSAL)],
    "gpt_oss_alternate": [
        ("sliding", 18, 4096, 4096, 64, 8, 64, 64, window(128)),
        ("global", 18, 4096, 4096, 64, 8, 64, 64, CAUSAL),
    ],
    "hybrid_linear": [("attention", 12, 4096, 4096, 16, 2, 256, 256, CAUSAL)],
    "chunked": [
        ("chunked", 36, 4096, 4096, 40, 8, 128, 128, CAUSAL),
        ("global", 12, 4096, 4096, 40, 8, 128, 128, CAUSAL),
    ],
    "modernbert_layer_types": [
        ("global", 2, 4096, 4096, 12, 12, 64, 64, FULL),
        ("sliding", 4, 4096, 4096, 12, 12, 64, 64, Mask.sliding_window(left=64, right=64)),
    ],
    "pattern_letters": [
        ("sliding", 6, 4096, 4096, 40, 8, 128, 128, window(4096)),
        ("global", 2, 4096, 4096, 40, 8, 128, 128, CAUSAL),
    ],
    "uneven_value_dim": [
        ("global", 1, 4096, 4096, 64, 4, 192, 128, CAUSAL),
        ("sliding", 3, 4096, 4096, 64, 8, 192, 128, window(128)),
    ],
    "unet_sd15": [
        ("self, level 0", 5, 4096, 4096, 8, 8, 40, 40, FULL),
        ("cross, level 0", 5, 4096, 77, 8, 8, 40, 40, FULL),
        ("self, level 1", 5, 1024, 1024, 8, 8, 80, 80, FULL),
        ("cross, level 1", 5, 1024, 77, 8, 8, 80, 80, FULL),
        ("self, level 2", 5, 256, 256, 8, 8, 160, 160, FULL),
        ("cross, level 2", 5, 256, 77, 8, 8, 160, 160, FULL),
        ("self, level 3", 1, 64, 64, 8, 8, 160, 160, FULL),
        ("cross, level 3", 1, 64, 77, 8, 8, 160, 160, FULL),
    ],
    "unet_sdxl": [
        ("self, level 1", 10, 4096, 4096, 10, 10, 64, 64, FULL),
        ("cross, level 1", 10, 4096, 77, 10, 10, 64, 64, FULL),
        ("self, level 2", 60, 1024, 1024, 20, 20, 64, 64, FULL),
        ("cross, level 2", 60, 1024, 77, 20, 20, 64, 64, FULL),
    ],
    "vae": [("mid block", 2, 16384, 16384, 1, 1, 512, 512, FULL)],
    "flux": [("joint", 57, 4096, 4096, 24, 24, 128, 128, FULL)],
    "dit": [("self", 28, 256, 256, 16, 16, 72, 72, FULL)],
}


def shapes(found):
    return [
        (s.name, s.layers, p.n_q, p.n_k, p.heads, p.kv_heads, p.d, p.d_v, p.mask) for s in found for p in [s.problem]
    ]


def fields_of(name):
    return json.loads((CONFIGS / f"{name}.json").read_text())


def test_every_good_config_has_its_shapes_here():
    assert sorted(SHAPES) == GOOD
    assert len(GOOD) >= 30


@pytest.mark.parametrize("name", GOOD)
def test_shapes(name):
    assert shapes(model(CONFIGS / f"{name}.json")) == SHAPES[name]


@pytest.mark.parametrize("name", [name for name in GOOD if "num_hidden_layers" in fields_of(name)])
def test_layer_counts_add_up(name):
    found = model(CONFIGS / f"{name}.json")
    if {"cross", "decode (absorbed)"} & {entry.name for entry in found}:
        pytest.skip("its layers appear in more than one use")
    unlisted = sum(int(note.split()[0]) for note in found.notes if "are not listed" in note)
    assert sum(entry.layers for entry in found) + unlisted == fields_of(name)["num_hidden_layers"]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("llama_gqa", "bfloat16"), ("nested_llava", "bfloat16"), ("vit", "float32"), ("bert", "float16")],
)
def test_dtype_comes_from_the_config_or_the_caller(name, dtype):
    path = CONFIGS / f"{name}.json"
    assert {p.dtype for p in model(path).problems} == {dtype}
    assert {p.dtype for p in model(path, dtype="float64").problems} == {"float64"}


def test_unknown_dtype_in_a_config_is_noted(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**fields_of("bert"), "torch_dtype": "int4"}))
    found = model(path)
    assert found[0].problem.dtype == "float16"
    assert any("int4" in note for note in found.notes)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hybrid_linear", "36 layers of kind linear_attention are not listed"),
        ("compressed", "1 layers of kind compressed by 4 are not listed"),
        ("nested_llava", "vision_config"),
        ("nested_twice", "audio_config"),
        ("gemma4_global_head_dim", "count as two arrays"),
        ("gemma4_per_layer", "num_kv_shared_layers"),
        ("mla", "quantised"),
        ("mla_indexed", "index_topk"),
        ("falcon_new_decoder", "declares no number of positions"),
        ("unet_sd15", "77 text tokens"),
        ("flux", "declares no sample_size"),
    ],
)
def test_what_is_not_listed_or_assumed_is_noted(name, words):
    notes = model(CONFIGS / f"{name}.json").notes
    assert any(words in note for note in notes), notes


def test_gemma4_ignores_global_kv_heads_unless_k_is_v(tmp_path):
    fields = fields_of("gemma4_global_head_dim")
    fields["text_config"]["attention_k_eq_v"] = False
    path = tmp_path / "config.json"
    path.write_text(json.dumps(fields))
    assert [p.kv_heads for p in model(path).problems] == [16, 16]


def test_chunks_count_as_batch():
    chunked, last, all_keys = model(CONFIGS / "chunked.json", n=20_000, batch=3)
    assert (chunked.name, chunked.problem.n_q, chunked.problem.batch) == ("chunked", 8192, 6)
    assert (last.name, last.problem.n_q, last.problem.batch) == ("chunked, last", 20_000 - 2 * 8192, 3)
    assert (all_keys.name, all_keys.problem.n_q, all_keys.problem.batch) == ("global", 20_000, 3)


def test_decoding_has_no_gradient():
    found = model("deepseek-v3", direction="backward")
    assert [entry.name for entry in found] == ["prefill (unabsorbed)"]
    assert any("no gradient" in note for note in found.notes)


def test_unet_levels_shrink_with_n():
    found = model(CONFIGS / "unet_sd15.json", n=1024)
    assert [p.n_q for p in found.problems if p.n_k != 77] == [1024, 256, 64, 16]


def test_more_tokens_than_positions_is_noted():
    assert any("more than the 512 positions" in note for note in model("bert-large", n=1000).notes)


def test_catalogue():
    assert {
        "gpt2", "gpt2-medium", "bert-large", "llama-3-8b", "gemma-2-9b", "gemma-3-12b", "gemma-4-31b", "qwen3-8b",
        "deepseek-v3", "sd-vae",
    } <= set(list_models())  # fmt: skip
    assert shapes(model("gpt2-medium")) == [("attention", 24, 1024, 1024, 16, 16, 64, 64, CAUSAL)]
    assert shapes(model("sd-vae")) == [("mid block", 2, 4096, 4096, 1, 1, 512, 512, FULL)]
    assert shapes(model("gemma-4-31b")) == [
        ("sliding", 50, 4096, 4096, 32, 16, 256, 256, window(1024)),
        ("global", 10, 4096, 4096, 32, 4, 512, 512, CAUSAL),
    ]


@pytest.mark.parametrize("name", list_models())
def test_catalogue_entries_say_what_they_are(name):
    found = model(name)
    assert found.name == name
    assert found.title
    assert "20" in found.source  # a date
    assert len({entry.name for entry in found}) == len(found)


@settings(deadline=None)
@given(st.sampled_from(list_models()), st.integers(1, 1_000_000), st.sampled_from(["forward", "backward"]))
def test_catalogue_gives_problems_for_any_n(name, n, direction):
    for entry in model(name, n=n, batch=2, direction=direction):
        assert entry.layers >= 1
        assert 1 <= entry.problem.n_q <= n
        assert entry.problem.batch == 2
        assert entry.problem.direction == direction


def test_a_model_is_a_sequence_of_its_layers():
    found = model("gemma-2-9b")
    assert len(found) == 2
    assert list(found) == [found[0], found[1]] == list(found.layers)
    assert found.problems == tuple(entry.problem for entry in found)


def test_a_folder_stands_for_its_config(tmp_path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(fields_of("bert")))
    found = model(folder)
    assert found.name == "my-model"
    assert found.title == "BertForMaskedLM"
    assert shapes(found) == shapes(model(str(folder / "config.json"))) == SHAPES["bert"]


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


REFUSED = {
    "bad_no_heads": r"config .*bad_no_heads\.json has no number of heads: looked for num_attention_heads, n_head",
    "bad_heads_not_multiple": r"number of heads \(32\) must be a multiple of the number of KV heads \(5\)",
    "bad_string_heads": "num_attention_heads must be a whole number of at least 1, got '32'",
    "bad_zero_heads": "num_attention_heads must be a whole number of at least 1, got 0",
    "bad_hidden_not_multiple": r"no head_dim, and the hidden size \(4096\) is no multiple of the heads \(96\)",
    "bad_layer_types_length": "layer_types has 2 entries, but the number of layers is 3",
    "bad_no_window": "has no sliding window: looked for sliding_window",
    "bad_unread_mix": "layout given by attn_layer_period is not read here",
    "bad_state_space": "mamba2 has no softmax attention",
    "bad_linear_only": "none of its layers has a shape known here: they are linear_attention",
    "bad_scheduler": "DDIMScheduler is not read here",
    "bad_list": "holds a JSON list",
    "bad_not_json": "is not JSON",
}


def test_every_bad_config_has_its_words_here():
    assert sorted(REFUSED) == sorted(path.stem for path in CONFIGS.glob("bad_*.json"))


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    with pytest.raises(RedblueError, match=REFUSED[name]):
        model(CONFIGS / f"{name}.json")


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(RedblueError, match=r"cannot read .*nowhere\.json"):
        model(tmp_path / "nowhere.json")
    with pytest.raises(RedblueError, match=r"cannot read .*config\.json"):
        model(tmp_path)
    with pytest.raises(RedblueError, match=r"a model is a name or the path of a config\.json, got 5"):
        model(5)  # pyright: ignore[reportArgumentType]
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RedblueError, match=r"config\.json at .* is not JSON"):
        model(tmp_path)


def test_a_pipeline_names_its_parts(tmp_path):
    (tmp_path / "model_index.json").write_text("{}")
    with pytest.raises(RedblueError, match="is a pipeline: give the folder of one of its parts"):
        model(tmp_path)


@settings(deadline=None)
@given(
    st.sampled_from(GOOD),
    st.data(),
    st.sampled_from([None, 0, -1, 3, 2.5, "8", "", True, False, [], [1, 2], {}, {"a": 1}, [None], 10**12]),
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
        layers = str(path) in str(error)  # it names the file
    assert layers
