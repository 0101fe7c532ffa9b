"""The metadata of a batch of vLLM's requests, which the attention of each layer reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm.logger import init_logger  # pyright: ignore[reportMissingImports]
from vllm.v1.attention.backend import (  # pyright: ignore[reportMissingImports]
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)

from redblue.base.errors import RedblueError
from redblue.integrations.vllm.variable import ADVICE, VARIABLE

logger = init_logger("vllm.redblue")  # formatted like vLLM's own lines


@dataclass
class RedblueMetadata:
    """One batch of requests, B of them, for all layers.

    query_start_loc (B + 1,): the first token of each request, and their total. seq_lens (B,): the keys of each request.
    block_table (B, most blocks): the blocks of each request. slot_mapping: a slot of the cache for each token. causal:
    True for causal, False for two-sided attention.
    """

    query_start_loc: Tensor
    seq_lens: Tensor
    block_table: Tensor
    slot_mapping: Tensor
    causal: bool
    num_actual_tokens: int


class RedblueMetadataBuilder(AttentionMetadataBuilder):
    """Builds the metadata of each batch. Raises RedblueError, at the start, for a KV connector."""

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        if vllm_config.kv_transfer_config is not None:
            raise RedblueError(
                "kv_transfer_config must be None: a KV connector may bring blocks in the layout of vLLM's own kernel, "
                f"which redblue would misread; {ADVICE}"
            )
        logger.info_once("redblue computes the attention of CPU_ATTN (%s=1).", VARIABLE)

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> RedblueMetadata:
        """The metadata of a batch. Raises RedblueError for masks that are neither causal nor two-sided windows."""
        batch, requests = common_attn_metadata, common_attn_metadata.num_reqs
        if isinstance(batch.causal, Tensor):
            raise RedblueError(f"causal must be one flag for all requests of a batch, got a tensor; {ADVICE}")
        for name in ("mm_req_doc_ranges", "rswa_prefix_lens"):  # vLLM's own kernel for CPUs ignores these masks, too
            if getattr(batch, name, None) is not None:
                raise RedblueError(f"{name} must be None: redblue's attention for vLLM has no such mask; {ADVICE}")
        return RedblueMetadata(
            batch.query_start_loc[: requests + 1],
            batch.seq_lens[:requests],
            batch.block_table_tensor[:requests],
            batch.slot_mapping,
            batch.causal,
            batch.num_actual_tokens,
        )
