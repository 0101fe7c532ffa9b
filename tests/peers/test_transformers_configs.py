"""redblue's reader of configs against transformers: on the recorded configs, and on the defaults of its classes.

transformers is nearly always right about a config.json. DEVIATIONS lists, with reasons, the configs whose attributes do
not describe their layers. Building a config does not need PyTorch.
"""

import importlib.util
import json
import re
from collections import Counter
from functools import cache
from typing import Any

import pytest

from redblue.base.errors import RedblueError
from redblue.catalogue.models import Model, model
from redblue.catalogue.models.config import INNER, NAMES
from redblue.catalogue.models.defaults import LEFT_OUT
from redblue.catalogue.models.kinds import KINDS, NO_SHAPE
from redblue.masks import Mask
from support.configs import CONFIGS, GOOD, fields_of

PIN = "5.23.0"  # the version from which the lists here and in redblue/catalogue/models/defaults.py were taken
if importlib.util.find_spec("transformers") is None:
    reason = f"CONFIGS ARE NOT CHECKED AGAINST TRANSFORMERS: pip install transformers=={PIN}"
    pytest.skip(reason, allow_module_level=True)

import transformers
from transformers import configuration_utils
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

transformers.logging.set_verbosity_error()

ATTENDS = {"full_attention", "attention", "indexed_attention", "sliding_attention", "chunked_attention"}

MLA = "head_dim is the rotary part alone"
EACH_SIDE = "the window counts the tokens to one side; redblue's band holds the token itself as well"
WITH_MLA = (
    "axk1", "axk2", "bailing_hybrid", "deepseek_v2", "deepseek_v3", "deepseek_v32", "dots3_note", "dots3_note_text",
    "glm4_moe_lite", "glm5_next", "glm5_next_text", "glm_moe_dsa", "hy_v4", "kimi_k25", "kimi_linear",
    "longcat_flash", "minicpm3", "youtu",
)  # fmt: skip
LOOK_BOTH_WAYS = (
    "embedding_gemma2", "embedding_gemma2_text", "modernbert", "modernvbert", "neomme", "openai_privacy_filter",
    "pe_audio", "pe_audio_video", "pe_video", "ultrabert", "ultravbert",
)  # fmt: skip
DEVIATIONS = {
    **dict.fromkeys(WITH_MLA, MLA),
    **dict.fromkeys(LOOK_BOTH_WAYS, EACH_SIDE),
    "falcon": "num_kv_heads is not used when multi_query is true: one KV head",
    "falcon_h1": "its layer_types are all 'hybrid': each layer has attention beside its state space",
    "gpt_neo": "its layer kinds are attention_layers, its window is window_size",
    "mllama": "cross_attention_layers attend to the image",
    "mllama_text_model": "cross_attention_layers attend to the image",
    "sam3_geometry_encoder": "its layers are num_layers, which num_hidden_layers does not stand for",
    "sam3_lite_text_geometry_encoder": "its layers are num_layers, which num_hidden_layers does not stand for",
}
# Fixtures with a field of the model's own code that transformers' class drops or rejects.
FIXTURE_DEVIATIONS = {
    "mimo_hybrid_pattern": "the class drops swa_num_key_value_heads: 8, not 4, in the sliding layers",
    "mpt_attn_config": "the class refuses grouped_query_attention",
    "mpt_multiquery": "the class builds multiquery_attention with as many KV heads as heads",
    "pattern_letters": "the class refuses a sliding_window_pattern of letters",
}


def theirs(config: Any) -> Counter:
    """The number of layers for each (heads, KV heads, head dimension, window), by the class's attributes."""
    counts = Counter()
    count = getattr(config, "num_hidden_layers", 1)
    heads_of = getattr(config, "num_attention_heads_per_layer", None)
    per_layer = config.to_dict().get("per_layer_config")
    kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
    kinds = kinds or ["sliding_attention" if getattr(config, "sliding_window", None) else "full_attention"] * count
    for index, kind in enumerate(kinds):
        if kind in ATTENDS:
            own = config.per_layer_config[index] if per_layer else config
            heads = heads_of[index] if heads_of else own.num_attention_heads
            kv_heads = getattr(own, "num_key_value_heads", None) or heads
            d = getattr(own, "head_dim", None) or own.hidden_size // heads
            counts[heads, kv_heads, d, own.sliding_window if kind == "sliding_attention" else None] += 1
    return counts


