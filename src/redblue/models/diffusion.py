"""The attention shapes in a diffusers config.json: U-Nets, autoencoders, diffusion transformers. Masks are full."""

from __future__ import annotations

import math
from collections import Counter

from redblue.models.config import Config, Layers

DEFAULT_TOKENS = 4096  # a 64 x 64 grid of latents or patches: an image of 512 x 512 (U-Net) or 1024 x 1024 (Flux)
TEXT_TOKENS = 77  # the length of CLIP's prompt, which a U-Net's cross-attention reads

# The U-Net blocks read here, and whether they hold attention.
UNET_BLOCKS = {
    "CrossAttnDownBlock2D": True,
    "CrossAttnUpBlock2D": True,
    "UNetMidBlock2DCrossAttn": True,
    "DownBlock2D": False,
    "UpBlock2D": False,
    "UNetMidBlock2D": False,
}
# The fields that count a diffusion transformer's layers, of either sort.
LAYER_FIELDS = ("num_layers", "num_single_layers", "num_mmdit_layers", "num_single_dit_layers")
JOINT = ("Flux", "SD3", "AuraFlow", "CogVideoX")  # their image and text tokens attend together


def read(config: Config) -> list[Layers]:
    """One entry per distinct shape."""
    if config.kind == "UNet2DConditionModel":
        return _unet(config)
    if config.kind == "AutoencoderKL":
        return _vae(config)
    if "Transformer" in config.kind or "DiT" in config.kind:
        return _transformer(config)
    raise config.error(
        f"{config.kind} is not read here: give a UNet2DConditionModel, an AutoencoderKL or a diffusion transformer"
    )


def _unet(config: Config) -> list[Layers]:
    """Self- and cross-attention at each level; level i has 1/4^i of the finest level's tokens.

    attention_head_dim of this class is the number of heads, whatever its name says.
    """
    down, up = config.several("down_block_types"), config.several("up_block_types")
    middle = config.fields.get("mid_block_type", "UNetMidBlock2DCrossAttn")
    levels = len(down)
    channels = config.each("block_out_channels", levels)
    heads = config.each(
        "num_attention_heads" if config.fields.get("num_attention_heads") else "attention_head_dim", levels
    )
    depth = config.each("transformer_layers_per_block", levels, default=1)
    blocks = config.each("layers_per_block", levels, default=2)
    n, n_is_default = _tokens(config), config.n is None
    if n_is_default and not config.fields.get("sample_size"):
        config.note(f"the config declares no sample_size: {n} tokens at the finest level are taken")
    config.note(f"cross-attention reads {TEXT_TOKENS} text tokens: CLIP's prompt, the config does not say")

    # Up blocks come in the opposite order, and each has one layer more than its down block.
    held = [(level, kind, blocks[level] * depth[level]) for level, kind in enumerate(down)]
    held += [(levels - 1 - i, kind, (blocks[levels - 1 - i] + 1) * depth[levels - 1 - i]) for i, kind in enumerate(up)]
    held += [(levels - 1, middle, depth[-1])] if middle else []
    at_level: Counter[int] = Counter()
    for level, kind, layers in held:
        if str(kind) not in UNET_BLOCKS or not 0 <= level < levels:
            raise config.error(f"block type {kind!r} is not read here; known: {', '.join(UNET_BLOCKS)}")
        at_level[level] += layers * UNET_BLOCKS[str(kind)]

    found = []
    for level, layers in sorted(at_level.items()):
        if not layers:
            continue
        if channels[level] % heads[level]:
            raise config.error(f"level {level} has {channels[level]} channels, no multiple of its {heads[level]} heads")
        n_here, d = math.ceil(n / 4**level), channels[level] // heads[level]
        for name, keys in (("self", n_here), ("cross", TEXT_TOKENS)):
            problem = config.problem(n_here, keys, d, heads=heads[level])
            found.append(Layers(f"{name}, level {level}", layers, problem, f"{channels[level]} channels"))
    if not found:
        raise config.error("none of its blocks holds attention")
    return found


def _vae(config: Config) -> list[Layers]:
    """One head over all channels in the middle block of the encoder and of the decoder."""
    if config.fields.get("mid_block_add_attention") is False:
        raise config.error("it has no attention (mid_block_add_attention is false)")
    channels = config.several("block_out_channels")
    d = config.whole("block_out_channels", channels[-1])
    n = _tokens(config, shrink=2 ** (len(channels) - 1))
    if "Attn" in f"{config.fields.get('down_block_types')} {config.fields.get('up_block_types')}":
        config.note("attention in down and up blocks is not listed, only the middle block's")
    note = "one head over all channels; once in the encoder, once in the decoder"
    return [Layers("mid block", 2, config.problem(n, n, d), note)]


def _transformer(config: Config) -> list[Layers]:
    """One shape for all layers: image tokens, and text tokens where the two attend together."""
    heads, d = config.need("num_attention_heads"), config.need("attention_head_dim")
    counts = [config.find(key) for key in LAYER_FIELDS]
    layers = sum(count for count in counts if count)
    if not layers:
        raise config.missing("number of layers", LAYER_FIELDS)
    patch = config.find("patch_size") or 1
    n = _tokens(config, shrink=patch)
    if config.n is None and not config.fields.get("sample_size"):
        config.note(f"the config declares no sample_size: n = {n} tokens are taken")
    joint = config.kind.startswith(JOINT)
    note = (
        "image and text tokens attend together; by default n counts the image's"
        if joint
        else "cross-attention to text, if any, is not listed"
    )
    return [Layers("joint" if joint else "self", layers, config.problem(n, n, d, heads=heads), note)]


def _tokens(config: Config, shrink: int = 1) -> int:
    """What was asked for; else what sample_size gives when each side shrinks."""
    if config.n is not None:
        return config.n
    if not config.fields.get("sample_size"):
        return DEFAULT_TOKENS
    return math.prod(max(1, side // shrink) for side in config.each("sample_size", 2))
