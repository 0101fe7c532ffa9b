"""Find the number of tokens of a model, and whether its attention is causal."""

from __future__ import annotations

import math

from redblue.catalogue.models.config import Config

MAX_DEFAULT_TOKENS = 4096  # limit of the default n; longer contexts have the same leading-order behaviour
# Class tokens and the like of image models, by a word in the model type. The first match counts; without one, 0.
EXTRA_TOKENS = {
    "siglip": 0,
    "deit": 2,
    "beit": 1,
    "blip": 1,
    "clip": 1,
    "data2vec": 1,
    "dinov2": 1,
    "dinov3": 1,
    "git_vision": 1,
    "internvl": 1,
    "kosmos_2_vision": 1,
    "llama4_vision": 1,
    "mlcd": 1,
    "owl": 1,
    "vit_mae": 1,
    "vit_msn": 1,
}
EXTRA_TOKENS_OF = {"vit": 1}  # exact model types; checked first

# Class names ending in these are causal (DECODER_CLASSES) or bidirectional (ENCODER_CLASSES).
DECODER_CLASSES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
ENCODER_CLASSES = ("ForMaskedLM", "ForImageClassification", "ForCTC", "EncoderModel")
# fmt: off
# Bidirectional: model types that contain one of these words.
ENCODERS = (
    "altclip", "audio", "beit", "bert", "bros", "chinese_clip_text", "clap_text", "data2vec", "deit", "dino", "dpr",
    "dpt", "electra", "embedding_gemma", "_encoder", "esm", "flava", "gte", "hubert", "ijepa", "jina_embeddings",
    "layoutlm", "lilt", "luke", "markuplm", "mgp-str", "mlcd", "mpnet", "neomme", "pixio", "pixtral",
    "privacy_filter", "qformer", "radio", "roformer", "siglip", "splinter", "tapas", "unispeech", "videomae",
    "vision", "vit", "vjepa", "wav2vec2", "wavlm", "xmod", "yolos",
)
# Exact model types, checked before the words.
ENCODERS_OF = {"ernie", "nemotron3_5_transcribe_word_timestamp", "t5gemma2_encoder"}
DECODERS_OF = {"granite4_vision_text", "higgs_audio_v2", "modernbert-decoder"}
# Causal: model types that start with one of these.
DECODERS = (
    "afmoe", "apertus", "arcee", "aria", "axk", "baichuan", "bailing", "bamba", "beam", "biogpt", "bitnet", "bloom",
    "chameleon", "chatglm", "clip", "clipseg", "codegen", "cohere", "cpmant", "csm", "ctrl", "cwm", "dbrx",
    "decilm", "deepseek", "diffllama", "dots1", "dots3_note_text", "emu3_text", "ernie4_5", "exaone", "falcon",
    "flex_olmo", "flint", "fuyu", "gemma", "glm", "gpt", "granite", "helium", "hunyuan", "hy_v", "hyperclovax",
    "idefics", "imagegpt", "internlm", "iquestcoder", "jais", "jamba", "jetmoe", "kimi", "kolibri", "laguna", "lfm",
    "llama", "longcat", "mellum", "metaclip", "mimo", "minicpm", "minimax", "ministral", "mistral", "mixtral",
    "mllama", "molmo2_text", "mpt", "musicgen", "nanochat", "nemotron", "olmo", "openai-gpt", "openelm", "opt",
    "owlv2", "owlvit", "paddleocr", "paligemma", "persimmon", "phi", "qwen", "recurrent_gemma", "seed_oss",
    "smollm", "solar_open", "stablelm", "starcoder", "step3", "trocr", "vaultgemma", "xclip", "xglm", "youtu",
)
# fmt: on


def is_causal(config: Config) -> bool:
    """Return whether attention is causal, by the config's fields, else its class names, else its model type.

    Raises RedblueError if none of them decides.
    """
    fields, kind = config.fields, config.kind
    if isinstance(fields.get("is_causal"), bool):
        return fields["is_causal"]
    if fields.get("use_bidirectional_attention") in (True, "all"):
        return False
    classes = fields.get("architectures")
    classes = [str(name) for name in classes] if isinstance(classes, list) else []
    if config.is_true("is_decoder") or any(name.endswith(DECODER_CLASSES) for name in classes):
        return True
    if any(name.endswith(ENCODER_CLASSES) for name in classes):
        return False
    if kind in DECODERS_OF:
        return True
    if kind in ENCODERS_OF or any(word in kind for word in ENCODERS):
        return False
    if kind.startswith(DECODERS):
        return True
    raise config.missing(
        "field that says whether tokens attend later ones", ("is_causal", "is_decoder", "architectures")
    )


def tokens(config: Config, causal: bool) -> int:
    """Return the caller's n; else an image's tokens; else the number of positions, at most MAX_DEFAULT_TOKENS."""
    fields, positions = config.fields, config.optional("number of positions")
    if config.n is not None:
        if positions is not None and config.n > positions:
            config.note(f"n = {config.n} is more than the {positions} positions that the config declares")
        return config.n
    if not causal and fields.get("image_size") and fields.get("patch_size") and not fields.get("num_frames"):
        image, patch = config.int_list("image_size", 2), config.int_list("patch_size", 2)
        patches = math.prod(side // step for side, step in zip(image, patch, strict=True))
        if patches < 1:
            raise config.error(f"image_size {image} holds no patch of patch_size {patch}")
        return patches + _extra(config)
    if positions is None:
        config.note(f"the config declares no number of positions: n = {MAX_DEFAULT_TOKENS} is assumed")
    return min(positions or MAX_DEFAULT_TOKENS, MAX_DEFAULT_TOKENS)


def _extra(config: Config) -> int:
    """Return the number of class and register tokens, which an image model adds to its patches."""
    matches = (count for word, count in EXTRA_TOKENS.items() if word in config.kind)
    registers = config.optional("num_register_tokens") if config.fields.get("num_register_tokens") else 0
    return EXTRA_TOKENS_OF.get(config.kind, next(matches, 0)) + (registers or 0)
