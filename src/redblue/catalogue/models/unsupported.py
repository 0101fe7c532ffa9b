"""Refuse config fields, values and model types that redblue does not support, by name: a guess could be wrong."""

from __future__ import annotations

from redblue.catalogue.models.config import NAMES, Config
from redblue.catalogue.models.defaults import LEFT_OUT, STANDS_FOR

# Layouts of layers that are not supported, unless layer_types or the like names the kind of each layer.
LAYOUTS = (
    "attention_types",
    "block_types",
    "dense_attention_every_n_layers",
    "hybrid_layer_ids",
    "layer_group_size",
    "linear_attn_config",
    "local_layer_ids",
)
# Fields that change the mask or the sizes in a way that is not supported.
FIELDS = (
    "attention_downsample_rate",
    "attention_other_setting",
    "attention_window",
    "dual_cross_attention",
    "encoder_attention_type",
    "fullatt_block_indexes",
    "global_attn_indexes",
    "keep_window_size",
    "left_chunk",
    "look_ahead_layers",
    "n_window",
    "num_global_tokens",
    "num_temporal_layers",
    "num_windows",
    "only_cross_attention",
    "reverse_transformer_layers_per_block",
    "sliding_windows",
    "t2u_encoder_layers",
    "true_hidden_size",
    "window_block_indexes",
    "window_block_indices",
)
# Fields with only some supported values.
VALUES = {
    "attention_type": ("default", "full_attention", "original_full"),  # "default": of a U-Net
    "attn_type": ("multihead_attention", "multiquery_attention", "grouped_query_attention", "vanilla"),
    "head_ratio": (1,),
    "sliding_window_size": (-1, 0),
}
# Unsupported model types: no softmax, truncated or sampled attention, or a number of queries that no field gives.
MODELS = {
    "autoformer",
    "big_bird",
    "canine",
    "deepseek_ocr2_encoder",
    "doge",
    "falcon_mamba",
    "fastspeech2_conformer",
    "fnet",
    "funnel",
    "informer",
    "led",
    "longformer",
    "mamba",
    "mamba2",
    "mra",
    "nystromformer",
    "perceiver",
    "pix2struct",
    "pix2struct_text_model",
    "pp_formulanet",
    "pp_formulanet_text",
    "prophetnet",
    "reformer",
    "rwkv",
    "swin",
    "swinv2",
    "udop",
    "xlnet",
    "xlstm",
    "yoso",
}
MODEL_WORDS = ("detr", "d_fine", "deim", "doclayout", "dino-", "omdet")  # object queries, deformable attention


def refuse_unsupported(config: Config, listed: bool) -> None:
    """Raise RedblueError for the first unsupported model type, field or value.

    listed: whether the config names the kind of each layer, so that LAYOUTS do not matter.
    """
    fields, kind = config.fields, config.kind
    if kind in MODELS or any(word in kind for word in MODEL_WORDS):
        raise config.error(
            f"model_type {kind} is not supported: its attention is not softmax over all, earlier or nearby tokens"
        )
    for key in FIELDS if listed else FIELDS + LAYOUTS:
        if fields.get(key):
            advice = "" if key in FIELDS else ": name each layer's kind in layer_types"
            raise config.error(f"the layout given by {key} is not supported{advice}")
    for key, known in VALUES.items():
        if fields.get(key) is not None and fields[key] not in known:
            raise config.error(f"{key} = {fields[key]!r} is not supported; known: {', '.join(map(str, known))}")
    sizes = {key: fields[key] for key in NAMES["hidden size"] if isinstance(fields.get(key), int)}
    if len(set(sizes.values())) > 1 and config.optional("head dimension") is None:
        raise config.error(f"{' and '.join(sizes)} differ: add head_dim")


def refuse_left_out(config: Config) -> None:
    """Raise RedblueError for a missing field for which redblue would assume another value than the model's class."""
    for key, kinds in LEFT_OUT.items():
        names = STANDS_FOR.get(key, (key,))
        if config.kind in kinds and not any(name in config.fields for name in names):
            raise config.missing(key, names)
