"""How many tokens a model sees, and whether each sees the later ones."""

from __future__ import annotations

import math

from redblue.catalogue.models.config import Config

MAX_DEFAULT_TOKENS = 4096  # when no number is asked for; long contexts behave alike
# Tokens beside an image's patches, by words in the model type; the first that fits counts, the others have none.
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
EXTRA_TOKENS_OF = {"vit": 1}  # by the whole model type

# Ends of the class names that say which way tokens look.
DECODER_CLASSES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
ENCODER_CLASSES = ("ForMaskedLM", "ForImageClassification", "ForCTC", "EncoderModel")
# fmt: off
# Words in the model types whose tokens look both ways, then starts of those whose tokens do not.
ENCODERS = (
    "altclip", "audio", "beit", "bert", "bros", "chinese_clip_text", "clap_text", "data2vec", "deit", "dino", "dpr",
    "dpt", "electra", "embedding_gemma", "_encoder", "esm", "flava", "gte", "hubert", "ijepa", "jina_embeddings",
    "layoutlm", "lilt", "luke", "markuplm", "mgp-str", "mlcd", "mpnet", "neomme", "pixio", "pixtral",
    "privacy_filter", "qformer", "radio", "roformer", "siglip", "splinter", "tapas", "unispeech", "videomae",
    "vision", "vit", "vjepa", "wav2vec2", "wavlm", "xmod", "yolos",
)
# By the whole model type, before the words.
ENCODERS_OF = {"ernie", "nemotron3_5_transcribe_word_timestamp", "t5gemma2_encoder"}
DECODERS_OF = {"granite4_vision_text", "higgs_audio_v2", "modernbert-decoder"}
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
    """Whether tokens see only earlier ones: what the config says, else its class names, else its model type."""
    fields, kind = config.fields, config.kind
    if isinstance(fields.get("is_causal"), bool):
        return fields["is_causal"]
    if fields.get("use_bidirectional_attention") in (True, "all"):
        return False
    classes = fields.get("architectures")
    classes = [str(name) for name in classes] if isinstance(classes, list) else []
    if config.flag("is_decoder") or any(name.endswith(DECODER_CLASSES) for name in classes):
        return True
    if any(name.endswith(ENCODER_CLASSES) for name in classes):
        return False
    if kind in DECODERS_OF:
        return True
    if kind in ENCODERS_OF or any(word in kind for word in ENCODERS):
        return False
    if kind.startswith(DECODERS):
        return True
    raise config.missing("word on whether tokens see later ones", ("is_causal", "is_decoder", "architectures"))


def tokens(config: Config, causal: bool) -> int:
    """What was asked for; else an image's tokens; else the positions, at most MAX_DEFAULT_TOKENS."""
    fields, positions = config.fields, config.find("number of positions")
    if config.n is not None:
        if positions is not None and config.n > positions:
            config.note(f"n = {config.n} is more than the {positions} positions that the config declares")
        return config.n
    if not causal and fields.get("image_size") and fields.get("patch_size") and not fields.get("num_frames"):
        image, patch = config.each("image_size", 2), config.each("patch_size", 2)
        patches = math.prod(side // step for side, step in zip(image, patch, strict=True))
        if patches < 1:
            raise config.error(f"image_size {image} holds no patch of patch_size {patch}")
        return patches + _extra(config)
    if positions is None:
        config.note(f"the config declares no number of positions: n = {MAX_DEFAULT_TOKENS} is taken")
    return min(positions or MAX_DEFAULT_TOKENS, MAX_DEFAULT_TOKENS)


def _extra(config: Config) -> int:
    """The tokens beside an image's patches: class tokens and registers."""
    words = (count for word, count in EXTRA_TOKENS.items() if word in config.kind)
    registers = config.find("num_register_tokens") if config.fields.get("num_register_tokens") else 0
    return EXTRA_TOKENS_OF.get(config.kind, next(words, 0)) + (registers or 0)
