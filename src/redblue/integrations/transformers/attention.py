"""The attention function that redblue registers with transformers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from redblue.base.errors import RedblueError
from redblue.integrations.transformers.mask_tensor import MaskTensor
from redblue.integrations.transformers.packed import packed
from redblue.integrations.transformers.selections import selected_blocks, selected_keys
from redblue.integrations.transformers.support import follows_sdpa, is_captured
from redblue.masks import Mask
from redblue.op.api import attention
from redblue.op.pytorch.boolean import mask_of

# Keyword arguments that models pass to every attention function and that do not change the result here. The mask
# already contains positions and windows; the others are inputs of the model, or concern other kernels, caches or
# outputs. Some models, such as DiffusionGemma, give sliding_window without a mask where every key is attended; eager
# and sdpa also take windows from the mask only.
HARMLESS = {
    "cache_position",
    "deterministic",
    "grid_thw",
    "image_grid_thw",
    "input_ids",
    "inputs_embeds",
    "labels",
    "max_length_k",
    "max_length_q",
    "merge_sizes",
    "num_items_in_batch",
    "output_hidden_states",
    "output_router_logits",
    "past_key_values",
    "position_embeddings",
    "position_ids",
    "return_dict",
    "seq_idx",
    "sliding_window",
    "spatial_shapes",
    "token_type_ids",
    "use_cache",
    "video_grid_thw",
    "vision_feature_layer",
}
BATCHING = "only `generate_batch` on CPUs supports the paged cache of continuous batching"
ADVICE = {
    "output_attentions": "redblue never holds the probabilities",
    "cache": BATCHING,
    "block_table": BATCHING,
    "read_index": BATCHING,
    "write_index": BATCHING,
}


def attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: Any = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    sinks: Tensor | None = None,
    position_bias: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    indices: Tensor | None = None,
    block_indices: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention for a model of transformers. Returns (B, n_q, H, d_v), contiguous, and None for the probabilities.

    query (B, H, n_q, d), key (B, H_kv, n_k, d), value (B, H_kv, n_k, d_v).
    attention_mask: a MaskTensor, a boolean tensor (True: attend), a floating tensor (added to the scores), or None, in
    which case the module's `is_causal` decides. s_aux: one sink per head; sinks: one sink per head and query.
    position_bias: added to the scores, with gradient. cu_seq_lens_*: the bounds of packed sequences. indices,
    block_indices: the keys or blocks of keys that each query selects. Raises RedblueError for an unsupported argument.
    """
    if others:
        check_others(others)
    if block_indices is not None:
        attention_mask = selected_blocks(module, block_indices, attention_mask, key.shape[2], query.shape[1])
    if indices is not None:
        attention_mask = selected_keys(indices, attention_mask, key.shape[2])
    if cu_seq_lens_q is None and cu_seq_lens_k is not None:
        raise RedblueError("cu_seq_lens_k needs cu_seq_lens_q, which is None: give the bounds of the queries, too")
    if cu_seq_lens_q is not None and attention_mask is None:
        causal = query.shape[2] > 1 and _is_causal(module, is_causal)
        mask, bias, used = packed(None, causal, cu_seq_lens_q, cu_seq_lens_k, query, key), None, key.shape[2]
    else:
        mask, bias, used = _mask_and_bias(module, query, key, attention_mask, is_causal)
        if cu_seq_lens_q is not None:
            mask = packed(mask, False, cu_seq_lens_q, cu_seq_lens_k, query, key)
    if position_bias is not None:
        _check_shape("position_bias", position_bias, query, key.shape[2])
        mask, bias = _with_position_bias(mask, bias, position_bias[..., :used])
    if used != key.shape[2]:
        key, value = key[:, :, :used], value[:, :, :used]
    if isinstance(scaling, Tensor):
        query, scaling = query * scaling, 1.0
    if s_aux is not None:
        s_aux = s_aux.reshape(-1)
    options = {"mask": mask, "bias": bias, "scale": scaling, "softcap": softcap, "sinks": s_aux, "dropout": dropout}
    if sinks is None:
        out = attention(query, key, value, **options)
    else:
        _check_shape("sinks", sinks, query, 1)
        out, lse = attention(query, key, value, return_lse=True, **options)
        out = out * (lse.unsqueeze(-1) - sinks).sigmoid().to(out.dtype)  # the share of the softmax without the sink
    return out.transpose(1, 2).contiguous(), None


