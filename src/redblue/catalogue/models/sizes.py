"""The heads and head dimensions of a layer: what all layers share, and what one has of its own."""

from __future__ import annotations

from typing import Any

from redblue.catalogue.models.config import Config

# Fields that only the layers of one kind obey, and the field that each replaces there.
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
# Lists with one entry per layer, and the field that the entry replaces there.
LAYER_FIELDS = {
    "num_query_heads": "num_attention_heads",  # OpenELM
    "num_kv_heads": "num_key_value_heads",
    "num_attention_heads_per_layer": "num_attention_heads",
    "num_key_value_heads_per_layer": "num_key_value_heads",  # DeciLM
}


def head_sizes(config: Config) -> dict[str, int]:
    """heads, kv_heads, d and d_v of a layer."""
    heads = config.need("number of heads")
    kv_heads = _kv_heads(config, heads)
    if heads % kv_heads:
        raise config.error(f"the number of heads ({heads}) must be a multiple of the number of KV heads ({kv_heads})")
    hidden, d = config.find("hidden size"), config.find("head dimension")
    if d is None:
        hidden = hidden or config.need("hidden size")
        if hidden % heads:
            raise config.error(f"no head_dim, and the hidden size ({hidden}) is no multiple of the heads ({heads})")
        d = hidden // heads
    return {"d": d, "d_v": config.find("v_head_dim") or d, "heads": heads, "kv_heads": kv_heads}


def _kv_heads(config: Config, heads: int) -> int:
    if config.flag("multi_query") and not config.flag("new_decoder_architecture"):
        return 1  # Falcon 7B's num_kv_heads says otherwise, and is not used
    if config.fields.get("attn_type") == "multiquery_attention":
        return 1  # MPT
    if config.fields.get("multi_query") is False and config.fields.get("new_decoder_architecture") is False:
        return heads  # Falcon RW
    if config.fields.get("multi_query_attention") is False:
        return heads  # ChatGLM, whose multi_query_group_num then is not used
    return config.find("number of KV heads") or heads


def of_layer(config: Config, index: int, kind: str, layers: int) -> Config:
    """The fields as one layer sees them."""
    special = {usual: config.fields.get(name) for name, usual in KIND_FIELDS.get(kind, {}).items()}
    if config.fields.get("attention_k_eq_v") is False:
        special.pop("num_key_value_heads", None)  # Gemma 4 then ignores num_global_key_value_heads
    for name, usual in LAYER_FIELDS.items():
        if isinstance(config.fields.get(name), list):
            special[usual] = config.each(name, layers)[index]
    return config.given({**special, **_blocks(config, index), **_per_layer(config).get(index, {})})


def _per_layer(config: Config) -> dict[int, dict[str, Any]]:
    """What single layers have of their own, by layer number (which may be written "05")."""
    each = config.fields.get("per_layer_config") or {}
    if isinstance(each, dict) and all(key.isdecimal() and isinstance(own, dict) for key, own in each.items()):
        return {int(key): own for key, own in each.items()}
    raise config.error("per_layer_config must map layer numbers to objects of fields")


def _blocks(config: Config, index: int) -> dict[str, Any]:
    """The KV heads of one entry of Nemotron-NAS's block_configs, which counts the heads that share them."""
    if config.fields.get("block_configs") is None:
        return {}
    attention = config.several("block_configs")[index]["attention"]
    if attention.get("num_key_value_heads") is not None:
        return {"num_key_value_heads": attention["num_key_value_heads"]}
    if attention.get("n_heads_in_group") is None:
        raise config.missing("n_heads_in_group in block_configs", ("n_heads_in_group", "num_key_value_heads"))
    heads, group = config.need("number of heads"), config.whole("n_heads_in_group", attention["n_heads_in_group"])
    if heads % group:
        raise config.error(f"n_heads_in_group ({group}) must divide the number of heads ({heads})")
    return {"num_key_value_heads": heads // group}
