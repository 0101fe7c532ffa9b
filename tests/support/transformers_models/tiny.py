"""Tiny configs of transformers' models: the class's defaults with small numbers, by the names of the fields.

All parts of a model get the same width, so that parts of different config classes fit together.
"""

import inspect
import re
from typing import Any

WIDTH, HEADS, KEY_HEADS, HEAD_DIM, INNER, VOCABULARY, POSITIONS = 64, 4, 2, 16, 96, 120, 64
IMAGE, PATCH, LAYERS = 32, 8, 2

# The first pattern that matches the whole name of a field gives its number, if the default is a larger number
NUMBERS: list[tuple[str, int]] = [
    (
        r"(|global_|swa_|sliding_|text_|num_)?(num_key_value_heads|num_kv_heads|n_kv_heads|key_value_heads|global_key_value_heads)",
        KEY_HEADS,
    ),
    (r"(linear_num_key_heads|num_k_heads)", 2),
    (r"(linear_num_value_heads|num_v_heads)", 4),
    (r"(linear_key_head_dim|linear_value_head_dim|index_head_dim|kv_lora_rank|q_lora_rank|o_lora_rank)", HEAD_DIM),
    (r"index_(n|num)_heads", 4),
    (r"index_kpool|hc_lowrank|ngram_vocab_size_base|split_ngram_parts", 2),
    (r"index_topk", 4),
    (r"(mamba_n_heads|mamba_num_heads)", 8),
    (r"(mamba_d_head|mamba_head_dim|mamba_d_state|ssm_state_size|mamba_chunk_size|mamba_dt_rank|chunk_size)", 16),
    (r".*mamba_n_groups|n_groups", 2),
    (
        r"(.*_)?(num_attention_heads|num_heads|n_heads?|attention_heads|num_attn_heads|kv_channels_heads|swa_num_attention_heads)",
        HEADS,
    ),
    (r"(.*_)?(head_dim|d_kv|kv_channels|head_size|attention_head_size|global_head_dim)", HEAD_DIM),
    (r"(.*_)?(num_experts_per_tok|num_experts_per_token|moe_topk|moe_k|top_k|top_k_experts)", 2),
    (
        r"(n_group|topk_group|n_shared_experts|num_shared_experts|moe_num_shared_experts|num_expert_group|num_limited_groups)",
        1,
    ),
    (r"(.*_)?(num_experts|num_local_experts|n_routed_experts|moe_num_experts|num_routed_experts)", 4),
    (r"(first_k_dense_replace|num_dense_layers|moe_layer_start_index)", 1),
    (
        r"(.*_)?(num_hidden_layers|num_layers|n_layers?|depth|encoder_layers|decoder_layers|layers|num_blocks|num_block|num_decoder_layers|num_encoder_layers|max_window_layers)",
        2,
    ),
    (r"(num_mtp_layers|num_nextn_predict_layers)", 0),
    (r"num_.*_layers", 2),
    (r"sliding_window_pattern|full_attention_interval|global_attn_every_n_layers", 2),
    (
        r"(sliding_window|sliding_window_size|attention_chunk_size|attention_window|local_attention|attention_context_left)",
        5,
    ),
    (r"(.*_)?(vocab_size|vocab_size_per_layer_input|vocabulary_size)", VOCABULARY),
    (r"(.*_)?codebook_size", 32),
    (
        r"(.*_)?(max_position_embeddings|n_positions|max_target_positions|n_ctx|max_seq_len|max_sequence_length|max_2d_position_embeddings|max_length)",
        POSITIONS,
    ),
    (r"max_source_positions", 16),
    (r"(.*_)?(image_size|crop_size|img_size|eval_size)", IMAGE),
    (r"(.*_)?patch_size", PATCH),
    (r"(num_mel_bins|n_mels|input_feat_per_channel|num_mels)", 16),
    (
        r"(.*_)?(moe_intermediate_size|intermediate_size|ffn_dim|d_ff|mlp_dim|n_inner|intermediate_dim|ffn_hidden_size|dim_feedforward|shared_expert_intermediate_size|feedforward_size|intermediate_size_mlp)",
        INNER,
    ),
    (
        r"(.*_)?(hidden_size|hidden_dim|d_model|embed_dim|embedding_size|n_embd|projection_dim|output_dim|emb_dim|width|channels_dim|latent_dim|embedding_dim|encoder_dim|decoder_dim|proj_dim|out_dim|d_embed|pooler_output_size|projector_dim|mask_feature_size|feature_size|dim_embed|hidden_size_per_layer_input|proj_size|adapter_dim|mask_dim|cross_hidden_size|adapter_input_size|condition_dim|.*_hidden)",
        WIDTH,
    ),
    (
        r"(tdnn_dim|xvector_output_dim|codevector_dim|proj_codevector_dim|classifier_proj_size|upsample_initial_channel|mamba_intermediate)",
        32,
    ),
    (r"num_queries|num_query_tokens|num_denoising|num_latents|num_object_queries|query_num", 8),
    (r"num_frames|pred_num_frames|num_image_with_embedding", 2),
    (r"num_conv_pos_embeddings", 16),
    (r"num_conv_pos_embedding_groups", 2),
    (r"num_position_embeddings", 16),
    (r"num_register_tokens", 2),
]
NUMBERS_BY_NAME = [(re.compile(pattern), number) for pattern, number in NUMBERS]
NO_DROPOUT = re.compile(r".*(drop|pdrop).*|layerdrop|mask_(time|feature)_prob|.*_jitter_noise|.*noise_scale")
TOKEN = re.compile(r".*_(token_id|token_index|token_ids|id)$")
FIXED: dict[str, Any] = {
    "use_cache": True,
    "pad_token_id": 0,
    "use_sliding_window": True,
    "max_window_layers": 1,
    "fullatt_block_indexes": [1],
    "deepstack_visual_indexes": [0, 1],
    "initializer_range": 0.2,
    "use_mamba_kernels": False,
    "use_timm_backbone": False,
    "apply_spec_augment": False,
    "use_pretrained_backbone": False,
    "reference_compile": False,
}


