"""The mask function that redblue registers with transformers: from a mask function and padding to a MaskTensor."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import masking_utils

from redblue.base.errors import RedblueError
from redblue.integrations.transformers import recognised
from redblue.integrations.transformers.mask_tensor import MaskTensor
from redblue.integrations.transformers.support import follows_sdpa, is_captured
from redblue.integrations.transformers.tiles import lowered_by_tiles
from redblue.masks import Mask
from redblue.masks.rules.bands import Window

SMALL = 1 << 14  # pairs of a query and a key: for fewer, making a rule takes longer than a forward pass saves


def redblue_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Callable = masking_utils.causal_mask_function,
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    config: Any = None,
    **others: Any,
) -> Tensor | None:
    """The mask of a forward pass, for all layers that share it. It has the signature of transformers' mask functions.

    The result is a MaskTensor, with two kinds of exceptions:
    - With allow_is_bidirectional_skip, the result is None if every query attends every key.
    - The result is transformers' own mask for "sdpa", a plain tensor or None, if there is a single query, if a graph is
      being captured, or if a small mask is no window. Models that support floating masks only get the mask
      for "eager". (A single query, which is a step of generation, needs only one number per key. Making the rule of a
      small mask costs more than the rule saves.)
    Raises RedblueError unless attention_mask is (batch_size, keys).
    """
    _check_padding(attention_mask, batch_size)
    floating = config is not None and not follows_sdpa(type(config).__module__.replace(".configuration_", ".modeling_"))
    plain = partial(
        masking_utils.eager_mask if floating else masking_utils.sdpa_mask,
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        mask_function=mask_function,
        attention_mask=attention_mask,
        use_vmap=use_vmap,
        device=device,
        dtype=dtype,
    )
    if q_length == 1 or is_captured(attention_mask, q_offset):
        return plain(**others)
    shape, q_first, used = (batch_size, 1, q_length, kv_length), int(q_offset), kv_length
    if recognised.is_causal(mask_function):  # omit keys after the last query: unused rows of a cache of fixed size
        used = min(used, max(0, q_first + q_length - kv_offset))
    padding = _padding(attention_mask, kv_offset, used)
    place = recognised.Place(batch_size, q_length, used, q_first, kv_offset)
    try:
        mask = recognised.mask_of(mask_function, place)
    except recognised.Unknown:
        mask = None
    if q_length * kv_length < SMALL and (padding is not None or mask is None or not isinstance(mask.rule, Window)):
        return plain(**others | {"allow_is_causal_skip": False})
    if mask is None:
        mask = lowered_by_tiles(mask_function, place, use_vmap, device)
    if padding is not None:
        mask = padding if mask.is_full else mask & padding
    if others.get("allow_is_bidirectional_skip") and used == kv_length:
        reach = others.get("local_size")  # a window wider than all keys leaves out no key
        if mask.is_full or (padding is None and reach is not None and kv_length < reach):
            return None  # like eager and sdpa: layers that drop keys (Informer) or add keys would refuse a mask
    rule = None if mask.is_full else mask
    return MaskTensor(rule, used, shape, torch.device(device), dtype if floating else torch.bool)


def _check_padding(attention_mask: Tensor | None, batch: int) -> None:
    """Raise RedblueError unless the padding has one row per batch entry."""
    if attention_mask is not None and (attention_mask.dim() != 2 or attention_mask.shape[0] != batch):
        raise RedblueError(
            f"attention_mask must be (batch, keys) = ({batch}, keys), with 0 for padded keys, or a 4-D mask "
            f"(batch, 1 or heads, n_q, n_k), got {tuple(attention_mask.shape)}"
        )


def _padding(attention_mask: Tensor | None, first: int, count: int) -> Mask | None:
    """The mask of padded keys; None if there are none. Keys beyond the end of attention_mask are padding."""
    if attention_mask is None:
        return None
    kept = attention_mask[:, first : first + count].bool().cpu().numpy()
    missing = count - kept.shape[1]
    if missing:
        kept = np.concatenate([kept, np.zeros((len(kept), missing), bool)], axis=1)
    mask = recognised.key_mask(kept)
    return None if mask.is_full else mask
