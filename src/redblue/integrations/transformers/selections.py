"""Masks of sparse attention in which an indexer selects keys, or blocks of keys, for each query."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from redblue.base.errors import RedblueError


def selected_keys(indices: Tensor, attention_mask: Tensor | None, n_k: int) -> Tensor:
    """attention_mask restricted to the keys that each query's indices (batch, n_q, count) select: (batch, 1, n_q, n_k).

    The result is boolean, unless attention_mask is floating.
    """
    if indices.dim() != 3:
        raise RedblueError(f"indices must be (batch, queries, keys of a query), got {tuple(indices.shape)}")
    chosen = indices.new_zeros((*indices.shape[:2], n_k), dtype=torch.bool)
    chosen = chosen.scatter(-1, indices.long(), True).unsqueeze(1)
    return _within(chosen, attention_mask)


def selected_blocks(module: Any, blocks: Tensor, attention_mask: Tensor | None, n_k: int, heads: int) -> Tensor:
    """attention_mask restricted to the selected blocks of keys: (batch, heads, n_q, n_k).

    The result is boolean, unless attention_mask is floating.
    blocks (batch, groups of heads, n_q, count): numbers of blocks; -1 selects no block.
    """
    size = getattr(getattr(module, "indexer", None), "block_size", None)
    if size is None or blocks.dim() != 4:
        raise RedblueError(
            "block_indices must be (batch, groups, queries, blocks) of a module whose `indexer` has a block_size, got "
            f"{tuple(blocks.shape)} of {type(module).__name__}"
        )
    count = -(-n_k // size)
    chosen = blocks.new_zeros((*blocks.shape[:3], count + 1), dtype=torch.bool)  # index -1 marks the extra last entry
    chosen = chosen.scatter(-1, blocks.long().masked_fill(blocks < 0, count), True)[..., :count]
    chosen = chosen.repeat_interleave(size, -1)[..., :n_k].repeat_interleave(heads // blocks.shape[1], 1)
    return _within(chosen, attention_mask)


def _within(chosen: Tensor, attention_mask: Tensor | None) -> Tensor:
    if attention_mask is None:
        return chosen
    if attention_mask.dtype is torch.bool:
        return chosen & attention_mask
    return attention_mask.masked_fill(~chosen, torch.finfo(attention_mask.dtype).min)
