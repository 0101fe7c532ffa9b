"""Read the heads and head dimensions of a layer, including the values that differ by kind of layer or by layer."""

from __future__ import annotations

from typing import Any

from redblue.catalogue.models.config import Config

# For layers of one kind: special fields, and the usual field that each overrides.
KIND_FIELDS = {
    "full": {"global_head_dim": "head_dim", "num_global_key_value_heads": "num_key_value_heads"},
    "sliding": {
        "swa_num_attention_heads": "num_attention_heads",
        "num_sliding_attention_heads": "num_attention_heads",
        "swa_num_key_value_heads": "num_key_value_heads",
        "swa_head_dim": "head_dim",
        "swa_v_head_dim": "v_head_dim",
    },
}
# Fields with one entry per layer, and the usual field that each overrides.
LAYER_FIELDS = {
    "num_query_heads": "num_attention_heads",  # OpenELM
    "num_kv_heads": "num_key_value_heads",
    "num_attention_heads_per_layer": "num_attention_heads",
    "num_key_value_heads_per_layer": "num_key_value_heads",  # DeciLM
}


def head_sizes(config: Config) -> dict[str, int]:
    """Return heads, kv_heads, d and d_v of a layer. Raises RedblueError if they are missing or inconsistent."""
    heads = config.required("number of heads")
    kv_heads = _kv_heads(config, heads)
    if heads % kv_heads:
        raise config.error(f"the number of heads ({heads}) must be a multiple of the number of KV heads ({kv_heads})")
    hidden, d = config.optional("hidden size"), config.optional("head dimension")
    if d is None:
        hidden = hidden or config.required("hidden size")
        if hidden % heads:
            raise config.error(f"no head_dim, and the hidden size ({hidden}) is no multiple of the heads ({heads})")
        d = hidden // heads
    return {"d": d, "d_v": config.optional("v_head_dim") or d, "heads": heads, "kv_heads": kv_heads}


def _kv_heads(config: Config, heads: int) -> int:
    """Return the number of KV heads: 1 for multi-query attention, `heads` unless the config gives another number."""
    if config.is_true("multi_query") and not config.is_true("new_decoder_architecture"):
        return 1  # Falcon 7B, which ignores its own num_kv_heads
    if config.fields.get("attn_type") == "multiquery_attention":
        return 1  # MPT
    if config.fields.get("multi_query") is False and config.fields.get("new_decoder_architecture") is False:
        return heads  # Falcon RW
    if config.fields.get("multi_query_attention") is False:
        return heads  # ChatGLM, which then ignores its multi_query_group_num
    return config.optional("number of KV heads") or heads


def of_layer(config: Config, index: int, kind: str, layers: int) -> Config:
    """Return the config with the fields that apply to layer `index`, of the given kind, of `layers` layers."""
    special = {usual: config.fields.get(name) for name, usual in KIND_FIELDS.get(kind, {}).items()}
    if config.fields.get("attention_k_eq_v") is False:
        special.pop("num_key_value_heads", None)  # Gemma 4 then ignores num_global_key_value_heads
    for name, usual in LAYER_FIELDS.items():
        if isinstance(config.fields.get(name), list):
            special[usual] = config.int_list(name, layers)[index]
    return config.with_fields({**special, **_blocks(config, index), **_per_layer(config).get(index, {})})


def _per_layer(config: Config) -> dict[int, dict[str, Any]]:
    """Return the fields that per_layer_config overrides, by layer index (a key may be written "05")."""
    overrides = config.fields.get("per_layer_config") or {}
    if isinstance(overrides, dict) and all(
        key.isdecimal() and isinstance(fields, dict) for key, fields in overrides.items()
    ):
        return {int(key): fields for key, fields in overrides.items()}
    raise config.error("per_layer_config must map layer numbers to objects of fields")


def _blocks(config: Config, index: int) -> dict[str, Any]:
    """Return the KV heads of one entry of Nemotron-NAS's block_configs, which gives query heads per KV head."""
    if config.fields.get("block_configs") is None:
        return {}
    attention = config.nonempty_list("block_configs")[index]["attention"]
    if attention.get("num_key_value_heads") is not None:
        return {"num_key_value_heads": attention["num_key_value_heads"]}
    if attention.get("n_heads_in_group") is None:
        raise config.missing("n_heads_in_group in block_configs", ("n_heads_in_group", "num_key_value_heads"))
    heads, group = (
        config.required("number of heads"),
        config.whole_number("n_heads_in_group", attention["n_heads_in_group"]),
    )
    if heads % group:
        raise config.error(f"n_heads_in_group ({group}) must divide the number of heads ({heads})")
    return {"num_key_value_heads": heads // group}
