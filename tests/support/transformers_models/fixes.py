"""Fields of tiny configs beyond the tables of tiny.py, as data."""

from typing import Any


def _resnet() -> Any:
    from transformers import ResNetConfig

    return ResNetConfig(
        embedding_size=16,
        hidden_sizes=[16, 16, 32, 32],
        depths=[1, 1, 1, 1],
        out_features=["stage2", "stage3", "stage4"],
    )


def _swin() -> Any:
    from transformers import SwinConfig

    return SwinConfig(
        image_size=32,
        embed_dim=16,
        window_size=2,
        depths=[1, 1, 1, 1],
        num_heads=[2, 2, 2, 2],
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )


def _mrope(*sections: int, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": list(sections), **more}}


DETR = {"backbone_config": _resnet, "use_timm_backbone": False, "backbone": None}
CODEC = {"encoder_hidden_size": 4, "quantization_dim": 128}
IMAGE_TOKEN = 4
STAGES = {"encoder_in_channels": [32, 64, 128], "decoder_in_channels": [64, 64, 64]}
CONFIGS: dict[str, dict[str, Any]] = {
    "AlignConfig": {"projection_dim": 32},
    "AlignVisionConfig": {"width_coefficient": 0.1, "depth_coefficient": 0.1},
    "Blip2QFormerConfig": {"use_qformer_text_input": True},
    "Blip2Config": {"image_token_index": IMAGE_TOKEN},
    "BltConfig": {"encoder_hash_byte_group_vocab": 100},
    "BltLocalDecoderConfig": {"hidden_size_global": 64},
    "BltLocalEncoderConfig": {"hidden_size_global": 64},
    "BltPatcherConfig": {"max_position_embeddings": 64},
    "ChameleonConfig": {"vocabulary_map": {"<image>": 4}},
    "BambaConfig": {"attn_layer_indices": [1]},
    "ClapAudioConfig": {
        "window_size": 4,
        "spec_size": 64,
        "patch_size": 2,
        "patch_stride": [2, 2],
        "hidden_size": 32,
        "patch_embeds_hidden_size": 16,
        "num_hidden_layers": 2,
        "depths": [1, 1],
        "num_attention_heads": [2, 2],
    },
    "CLIPSegConfig": {"extract_layers": [0, 1]},
    "CohereCompassTextConfig": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}}
    },
    "ConditionalDetrConfig": DETR | {"encoder_attention_heads": 8, "decoder_attention_heads": 8},
    "DeformableDetrConfig": DETR,
    "DeepseekOcr2SamVisionConfig": {"output_channels": 64, "downsample_channels": [64, 64]},
    "DeepseekOcr2TextConfig": {"mlp_layer_types": ["dense", "sparse"]},
    "DbrxAttentionConfig": {"rope_theta": 1e4, "clip_qkv": 8.0},
    "DetrConfig": DETR | {"encoder_attention_heads": 8, "decoder_attention_heads": 8},
    "DiaDecoderConfig": {"cross_num_attention_heads": 4, "cross_num_key_value_heads": 4, "cross_head_dim": 16},
    "DiffusionGemmaTextConfig": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32},
    "Dots1Config": {"n_shared_experts": 1},
    "Dots3NoteAudioConfig": {"adapter_out_dim": 64},
    "Dots3NoteVisionConfig": {
        "mlp_layer_types": ["dense", "sparse"],
        "num_experts_per_tok": 2,
        "router_scaling_factor": 1.0,
        "adapter_in_dim": 64,
        "adapter_out_dim": 64,
    },
    "Dots3NoteTextConfig": {
        "num_key_value_heads": 4,
        "head_dim": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 16,
        "v_head_dim": 16,
        **{
            f"swa_{name}": number
            for name, number in {
                "num_attention_heads": 4,
                "num_key_value_heads": 4,
                "q_lora_rank": 16,
                "kv_lora_rank": 16,
                "head_dim": 32,
                "qk_nope_head_dim": 16,
                "v_head_dim": 16,
            }.items()
        },
    },
    "DFineConfig": STAGES,
    "Deimv2Config": STAGES,
    "EfficientLoFTRConfig": {"hidden_size": 256, "num_attention_heads": 8},
    "Emu3VQVAEConfig": {"base_channels": 32, "channel_multiplier": [1, 1], "attn_resolutions": []},
    "Emu3Config": {"vocabulary_map": {"<image>": 4, "<|extra_200|>": 5, "<|visual token 000000|>": 6}},
    "EsmFold2AtomEncoderConfig": {"num_spatial_rope_pairs_per_axis": 2, "num_uid_rope_pairs": 2},
    "EsmFold2Config": {"single_inputs_size": 131},
    "Ernie4_5_VLMoeTextConfig": _mrope(3, 3, 2),
    "Florence2VisionConfig": {
        "embed_dim": [16, 16, 16, 64],
        "num_heads": [1, 1, 1, 1],
        "num_groups": [1, 1, 1, 1],
    },
    "FunAsrNanoAdaptorConfig": {"intermediate_size": 16},
    "Gemma3nAudioConfig": {
        "sscp_conv_channel_size": [8, 8],
        "conf_attention_context_left": 5,
        "conf_attention_chunk_size": 4,
    },
    "Gemma3nTextConfig": {"num_kv_shared_layers": 0},
    "Glm4vMoeTextConfig": _mrope(2, 1, 1, partial_rotary_factor=0.5),
    "Granite4VisionConfig": {
        "image_token_index": IMAGE_TOKEN,
        "downsample_rate": "1/2",
        "deepstack_layer_map": [[-1, 0]],
        "spatial_target_layers": [0, 1],
        "image_grid_pinpoints": [[32, 32]],
    },
    "HGNetV2Config": {
        "stem_channels": [3, 8, 8],
        "stage_in_channels": [8, 16, 32, 64],
        "stage_mid_channels": [8, 8, 8, 8],
        "stage_out_channels": [16, 32, 64, 128],
        "hidden_sizes": [16, 32, 64, 128],
    },
    "GraniteSpeech5EncoderConfig": {"context_size": 16},
    "InstructBlipConfig": {"image_token_index": IMAGE_TOKEN},
    "InstructBlipVideoConfig": {"video_token_index": IMAGE_TOKEN},
    "Kosmos2Config": {"latent_query_num": 8},
    "JanusVQVAEConfig": {"base_channels": 32, "channel_multiplier": [1, 1], "latent_channels": 64},
    "JambaConfig": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    "Lfm2MoeConfig": {"layer_types": ["conv", "full_attention"]},
    "LwDetrConfig": {
        "projector_scale_factors": [1.0],
        "decoder_self_attention_heads": 4,
        "decoder_cross_attention_heads": 4,
        "group_detr": 1,
    },
    "LwDetrViTConfig": {"num_windows": 4},
    "Llama4VisionConfig": {
        "projector_input_dim": 64,
        "projector_output_dim": 64,
        "vision_output_dim": 64,
        "intermediate_size": 256,
    },
    "MaskFormerConfig": {"backbone_config": _swin},
    "MimiConfig": {"upsample_groups": 64},
    "MimiDecoderConfig": {"upsample_groups": 64},
    "MllamaVisionConfig": {"intermediate_layers_indices": [0], "vision_output_dim": 128},
    "Molmo2VisionConfig": {"image_size": [32, 32], "num_position_embeddings": 16},
    "Molmo2AdapterConfig": {"vision_feature_layer": [1, 0]},
    "MoonshineStreamingConfig": {"num_key_value_heads": 4},
    "MoshiDepthConfig": {"input_size": 64, "num_codebooks": 14},
    "MuseSparkAudioConfig": {"patch_sizes": [4, 2], "hidden_sizes": [16, 32], "depths": [1, 1], "out_hidden_size": 64},
    "NeuCodecConfig": CODEC,
    "PaddleOCRTextConfig": _mrope(4, 2, 2),
    "PPDocLayoutV2Config": STAGES | {"class_thresholds": [0.5, 0.5], "class_order": [0, 1]},
    "PPDocLayoutV3Config": STAGES | {"x4_feat_dim": 16},
    "PPDocLayoutV4Config": STAGES,
    "RTDetrConfig": STAGES,
    "RTDetrV2Config": STAGES,
    "Phi4MultimodalAudioConfig": {
        "ext_pw_out_channel": 64,
        "depthwise_separable_out_channel": 64,
        "nemo_conv_channels": 64,
    },
    "PPDocLayoutV2ReadingOrderConfig": {"max_2d_position_embeddings": 1024},
    "PocketTTSAudioTokenizerConfig": {"upsample_groups": 64},
    "PocketTTSAudioTokenizerDecoderConfig": {"upsample_groups": 64},
    "PocketTTSAudioTokenizerEncoderConfig": {"upsample_groups": 64},
    "Qwen2_5OmniBigVGANConfig": {"upsample_initial_channel": 64},
    "Qwen2_5OmniAudioEncoderConfig": {"n_window": 8},
    "Qwen3OmniMoeTalkerConfig": {"spatial_merge_size": 2},
    "Qwen3OmniMoeTalkerTextConfig": {"shared_expert_intermediate_size": 32},
    "Qwen4ExpTextConfig": {
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 8,
        "indexer_compress_ratio": 4,
    },
    "RecurrentGemmaConfig": {"num_hidden_layers": 3},
    "Sam2HieraDetConfig": {
        "hidden_size": 16,
        "image_size": [64, 64],
        "embed_dim_per_stage": [16, 32, 64, 128],
        "num_attention_heads_per_stage": [1, 2, 4, 8],
        "blocks_per_stage": [1, 1, 2, 1],
        "global_attention_blocks": [3],
        "window_size_per_stage": [4, 2, 4, 2],
    },
    "Sam2VisionConfig": {
        "backbone_channel_list": [128, 64, 32, 16],
        "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
    },
    "Sam3VisionConfig": {"backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]]},
    "SamVisionConfig": {"output_channels": 64, "num_pos_feats": 32},
    "SamHQVisionConfig": {"output_channels": 64, "num_pos_feats": 32},
    "SamHQMaskDecoderConfig": {"vit_dim": 64},
    "Sapiens2HeadConfig": {
        "upsample_out_channels": [16, 16],
        "conv_out_channels": [16],
        "scale_conv_out_channels": [8],
        "scale_final_hidden_sizes": [8, 8],
    },
    "SuperPointConfig": {"keypoint_decoder_dim": 65},
    "Step3p7TextConfig": {"sliding_window": 5},
    "SwinConfig": {"window_size": 2, "depths": [1, 1], "num_heads": [2, 2]},
    "UnlimitedOcrSamVisionConfig": {"output_channels": 64, "downsample_channels": [64, 64]},
    "Xcodec2Config": CODEC,
    "XmodConfig": {"default_language": "en_XX"},
    "ZambaConfig": {"num_hidden_layers": 5, "layers_block_type": ["mamba", "mamba", "hybrid", "mamba", "hybrid"]},
}

# Fields that one model class needs and others with the same class of config must not have
CLASSES: dict[str, dict[str, Any]] = {
    "BeitForSemanticSegmentation": {"num_hidden_layers": 4, "out_indices": [1, 2, 3, 4]},
    "BridgeTowerForContrastiveLearning": {"contrastive_hidden_size": 32, "logit_scale_init_value": 2.6},
    "DPTForDepthEstimation": {"num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3]},
    "DPTForSemanticSegmentation": {"num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3]},
    "Pix2StructTextModel": {"initializer_range": 0.2},
    "T5GemmaEncoderModel": {"is_encoder_decoder": False},
}