NONE: dict[str, Any] = {  # for fields that some configs leave open
    "head_dim": HEAD_DIM,
    "num_key_value_heads": KEY_HEADS,
    "vocab_size": VOCABULARY,
    "num_experts_per_tok": 2,
    "n_routed_experts": 4,
    "prediction_length": 4,
    "context_size": 16,
}


class Unbuildable(Exception):
    """No tiny config of the class is known."""


def tiny(cls: type, fixes: dict[str, dict[str, Any]], **fields: Any) -> Any:
    """A tiny config of a config class. fixes: fields by the name of a config class, which override the tables here."""
    try:
        default = cls()
    except Exception as error:
        if cls.__name__ not in fixes:
            raise Unbuildable(f"{cls.__name__}() fails: {error!r}"[:200]) from error
        default = None
    chosen = _numbers(cls, default)
    for name in getattr(cls, "sub_configs", {}):
        part = getattr(default, name, None)
        if part is not None and hasattr(type(part), "model_type"):
            stages = getattr(part, "out_features", None) if "backbone" in name else None
            if stages and getattr(part, "num_hidden_layers", 0) > LAYERS:
                stages = [f"stage{i + 1}" for i in range(LAYERS)]
            chosen[name] = tiny(type(part), fixes, **({"out_features": list(stages)} if stages else {}))
    fixed = fixes.get(cls.__name__, {})
    chosen |= {name: value() if callable(value) else value for name, value in fixed.items()}
    chosen |= fields
    return cls(**chosen)


def _numbers(cls: type, default: Any) -> dict[str, Any]:
    """Small values for the fields of a config class."""
    chosen: dict[str, Any] = {}
    token = VOCABULARY - 1
    for name, parameter in inspect.signature(cls.__init__).parameters.items():
        value = parameter.default
        if name in ("self", "transformers_version") or value is inspect.Parameter.empty:
            continue
        if name in NONE and value is None:
            chosen[name] = NONE[name]
        elif name in FIXED:
            chosen[name] = FIXED[name]
        elif NO_DROPOUT.fullmatch(name) and isinstance(value, float):
            chosen[name] = 0.0
        elif TOKEN.fullmatch(name) and isinstance(value, int) and not isinstance(value, bool):
            if value >= 100:
                chosen[name], token = token, token - 1
        elif isinstance(value, int) and not isinstance(value, bool):
            number = next((n for pattern, n in NUMBERS_BY_NAME if pattern.fullmatch(name)), None)
            if number is not None and value > number:
                chosen[name] = number
        elif isinstance(value, (list, tuple)) and value:
            chosen |= _list(name, list(value))
    _key_heads(chosen, default)
    _layers(cls, chosen, default)
    if "mrope_section" in (getattr(cls, "ignore_keys_at_rope_validation", None) or ()):
        rope = {"rope_type": "default", "rope_theta": 1e4, **(getattr(default, "rope_parameters", None) or {})}
        chosen["rope_parameters"] = {**rope, "mrope_section": [4, 2, 2]}
    return chosen


def _list(name: str, values: list[Any]) -> dict[str, Any]:
    """Smaller values for a field that lists numbers of stages."""
    if name in ("depths", "num_blocks"):
        return {name: [1] * len(values)}
    if name in ("num_heads", "num_attention_heads"):
        return {name: [2] * len(values)}
    if name == "hidden_sizes" and max(values) > 32 * 2 ** (len(values) - 1):
        return {name: [16 * 2**i for i in range(len(values))]}
    if name in ("image_size", "img_size") and len(values) == 2:
        return {name: [IMAGE, IMAGE]}
    if name == "patch_size" and len(values) == 2:
        return {name: [PATCH, PATCH]}
    if name in ("conv_dim", "tdnn_dim"):
        return {name: [16] * len(values)}
    return {}


def _key_heads(chosen: dict[str, Any], default: Any) -> None:
    """As many key heads as heads if the default has as many."""
    heads = _global(default, "num_attention_heads")
    for name in ("num_key_value_heads", "num_kv_heads"):
        number = _global(default, name)
        if name in chosen and isinstance(number, int) and number == heads:
            chosen[name] = HEADS


def _global(config: Any, name: str) -> Any:
    """A field of a config; None if it has no such field, or one per layer."""
    try:
        return getattr(config, name, None)
    except Exception:  # transformers' AmbiguousGlobalPerLayerAttributeError
        return None


def _layers(cls: type, chosen: dict[str, Any], default: Any) -> None:
    """One layer of each type that the default has, at least two layers."""
    types, names = getattr(default, "layer_types", None), inspect.signature(cls.__init__).parameters
    field = next((name for name in ("layer_types", "layers_block_type") if name in names), None)
    if not isinstance(types, (list, tuple)) or not types or field is None:
        return
    kinds = list(dict.fromkeys(types))
    if kinds == ["linear_attention"]:
        kinds.append("full_attention")
    chosen[field] = kinds = kinds if len(kinds) > 1 else kinds * 2
    for name in ("num_hidden_layers", "num_layers", "n_layer"):
        if name in chosen:
            chosen[name] = len(kinds)
