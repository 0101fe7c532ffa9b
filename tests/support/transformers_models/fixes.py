"""What single classes need beyond the tables of tiny.py and inputs.py, as data."""

from collections.abc import Callable
from typing import Any

import torch


def _resnet() -> Any:
    from transformers import ResNetConfig

    return ResNetConfig(
        embedding_size=16,
        hidden_sizes=[16, 16, 32, 32],
        depths=[1, 1, 1, 1],
        out_features=["stage2", "stage3", "stage4"],
    )


def _mrope(*sections: int, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": list(sections), **more}}


DETR = {"backbone_config": _resnet, "use_timm_backbone": False, "backbone": None}
STAGES = {"encoder_in_channels": [32, 64, 128], "decoder_in_channels": [64, 64, 64]}
CONFIGS: dict[str, dict[str, Any]] = {
    "AlignVisionConfig": {"width_coefficient": 0.1, "depth_coefficient": 0.1},
    "BltConfig": {"encoder_hash_byte_group_vocab": 100},
    "BltPatcherConfig": {"max_position_embeddings": 64},
    "ChameleonConfig": {"vocabulary_map": {"<image>": 4}},
    "BambaConfig": {"attn_layer_indices": [1]},
    "CohereCompassTextConfig": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}}
    },
    "ConditionalDetrConfig": DETR | {"encoder_attention_heads": 8, "decoder_attention_heads": 8},
    "DeformableDetrConfig": DETR,
    "DeepseekOcr2TextConfig": {"mlp_layer_types": ["dense", "sparse"]},
    "DbrxAttentionConfig": {"rope_theta": 1e4, "clip_qkv": 8.0},
    "DetrConfig": DETR | {"encoder_attention_heads": 8, "decoder_attention_heads": 8},
    "Dots1Config": {"n_shared_experts": 1},
    "DFineConfig": STAGES,
    "Deimv2Config": STAGES,
    "EfficientLoFTRConfig": {"hidden_size": 256},
    "Emu3Config": {"vocabulary_map": {"<image>": 4, "<|extra_200|>": 5, "<|visual token 000000|>": 6}},
    "Ernie4_5_VLMoeTextConfig": _mrope(3, 3, 2),
    "FunAsrNanoAdaptorConfig": {"intermediate_size": 16},
    "Gemma3nTextConfig": {"num_kv_shared_layers": 0},
    "Glm4vMoeTextConfig": _mrope(2, 1, 1, partial_rotary_factor=0.5),
    "HGNetV2Config": {
        "stem_channels": [3, 8, 8],
        "stage_in_channels": [8, 16, 32, 64],
        "stage_mid_channels": [8, 8, 8, 8],
        "stage_out_channels": [16, 32, 64, 128],
        "hidden_sizes": [16, 32, 64, 128],
    },
    "GraniteSpeech5EncoderConfig": {"context_size": 16},
    "JambaConfig": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    "Lfm2MoeConfig": {"layer_types": ["conv", "full_attention"]},
    "LwDetrViTConfig": {"num_windows": 4},
    "MimiConfig": {"upsample_groups": 64},
    "MimiDecoderConfig": {"upsample_groups": 64},
    "Molmo2AdapterConfig": {"vision_feature_layer": [1, 0]},
    "MoonshineStreamingConfig": {"num_key_value_heads": 4},
    "PaddleOCRTextConfig": _mrope(4, 2, 2),
    "PPDocLayoutV2Config": STAGES,
    "PPDocLayoutV3Config": STAGES | {"x4_feat_dim": 16},
    "PPDocLayoutV4Config": STAGES,
    "RTDetrConfig": STAGES,
    "RTDetrV2Config": STAGES,
    "PocketTTSAudioTokenizerDecoderConfig": {"upsample_groups": 64},
    "Qwen4ExpTextConfig": {
        "indexer_n_heads": 4,
        "indexer_kv_heads": 2,
        "indexer_head_dim": 16,
        "indexer_budget": 8,
        "indexer_compress_ratio": 4,
    },
    "RecurrentGemmaConfig": {"num_hidden_layers": 3},
    "Step3p7TextConfig": {"sliding_window": 5},
    "SwinConfig": {"window_size": 2, "depths": [1, 1], "num_heads": [2, 2]},
    "XmodConfig": {"default_language": "en_XX"},
}


def _drawn(*shape: int) -> Callable[[Any, torch.Generator], torch.Tensor]:
    return lambda model, generator: torch.randn(*shape, generator=generator)


def _series(features: bool, future: bool) -> Callable[[Any, torch.Generator], torch.Tensor]:
    """Past or future values of two series, or what is known of their times."""

    def draw(model: Any, generator: torch.Generator) -> torch.Tensor:
        config = model.config
        length = config.prediction_length if future else config.context_length + max(config.lags_sequence)
        return torch.randn(2, length, *([config.num_time_features] if features else []), generator=generator)

    return draw


def _observed(model: Any, generator: torch.Generator) -> torch.Tensor:
    return torch.ones(2, model.config.context_length + max(model.config.lags_sequence))


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
INPUTS: dict[str, dict[str, Any]] = {
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
NO_TABLE: dict[str, str] = {}


def patches(model: Any, generator: torch.Generator) -> torch.Tensor:
    """Patches of two images of 4 x 4 and 8 x 4 patches, as rows."""
    config = getattr(model.config, "vision_config", model.config)
    channels = getattr(config, "in_channels", None) or getattr(config, "num_channels", None) or 3
    size = config.patch_size if isinstance(config.patch_size, int) else config.patch_size[0]
    frames = getattr(config, "temporal_patch_size", 1)
    frames = frames if isinstance(frames, int) else frames[0]
    return torch.randn(48, channels * frames * size * size, generator=generator)


GRID = torch.tensor([[1, 4, 4], [1, 8, 4]])
