"""Find the kind of attention of each layer: full, sliding or chunked; other kinds are noted by name but not listed.

A config gives the kinds in one of three ways: a list with one entry per layer, a periodic pattern, or only a window.
"""

from __future__ import annotations

from typing import Any

from redblue.catalogue.models.config import Config

MAX_LAYERS = 100_000

LAYER_LISTS = ("layer_types", "layers_block_type", "attention_layers")  # one name per layer
KINDS = {
    "full_attention": "full",
    "attention": "full",
    "global": "full",
    "indexed_attention": "full",
    "deepseek_sparse_attention": "full",
    "sliding_attention": "sliding",
    "local": "sliding",
    "chunked_attention": "chunked",
}
LISTED = frozenset(KINDS.values())  # kinds of attention that redblue can describe as a Problem
# Names (in transformers 5.23.0 and the models' own files) of layers that are noted but not listed.
NO_SHAPE = (
    "compressed_sparse_attention",
    "conv",
    "dense",
    "hash_moe",
    "heavily_compressed_attention",
    "hybrid",
    "hybrid_sliding",
    "linear_attention",
    "mamba",
    "mamba2",
    "minimax_m3_sparse",
    "mlp",
    "moe",
    "qwen_sparse_attention",
    "recurrent",
    "reference_sliding_attention",
    "sparse",
    "window_attention",
)
# Fields with one letter or number per layer, and the meaning of each code.
CODES = {
    "hybrid_override_pattern": {"*": "full", "M": "mamba", "-": "mlp", "E": "moe"},  # Nemotron-H
    "hybrid_layer_pattern": {0: "full", 1: "sliding"},  # MiMo-V2
    "attn_type_list": {0: "linear_attention", 1: "full"},  # MiniMax-01
}
# Fields that list the indices of the attending layers, and the kind of all other layers.
INDICES = {"attn_layer_indices": "mamba", "full_attn_idxs": "conv"}  # Bamba, LFM2
# Fields of layers without attention. A model that has such a field must name these layers, or be in PARALLEL.
HYBRIDS = (
    "conv_L_cache",
    "linear_head_dim",
    "linear_key_head_dim",
    "linear_num_heads",
    "lru_width",
    "mamba_d_state",
    "mamba_head_dim",
    "mamba_num_heads",
    "ssm_cfg",
    "ssm_state_size",
)
PARALLEL = {"falcon_h1"}  # every layer has attention and a state-space part side by side
# Default period of global layers; the other layers slide (class defaults of transformers 5.23.0).
GLOBAL_EVERY = {
    "cohere2": 4,
    "gemma2": 2,
    "gemma3_text": 6,
    "gemma3n_text": 5,
    "gpt_oss": 2,
    "olmo3": 4,
    "vaultgemma": 2,
}
# Model types whose first layer of each group of global_attn_every_n_layers is global; elsewhere the last one is.
FIRST_IS_GLOBAL = {"modernbert", "modernbert-decoder"}
GLOBAL_EVERY_CHUNKED = 4  # Llama 4's no_rope_layer_interval
ATTENTIONS_PER_LAYER = {"longcat_flash": 2}


def layer_kinds(config: Config) -> list[str]:
    """Return the kind of each attention, in order: full, sliding, chunked, or the config's own name of another kind.

    Raises RedblueError for unknown entries, lists of the wrong length, and hybrids that do not name their layers.
    """
    layers = config.optional("number of layers")
    if layers is not None and layers > MAX_LAYERS:
        raise config.error(f"the number of layers must be at most {MAX_LAYERS}, got {layers}")
    kinds = _listed(config, layers)
    if kinds is None:
        if layers is None:
            layers = config.required("number of layers")  # raises, with the field names looked for
        kinds = _patterned(config, layers) or _windowed(config, layers)
    for index in _indices(config, "cross_attention_layers", len(kinds)):
        kinds[index] = "cross-attention to the image (cross_attention_layers)"
    return [kind for kind in kinds for _ in range(ATTENTIONS_PER_LAYER.get(config.kind, 1))]


def names_layers(config: Config) -> bool:
    """Return whether the config has a list that names the kind of each layer."""
    return any(config.fields.get(key) for key in LAYER_LISTS)


def _listed(config: Config, layers: int | None) -> list[str] | None:
    """Return the kinds from a list with one entry per layer, or None if the config has no such list."""
    fields = config.fields
    for key in LAYER_LISTS:
        if fields.get(key) is not None:
            return [_named_kind(config, key, name) for name in one_per_layer(config, key, layers)]
    for key, meaning in CODES.items():
        if fields.get(key) is not None:
            entries = one_per_layer(config, key, layers)
            unknown = [entry for entry in entries if not isinstance(entry, (str, int)) or entry not in meaning]
            if unknown:
                known = ", ".join(map(str, meaning))
                raise config.error(f"{key} has the entry {unknown[0]!r}, which is not supported; known: {known}")
            return [meaning[entry] for entry in entries]
    if fields.get("block_configs") is not None:
        return [_block_kind(config, block) for block in one_per_layer(config, "block_configs", layers)]
    return None


