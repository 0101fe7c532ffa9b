"""The attention shapes in a transformers config.json: encoders, decoders, and both."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from redblue.masks import Mask
from redblue.models.config import LAYER_LISTS, Config, Layers, innermost

MAX_LAYERS = 100_000
MAX_DEFAULT_TOKENS = 4096  # when no number is asked for; long contexts behave alike

LAYER_KINDS = {
    "full_attention": "full",
    "attention": "full",
    "global": "full",
    "indexed_attention": "full",
    "deepseek_sparse_attention": "full",
    "sliding_attention": "sliding",
    "local": "sliding",
    "chunked_attention": "chunked",
}
# Without such a list: one global layer in how many, the others sliding (class defaults of transformers 5.23.0).
GLOBAL_EVERY = {"gemma2": 2, "gemma3_text": 6, "gemma3n_text": 5, "gemma4_text": 6, "gpt_oss": 2, "cohere2": 4}
GLOBAL_EVERY_CHUNKED = 4  # Llama 4's no_rope_layer_interval
# Fields that only the layers of one kind obey, and the field that each replaces there.
LAYER_FIELDS = {
    "full": {"global_head_dim": "head_dim", "num_global_key_value_heads": "num_key_value_heads"},
    "sliding": {
        "swa_num_attention_heads": "num_attention_heads",
        "swa_num_key_value_heads": "num_key_value_heads",
        "swa_head_dim": "head_dim",
        "swa_v_head_dim": "v_head_dim",
    },
}
# The fields of an encoder-decoder's two sides, and the usual field that each stands for.
SIDES = {
    "encoder": {
        "encoder_attention_heads": "num_attention_heads",
        "encoder_layers": "num_hidden_layers",
        "num_encoder_layers": "num_hidden_layers",
        "max_source_positions": "max_position_embeddings",
    },
    "decoder": {
        "decoder_attention_heads": "num_attention_heads",
        "decoder_layers": "num_hidden_layers",
        "num_decoder_layers": "num_hidden_layers",
        "max_target_positions": "max_position_embeddings",
    },
}
# Words in the model types whose tokens look both ways, and ends of the class names that say which way.
ENCODER_TYPES = (
    "bert",
    "vit",
    "vision",
    "beit",
    "deit",
    "dino",
    "electra",
    "esm",
    "data2vec",
    "layoutlm",
    "mpnet",
    "roformer",
)
ENCODER_CLASSES = ("ForMaskedLM", "ForImageClassification")
DECODER_CLASSES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
# Tokens beside an image's patches; the other image encoders have one, the class token.
EXTRA_TOKENS = {"deit": 2, "ijepa": 0, "siglip_vision_model": 0, "siglip2_vision_model": 0}


def read(config: Config) -> list[Layers]:
    """One entry per distinct shape, in the order in which the layers have them."""
    nested = all(isinstance(config.fields.get(side), dict) for side in SIDES)
    if nested or config.flag("is_encoder_decoder"):
        return _encoder_decoder(config, nested)
    return _stack(config, _is_causal(config))


def _encoder_decoder(config: Config, nested: bool) -> list[Layers]:
    """Encoder self-attention, decoder self-attention, and the decoder's attention to the encoder's output."""
    encoder, decoder = (_side(config, side, nested) for side in SIDES)
    n_q, n_k = _tokens(decoder, causal=True), _tokens(encoder, causal=False)
    layers = decoder.find("number of layers") or 1
    cross = decoder.problem(n_q, n_k, **_head_sizes(decoder))
    return [
        *_stack(encoder, False, "encoder self"),
        *_stack(decoder, True, "decoder self"),
        Layers("cross", layers, cross, "decoder tokens attend the encoder's"),
    ]


def _side(config: Config, side: str, nested: bool) -> Config:
    """The fields of the encoder or of the decoder, under their usual names."""
    own = replace(config, fields=innermost(config.fields[side])) if nested else config
    return own.given({usual: own.fields[name] for name, usual in SIDES[side].items() if name in own.fields})


def _stack(config: Config, causal: bool, label: str = "") -> list[Layers]:
    """The distinct shapes of a stack of layers; layers that have no shape go into the notes."""
    config.refuse_unread()
    n, kinds = _tokens(config, causal), _layer_kinds(config)
    mixed = len(set(kinds) & {*LAYER_KINDS.values()}) > 1
    found: Counter[Layers] = Counter()
    for index, kind in enumerate(kinds):
        if kind in LAYER_KINDS.values():
            own = {"full": "global" if mixed else ""}.get(kind, kind)
            name = f"{label} {own}".strip() or "attention"
            found.update(_shapes(_layer(config, index, kind), kind, name, n, causal))
    for kind, count in Counter(kinds).items():
        if kind not in LAYER_KINDS.values():
            config.note(
                f"{count} layers of kind {kind} are not listed: they have no softmax attention with a mask known here"
            )
    if not found:
        raise config.error(f"none of its layers has a shape known here: they are {', '.join(sorted(set(kinds)))}")
    return [replace(entry, layers=count) for entry, count in found.items()]


def _shapes(config: Config, kind: str, name: str, n: int, causal: bool) -> Iterator[Layers]:
    """The shapes of one layer: several for latent attention, and for chunks that do not divide n."""
    if config.find("kv_lora_rank"):
        yield from _latent(config, kind, n, causal)
        return
    sizes = _head_sizes(config)
    if kind != "chunked":
        mask, note = _mask(config, kind, causal)
        yield Layers(name, 1, config.problem(n, n, mask=mask, **sizes), note)
        return
    chunk = config.need("attention_chunk_size")
    mask = Mask.causal() if causal else Mask.full()
    if n >= chunk:
        note = f"{n // chunk} chunks of {chunk} tokens per sequence attend within themselves: they count as batch"
        yield Layers(name, 1, config.problem(chunk, chunk, copies=n // chunk, mask=mask, **sizes), note)
    if n % chunk:
        rest, name = n % chunk, f"{name}, last" if n > chunk else name
        note = f"one chunk of {rest} tokens, of at most {chunk}"
        yield Layers(name, 1, config.problem(rest, rest, mask=mask, **sizes), note)


def _latent(config: Config, kind: str, n: int, causal: bool) -> Iterator[Layers]:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): as it trains and reads a prompt, and as it decodes.

    head_dim is not to be trusted here: some libraries set it to the rotary part.
    """
    if kind == "chunked":
        raise config.error("latent attention (kv_lora_rank) in chunks (attention_chunk_size) is not read here")
    heads, rank = config.need("number of heads"), config.need("kv_lora_rank")
    nope, rope = config.need("qk_nope_head_dim"), config.need("qk_rope_head_dim")
    mask, note = _mask(config, kind, causal)
    prefix = "" if kind == "full" else f"{kind} "
    unabsorbed = config.problem(n, n, nope + rope, d_v=config.need("v_head_dim"), heads=heads, mask=mask)
    yield Layers(f"{prefix}prefill (unabsorbed)", 1, unabsorbed, note)
    if config.direction != "forward":
        config.note("decoding has no gradient: only the unabsorbed form is listed")
        return
    keys = n if kind == "full" else min(n, config.need("sliding window"))
    absorbed = config.problem(1, keys, rank + rope, d_v=rank, heads=heads, kv_heads=1)
    note = f"one new token; V is the first {rank} columns of K, so counts that read V apart are too high"
    yield Layers(f"{prefix}decode (absorbed)", 1, absorbed, note)


