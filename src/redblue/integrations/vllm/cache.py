"""vLLM's cache of keys and values as pages for `attention_paged`.

vLLM allocates (blocks, key heads, block, d + d_v) for each layer. As in vLLM's own backend for CPUs, the memory of a
head in a block holds all keys of the block, in rows of d words, and then all values. So the kernel reads each head's
keys of a page as one contiguous range.
"""

from __future__ import annotations

from torch import Tensor

from redblue.base.errors import RedblueError


def pages_of(kv_cache: Tensor, d: int) -> tuple[Tensor, Tensor]:
    """Views of the cache: k_pages (blocks, block, key heads, d) and v_pages (blocks, block, key heads, d_v).

    Raises RedblueError for a cache of another shape, and for a cache whose heads are not contiguous.
    """
    if kv_cache.dim() != 4 or kv_cache.shape[-1] <= d:
        wanted = f"(blocks, key heads, block, d + d_v) with d = {d}"
        raise RedblueError(
            f"kv_cache must be {wanted}, got {tuple(kv_cache.shape)}: does it come from another version of vLLM?"
        )
    rows, both = kv_cache.shape[2:]
    if kv_cache.stride()[2:] != (both, 1):
        raise RedblueError(f"kv_cache must hold each head of a block contiguously, got strides {kv_cache.stride()}")
    heads = kv_cache.flatten(2)
    keys, values = heads[..., : rows * d], heads[..., rows * d :]
    return keys.unflatten(2, (rows, d)).transpose(1, 2), values.unflatten(2, (rows, both - d)).transpose(1, 2)


def write(key: Tensor, value: Tensor, kv_cache: Tensor, slots: Tensor) -> None:
    """Write new keys and values (tokens, key heads, width) at their slots: block * rows per block + row.

    slots: (tokens,) whole numbers. A token with a negative slot only pads the batch and is not written.
    """
    k_pages, v_pages = pages_of(kv_cache, key.shape[-1])
    key, value = key[: len(slots)], value[: len(slots)]
    real = slots >= 0
    if not bool(real.all()):
        key, value, slots = key[real], value[real], slots[real]
    rows = k_pages.shape[1]
    places = slots // rows, slots % rows
    k_pages[places] = key
    v_pages[places] = value
