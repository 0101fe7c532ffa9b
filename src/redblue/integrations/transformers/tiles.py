"""Lower a mask function that is not recognised: evaluate it for some queries at a time, and keep one bit per pair."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import masking_utils

from redblue.base.errors import RedblueError
from redblue.integrations.transformers.recognised import Place
from redblue.masks import Mask
from redblue.masks.rules.dense import Dense

TILE = 1 << 20  # pairs that are evaluated at once


def lowered_by_tiles(function: Callable, place: Place, use_vmap: bool, device: Any) -> Mask:
    """The mask of any mask function, as one bit per pair and batch entry.

    Raises RedblueError if the function cannot be called.
    """
    rows = max(8, TILE // max(1, place.batch * place.n_k) // 8 * 8)  # whole bytes of bits
    parts: list[list[bytes]] = [[] for _ in range(place.batch)]
    for first in range(0, place.n_q, rows):
        count = min(rows, place.n_q - first)
        tile = _evaluated(function, place, first, count, use_vmap, device)
        for bits, plane in zip(parts, tile, strict=True):
            bits.append(np.packbits(plane).tobytes())
    shape = (place.n_q, place.n_k)
    masks = [Mask(Dense.of_bits(b"".join(bits), shape)) for bits in parts]
    return masks[0] if all(mask == masks[0] for mask in masks) else Mask.per_batch(masks)


def _evaluated(function: Callable, place: Place, first: int, count: int, use_vmap: bool, device: Any) -> np.ndarray:
    """Boolean (batch, count, n_k): the function's values for the queries from `first` on."""
    try:
        tile = masking_utils.sdpa_mask(
            batch_size=place.batch,
            q_length=count,
            kv_length=place.n_k,
            q_offset=place.q_first + first,
            kv_offset=place.k_first,
            mask_function=function,
            allow_is_causal_skip=False,
            use_vmap=use_vmap,
            device=device,
        )
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        raise RedblueError(f"the mask function {function!r} cannot be evaluated by tiles: {error}") from error
    assert isinstance(tile, torch.Tensor)  # only masks that may be skipped are None
    return tile[:, 0].expand(place.batch, count, place.n_k).cpu().numpy()
