"""Model types for which a missing field is refused, because redblue would assume another value than the model's class.

Example: a gemma config.json without head_dim means 256, not hidden size / heads. The lists come from the class defaults
of transformers 5.23.0; tests/peers/test_transformers_configs.py compares them with the classes.
"""

from redblue.catalogue.models.config import NAMES

# For each field, the model types whose config.json must give the field.
LEFT_OUT = {
    field: frozenset(kinds.split())
    for field, kinds in {
        "head_dim": (
            "dia_encoder embedding_gemma2_text ernie4_5 flint gemma gemma2 gemma3_text gemma4_text"
            " gemma4_unified_text gpt_oss hy_v3 jetmoe mellum mimo_v2_flash minimax_m2 minimax_m3_vl_text"
            " paddleocr_vl_text qwen3_5_moe_text qwen3_next qwen3_omni_moe_talker_code_predictor qwen4_exp_text"
            " solar_open step3p5 vaultgemma"
        ),
        "num_key_value_heads": (
            "beam bitnet csm csm_depth_decoder_model cwm dia_decoder embedding_gemma2_text emu3_text_model"
            " ernie4_5 ernie4_5_moe ernie4_5_vl_moe_text falcon_h1 flint gemma2 gemma3_text gemma3n_text"
            " gemma4_text gemma4_unified_text glm glm4 glm4v_text glm_image_text glm_ocr_text gpt_oss"
            " granite_docling_text granite_swa higgs_audio_v2 hy_v3 internlm3 iquestcoder jamba jetmoe kolibri1"
            " laguna lfm2 lfm3 lfm3_vl_vision llama4_text mellum mimo_v2_flash minimax minimax_m2"
            " minimax_m3_vl_text ministral ministral3 mistral mixtral mllama_text_model molmo2_text nemotron_h"
            " neomme openai_privacy_filter paddleocr_vl_text phi4_multimodal phimoe qwen2_5_omni_talker"
            " qwen2_5_omni_text qwen2_5_vl_text qwen2_vl_text qwen3_5_moe_text qwen3_5_text qwen3_moe qwen3_next"
            " qwen3_omni_moe_talker_code_predictor qwen3_omni_moe_talker_text qwen4_exp_text seed_oss smollm3"
            " solar_open starcoder2 step3p5 vaultgemma"
        ),
        "v_head_dim": "mimo_v2_flash",
        "kv_lora_rank": (
            "axk1 axk2 bailing_hybrid deepseek_v2 deepseek_v3 deepseek_v32 dots3_note_text glm5_next_text"
            " glm_moe_dsa hy_v4 kimi_linear longcat_flash minicpm3 mistral4 youtu"
        ),
        "sliding_window": "mistral openai_privacy_filter",
        "layer_types": (
            "beam cohere_compass_text cwm dots1 dots3_note_text embedding_gemma2_text flint gemma4_text"
            " gemma4_unified_text granite_swa granitemoe_swa kolibri1 laguna lfm3_vl_vision mellum mimo_v2_flash"
            " minimax modernbert modernbert-decoder muse_glimmer_vision muse_spark_vision neomme ultrabert"
        ),
        "per_layer_config": "dots3_note_text embedding_gemma2_text gemma4_text gemma4_unified_text neomme",
        "cross_attention_layers": "mllama_text_model",
        "attention_chunk_size": "gemma4_audio",
        "is_encoder_decoder": "cohere_asr",
        "multi_query": "falcon gpt_bigcode",
        "num_register_tokens": "dinov2_with_registers eomt_dinov3 tipsv2_vision_model",
        "attn_layer_indices": "bamba",
    }.items()
}
# Alternative names of a field; any one of them is enough.
STANDS_FOR = {
    "head_dim": NAMES["head dimension"],
    "num_key_value_heads": (*NAMES["number of KV heads"], "block_configs", "num_key_value_heads_per_layer"),
    "sliding_window": NAMES["sliding window"],
    "per_layer_config": ("per_layer_config", "global_head_dim", "swa_num_attention_heads"),
    "layer_types": (
        "layer_types",
        "layers_block_type",
        "compress_ratios",
        "full_attention_interval",
        "global_attn_every_n_layers",
        "hybrid_layer_pattern",
        "hybrid_override_pattern",
        "attn_type_list",
        "sliding_window_pattern",
        "use_sliding_window",
    ),
}
