"""Inputs of tiny models: several guesses; the first that the eager model accepts is used."""

import inspect
import itertools
from collections.abc import Iterator
from typing import Any

import torch

from support.transformers_models.tiny import IMAGE

BATCH, TOKENS, TARGETS, PADDED = 2, 14, 7, 3


def guesses(model: Any, fixes: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Keyword arguments for `model.forward`, likely ones first."""
    names = inspect.signature(model.forward).parameters
    generator = torch.Generator().manual_seed(1)
    if fixes:
        yield {k: v(model, generator) if callable(v) else v for k, v in fixes.items()}
        return
    if "grid_thw" in names:
        yield from _images(model, names, generator)
    if type(model).__name__.endswith("MultipleChoice"):
        ids = _ids(generator, 3 * TOKENS).view(BATCH, 3, TOKENS)
        yield {"input_ids": ids, "attention_mask": padding().unsqueeze(1).repeat(1, 3, 1)}
    required = [
        name
        for name, p in names.items()
        if p.default is inspect.Parameter.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]
    if len(required) > 1 or any(name in REQUIRED for name in required):
        providers = [_required(name, model.config, generator) for name in required]
        for chosen in itertools.islice(itertools.product(*providers), 12):
            yield dict(zip(required, chosen, strict=True))
    main = model.main_input_name
    order = [main, "input_ids", "pixel_values", "input_features", "input_values", "inputs_embeds", "hidden_states"]
    for kind in dict.fromkeys(x for x in order if isinstance(x, str)):
        if kind not in names and kind != main:
            continue
        for first in _tensors(kind, model.config, generator):
            arguments = {kind: first} | _companions(kind, names, first, generator)
            yield arguments
            if kind == "input_ids" and "decoder_input_ids" in names:
                ended = first.clone()
                ended[:, 8] = (
                    getattr(model.config, "eos_token_id", None) or 0
                )  # encoder-decoders classify by the end of the sentence
                shorter = {name: x for name, x in arguments.items() if name != "decoder_input_ids"}
                yield shorter | {"input_ids": ended}
            if kind == "input_ids" and "use_cache" in names:
                yield arguments | {"use_cache": False}
            yield {kind: first}
    if "pixel_values" in names and "input_ids" in names:
        for image in _tensors("pixel_values", model.config, generator):
            ids = _ids(generator)
            yield {"input_ids": ids, "pixel_values": image} | _companions("input_ids", names, ids, generator)


REQUIRED = {"image", "query_embeds", "pixel_attention_mask", "spatial_shapes", "input_features_mask", "bool_masked_pos"}


def _required(name: str, config: Any, generator: torch.Generator) -> list[Any]:
    """Guesses for an argument that forward requires."""
    if name in ("attention_mask", "input_features_mask", "qformer_attention_mask"):
        return [padding()]
    if name.endswith("input_ids") or name == "audio_input_ids":
        return [_ids(generator)]
    if name == "image":
        return list(_tensors("pixel_values", config, generator))
    if name == "spatial_shapes":
        return [torch.tensor([[4, 4], [2, 8]])]
    if name == "pixel_attention_mask":
        return [torch.ones(BATCH, 16, dtype=torch.long)]
    guessed = list(_tensors(name, config, generator))
    return guessed or [torch.randn(BATCH, TOKENS, 64, generator=generator)]


def _images(model: Any, names: Any, generator: torch.Generator) -> Iterator[dict[str, Any]]:
    """Patches of two images, packed one after the other."""
    from support.transformers_models.known_inputs import GRID, patches

    rows = patches(model, generator)
    for name in ("hidden_states", "pixel_values"):
        if name in names:
            for x in (rows, rows[None]):
                arguments = {name: x, "grid_thw": GRID}
                yield arguments
                if "merge_sizes" in names:
                    yield arguments | {"merge_sizes": torch.tensor([1, 1])}


def _ids(generator: torch.Generator, n: int = TOKENS, most: int = 90) -> torch.Tensor:
    return torch.randint(3, most, (BATCH, n), generator=generator)


def padding(left: bool = False) -> torch.Tensor:
    """An attention mask whose first row has padding."""
    mask = torch.ones(BATCH, TOKENS, dtype=torch.long)
    mask[0, :PADDED] = 0
    return mask if left else mask.flip(1)


def _companions(kind: str, names: Any, first: torch.Tensor, generator: torch.Generator) -> dict[str, Any]:
    """Further arguments that go with the main input."""
    more: dict[str, Any] = {}
    if kind == "input_ids":
        if "attention_mask" in names:
            more["attention_mask"] = padding()
        if "bbox" in names:
            more["bbox"] = torch.randint(0, 9, (BATCH, TOKENS, 4), generator=generator).cumsum(-1)
    if kind == "inputs_embeds" and "attention_mask" in names:
        more["attention_mask"] = padding()
    if "decoder_input_ids" in names:
        more["decoder_input_ids"] = _ids(generator, TARGETS)
    if "encoder_hidden_states" in names and names["encoder_hidden_states"].default is inspect.Parameter.empty:
        more["encoder_hidden_states"] = torch.randn(BATCH, TOKENS, 64, generator=generator)
    return more


def _size(config: Any, *names: str) -> Any:
    """The first of these fields that the config, or a part of it, has."""
    parts = [config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", {}))]
    for name in names:
        for part in parts:
            value = getattr(part, name, None)
            if isinstance(value, (int, list, tuple)) and not isinstance(value, bool):
                return value
    return None


def _tensors(kind: str, config: Any, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """Tensors of the shapes that an input of this name has in one model or another."""

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    if kind in ("input_ids", "decoder_input_ids"):
        yield _ids(generator)
        yield _ids(generator, most=30)
    elif kind == "past_values":
        yield normal(BATCH, _size(config, "context_length") or TOKENS, _size(config, "num_input_channels") or 1)
    elif kind in ("inputs_embeds", "hidden_states"):
        yield normal(BATCH, TOKENS, _size(config, "hidden_size", "d_model") or 64)
    elif kind in ("pixel_values", "images", "pixels", "pixel_values_videos"):
        channels = _size(config, "num_channels", "in_channels", "in_chans") or 3
        size = _size(config, "image_size", "img_size", "crop_size") or IMAGE
        height, width = (size, size) if isinstance(size, int) else (size[0], size[-1])
        frames = _size(config, "num_frames", "frames_per_clip") or 2
        yield normal(BATCH, channels, height, width)
        yield normal(BATCH, frames, channels, height, width)
        yield normal(BATCH, channels, 64, 64)
        yield normal(BATCH, channels, 224, 224)
    elif kind == "input_features":
        mels = _size(config, "input_feat_per_channel", "num_mel_bins", "feature_size", "hidden_size") or 16
        for frames in (32, 64, 128):
            yield normal(BATCH, mels, frames)
            yield normal(BATCH, frames, mels)
        yield normal(BATCH, 64, 160)
        yield normal(BATCH, 1, 64, mels)
    elif kind in ("input_values", "audio_values", "input_audio"):
        yield normal(BATCH, 1600)
        yield normal(BATCH, 1, 1600)
        yield normal(BATCH, 128, 16)
        yield normal(BATCH, 128, 128)
        yield normal(BATCH, 1, 64, 64)
        yield normal(BATCH, 8000)
        yield normal(BATCH, _size(config, "max_length") or 64, _size(config, "num_mel_bins") or 16)