def _head_sizes(config: Config) -> dict[str, int]:
    """heads, kv_heads, d and d_v of a layer."""
    heads = config.need("number of heads")
    if config.flag("multi_query") and not config.flag("new_decoder_architecture"):
        kv_heads = 1  # Falcon 7B's num_kv_heads says otherwise, and is not used
    else:
        kv_heads = config.find("number of KV heads") or heads
    if heads % kv_heads:
        raise config.error(f"the number of heads ({heads}) must be a multiple of the number of KV heads ({kv_heads})")
    d = config.find("head dimension")
    if d is None:
        hidden = config.need("hidden size")
        if hidden % heads:
            raise config.error(f"no head_dim, and the hidden size ({hidden}) is no multiple of the heads ({heads})")
        d = hidden // heads
    return {"d": d, "d_v": config.find("v_head_dim") or d, "heads": heads, "kv_heads": kv_heads}


def _mask(config: Config, kind: str, causal: bool) -> tuple[Mask, str]:
    if kind != "sliding":
        return (Mask.causal() if causal else Mask.full()), ""
    window = config.need("sliding window")
    if causal:
        return Mask.sliding_window(left=window - 1, right=0), f"each token sees itself and the {window - 1} before it"
    side = window // 2
    return Mask.sliding_window(left=side, right=side), f"each token sees {side} tokens to either side"


def _layer(config: Config, index: int, kind: str) -> Config:
    """The fields as one layer sees them."""
    special = {usual: config.fields.get(name) for name, usual in LAYER_FIELDS.get(kind, {}).items()}
    if config.fields.get("attention_k_eq_v") is False:
        special.pop("num_key_value_heads", None)  # Gemma 4 then ignores num_global_key_value_heads
    own = _per_layer(config).get(index, {})
    return config.given({**special, **own})