@cache
def seen(mask: Mask) -> tuple[int | None, bool]:
    """The number of keys up to its own that a query attends (None: all), and whether it attends later keys."""
    many = 200_000
    keys = int(mask.to_dense(many, 1).sum())
    return None if keys == many else keys, bool(mask.to_dense(1, many).sum() > 1)


def ours(listed: Model, stack: str = "") -> Counter:
    """The same counter for the model that redblue read, for one of the stacks, with each layer counted once."""
    layers = Counter()
    for entry in listed:
        p = entry.problem
        if entry.name.startswith(stack) and not entry.name.endswith(("(absorbed)", "last")):
            layers[p.heads, p.kv_heads, p.d, seen(p.mask)[0]] += entry.layers
    return layers


def read(folder, name: str, fields: dict[str, Any]) -> Model | RedblueError:
    path = folder / f"{name}.json"
    path.write_text(json.dumps(fields, default=str))
    try:
        return model(path)
    except RedblueError as error:
        return error


LOOKED_FOR = {"is_causal", *(name for names in NAMES.values() for name in names)}


def field_names(fields: dict[str, Any]) -> set[str]:
    inner = (field_names(value) for value in fields.values() if isinstance(value, dict))
    return {*fields, *(name for names in inner for name in names)}


@pytest.fixture(scope="module")
def defaults() -> dict[str, Any]:
    """Every config class that has defaults, by model type."""
    built = {}
    for kind in CONFIG_MAPPING_NAMES:
        try:
            built[kind] = CONFIG_MAPPING[kind]()
        except Exception:  # some classes cannot be built without arguments  # noqa: PERF203
            continue
    assert len(built) > 700
    return built


@pytest.fixture(scope="module")
def read_defaults(defaults, tmp_path_factory) -> dict[str, Model | RedblueError]:
    folder = tmp_path_factory.mktemp("defaults")
    return {kind: read(folder, kind, config.to_dict()) for kind, config in defaults.items()}


def test_the_version_is_the_one_that_the_lists_are_from():
    assert transformers.__version__ == PIN


KNOWN = [name for name in GOOD if fields_of(name).get("model_type") in CONFIG_MAPPING_NAMES]
AGREE_ALL_THE_SAME = {"falcon_no_groups"}  # configs of a model type in DEVIATIONS whose layout is not affected
STACKS = {  # encoder-decoders: the stacks that get_text_config describes
    "bart": ("encoder", "decoder"),
    "encoder_and_decoder": ("decoder",),
    "moonshine_sides": ("encoder", "decoder"),
    "t5": ("encoder",),  # its decoder gets the encoder's number of layers
    "t5_encoder_only": ("encoder",),
    "whisper": ("encoder", "decoder"),
}


def test_the_kinds_of_layers_are_those_of_transformers():
    """redblue refuses unknown kinds, so no kind that transformers allows or remaps may be missing."""
    theirs = {*configuration_utils.ALLOWED_LAYER_TYPES, *configuration_utils._LEGACY_LAYER_TYPE_REMAP}
    assert theirs <= {*KINDS, *NO_SHAPE}


def test_enough_fixtures_are_known():
    assert len(KNOWN) >= 55


@pytest.mark.parametrize("name", [name for name in KNOWN if name not in FIXTURE_DEVIATIONS])
def test_fixtures(name):
    fields, listed = fields_of(name), model(CONFIGS / f"{name}.json")
    config = CONFIG_MAPPING[fields["model_type"]](**fields)
    if config.is_encoder_decoder:
        for side in STACKS[name]:
            assert ours(listed, f"{side} self") == theirs(config.get_text_config(**{side: True}))
        return
    text = config.get_text_config()
    deviation = DEVIATIONS.get(text.model_type)
    if deviation == MLA:
        assert {p.d for p in listed.problems if p.n_q > 1} == {text.qk_nope_head_dim + text.qk_rope_head_dim}
    else:
        assert (ours(listed) == theirs(text)) == (deviation is None or name in AGREE_ALL_THE_SAME)


