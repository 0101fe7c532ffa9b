"""Conversion of PyTorch FlexAttention's BlockMask to a rule."""

from __future__ import annotations

from typing import Any

import numpy as np

from redblue.base.errors import RedblueError
from redblue.base.integers import ceil_div
from redblue.masks.rules.algebra import either
from redblue.masks.rules.arrays import from_coo
from redblue.masks.rules.layouts import Blocks
from redblue.masks.rules.rule import Rule
from redblue.masks.rules.stack import Stack

ATTRIBUTES = (
    "kv_num_blocks",
    "kv_indices",
    "full_kv_num_blocks",
    "full_kv_indices",
    "BLOCK_SIZE",
    "seq_lengths",
    "mask_mod",
)
MAX_PAIRS = 1 << 22  # pairs in one call of mask_mod


def read(mask: Any, sizes: tuple[int, int] | None = None) -> Rule:
    """Convert a BlockMask to a rule. sizes: n_q and n_k; if None, the BlockMask's sizes.

    Raises RedblueError for another object, and for a mask_mod that cannot be mapped over pairs.
    """
    missing = [name for name in ATTRIBUTES if not hasattr(mask, name)]
    if missing:
        raise RedblueError(
            f"block_mask must be a torch.nn.attention.flex_attention.BlockMask, got {type(mask).__name__} without "
            f"{', '.join(missing)}"
        )
    if getattr(mask.mask_mod, "__name__", "") == "_sliced_mask_mod_error":
        raise RedblueError("block_mask is a slice, which has no mask_mod: assign one to its mask_mod")
    n_q, n_k = sizes = sizes or (int(mask.seq_lengths[0]), int(mask.seq_lengths[1]))
    # A block longer than its axis equals a block as long as the axis
    bq, bk = (max(1, min(int(edge), n)) for edge, n in zip(mask.BLOCK_SIZE, sizes, strict=True))
    rows, cols = ceil_div(n_q, bq), ceil_div(n_k, bk)
    partial = _layouts(mask.kv_num_blocks, mask.kv_indices, (rows, cols))
    if mask.full_kv_num_blocks is None:
        full = np.zeros_like(partial)
    else:
        full = _layouts(mask.full_kv_num_blocks, mask.full_kv_indices, (rows, cols))
    batch, heads = partial.shape[:2]
    planes = [_plane(mask, b, h, partial[b, h], full[b, h], sizes, (bq, bk)) for b, h in np.ndindex(batch, heads)]
    return planes[0] if (batch, heads) == (1, 1) else Stack.of(planes, (batch, heads))


def _layouts(count: Any, indices: Any, shape: tuple[int, int]) -> np.ndarray:
    """Return the listed blocks as a boolean array (batch, heads, rows of blocks, columns of blocks).

    indices[..., i, :count[..., i]] lists the columns of row i. Raises RedblueError if there are not `shape` blocks.
    """
    count, indices = (tensor.detach().cpu().numpy() for tensor in (count, indices))
    if count.ndim != 3:
        raise RedblueError(
            f"block_mask must have a batch axis and a head axis, got kv_num_blocks of shape {count.shape}"
        )
    if count.shape[-1] != shape[0]:
        raise RedblueError(f"block_mask has {count.shape[-1]} rows of blocks, but its sizes need {shape[0]}")
    listed = np.arange(indices.shape[-1]) < count[..., None]
    layout = np.zeros((*count.shape, shape[1]), bool)
    places = np.nonzero(listed)
    columns = indices[places]
    if len(columns) and not 0 <= columns.min() <= columns.max() < shape[1]:
        raise RedblueError(f"block_mask lists column {columns.max()} of blocks, but its sizes need {shape[1]} columns")
    layout[(*places[:-1], columns)] = True
    return layout


def _plane(
    mask: Any, b: int, h: int, partial: np.ndarray, full: np.ndarray, sizes: tuple[int, int], block: tuple[int, int]
) -> Rule:
    """Return the rule of one batch entry and head, from the layouts of its partial and its full blocks."""
    rows, keys = _pairs(mask, b, h, partial & ~full, sizes, block)
    blocks, (bq, bk) = Blocks.of(full, block), block
    if not len(rows):
        return blocks
    # A partial block in which every pair attends is a full one
    block_of_pair = rows // bq * full.shape[1] + keys // bk
    heights, widths = (np.minimum(edge, n - np.arange(0, n, edge)) for edge, n in zip(block, sizes, strict=True))
    complete = np.bincount(block_of_pair, minlength=full.size).reshape(full.shape) == np.multiply.outer(heights, widths)
    if complete.any():
        blocks, rest = blocks.with_layout(full | complete), ~complete.ravel()[block_of_pair]
        rows, keys = rows[rest], keys[rest]
        if not len(rows):
            return blocks
    pairs = from_coo(rows, keys, sizes)
    return either(blocks, pairs) if blocks.layout.any() else pairs


def _pairs(
    mask: Any, b: int, h: int, layout: np.ndarray, sizes: tuple[int, int], block: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the queries and the keys of the pairs that attend, by mask_mod, in the partial blocks of one plane."""
    query_parts, key_parts = [], []
    blocks = np.argwhere(layout) * block
    for part in np.array_split(blocks, max(1, ceil_div(len(blocks) * block[0] * block[1], MAX_PAIRS))):
        q = part[:, 0, None, None] + np.arange(block[0])[None, :, None]
        k = part[:, 1, None, None] + np.arange(block[1])[None, None]
        # The last blocks may reach beyond the last query or key, where mask_mod need not work.
        exists = (q < sizes[0]) & (k < sizes[1])
        q, k = (np.broadcast_to(x, exists.shape)[exists] for x in (q, k))
        attends = _call_mask_mod(mask, b, h, q, k)
        query_parts.append(q[attends])
        key_parts.append(k[attends])
    return np.concatenate(query_parts), np.concatenate(key_parts)


def _call_mask_mod(mask: Any, b: int, h: int, q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Return mask_mod's booleans for these pairs, from one call on the mask's device."""
    if not len(q):
        return np.zeros(0, bool)
    from redblue.masks.mask_mod import for_pairs  # deferred, because it imports PyTorch

    try:
        tensors = (mask.kv_indices.new_tensor(x).long() for x in (b, h, q, k))
        return for_pairs(mask.mask_mod, *tensors).detach().cpu().numpy().astype(bool)
    except Exception as error:
        raise RedblueError(f"block_mask's mask_mod cannot be evaluated for many pairs at once: {error!r}") from error
