"""Conversion of PyTorch FlexAttention's BlockMask. It uses the tensors that the BlockMask holds, not PyTorch itself."""

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


def read(mask: Any) -> Rule:
    """Convert a BlockMask to a rule.

    Raises RedblueError for another object, and for a mask_mod that does not take arrays of pairs.
    """
    missing = [name for name in ATTRIBUTES if not hasattr(mask, name)]
    if missing:
        raise RedblueError(
            f"block_mask must be a torch.nn.attention.flex_attention.BlockMask, got {type(mask).__name__} without "
            f"{', '.join(missing)}"
        )
    (n_q, n_k), (bq, bk) = (tuple(map(int, sizes)) for sizes in (mask.seq_lengths, mask.BLOCK_SIZE))
    cols = ceil_div(n_k, bk)
    partial = _layouts(mask.kv_num_blocks, mask.kv_indices, cols)
    if mask.full_kv_num_blocks is None:
        full = np.zeros_like(partial)
    else:
        full = _layouts(mask.full_kv_num_blocks, mask.full_kv_indices, cols)
    if partial.shape[-2] != ceil_div(n_q, bq):
        raise RedblueError(
            f"block_mask has {partial.shape[-2]} rows of blocks of {bq}, but its seq_lengths give n_q = {n_q}"
        )
    batch, heads = partial.shape[:2]
    planes = []
    for b, h in np.ndindex(batch, heads):
        rows, keys = _pairs(mask, b, h, partial[b, h], (n_q, n_k), (bq, bk))
        pairs_rule = from_coo(rows, keys, (n_q, n_k)) if len(rows) else None
        blocks_rule = Blocks.of(full[b, h], (bq, bk))
        if pairs_rule is None:
            planes.append(blocks_rule)
        else:
            planes.append(either(blocks_rule, pairs_rule) if full[b, h].any() else pairs_rule)
    return planes[0] if (batch, heads) == (1, 1) else Stack.of(planes, (batch, heads))


def _layouts(count: Any, indices: Any, cols: int) -> np.ndarray:
    """Return the listed blocks as a boolean array (batch, heads, rows of blocks, cols).

    indices[..., i, :count[..., i]] lists the columns of row i.
    """
    count, indices = (tensor.detach().cpu().numpy() for tensor in (count, indices))
    listed = np.arange(indices.shape[-1]) < count[..., None]
    layout = np.zeros((*count.shape, cols), bool)
    places = np.nonzero(listed)
    layout[(*places[:-1], indices[places])] = True
    return layout


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
        q, k = (np.broadcast_to(np.minimum(x, n - 1), exists.shape) for x, n in zip((q, k), sizes, strict=True))
        attends = exists & _call_mask_mod(mask, b, h, q, k)
        query_parts.append(q[attends])
        key_parts.append(k[attends])
    return np.concatenate(query_parts), np.concatenate(key_parts)


def _call_mask_mod(mask: Any, b: int, h: int, q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Call mask_mod once for arrays of pairs, as tensors on the mask's device. Returns booleans of q's shape."""
    tensor = mask.kv_indices.new_tensor
    try:
        attends = mask.mask_mod(tensor(b), tensor(h), tensor(q.copy()), tensor(k.copy()))
        return np.broadcast_to(np.asarray(attends.detach().cpu().numpy(), bool), q.shape)
    except Exception as error:
        raise RedblueError(f"block_mask's mask_mod cannot be asked of many pairs at once: {error!r}") from error
