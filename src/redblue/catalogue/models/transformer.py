"""Read the attention shapes of a transformers config.json: encoders, decoders and encoder-decoders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from redblue.catalogue.models.config import Config, Layers, language_model_fields
from redblue.catalogue.models.kinds import LISTED, layer_kinds, names_layers
from redblue.catalogue.models.sizes import head_sizes, of_layer
from redblue.catalogue.models.tokens import is_causal, tokens
from redblue.catalogue.models.unsupported import refuse_left_out, refuse_unsupported
from redblue.masks import Mask

# Fields of an encoder-decoder's encoder and decoder, and the usual field that each replaces.
SIDES = {
    "encoder": {
        "encoder_attention_heads": "num_attention_heads",
        "encoder_num_attention_heads": "num_attention_heads",
        "encoder_num_key_value_heads": "num_key_value_heads",
        "encoder_layers": "num_hidden_layers",
        "encoder_num_hidden_layers": "num_hidden_layers",
        "num_encoder_layers": "num_hidden_layers",
        "max_source_positions": "max_position_embeddings",
    },
    "decoder": {
        "decoder_attention_heads": "num_attention_heads",
        "decoder_num_attention_heads": "num_attention_heads",
        "decoder_num_key_value_heads": "num_key_value_heads",
        "decoder_layers": "num_hidden_layers",
        "decoder_num_hidden_layers": "num_hidden_layers",
        "num_decoder_layers": "num_hidden_layers",
        "max_target_positions": "max_position_embeddings",
    },
}
# Bidirectional model types whose sliding_window counts both sides together, or each side.
WINDOW_OF_BOTH_SIDES = {"gemma3_text"}
WINDOW_OF_EACH_SIDE = {"embedding_gemma2_text", "neomme", "openai_privacy_filter", "t5_gemma_module", "ultrabert"}


def read(config: Config) -> list[Layers]:
    """Return one entry per distinct shape, in the order of the first layer that has it."""
    refuse_unsupported(config, names_layers(config))
    refuse_left_out(config)
    nested = all(isinstance(config.fields.get(side), dict) for side in SIDES)
    if nested or config.is_true("is_encoder_decoder"):
        return _encoder_decoder(config, nested)
    return _stack(config, is_causal(config))


def _encoder_decoder(config: Config, nested: bool) -> list[Layers]:
    """Return encoder self-attention, decoder self-attention, and cross-attention to the encoder's output."""
    encoder, decoder = (_side(config, side, nested) for side in SIDES)
    classes = config.fields.get("architectures")
    if isinstance(classes, list) and classes and str(classes[0]).endswith("EncoderModel"):
        return _stack(encoder, False, "encoder self")
    n_q, n_k = tokens(decoder, causal=True), tokens(encoder, causal=False)
    layers = decoder.required("number of layers")
    cross = decoder.problem(n_q, n_k, **head_sizes(decoder))
    return [
        *_stack(encoder, False, "encoder self"),
        *_stack(decoder, True, "decoder self"),
        Layers("cross", layers, cross, "decoder tokens attend encoder tokens"),
    ]


def _side(config: Config, side: str, nested: bool) -> Config:
    """Return the config of one side ("encoder" or "decoder"), with its fields under their usual names."""
    if nested:
        return replace(config, fields=language_model_fields(config.fields[side]))
    names, fields = SIDES[side], config.fields
    (other,) = SIDES.keys() - {side}
    for name in names:
        if name.startswith(side) and name not in fields and name.replace(side, other) in fields:
            raise config.missing(name, (name,))
    shared = {name: value for name, value in fields.items() if name not in SIDES[other]}
    renamed = {usual: fields[name] for name, usual in names.items() if name in fields}
    return replace(config, fields=shared).with_fields(renamed)


