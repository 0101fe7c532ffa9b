"""The attention backend that redblue registers as vLLM's CPU_ATTN."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from vllm.v1.attention.backend import AttentionBackend, AttentionType  # pyright: ignore[reportMissingImports]
from vllm.v1.kv_cache_interface import KVCacheLayout  # pyright: ignore[reportMissingImports]

from redblue.integrations.vllm.attention import CACHE_TYPES, RedblueAttention
from redblue.integrations.vllm.metadata import RedblueMetadataBuilder


class RedblueBackend(AttentionBackend):
    """vLLM's attention on CPUs, computed by redblue: any head size and any block size, in the model's number type."""

    forward_includes_kv_cache_update = False  # vLLM calls do_kv_cache_update for layers that have their own cache
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = list(CACHE_TYPES)

    @staticmethod
    def get_name() -> str:
        return "CPU_ATTN"  # vLLM accepts only names of its own backends

    @staticmethod
    def get_impl_cls() -> type[RedblueAttention]:
        return RedblueAttention

    @staticmethod
    def get_builder_cls() -> type[RedblueMetadataBuilder]:
        return RedblueMetadataBuilder

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        return (KVCacheLayout.LBHNC,)  # layer, block, head, row: a head of a block is contiguous

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type in (AttentionType.DECODER, AttentionType.ENCODER_ONLY)

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_non_causal(cls) -> bool:
        return True

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_kv_connector(cls) -> bool:
        return False