def _per_layer(config: Config) -> dict[int, dict[str, Any]]:
    """What single layers have of their own, by layer number (which may be written "05")."""
    each = config.fields.get("per_layer_config") or {}
    if isinstance(each, dict) and all(key.isdecimal() and isinstance(own, dict) for key, own in each.items()):
        return {int(key): own for key, own in each.items()}
    raise config.error("per_layer_config must map layer numbers to objects of fields")


def _layer_kinds(config: Config) -> list[str]:
    """full, sliding, chunked, or the config's own word for anything else; one per layer."""
    fields, layers = config.fields, config.find("number of layers")
    for key in LAYER_LISTS:
        if fields.get(key) is not None:
            return [LAYER_KINDS.get(str(name), str(name)) for name in _one_per_layer(config, key, layers)]
    if layers is not None and layers > MAX_LAYERS:
        raise config.error(f"the number of layers must be at most {MAX_LAYERS}, got {layers}")
    if layers is None:
        config.note("the config does not say how many layers it has: 1 is taken")
        layers = 1
    if fields.get("compress_ratios") is not None:
        # It may go on to the layers that predict further tokens.
        ratios = _one_per_layer(config, "compress_ratios", layers, at_least=True)
        return ["sliding" if ratio == 0 else f"compressed by {ratio}" for ratio in ratios]
    if fields.get("attention_chunk_size"):
        if not fields.get("no_rope_layers"):
            return _every(GLOBAL_EVERY_CHUNKED, "chunked", layers)
        return ["chunked" if flag else "full" for flag in _one_per_layer(config, "no_rope_layers", layers)]
    if fields.get("full_attention_interval"):
        return _every(config.need("full_attention_interval"), "linear_attention", layers)
    return _windowed(config, layers)


def _one_per_layer(config: Config, key: str, layers: int | None, at_least: bool = False) -> list[Any]:
    entries = config.several(key)
    if layers is None or len(entries) == layers or (at_least and len(entries) > layers):
        return entries[:layers]
    raise config.error(f"{key} has {len(entries)} entries, but the number of layers is {layers}")


def _windowed(config: Config, layers: int) -> list[str]:
    """Which layers slide, when only a window and perhaps a pattern are given."""
    fields = config.fields
    pattern = fields.get("sliding_window_pattern") or GLOBAL_EVERY.get(config.kind)
    unsaid = "sliding_window" not in fields and pattern  # such a model slides: the missing window is then reported
    if fields.get("use_sliding_window") is False or not (fields.get("sliding_window") or unsaid):
        return ["full"] * layers
    if fields.get("use_sliding_window") and fields.get("max_window_layers") is not None:
        first = min(layers, config.find("max_window_layers") or 0)
        return ["full"] * first + ["sliding"] * (layers - first)
    if isinstance(pattern, str):
        return ["full" if pattern[i % len(pattern)] == "G" else "sliding" for i in range(layers)]
    if not pattern:
        return ["sliding"] * layers
    return _every(config.whole("sliding_window_pattern", pattern), "sliding", layers)


def _every(period: int, other: str, layers: int) -> list[str]:
    """Every period-th layer is full, the rest are of the other kind."""
    return [other if (i + 1) % period else "full" for i in range(layers)]


def _is_causal(config: Config) -> bool:
    """Whether tokens see only earlier ones: what the config says, else its class names, else its model type."""
    fields, kind = config.fields, config.kind
    if fields.get("is_causal") is False or fields.get("use_bidirectional_attention") in (True, "all"):
        return False
    classes = fields.get("architectures")
    classes = [str(name) for name in classes] if isinstance(classes, list) else []
    if config.flag("is_decoder") or any(name.endswith(DECODER_CLASSES) for name in classes):
        return True
    if any(name.endswith(ENCODER_CLASSES) for name in classes):
        return False
    if any(word in kind for word in ENCODER_TYPES) and not kind.endswith(("_text", "_text_model")):
        return False
    if not kind.endswith(("_text", "_text_model")):
        config.note(f"taken as a causal decoder (model_type {kind or 'not given'})")
    return True


def _tokens(config: Config, causal: bool) -> int:
    """What was asked for; else an image's tokens; else the positions, at most MAX_DEFAULT_TOKENS."""
    positions = config.find("number of positions")
    if config.n is not None:
        if positions is not None and config.n > positions:
            config.note(f"n = {config.n} is more than the {positions} positions that the config declares")
        return config.n
    if not causal and config.fields.get("image_size") and config.fields.get("patch_size"):
        image, patch = config.each("image_size", 2), config.each("patch_size", 2)
        patches = math.prod(side // step for side, step in zip(image, patch, strict=True))
        return patches + EXTRA_TOKENS.get(config.kind, 1)
    if positions is None:
        config.note(f"the config declares no number of positions: n = {MAX_DEFAULT_TOKENS} is taken")
    return min(positions or MAX_DEFAULT_TOKENS, MAX_DEFAULT_TOKENS)
