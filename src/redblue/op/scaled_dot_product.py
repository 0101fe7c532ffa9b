"""The counterpart of PyTorch's scaled_dot_product_attention."""

from __future__ import annotations

from typing import Any

from redblue.base.errors import RedblueError
from redblue.masks import Mask
from redblue.op.api import attention, is_torch
from redblue.op.checks import check_flag, check_grouping, check_one_kind_of_mask


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """The counterpart of torch.nn.functional.scaled_dot_product_attention, on the same tensors with the same meaning.

    query (..., H, n_q, d), key (..., H_kv, n_k, d), value (..., H_kv, n_k, d_v): PyTorch tensors, with gradients; NumPy
    arrays, without dropout; or nested tensors, without attn_mask.
    attn_mask: boolean (True means attend) or floating (added to the scores), broadcastable to (..., H, n_q, n_k), and
    differentiable. is_causal: query i attends keys 0 .. i (aligned top left); not together with attn_mask.
    dropout_p: the share of probabilities that become 0. scale: the factor of the scores; 1 / sqrt(d) if None.
    enable_gqa: H may be a multiple of H_kv; otherwise, unlike for `attention`, both must be equal.

    Returns out (..., H, n_q, d_v). Raises RedblueError, naming the argument, for an unsupported value.
    """
    check_flag("is_causal", is_causal)
    check_flag("enable_gqa", enable_gqa)
    check_one_kind_of_mask(attn_mask, is_causal)
    mask = _CAUSAL if is_causal else None
    if is_nested(query) or is_nested(key) or is_nested(value):
        from redblue.op.pytorch import nested

        if attn_mask is not None:
            raise RedblueError(
                "attn_mask is not supported for nested tensors, which are masked by their lengths: use is_causal"
            )
        return nested.scaled_dot_product_attention(query, key, value, dropout_p, mask, scale, enable_gqa)
    check_grouping(query, key, value, enable_gqa)
    return attention(query, key, value, mask=mask, bias=attn_mask, dropout=dropout_p, scale=scale)


_CAUSAL = Mask.causal()


def is_nested(array: Any) -> bool:
    """Whether this is a nested tensor of PyTorch."""
    return is_torch(array) and array.is_nested
