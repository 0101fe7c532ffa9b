"""Inputs of single classes beyond the guesses of inputs.py, as data."""

from collections.abc import Callable
from typing import Any

import torch

from support.transformers_models.fixes import IMAGE_TOKEN


def _drawn(*shape: int) -> Callable[[Any, torch.Generator], torch.Tensor]:
    return lambda model, generator: torch.randn(*shape, generator=generator)


def _series(features: bool, future: bool) -> Callable[[Any, torch.Generator], torch.Tensor]:
    """Past or future values of two series, or the features of their times."""

    def draw(model: Any, generator: torch.Generator) -> torch.Tensor:
        config = model.config
        length = config.prediction_length if future else config.context_length + max(config.lags_sequence)
        return torch.randn(2, length, *([config.num_time_features] if features else []), generator=generator)

    return draw


def _observed(model: Any, generator: torch.Generator) -> torch.Tensor:
    return torch.ones(2, model.config.context_length + max(model.config.lags_sequence))


def _patch_rows(width: int) -> Callable[[Any, torch.Generator], torch.Tensor]:
    """Patches as rows; each begins with its row and column numbers, counted from 1."""

    def draw(model: Any, generator: torch.Generator) -> torch.Tensor:
        places = torch.cartesian_prod(torch.arange(1, 5), torch.arange(1, 5)).float().expand(2, 16, 2)
        return torch.cat([places, torch.randn(2, 16, width, generator=generator)], -1)

    return draw


def _tokens(*shape: int, most: int = 90) -> Callable[[Any, torch.Generator], torch.Tensor]:
    return lambda model, generator: torch.randint(5, most, shape, generator=generator)


def _with_images(count: int) -> Callable[[Any, torch.Generator], torch.Tensor]:
    """Tokens of text after `count` tokens that stand for an image."""
    draw = _tokens(2, count + 6)

    def drawn(model: Any, generator: torch.Generator) -> torch.Tensor:
        ids = draw(model, generator)
        ids[:, :count] = IMAGE_TOKEN
        return ids

    return drawn


def _ended(model: Any, generator: torch.Generator) -> torch.Tensor:
    """Tokens that end with the end of the sentence."""
    ids = torch.randint(5, 90, (2, 14), generator=generator)
    ids[:, -1] = model.config.eos_token_id
    return ids