def _named_kind(config: Config, key: str, name: Any) -> str:
    """Return the kind for one entry of a list of names."""
    if not isinstance(name, str) or name not in {*KINDS, *NO_SHAPE}:
        known = ", ".join((*KINDS, *NO_SHAPE))
        raise config.error(f"{key} has the entry {name!r}, which is not supported: give one of {known}")
    return KINDS.get(name, name)


def _block_kind(config: Config, block: Any) -> str:
    """Return the kind for one entry of Nemotron-NAS's block_configs."""
    attention = block.get("attention") if isinstance(block, dict) else None
    if not isinstance(attention, dict):
        raise config.error("the layout given by block_configs is not supported: an entry has no attention")
    for key in ("window_length", "sparsify", "sliding_window", "attention_chunk_size", "llama4", "mamba"):
        if attention.get(key):
            raise config.error(f"{key} in block_configs is not supported")
    if attention.get("no_op") is True:
        return "no_op"
    return "linear" if attention.get("replace_with_linear") is True else "full"


def _patterned(config: Config, layers: int) -> list[str] | None:
    """Return the kinds from layer indices, compression ratios, chunks or a period; None if the config has none."""
    fields = config.fields
    for key, other in INDICES.items():
        if fields.get(key) is not None:
            chosen = _indices(config, key, layers)
            return ["full" if i in chosen else other for i in range(layers)]
    if fields.get("compress_ratios") is not None:
        # The list may be longer than the stack: it goes on to the multi-token-prediction layers.
        ratios = one_per_layer(config, "compress_ratios", layers, at_least=True)
        return ["sliding" if ratio == 0 else f"compressed by {ratio}" for ratio in ratios]
    if fields.get("attention_chunk_size"):
        if not fields.get("no_rope_layers"):
            return _every(GLOBAL_EVERY_CHUNKED, "chunked", layers)
        return ["chunked" if flag else "full" for flag in one_per_layer(config, "no_rope_layers", layers)]
    if fields.get("full_attention_interval"):
        return _every(config.required("full_attention_interval"), "linear_attention", layers)
    if fields.get("global_attn_every_n_layers"):
        period = config.required("global_attn_every_n_layers")
        if config.kind not in FIRST_IS_GLOBAL:
            return _every(period, "sliding", layers)
        return ["sliding" if i % period else "full" for i in range(layers)]
    if fields.get("attn_layer_period"):  # Jamba
        period = config.required("attn_layer_period")
        offset = config.whole_number("attn_layer_offset", fields.get("attn_layer_offset"), 0, period - 1)
        return ["full" if i % period == offset else "mamba" for i in range(layers)]
    for key in HYBRIDS if config.kind not in PARALLEL else ():
        if fields.get(key):
            names = ", ".join((*LAYER_LISTS, *CODES, *INDICES, "full_attention_interval", "attn_layer_period"))
            raise config.error(f"with {key} not every layer attends, but none of {names} says which: add layer_types")
    return None


def _windowed(config: Config, layers: int) -> list[str]:
    """Return the kinds of a config that gives only a window, and perhaps a pattern."""
    fields = config.fields
    pattern = fields.get("sliding_window_pattern") or GLOBAL_EVERY.get(config.kind)
    # A pattern implies sliding layers. A missing window is then an error later, not a stack of full layers.
    window_missing = "sliding_window" not in fields and pattern
    if fields.get("use_sliding_window") is False or not (fields.get("sliding_window") or window_missing):
        return ["full"] * layers
    if fields.get("use_sliding_window") and fields.get("max_window_layers") is not None:
        if config.kind == "qwen2_moe":
            raise config.error("use_sliding_window of qwen2_moe is not supported: add layer_types")
        first = min(layers, config.optional("max_window_layers") or 0)
        return ["full"] * first + ["sliding"] * (layers - first)
    if isinstance(pattern, str):
        return ["full" if pattern[i % len(pattern)] == "G" else "sliding" for i in range(layers)]
    if not pattern:
        return ["sliding"] * layers
    return _every(config.whole_number("sliding_window_pattern", pattern), "sliding", layers)


def _indices(config: Config, key: str, layers: int) -> list[int]:
    """Return a field of layer indices, counted from 0; an empty list if the field is missing."""
    indices = config.nonempty_list(key) if config.fields.get(key) is not None else []
    return [config.whole_number(f"an index of {key}", index, 0, layers - 1) for index in indices]


def _every(period: int, other: str, layers: int) -> list[str]:
    """Return kinds in which every period-th layer is full and the others are `other`."""
    return [other if (i + 1) % period else "full" for i in range(layers)]


def one_per_layer(config: Config, key: str, layers: int | None, at_least: bool = False) -> list[Any]:
    """Return a field with one entry per layer (a string counts as a list of letters).

    layers: the number of layers, or None if the field itself determines it. at_least: allow a longer list.
    Raises RedblueError if the lengths do not match.
    """
    entries = config.fields.get(key)
    entries = list(entries) if isinstance(entries, str) and entries else config.nonempty_list(key)
    if layers is None or len(entries) == layers or (at_least and len(entries) > layers):
        return entries[:layers]
    raise config.error(f"{key} has {len(entries)} entries, but the number of layers is {layers}")
