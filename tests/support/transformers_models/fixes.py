"""What single classes need beyond the tables of tiny.py and inputs.py, as data."""

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
STAGES = {"encoder_in_channels": [32, 64, 128]}
CONFIGS: dict[str, dict[str, Any]] = {
    "AlignVisionConfig": {"width_coefficient": 0.1, "depth_coefficient": 0.1},
    "BltConfig": {"encoder_hash_byte_group_vocab": 100},
    "BltPatcherConfig": {"max_position_embeddings": 64},
    "ChameleonConfig": {"vocabulary_map": {"<image>": 4}},
    "BambaConfig": {"layers_block_type": ["mamba", "attention"]},
    "CohereCompassTextConfig": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}}
    },
    "ConditionalDetrConfig": DETR,
    "DeformableDetrConfig": DETR,
    "DeepseekOcr2TextConfig": {"mlp_layer_types": ["dense", "sparse"]},
    "DetrConfig": DETR,
    "DFineConfig": STAGES,
    "Deimv2Config": STAGES,
    "EfficientLoFTRConfig": {"hidden_size": 256},
    "Emu3Config": {"vocabulary_map": {"<image>": 4, "<|extra_200|>": 5, "<|visual token 000000|>": 6}},
    "Ernie4_5_VLMoeTextConfig": _mrope(3, 3, 2),
    "FunAsrNanoAdaptorConfig": {"intermediate_size": 16},
    "Glm4vMoeTextConfig": _mrope(2, 1, 1, partial_rotary_factor=0.5),
    "GraniteSpeech5EncoderConfig": {"context_size": 16},
    "JambaConfig": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    "Lfm2MoeConfig": {"layer_types": ["conv", "full_attention"]},
    "MimiConfig": {"upsample_groups": 64},
    "MimiDecoderConfig": {"upsample_groups": 64},
    "MoonshineStreamingConfig": {"num_key_value_heads": 4},
    "PaddleOCRTextConfig": _mrope(4, 2, 2),
    "PPDocLayoutV2Config": STAGES,
    "PPDocLayoutV3Config": STAGES,
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
    "XmodConfig": {"default_language": "en_XX"},
    "ZambaConfig": {"num_hidden_layers": 3},
}
INPUTS: dict[str, dict[str, Any]] = {}
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
