"""Read the attention shapes of a diffusers config.json: U-Nets, autoencoders, diffusion transformers (all unmasked)."""

from __future__ import annotations

import math
from collections import Counter

from redblue.base.integers import ceil_div
from redblue.catalogue.models.config import Config, Layers
from redblue.catalogue.models.unsupported import refuse_unsupported

DEFAULT_TOKENS = 4096  # a 64 x 64 grid of latents or patches: an image of 512 x 512 (U-Net) or 1024 x 1024 (Flux)
TEXT_TOKENS = 77  # the length of CLIP's prompt, which a U-Net's cross-attention reads

# Supported U-Net blocks, and whether they contain attention.
UNET_BLOCKS = {
    "CrossAttnDownBlock2D": True,
    "CrossAttnUpBlock2D": True,
    "UNetMidBlock2DCrossAttn": True,
    "DownBlock2D": False,
    "UpBlock2D": False,
    "UNetMidBlock2D": False,
}
# Supported diffusion transformers (as built by diffusers 0.42.1), and the fields that count their layers.
# JOINT: image and text tokens attend together. SELF: image tokens attend among themselves.
JOINT = {
    "AuraFlowTransformer2DModel": ("num_mmdit_layers", "num_single_dit_layers"),
    "BriaTransformer2DModel": ("num_layers", "num_single_layers"),
    "ChromaTransformer2DModel": ("num_layers", "num_single_layers"),
    "CogVideoXTransformer3DModel": ("num_layers",),
    "CogView3PlusTransformer2DModel": ("num_layers",),
    "CogView4Transformer2DModel": ("num_layers",),
    "Flux2Transformer2DModel": ("num_layers", "num_single_layers"),
    "FluxTransformer2DModel": ("num_layers", "num_single_layers"),
    "HunyuanVideoTransformer3DModel": ("num_layers", "num_single_layers"),
    "Lumina2Transformer2DModel": ("num_layers",),
    "MochiTransformer3DModel": ("num_layers",),
    "QwenImageTransformer2DModel": ("num_layers",),
    "SD3Transformer2DModel": ("num_layers",),
}
SELF = {
    "AllegroTransformer3DModel": ("num_layers",),
    "DiTTransformer2DModel": ("num_layers",),
    "HunyuanDiT2DModel": ("num_layers",),
    "LTXVideoTransformer3DModel": ("num_layers",),
    "PixArtTransformer2DModel": ("num_layers",),
    "Transformer2DModel": ("num_layers",),
    "WanTransformer3DModel": ("num_layers",),
}
HEAD_DIM_FROM_HIDDEN = {"Lumina2Transformer2DModel"}  # d = hidden_size / heads; there is no attention_head_dim


def read(config: Config) -> list[Layers]:
    """Return one entry per distinct attention shape. Raises RedblueError for an unsupported class."""
    refuse_unsupported(config, listed=False)
    if config.kind == "UNet2DConditionModel":
        return _unet(config)
    if config.kind == "AutoencoderKL":
        return _vae(config)
    if config.kind in JOINT | SELF:
        return _transformer(config)
    known = ", ".join(("UNet2DConditionModel", "AutoencoderKL", *sorted(JOINT | SELF)))
    raise config.error(f"_class_name {config.kind} is not supported; known: {known}")