def check_others(others: dict[str, Any]) -> None:
    """Raise RedblueError for a keyword argument that could change the result. None and False have no effect."""
    for name, value in others.items():
        if name in HARMLESS or value is None or value is False:
            continue
        advice = ADVICE.get(name, "it is unknown here, and ignoring it could change the result")
        raise RedblueError(
            f'attn_implementation="redblue" does not take {name}={_shown(value)}: {advice}; use "eager" or "sdpa"'
        )


def _check_shape(name: str, x: Tensor, query: Tensor, columns: int) -> None:
    """Raise RedblueError unless x broadcasts to (B, H, n_q, columns)."""
    wanted = (*query.shape[:3], columns)
    fits = x.dim() <= 4 and all(a in (1, b) for a, b in zip(reversed(x.shape), reversed(wanted), strict=False))
    if not fits:
        raise RedblueError(f"{name} must broadcast to (batch, heads, n_q, n_k or 1) = {wanted}, got {tuple(x.shape)}")


def _shown(value: Any) -> str:
    return f"<tensor {tuple(value.shape)}>" if isinstance(value, Tensor) else repr(value)[:80]


def _mask_and_bias(
    module: Any, query: Tensor, key: Tensor, attention_mask: Any, is_causal: bool | None
) -> tuple[Mask | None, Tensor | None, int]:
    """The mask, the bias and the number of keys that attention_mask describes."""
    n_q, n_k = query.shape[2], key.shape[2]
    if attention_mask is None:
        if n_q == 1 or not _is_causal(module, is_causal):
            return None, None, n_k
        if n_q < n_k:
            raise RedblueError(
                f"{n_q} queries and {n_k} keys without a mask, in a causal layer: the queries' positions are unknown; "
                "give attention_mask, or is_causal=False"
            )
        return _CAUSAL, None, n_k
    if type(attention_mask) is MaskTensor and attention_mask.is_changed:
        attention_mask = attention_mask.dense()
    if type(attention_mask) is MaskTensor:
        if attention_mask.sizes[2:] != (n_q, n_k):
            queries, keys = attention_mask.sizes[2:]
            raise RedblueError(
                f"attention_mask is for {queries} queries and {keys} keys, but there are {n_q} and {n_k}: give a mask "
                "of these sizes"
            )
        return attention_mask.mask, None, attention_mask.used
    if isinstance(attention_mask, Tensor):
        _check_shape("attention_mask", attention_mask, query, n_k)
        if attention_mask.dtype is torch.bool:
            mask = (
                None
                if is_captured() or type(attention_mask) is not Tensor
                else mask_of(attention_mask, (*query.shape[:3], n_k))
            )
            return (None, attention_mask, n_k) if mask is None else (mask, None, n_k)
        if attention_mask.is_floating_point():
            too_wide = attention_mask.dtype is torch.float64 and query.dtype is not torch.float64
            return None, attention_mask.to(query.dtype) if too_wide else attention_mask, n_k
    raise RedblueError(
        "attention_mask must be boolean (True: attend) or floating (added to the scores), got "
        f"{getattr(attention_mask, 'dtype', type(attention_mask).__name__)}"
    )


_CAUSAL = Mask.causal()


def _is_causal(module: Any, is_causal: bool | None) -> bool:
    """Whether attention without a mask is causal: `is_causal` if given, else the module's setting."""
    if not follows_sdpa(type(module).__module__):
        return False
    return getattr(module, "is_causal", True) if is_causal is None else is_causal


def _with_position_bias(
    mask: Mask | None, bias: Tensor | None, position_bias: Tensor
) -> tuple[Mask | None, Tensor | None]:
    """The mask and the bias with the model's position bias, whose gradient passes through."""
    if bias is None:
        return mask, position_bias
    if bias.dtype is torch.bool:
        return mask, position_bias.masked_fill(~bias, -math.inf)
    return mask, position_bias + bias