@pytest.mark.parametrize("name", FIXTURE_DEVIATIONS)
def test_fixtures_that_deviate_do(name):
    fields = fields_of(name)
    try:
        config = CONFIG_MAPPING[fields["model_type"]](**fields)
    except Exception:  # the class rejects it
        return
    assert ours(model(CONFIGS / f"{name}.json")) != theirs(config)


@pytest.mark.thorough
@pytest.mark.nightly
def test_class_defaults_agree_or_are_refused_by_name(defaults, read_defaults):
    counts = Counter(type(outcome).__name__ for outcome in read_defaults.values())
    assert counts["Model"] > 450
    assert counts["Model"] + counts["RedblueError"] == len(defaults)  # no other exception was raised
    wrong = []
    for kind, outcome in read_defaults.items():
        config = defaults[kind]
        if isinstance(outcome, RedblueError):
            named = set(re.findall(r"\w+", str(outcome)))
            if not named & {*field_names(config.to_dict()), *LOOKED_FOR}:
                wrong.append((kind, str(outcome)))
        elif not config.is_encoder_decoder:
            agree = ours(outcome) == theirs(config.get_text_config())
            if agree == (kind in DEVIATIONS):
                wrong.append((kind, ours(outcome), theirs(config.get_text_config())))
    assert not wrong


@pytest.mark.thorough
def test_latent_attention_has_both_parts_of_the_head(defaults, read_defaults):
    for kind in (kind for kind, reason in DEVIATIONS.items() if reason == MLA):
        text, outcome = defaults[kind].get_text_config(), read_defaults[kind]
        assert isinstance(outcome, Model)
        dims = {p.d for entry, p in zip(outcome, outcome.problems, strict=True) if entry.name == "prefill (unabsorbed)"}
        layer = text.per_layer_config[0] if text.to_dict().get("per_layer_config") else text
        assert dims == {layer.qk_nope_head_dim + layer.qk_rope_head_dim}, kind


# In transformers' list of causal language models, but causal only if the config says so.
NOT_CAUSAL = {"bert-generation"}


@pytest.mark.thorough
@pytest.mark.nightly
def test_class_defaults_see_later_tokens_or_not(defaults, read_defaults):
    causal, masked = (
        set(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
        set(modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES),
    )
    checked = 0
    for kind in causal ^ masked:
        outcome = read_defaults.get(kind)
        if isinstance(outcome, Model) and not defaults[kind].is_encoder_decoder:
            prefill = [entry.problem for entry in outcome if not entry.name.endswith("(absorbed)")]
            sees_later = {seen(p.mask)[1] for p in prefill}
            assert sees_later == {kind not in causal - NOT_CAUSAL}, kind
            checked += 1
    assert checked > 100


@pytest.mark.thorough
def test_a_field_left_out_is_taken_as_transformers_takes_it_or_asked_for(defaults, read_defaults, tmp_path):
    """LEFT_OUT lists fields that a class fills in differently than redblue would."""
    compared, wrong = 0, []
    for kind, outcome in read_defaults.items():
        fields = defaults[kind].to_dict()
        if isinstance(outcome, RedblueError) or any(fields.get(inner) for inner in INNER):
            continue
        for key in LEFT_OUT.keys() & {name for name, value in fields.items() if value is not None}:
            less = {name: value for name, value in fields.items() if name != key}
            short = read(tmp_path, "less", less)
            if isinstance(short, RedblueError):
                continue
            try:
                filled = type(defaults[kind]).from_dict(less).to_dict()
            except Exception:  # transformers requires it, too
                continue
            whole = read(tmp_path, "filled", filled)
            if isinstance(whole, RedblueError) or ours(short) != ours(whole):
                wrong.append((kind, key))
            compared += 1
    assert not wrong
    assert compared > 300
