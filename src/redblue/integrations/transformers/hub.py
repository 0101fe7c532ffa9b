"""The attention function of the kernel repository (redblue.integrations.hub_kernel), for every name of a repository.

transformers calls this function directly, with the masks that it makes for "sdpa". A kernel repository can also offer
the functions of FlashAttention. transformers then calls these with fewer arguments: it drops `position_bias` silently.
transformers does not check whether a model supports kernels, so this function refuses models that would be wrong.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionMaskInterface
from transformers.masking_utils import sdpa_mask
from transformers.modeling_utils import PreTrainedModel

from redblue.base.errors import RedblueError
from redblue.integrations.transformers.attention import attention_forward
from redblue.integrations.transformers.batching import manager
from redblue.integrations.transformers.mask_tensor import MaskTensor
from redblue.integrations.transformers.support import follows_sdpa, is_captured
from redblue.masks import Mask

INSTEAD = 'call redblue.integrations.transformers.register() and use attn_implementation="redblue"'
# Other parts of these models compute with the mask in code of their own, although the models support FlashAttention
COMPUTES_WITH_MASK = {"transformers.models.pegasus_x.modeling_pegasus_x"}

supports_flash_attn = True  # by this name, transformers recognises repositories with a flash_attn_forward


def flash_attn_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention for a model of transformers, like `attention_forward`.

    On CPUs, calls of continuous batching go to `paged_forward`. Raises RedblueError for models that may not compute
    right with the masks of a kernel, and for masks of another form than that of "sdpa".
    """
    if others.get("cache") is not None and query.device.type == "cpu" and manager() is not None:
        from redblue.integrations.transformers.paged import paged_forward

        # Continuous batching gives kernels no mask, but the model makes one of the new tokens alone
        if attention_mask is not None and attention_mask.dtype is torch.bool:
            attention_mask = None
        others |= {"sliding_window": sliding_window, "is_causal": is_causal}
        return paged_forward(module, query, key, value, attention_mask, **others)  # pyright: ignore[reportCallIssue]
    n_q, n_k = query.shape[2], key.shape[2]
    name = getattr(getattr(module, "config", None), "_attn_implementation", None) or ""
    _check_masks(name)
    if attention_mask is None:
        _check_window(name, sliding_window, n_k)
    elif attention_mask.dim() != 4:
        raise RedblueError(
            f"attention_mask must be (batch, 1 or heads, n_q, n_k) in a kernel, got {tuple(attention_mask.shape)}: "
            f"{INSTEAD}"
        )
    if not follows_sdpa(type(module).__module__):
        attention_mask = _mask_of_other_models(module, attention_mask, is_causal, query, n_q, n_k)
    return attention_forward(module, query, key, value, attention_mask, is_causal=is_causal, **others)


def _check_masks(name: str) -> None:
    """Raise RedblueError unless transformers makes the masks of "sdpa" for this name of an attention."""
    if not is_captured() and AttentionMaskInterface._global_mapping.get(name, sdpa_mask) is not sdpa_mask:
        raise RedblueError(f'this transformers gives kernels other masks than those of "sdpa": {INSTEAD}')


def _check_window(name: str, window: int | None, n_k: int) -> None:
    """Raise RedblueError if a window may leave out keys. Masks have the window, but models may omit one for "flash"."""
    if "flash" in name and window is not None and n_k > window:
        raise RedblueError(f'sliding_window={window} for {n_k} keys without a mask, under the name "{name}": {INSTEAD}')


def _mask_of_other_models(
    module: Any, attention_mask: Tensor | None, is_causal: bool | None, query: Tensor, n_q: int, n_k: int
) -> Tensor | None:
    """The mask of a model that transformers marks as unfit for "sdpa".

    Such a model may compute with its mask as if it were floating, which turns a boolean mask into a wrong one. But if
    it supports FlashAttention, it passes its mask on, and a layer without a mask is causal if its `is_causal` is True.
    """
    name, modeling_module = type(module).__name__, type(module).__module__
    if not _supports_flash(modeling_module) or modeling_module in COMPUTES_WITH_MASK:
        raise RedblueError(f"{name} does not support the masks of kernels: {INSTEAD}")
    if attention_mask is None:
        if n_q == 1 or not (module.is_causal if is_causal is None else is_causal):
            return None
        if n_q != n_k:
            raise RedblueError(f"{n_q} queries and {n_k} keys without a mask, in a causal layer: {INSTEAD}")
        if is_captured():
            return torch.ones(1, 1, n_q, n_k, dtype=torch.bool, device=query.device).tril()
        return MaskTensor(Mask.causal(), n_k, (query.shape[0], 1, n_q, n_k), query.device)
    if attention_mask.dtype is not torch.bool:
        raise RedblueError(f"{name} has computed a floating mask from the boolean mask of a kernel: {INSTEAD}")
    return attention_mask


@torch.compiler.assume_constant_result
def _supports_flash(modeling_module: str) -> bool:
    """Whether all models of a module support FlashAttention."""
    return _all_support_flash(modeling_module)


@cache
def _all_support_flash(modeling_module: str) -> bool:
    return all(
        member._supports_flash_attn
        for member in vars(sys.modules.get(modeling_module, object)).values()
        if isinstance(member, type) and issubclass(member, PreTrainedModel) and member.__module__ == modeling_module
    )