def _unet(config: Config) -> list[Layers]:
    """Return self- and cross-attention of each level; level i has 1/2^i of the finest level's rows and columns.

    In this class the field attention_head_dim holds the number of heads, despite its name.
    """
    down, up = config.nonempty_list("down_block_types"), config.nonempty_list("up_block_types")
    middle = config.fields.get("mid_block_type", "UNetMidBlock2DCrossAttn")
    levels = len(down)
    channels = config.int_list("block_out_channels", levels)
    heads = config.int_list(
        "num_attention_heads" if config.fields.get("num_attention_heads") else "attention_head_dim", levels
    )
    depth = config.int_list("transformer_layers_per_block", levels, default=1)
    blocks = config.int_list("layers_per_block", levels, default=2)
    if config.n is None and not config.fields.get("sample_size"):
        config.note(f"the config declares no sample_size: {_tokens(config)} tokens at the finest level are assumed")
    config.note(f"cross-attention reads {TEXT_TOKENS} text tokens, as CLIP does: the config does not give their number")

    # (level, block type, layers). Up blocks come in reverse order; each has one layer more than its down block.
    stages = [(level, kind, blocks[level] * depth[level]) for level, kind in enumerate(down)]
    stages += [
        (levels - 1 - i, kind, (blocks[levels - 1 - i] + 1) * depth[levels - 1 - i]) for i, kind in enumerate(up)
    ]
    stages += [(levels - 1, middle, depth[-1])] if middle else []
    layers_at: Counter[int] = Counter()
    for level, kind, layers in stages:
        if str(kind) not in UNET_BLOCKS or not 0 <= level < levels:
            raise config.error(f"block type {kind!r} is not supported; known: {', '.join(UNET_BLOCKS)}")
        layers_at[level] += layers * UNET_BLOCKS[str(kind)]

    shapes = []
    for level, layers in sorted(layers_at.items()):
        if not layers:
            continue
        if channels[level] % heads[level]:
            raise config.error(f"level {level} has {channels[level]} channels, no multiple of its {heads[level]} heads")
        n_here, d = _level_tokens(config, level), channels[level] // heads[level]
        for name, keys in (("self", n_here), ("cross", TEXT_TOKENS)):
            problem = config.problem(n_here, keys, d, heads=heads[level])
            shapes.append(Layers(f"{name}, level {level}", layers, problem, f"{channels[level]} channels"))
    if not shapes:
        raise config.error("none of its blocks holds attention")
    return shapes


def _level_tokens(config: Config, level: int) -> int:
    """Return the tokens at a level of a U-Net. Downsampling halves each side and rounds up."""
    if config.n is None and config.fields.get("sample_size"):
        return math.prod(ceil_div(side, 2**level) for side in config.int_list("sample_size", 2))
    return ceil_div(_tokens(config), 4**level)  # the sides of the caller's n are not known


def _vae(config: Config) -> list[Layers]:
    """Return the single-head attention over all channels in the middle blocks of encoder and decoder."""
    if config.fields.get("mid_block_add_attention") is False:
        raise config.error("it has no attention (mid_block_add_attention is false)")
    channels = config.nonempty_list("block_out_channels")
    d = config.whole_number("block_out_channels", channels[-1])
    n = _tokens(config, shrink=2 ** (len(channels) - 1))
    if "Attn" in f"{config.fields.get('down_block_types')} {config.fields.get('up_block_types')}":
        config.note("attention in down and up blocks is not listed, only the middle block's")
    note = "one head over all channels; once in the encoder, once in the decoder"
    return [Layers("mid block", 2, config.problem(n, n, d), note)]


def _transformer(config: Config) -> list[Layers]:
    """Return one shape for all layers, and a second one for the layers of SD 3.5 that attend twice."""
    heads = config.required("num_attention_heads")
    if config.kind in HEAD_DIM_FROM_HIDDEN:
        hidden = config.required("hidden_size")
        if hidden % heads:
            raise config.error(f"the hidden size ({hidden}) is no multiple of the heads ({heads})")
        d = hidden // heads
    else:
        d = config.required("attention_head_dim")
    kv_heads = config.optional("number of KV heads") or heads
    if heads % kv_heads:
        raise config.error(f"the number of heads ({heads}) must be a multiple of the number of KV heads ({kv_heads})")
    joint, note = config.kind in JOINT, "cross-attention to text, if any, is not listed"
    if joint:
        note = "image and text tokens attend together; by default n counts the image tokens only"
    layers = sum(config.required(key) for key in (JOINT | SELF)[config.kind])
    n = _transformer_tokens(config)
    problem = config.problem(n, n, d, heads=heads, kv_heads=kv_heads)
    shapes = [Layers("joint" if joint else "self", layers, problem, note)]
    if config.fields.get("dual_attention_layers"):
        twice = len(config.nonempty_list("dual_attention_layers"))
        shapes.append(Layers("self, beside joint", twice, problem, "image tokens attend among themselves as well"))
    return shapes


def _transformer_tokens(config: Config) -> int:
    """Return the caller's n, or the number of patches of the config's sample_size."""
    if config.n is not None or not config.fields.get("sample_size"):
        n = _tokens(config)
        if config.n is None:
            config.note(f"the config declares no sample_size: n = {n} tokens are assumed")
        return n
    return _tokens(config, shrink=config.required("patch_size"))


def _tokens(config: Config, shrink: int = 1) -> int:
    """Return the caller's n, or the tokens of the config's sample_size with each side divided by `shrink`."""
    if config.n is not None:
        return config.n
    if not config.fields.get("sample_size"):
        return DEFAULT_TOKENS
    return math.prod(max(1, side // shrink) for side in config.int_list("sample_size", 2))