def _stack(config: Config, causal: bool, label: str = "") -> list[Layers]:
    """Return the distinct shapes of a stack of layers; layers of an unlisted kind are noted."""
    refuse_unsupported(config, names_layers(config))
    refuse_left_out(config)
    n, kinds = tokens(config, causal), layer_kinds(config)
    mixed = len(set(kinds) & LISTED) > 1
    counts: Counter[Layers] = Counter()
    for index, kind in enumerate(kinds):
        if kind in LISTED:
            kind_name = {"full": "global" if mixed else ""}.get(kind, kind)
            name = f"{label} {kind_name}".strip() or "attention"
            counts.update(_shapes(of_layer(config, index, kind, len(kinds)), kind, name, n, causal))
    for kind, count in Counter(kinds).items():
        if kind not in LISTED:
            config.note(
                f"{count} layers of kind {kind} are not listed: they have no softmax attention with a supported mask"
            )
    if not counts:
        words = ", ".join(sorted(set(kinds)))
        raise config.error(f"no layer has full, sliding or chunked attention; layer_types or the like gives {words}")
    return [replace(entry, layers=count) for entry, count in counts.items()]


def _shapes(config: Config, kind: str, name: str, n: int, causal: bool) -> Iterator[Layers]:
    """Yield the shapes of one layer: several for latent attention, and for chunks that do not divide n."""
    if config.optional("kv_lora_rank"):
        yield from _latent(config, kind, n, causal)
        return
    sizes = head_sizes(config)
    if kind != "chunked":
        mask, note = _mask(config, kind, causal)
        yield Layers(name, 1, config.problem(n, n, mask=mask, **sizes), note)
        return
    chunk = config.required("attention_chunk_size")
    mask = Mask.causal() if causal else Mask.full()
    if n >= chunk:
        note = f"{n // chunk} chunks of {chunk} tokens per sequence attend within themselves: they count as batch"
        yield Layers(name, 1, config.problem(chunk, chunk, copies=n // chunk, mask=mask, **sizes), note)
    if n % chunk:
        rest, name = n % chunk, f"{name}, last" if n > chunk else name
        note = f"one chunk of {rest} tokens, of at most {chunk}"
        yield Layers(name, 1, config.problem(rest, rest, mask=mask, **sizes), note)


def _latent(config: Config, kind: str, n: int, causal: bool) -> Iterator[Layers]:
    """Yield multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) in training and prefill, and in decoding.

    head_dim is ignored: some libraries set it to the rotary part alone.
    """
    for key, present in (
        ("attention_chunk_size", kind == "chunked"),
        ("no_rope_layers", "no_rope_layers" in config.fields),
    ):
        if present:
            raise config.error(f"latent attention (kv_lora_rank) with {key} is not supported")
    heads, rank, nope = (
        config.required("number of heads"),
        config.required("kv_lora_rank"),
        config.required("qk_nope_head_dim"),
    )
    rope = 0 if config.fields.get("qk_rope_head_dim") == 0 else config.required("qk_rope_head_dim")
    mask, note = _mask(config, kind, causal)
    prefix = "" if kind == "full" else f"{kind} "
    unabsorbed = config.problem(n, n, nope + rope, d_v=config.required("v_head_dim"), heads=heads, mask=mask)
    yield Layers(f"{prefix}prefill (unabsorbed)", 1, unabsorbed, note)
    if config.direction != "forward":
        config.note("decoding has no gradient: only the unabsorbed form is listed")
        return
    keys = n if kind == "full" else min(n, config.required("sliding window"))
    absorbed = config.problem(1, keys, rank + rope, d_v=rank, heads=heads, kv_heads=1)
    note = f"one new token; V is the first {rank} columns of K, so counts that read V separately are too high"
    yield Layers(f"{prefix}decode (absorbed)", 1, absorbed, note)


def _mask(config: Config, kind: str, causal: bool) -> tuple[Mask, str]:
    """Return the mask of a full or sliding layer, and a note that explains it."""
    if kind != "sliding":
        return (Mask.causal() if causal else Mask.full()), ""
    window = config.required("sliding window")
    both_sides = config.fields.get("sliding_window") is None and config.fields.get("local_attention") == window
    if causal:
        window = window // 2 if both_sides else window
        return Mask.sliding_window(left=window - 1, right=0), f"each token sees itself and the {window - 1} before it"
    if not both_sides and config.kind not in WINDOW_OF_BOTH_SIDES | WINDOW_OF_EACH_SIDE:
        raise config.error("sliding_window is not supported when tokens look both ways: it may count one side or two")
    side = window if config.kind in WINDOW_OF_EACH_SIDE else window // 2
    return Mask.sliding_window(left=side, right=side), f"each token sees {side} tokens to either side"
