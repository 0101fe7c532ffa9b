"""The attention of one layer of a model in vLLM."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.v1.attention.backend import AttentionImpl, AttentionType  # pyright: ignore[reportMissingImports]

from redblue.base.errors import RedblueError
from redblue.integrations.vllm.cache import pages_of, write
from redblue.integrations.vllm.metadata import RedblueMetadata
from redblue.integrations.vllm.variable import ADVICE
from redblue.integrations.vllm.workers import start_workers
from redblue.masks import Mask
from redblue.op.paged.attention import attention_paged
from redblue.op.varlen import attention_varlen

CACHE_TYPES = ("auto", "float16", "bfloat16")


class RedblueAttention(AttentionImpl):
    """The attention of a decoder's layer, which reads the cache, or of an encoder-only model's layer, without a cache.

    Raises RedblueError, naming the argument, for an unsupported option.
    """

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: Tensor | None = None,
        **others: Any,
    ) -> None:
        _check(attn_type, kv_cache_dtype, alibi_slopes, sinks, num_heads, others)
        self.num_heads = num_heads
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.head_size = head_size
        self.kv_cache_dtype = kv_cache_dtype
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.attn_type = attn_type
        self.scale = float(scale)
        self.sliding_window = sliding_window
        self.logits_soft_cap = logits_soft_cap or None
        self.alibi_slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        self.sinks = sinks
        before = None if sliding_window is None else sliding_window - 1  # a window of 1 is the token itself
        self.causal = Mask.sliding_window(before, 0, align="bottom-right")
        self.two_sided = Mask.sliding_window(before, before, align="bottom-right")
        start_workers()

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: RedblueMetadata | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """Write the attention of query (tokens, H, d) into output (tokens, H, d_v), and return it.

        kv_cache (blocks, key heads, block, d + d_v) already holds the keys and values of all tokens. Only encoder-only
        models read key and value, which belong to the queries' tokens. Without metadata, in vLLM's dry runs before the
        first request, the output is zero.
        """
        if output_scale is not None or output_block_scale is not None:
            raise RedblueError(f"output_scale and output_block_scale must be None: no quantized output; {ADVICE}")
        if attn_metadata is None:
            return output.zero_()
        starts = attn_metadata.query_start_loc
        tokens = int(starts[-1])
        options = {
            "mask": self.causal if attn_metadata.causal else self.two_sided,
            "scale": self.scale,
            "softcap": self.logits_soft_cap,
            "sinks": None if self.sinks is None else self.sinks.to(torch.float32),
        }
        if self.attn_type == AttentionType.ENCODER_ONLY:
            out = attention_varlen(query[:tokens], key[:tokens], value[:tokens], starts, **options)
        else:
            if self.alibi_slopes is not None:
                _check_alibi(attn_metadata.causal)
            k_pages, v_pages = pages_of(kv_cache, self.head_size)
            table, lengths = attn_metadata.block_table, attn_metadata.seq_lens
            out = attention_paged(
                query[:tokens], k_pages, v_pages, table, lengths, starts, alibi=self.alibi_slopes, **options
            )
        output[:tokens] = out
        return output

    def do_kv_cache_update(
        self, layer: Any, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        """Write the keys and values of new tokens into the cache, before `forward` reads it."""
        if self.attn_type != AttentionType.ENCODER_ONLY:
            write(key, value, kv_cache, slot_mapping)


def _check(
    attn_type: str,
    kv_cache_dtype: str,
    alibi_slopes: list[float] | None,
    sinks: Tensor | None,
    num_heads: int,
    others: dict[str, Any],
) -> None:
    """Raise RedblueError for options that this backend does not support."""
    if attn_type not in (AttentionType.DECODER, AttentionType.ENCODER_ONLY):
        raise RedblueError(
            f"attn_type must be decoder or encoder_only, got {AttentionType(attn_type).value}: redblue does not serve "
            f"encoder-decoder models in vLLM; {ADVICE}"
        )
    if kv_cache_dtype not in CACHE_TYPES:
        raise RedblueError(
            f"kv_cache_dtype must be one of {', '.join(CACHE_TYPES)}, got {kv_cache_dtype}: redblue reads no quantized "
            f"cache; {ADVICE}"
        )
    if alibi_slopes is not None and attn_type != AttentionType.DECODER:
        _check_alibi(causal=False)
    if sinks is not None and tuple(sinks.shape) != (num_heads,):
        raise RedblueError(f"sinks must have one entry for each of {num_heads} heads, got shape {tuple(sinks.shape)}")
    unknown = [name for name, option in others.items() if option is not None and option is not False]
    if unknown:
        raise RedblueError(f"redblue's attention for vLLM has no option {', '.join(unknown)}; {ADVICE}")


def _check_alibi(causal: bool) -> None:
    """Raise RedblueError unless attention is causal.

    vLLM's slopes multiply key position - query position, redblue's slopes multiply -|distance|. The two are equal only
    up to the diagonal.
    """
    if not causal:
        raise RedblueError(f"alibi_slopes need causal attention; {ADVICE}")
