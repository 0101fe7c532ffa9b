"""Reads PyTorch FlexAttention's BlockMask, through the tensors that it holds: PyTorch itself is not imported."""

from __future__ import annotations

from typing import Any

import numpy as np

from redblue.base.errors import RedblueError
from redblue.base.integers import ceil_div
from redblue.masks.rules.algebra import Stack, either
from redblue.masks.rules.arrays import from_coo
from redblue.masks.rules.layouts import Blocks
from redblue.masks.rules.rule import Rule

NEEDED = (
    "kv_num_blocks",
    "kv_indices",
    "full_kv_num_blocks",
    "full_kv_indices",
    "BLOCK_SIZE",
    "seq_lengths",
    "mask_mod",
)
AT_ONCE = 1 << 22  # pairs asked of mask_mod together


def read(mask: Any) -> Rule:
    """The rule of a BlockMask. Raises RedblueError for what is none, or whose mask_mod cannot be asked."""
    missing = [name for name in NEEDED if not hasattr(mask, name)]
    if missing:
        raise RedblueError(
            f"block_mask must be a torch.nn.attention.flex_attention.BlockMask, got {type(mask).__name__} without "
            f"{', '.join(missing)}"
        )
    (n_q, n_k), (bq, bk) = (tuple(map(int, each)) for each in (mask.seq_lengths, mask.BLOCK_SIZE))
    cols = ceil_div(n_k, bk)
    partial = _layouts(mask.kv_num_blocks, mask.kv_indices, cols)
    none = mask.full_kv_num_blocks is None
    full = np.zeros_like(partial) if none else _layouts(mask.full_kv_num_blocks, mask.full_kv_indices, cols)
    if partial.shape[-2] != ceil_div(n_q, bq):
        raise RedblueError(
            f"block_mask has {partial.shape[-2]} rows of blocks of {bq}, but seq_lengths say n_q = {n_q}"
        )
    batch, heads = partial.shape[:2]
    planes = []
    for b, h in np.ndindex(batch, heads):
        rows, keys = _pairs(mask, b, h, partial[b, h], (n_q, n_k), (bq, bk))
        some = from_coo(rows, keys, (n_q, n_k)) if len(rows) else None
        whole = Blocks.of(full[b, h], (bq, bk))
        planes.append(whole if some is None else some if not full[b, h].any() else either(whole, some))
    return planes[0] if (batch, heads) == (1, 1) else Stack.of(planes, (batch, heads))


def _layouts(count: Any, indices: Any, cols: int) -> np.ndarray:
    """Which blocks are listed: (batch, heads, rows of blocks, cols)."""
    count, indices = (each.detach().cpu().numpy() for each in (count, indices))
    listed = np.arange(indices.shape[-1]) < count[..., None]
    layout = np.zeros((*count.shape, cols), bool)
    at = np.nonzero(listed)
    layout[(*at[:-1], indices[at])] = True
    return layout


def _pairs(
    mask: Any, b: int, h: int, layout: np.ndarray, sizes: tuple[int, int], block: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """The queries and keys of the partial blocks that attend, as mask_mod says."""
    found = []
    blocks = np.argwhere(layout) * block
    for part in np.array_split(blocks, max(1, ceil_div(len(blocks) * block[0] * block[1], AT_ONCE))):
        q = part[:, 0, None, None] + np.arange(block[0])[None, :, None]
        k = part[:, 1, None, None] + np.arange(block[1])[None, None]
        # Beyond the last query or key there may be nothing to ask about.
        there = (q < sizes[0]) & (k < sizes[1])
        q, k = (np.broadcast_to(np.minimum(x, n - 1), there.shape) for x, n in zip((q, k), sizes, strict=True))
        found.append((q, k, there & _asked(mask, b, h, q, k)))
    return tuple(np.concatenate([each[i][each[2]] for each in found]) for i in (0, 1))  # type: ignore[return-value]


def _asked(mask: Any, b: int, h: int, q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """mask_mod of many pairs, as tensors of the mask's own kind."""
    tensor = mask.kv_indices.new_tensor
    try:
        attends = mask.mask_mod(tensor(b), tensor(h), tensor(q.copy()), tensor(k.copy()))
        return np.broadcast_to(np.asarray(attends.detach().cpu().numpy(), bool), q.shape)
    except Exception as error:
        raise RedblueError(f"block_mask's mask_mod cannot be asked of many pairs at once: {error!r}") from error
