"""Caches of keys and values: the checks of their arguments, new keys, and attention on a cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from redblue.base.errors import RedblueError
from redblue.base.integers import whole_number
from redblue.integrations.flash_attn.arguments import check_heads, check_tensors
from redblue.integrations.flash_attn.packing import Pages
from redblue.integrations.flash_attn.rotary import check_tables, rotated
from redblue.op.api import attention
from redblue.op.paged.attention import attention_paged
from redblue.op.paged.pages import whole_numbers


def computed(
    q: Tensor,
    k_cache: Any,
    v_cache: Any,
    k: Any,
    v: Any,
    rotary_cos: Any,
    rotary_sin: Any,
    cache_seqlens: Any,
    cache_batch_idx: Any,
    cache_leftpad: Any,
    block_table: Any,
    rotary_interleaved: bool,
    options: dict[str, Any],
) -> tuple[Tensor, Tensor]:
    """Append k and v, and return the output and the log-sum-exp (batch, H, n_q). options: as in `attention`."""
    cache = Cache(q, k_cache, v_cache, cache_batch_idx, block_table)
    filled = cache.filled(cache_seqlens, cache_leftpad, k, v)
    tensors = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "k": k, "v": v, "s_aux": options["sinks"]}
    check_no_gradients(**tensors, rotary_cos=rotary_cos, rotary_sin=rotary_sin)
    with torch.no_grad():
        if rotary_cos is not None or rotary_sin is not None:
            if k is None:
                raise RedblueError(
                    "rotary_cos and rotary_sin rotate new keys, too: give k and v, or rotate q beforehand"
                )
            window = options["mask"].rule
            moves = window.left is not None or window.right is not None
            q, k = _rotated(q, k, rotary_cos, rotary_sin, filled, moves, rotary_interleaved)
        if k is not None:
            cache.append(k, v, filled)
        return cache.attention(q, filled + (0 if k is None else k.shape[1]), options)


def check_no_gradients(**tensors: Any) -> None:
    """Raise RedblueError for a tensor that requires a gradient while PyTorch records gradients."""
    for name, x in tensors.items():
        if getattr(x, "requires_grad", False) and torch.is_grad_enabled():
            raise RedblueError(f"{name} requires a gradient, but a cache has no backward pass: use torch.no_grad()")


def _rotated(
    q: Tensor, k: Tensor, cos: Any, sin: Any, filled: np.ndarray, moves: bool, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """q and k, rotated for the positions after the filled ones; all queries at the first of these unless `moves`."""
    starts = torch.from_numpy(filled).to(q.device)[:, None]
    n_q, new = q.shape[1], k.shape[1]
    check_tables(cos, sin, q.shape[-1], int(filled.max(initial=0)) + max(new, n_q if moves else 1))
    at_q = starts + torch.arange(n_q, device=q.device) * int(moves)
    at_k = starts + torch.arange(new, device=q.device)
    return rotated(q, cos, sin, at_q, interleaved), rotated(k, cos, sin, at_k, interleaved)


class Cache:
    """Caches of keys and values with the place of each batch entry in them.

    Raises RedblueError unless the tensors fit each other.
    """

    def __init__(self, q: Tensor, k_cache: Any, v_cache: Any, batch_idx: Any, block_table: Any) -> None:
        self.batch = q.shape[0]
        shape = "(rows, capacity, heads, d)" if block_table is None else "(pages, page, heads, d)"
        check_tensors(shape, k_cache=k_cache, v_cache=v_cache)
        if v_cache.shape[:-1] != k_cache.shape[:-1]:
            wanted = tuple(k_cache.shape[:-1])
            raise RedblueError(f"v_cache must have the positions and heads of k_cache, {wanted}, got {v_cache.shape}")
        check_heads(q, k_cache)
        for name, x in (("k_cache", k_cache), ("v_cache", v_cache)):  # checked before anything is written into them
            if x.dtype != q.dtype or x.device != q.device:
                raise RedblueError(f"{name} must be {q.dtype} on {q.device} like q, got {x.dtype} on {x.device}")
        if k_cache.shape[-1] != q.shape[-1]:
            raise RedblueError(f"k_cache must have the head dimension of q, {q.shape[-1]}, got {k_cache.shape[-1]}")
        self.k, self.v, self.block_table = k_cache, v_cache, block_table
        if block_table is not None and batch_idx is not None:
            raise RedblueError("cache_batch_idx is for caches without pages: select rows of block_table instead")
        if batch_idx is None:
            self.rows = np.arange(self.batch)
        else:
            self.rows = whole_numbers("cache_batch_idx", batch_idx, self.batch)
        if block_table is None and self.batch and not 0 <= self.rows.min() <= self.rows.max() < len(k_cache):
            name = "k_cache must have a row for each batch entry" if batch_idx is None else "cache_batch_idx"
            raise RedblueError(f"{name}: rows must be 0 to {len(k_cache) - 1}, got {self.rows.tolist()}")
        self.in_order = batch_idx is None

    def filled(self, cache_seqlens: Any, leftpad: Any, k: Any, v: Any) -> np.ndarray:
        """The number of positions that each entry fills before k and v are appended.

        Checks all lengths, and sets `first`, the first position with a key of each entry, and `pages`.
        """
        if (k is None) != (v is None):
            raise RedblueError("k and v must be given together, got one of them")
        pages = None if self.block_table is None else np.shape(self.block_table)
        capacity = self.k.shape[1] * (1 if pages is None or len(pages) != 2 else pages[1])
        new = 0
        if k is not None:
            check_tensors("(batch, new, heads, d)", k=k, v=v)
            for name, x, cache in (("k", k, self.k), ("v", v, self.v)):
                wanted = (self.batch, k.shape[1], *cache.shape[2:])
                if tuple(x.shape) != wanted or x.dtype != cache.dtype or x.device != cache.device:
                    got = f"{tuple(x.shape)} of {x.dtype} on {x.device}"
                    raise RedblueError(f"{name} must be {wanted} of {cache.dtype} on {cache.device}, got {got}")
            if cache_seqlens is None:
                raise RedblueError("cache_seqlens must say where k and v are appended, got None")
            new = k.shape[1]
        filled = self._lengths(cache_seqlens, capacity)
        if ((filled < 0) | (filled + new > capacity)).any():
            room = f"{capacity - new}, the capacity" + (f" less {new} new positions" if new else "")
            raise RedblueError(f"cache_seqlens must be 0 to {room}, got {filled.tolist()}")
        self.first = np.zeros_like(filled) if leftpad is None else whole_numbers("cache_leftpad", leftpad, self.batch)
        if ((self.first < 0) | (self.first > filled + new)).any():
            ends = (filled + new).tolist()
            raise RedblueError(f"cache_leftpad must be 0 to the filled positions, {ends}, got {self.first.tolist()}")
        self.pages = (
            None if self.block_table is None else Pages(self.k.shape, self.block_table, filled + new, "cache_seqlens")
        )
        return filled

    def _lengths(self, cache_seqlens: Any, capacity: int) -> np.ndarray:
        """`cache_seqlens` as one number for each batch entry."""
        if cache_seqlens is None:
            return np.full(self.batch, capacity)
        if isinstance(cache_seqlens, Tensor) and cache_seqlens.dim():
            return whole_numbers("cache_seqlens", cache_seqlens, self.batch)
        return np.full(self.batch, whole_number("cache_seqlens", cache_seqlens, 0))

    def append(self, k: Tensor, v: Tensor, filled: np.ndarray) -> None:
        """Write k and v after the filled positions of their entries."""
        positions = filled[:, None] + np.arange(k.shape[1])
        if self.pages is not None:
            places = self.pages.places(np.arange(self.batch)[:, None], positions, k.device)
        else:
            places = torch.from_numpy(self.rows[:, None]).to(k.device), torch.from_numpy(positions).to(k.device)
        self.k[places], self.v[places] = k, v

    def attention(self, q: Tensor, ends: np.ndarray, options: Any) -> tuple[Tensor, Tensor]:
        """The output and the log-sum-exp of each entry's queries on its keys: one call, unless there is padding."""
        alike = self.in_order and len(set(ends.tolist())) == 1
        if not self.first.any() and not (alike and self.pages is None):
            return self._paged(q, ends, options)
        q = q.transpose(1, 2)
        if not self.first.any():
            k, v = (x[: self.batch, : int(ends[0])].transpose(1, 2) for x in (self.k, self.v))
            out, lse = attention(q, k, v, return_lse=True, **options)
            return out.transpose(1, 2), lse
        parts = [self._entry(b, q[b : b + 1], slice(int(self.first[b]), int(ends[b])), options) for b in range(len(q))]
        outs, lses = zip(*parts, strict=True)
        return torch.cat(outs).transpose(1, 2), torch.cat(lses)

    def _paged(self, q: Tensor, ends: np.ndarray, options: Any) -> tuple[Tensor, Tensor]:
        """`attention` on pages; in a cache without pages, each row is one page."""
        table = self.rows[:, None] if self.block_table is None else self.block_table
        options = {name: value for name, value in options.items() if name != "dropout"}
        out, lse = attention_paged(q, self.k, self.v, table, ends, return_lse=True, **options)
        return out, lse.transpose(1, 2)

    def _entry(self, b: int, q: Tensor, positions: slice, options: Any) -> tuple[Tensor, Tensor]:
        """The output and the log-sum-exp of batch entry b. q: (1, H, n_q, d)."""
        if self.pages is not None:
            places = np.arange(positions.start, positions.stop)
            k, v = (self.pages.rows(x, np.full(len(places), b), places) for x in (self.k, self.v))
        else:
            k, v = (x[self.rows[b], positions] for x in (self.k, self.v))
        slopes = options["alibi"]
        own = {**options, "alibi": slopes[b]} if slopes is not None and slopes.dim() == 2 else options
        return attention(q, *(x.transpose(0, 1)[None] for x in (k, v)), return_lse=True, **own)