SERIES = {
    "past_values": _series(features=False, future=False),
    "past_time_features": _series(features=True, future=False),
    "past_observed_mask": _observed,
    "future_values": _series(features=False, future=True),
    "future_time_features": _series(features=True, future=True),
}
PATCH_ROWS = {
    "pixel_values": _drawn(2, 16, 192),
    "pixel_attention_mask": torch.ones(2, 16, dtype=torch.long),
    "spatial_shapes": torch.tensor([[4, 4], [2, 8]]),
}
SPEECH = {"input_ids": torch.arange(3, 31).view(2, 14), "decoder_input_ids": torch.arange(126).view(2, 7, 9) % 29}
PICTURES = {
    "input_ids": torch.arange(3, 31).view(2, 14),
    "attention_mask": torch.ones(2, 14, dtype=torch.long),
    "pixel_values": _drawn(2, 1, 3, 32, 32),
    "image_attention_mask": torch.ones(2, 14, 1, dtype=torch.long),
}
PICTURE = {"pixel_values": _drawn(2, 3, 32, 32)}
QUESTION = PICTURE | {"input_ids": _with_images(8)}
INSTRUCTED = QUESTION | {"qformer_input_ids": _tokens(2, 14)}
VIDEO = INSTRUCTED | {"pixel_values": _drawn(2, 2, 3, 32, 32), "input_ids": _with_images(16)}
PAIR = {"pixel_values": _drawn(1, 2, 3, 64, 64)}
ONES = torch.ones(2, 32, dtype=torch.long)
PATCH_LINE = {"pixel_values": _drawn(1, 3, 8, 8 * 32), "target_sizes": torch.tensor([[4, 4], [4, 4]])}
KOSMOS = PICTURE | {
    "input_ids": _tokens(2, 14),
    "image_embeds_position_mask": (torch.arange(28).view(2, 14) % 14 < 8).long(),
}
MUSIC = {"input_ids": _tokens(2, 14), "decoder_input_ids": _tokens(8, 7, most=30)}
SOUND = {"input_values": _drawn(2, 1, 1600), "input_features": _drawn(2, 5, 160)}
UNITS = {"input_ids": _tokens(2, 14, most=30), "lang_id": torch.zeros(2, 1, dtype=torch.long)}
PADDLE = {"pixel_values": _drawn(1, 48, 3, 8, 8), "grid_thw": torch.tensor([[1, 4, 4], [1, 8, 4]])}
INPUTS: dict[str, dict[str, Any]] = {
    "AlignModel": PICTURE | {"input_ids": _tokens(2, 14)},
    "AudioFlamingo3Encoder": {"input_features": _drawn(2, 16, 32), "input_features_mask": ONES},
    "Blip2ForConditionalGeneration": QUESTION,
    "Blip2ForImageTextRetrieval": PICTURE
    | {
        "input_ids": _tokens(2, 14),
        "attention_mask": torch.ones(2, 14, dtype=torch.long),
        "use_image_text_matching_head": True,
    },
    "Blip2Model": QUESTION,
    "BltForCausalLM": {"input_ids": _tokens(2, 14), "use_cache": False},
    "BltModel": {"input_ids": _tokens(2, 14), "use_cache": False},
    "ClapAudioModel": {"input_features": _drawn(2, 1, 64, 16)},
    "ClapAudioModelWithProjection": {"input_features": _drawn(2, 1, 64, 16)},
    "ClapModel": {"input_ids": _tokens(2, 14), "input_features": _drawn(2, 1, 64, 16)},
    "CLIPSegForImageSegmentation": PICTURE | {"input_ids": _tokens(2, 14)},
    "DecisionTransformerModel": {
        "states": _drawn(2, 5, 17),
        "actions": _drawn(2, 5, 4),
        "rewards": _drawn(2, 5, 1),
        "returns_to_go": _drawn(2, 5, 1),
        "timesteps": torch.arange(10).view(2, 5),
        "attention_mask": torch.ones(2, 5, dtype=torch.long),
    },
    "EfficientLoFTRForKeypointMatching": PAIR,
    "EfficientLoFTRModel": PAIR,
    "Dots3NoteAudioModel": {
        "input_features": _drawn(2, 64, 32),
        "chunk_sample_lengths": torch.tensor([32 * 160, 20 * 160]),
    },
    "Florence2VisionBackbone": {"hidden_states": _drawn(2, 3, 32, 32)},
    "FunAsrNanoEncoder": {"input_features": _drawn(2, 32, 112), "input_features_mask": ONES},
    "Gemma3nAudioEncoder": {
        "audio_mel": _drawn(2, 32, 128),
        "audio_mel_mask": torch.zeros(2, 32, dtype=torch.bool),
    },
    "Gemma4VisionModel": {
        "pixel_values": _drawn(2, 36, 192),
        "pixel_position_ids": torch.cartesian_prod(torch.arange(6), torch.arange(6)).expand(2, 36, 2),
    },
    "InklingAudioModel": {"audio_input_ids": _tokens(2, 5, 80)},
    "InklingVisionModel": {"pixel_values": _drawn(2, 2, 8, 8, 3)},
    "Inkling2VisionModel": {
        "pixel_values": _drawn(12, 16, 16, 3),
        "image_grid_thw": torch.tensor([[1, 2, 2], [1, 4, 2]]),
    },
    "Kimi_K25VisionModel": PADDLE | {"pixel_values": _drawn(48, 3, 8, 8)},
    "InstructBlipForConditionalGeneration": INSTRUCTED,
    "InstructBlipModel": INSTRUCTED,
    "InstructBlipVideoForConditionalGeneration": VIDEO,
    "InstructBlipVideoModel": VIDEO,
    "Kosmos2ForConditionalGeneration": KOSMOS,
    "Kosmos2Model": KOSMOS,
    "Kosmos2_5VisionModel": {"flattened_patches": _patch_rows(64)},
    "LightGlueForKeypointMatching": PAIR,
    "Pix2StructVisionModel": {"flattened_patches": _patch_rows(64)},
    "Pix2StructForConditionalGeneration": {
        "flattened_patches": _patch_rows(64),
        "decoder_input_ids": _tokens(2, 7),
    },
    "Siglip2Model": PATCH_ROWS | {"input_ids": _tokens(2, 14)},
    "Molmo2Adapter": {"image_features": _drawn(2, 8, 128), "pooled_patches_idx": torch.arange(16).view(4, 4)},
    "MllamaVisionModel": {
        "pixel_values": _drawn(2, 1, 4, 3, 32, 32),
        "aspect_ratio_ids": torch.tensor([[1], [2]]),
        "aspect_ratio_mask": torch.tensor([[[1, 0, 0, 0]], [[1, 1, 0, 0]]]),
    },
    "NeuCodecModel": SOUND,
    "Xcodec2Model": SOUND,
    "SeamlessM4TCodeHifiGan": UNITS | {"spkr_id": torch.zeros(2, 1, dtype=torch.long)},
    "SeamlessM4Tv2CodeHifiGan": UNITS | {"speaker_id": torch.zeros(2, 1, dtype=torch.long)},
    "SeamlessM4Tv2TextToUnitForConditionalGeneration": {
        "inputs_embeds": _drawn(2, 14, 64),
        "char_input_ids": _tokens(2, 28),
        "char_count_per_id": torch.full((2, 14), 2),
    },
    "T5ForSequenceClassification": {"input_ids": _ended, "decoder_input_ids": _tokens(2, 14)},
    "UnlimitedOcrVisionEncoder": {"patch_embeds": _drawn(2, 64, 4, 4)},
    "WhisperDecoderWrapper": {"input_ids": _tokens(2, 14)},
    "Qwen2_5OmniToken2WavBigVGANModel": {"mel_spectrogram": _drawn(1, 80, 14)},
    "Qwen2_5OmniToken2WavDiTModel": {
        "hidden_states": _drawn(2, 8, 80),
        "condition_vector": _drawn(2, 8, 80),
        "speaker_embedding": _drawn(2, 8, 64),
        "quantized_code": _tokens(2, 4, most=30),
        "time_step": torch.tensor(0.3),
        "apply_cfg": False,
    },
    "MuseGlimmerAssistantModel": {"noise_embeds": _drawn(2, 4, 64), "context_hidden_states": _drawn(2, 10, 320)},
    "MoshiDepthDecoder": {"input_ids": _tokens(2, 14, most=30), "last_hidden_state": _drawn(2, 1, 64)},
    "Molmo2VisionModel": {"pixel_values": _drawn(2, 16, 192)},
    "MusicgenForConditionalGeneration": {"input_ids": _tokens(2, 14), "decoder_input_ids": _tokens(8, 7, most=30)},
    "MusicgenMelodyForConditionalGeneration": {
        "input_ids": _tokens(2, 14),
        "decoder_input_ids": _tokens(8, 7, most=30),
    },
    "PPOCRV5MobileRecForTextRecognition": {"pixel_values": _drawn(2, 3, 96, 128)},
    "PPOCRV5ServerRecForTextRecognition": {"pixel_values": _drawn(2, 3, 96, 128)},
    "PaddleOCRVisionModel": PADDLE,
    "PaddleOCRVisionTransformer": PADDLE,
    "MiniCPMV4_6VisionModel": PATCH_LINE,
    "MiniCPMV4_7VisionModel": PATCH_LINE,
    "MiniCPMOcrVisionModel": PATCH_LINE,
    "Phi4MultimodalAudioModel": {"hidden_states": _drawn(2, 64, 80), "mask": None},
    "PocketTTSAudioTokenizerDecoderModel": {"latents": _drawn(2, 64, 14)},
    "Qwen2_5OmniAudioEncoder": {
        "input_features": _drawn(16, 32),
        "feature_lens": torch.tensor([20, 12]),
        "aftercnn_lens": torch.tensor([10, 6]),
    },
    "Qwen3OmniMoeAudioEncoder": {
        "input_features": _drawn(16, 240),
        "feature_lens": torch.tensor([150, 90]),
    },
    "Qwen3ASREncoder": {
        "input_features": _drawn(2, 16, 200),
        "input_features_mask": torch.ones(2, 200, dtype=torch.long),
    },
    "Qwen3OmniMoeCode2Wav": {"codes": torch.arange(2 * 16 * 5).view(2, 16, 5) % 32},
    "SplinterForPreTraining": {"input_ids": _tokens(2, 14), "question_positions": torch.tensor([[2, 5], [3, 7]])},
    "TimesFmModel": {
        "past_values": _drawn(2, 64),
        "past_values_padding": torch.zeros(2, 64, dtype=torch.long),
        "freq": torch.zeros(2, 1, dtype=torch.long),
    },
    "TimesFmModelForPrediction": {"past_values": _drawn(2, 64), "freq": [0, 1]},
    "TimesFm2_5Model": {"past_values": _drawn(2, 64)},
    "TimesFm2_5ModelForPrediction": {"past_values": _drawn(2, 64)},
    "VideoMAEForPreTraining": {
        "pixel_values": _drawn(2, 2, 3, 32, 32),
        "bool_masked_pos": torch.arange(32).view(2, 16) % 2 == 0,
    },
    "VoxtralRealtimeForConditionalGeneration": {"input_ids": _tokens(2, 8), "input_features": _drawn(2, 16, 64)},
    "VoxtralRealtimeModel": {"input_ids": _tokens(2, 8), "input_features": _drawn(2, 16, 64)},
    "InformerModel": SERIES,
    "InformerForPrediction": SERIES,
    "TimeSeriesTransformerModel": SERIES,
    "TimeSeriesTransformerForPrediction": SERIES,
    "Siglip2ForImageClassification": PATCH_ROWS,
    "Siglip2VisionModel": PATCH_ROWS,
    "DiaModel": SPEECH,
    "DiaForConditionalGeneration": SPEECH,
    "IdeficsModel": PICTURES,
    "IdeficsForVisionText2Text": PICTURES,
}


def patches(model: Any, generator: torch.Generator) -> torch.Tensor:
    """Patches of two images of 4 x 4 and 8 x 4 patches, as rows."""
    config = getattr(model.config, "vision_config", model.config)
    channels = getattr(config, "in_channels", None) or getattr(config, "num_channels", None) or 3
    size = config.patch_size if isinstance(config.patch_size, int) else config.patch_size[0]
    frames = getattr(config, "temporal_patch_size", None) or getattr(config, "patch_temporal", 1)
    frames = frames if isinstance(frames, int) else frames[0]
    return torch.randn(48, channels * frames * size * size, generator=generator)


GRID = torch.tensor([[1, 4, 4], [1, 8, 4]])
