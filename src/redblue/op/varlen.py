"""Attention over sequences of different lengths, packed one behind the other."""

from __future__ import annotations

from typing import Any

import numpy as np

from redblue.base.errors import RedblueError
from redblue.masks import Mask
from redblue.masks.numbers import whole
from redblue.masks.rules.bands import Window
from redblue.op import api


def attention_varlen(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any = None,
    *,
    mask: Mask | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Any = None,
    dropout: float = 0.0,
    seed: int | None = None,
    return_lse: bool = False,
    schedule: str = "auto",
) -> Any:
    """Each sequence attends itself; nothing is padded, and no pair of two sequences is computed.

    q (total_q, H, d), k (total_k, H_kv, d), v (total_k, H_kv, d_v): PyTorch tensors (with autograd) or arrays.
    cu_seqlens_q, cu_seqlens_k: where sequences begin and the last one ends, (sequences + 1,) whole numbers: 0, then
    cumulative lengths up to total_q (total_k). Some sequences may be empty. As cu_seqlens_q if left out.
    mask: Mask.causal(), a sliding window or Mask.full(), within each sequence; align="bottom-right" counts from a
    sequence's last query and key. The other options are those of `attention`.

    Returns out (total_q, H, d_v), or (out, lse) with lse (H, total_q). Raises RedblueError for what it cannot take.
    """
    for name, array in (("q", q), ("k", k), ("v", v)):
        if len(getattr(array, "shape", ())) != 3:
            raise RedblueError(f"{name} must be packed as (total, heads, d), got {_shown(array)}")
    lengths = _lengths("cu_seqlens_q", cu_seqlens_q, "q", q.shape[0])
    same = cu_seqlens_k is None
    key_lengths = _lengths(
        "cu_seqlens_q" if same else "cu_seqlens_k", cu_seqlens_q if same else cu_seqlens_k, "k", k.shape[0]
    )
    if len(lengths) != len(key_lengths):
        raise RedblueError(
            f"cu_seqlens_k must be for as many sequences as cu_seqlens_q ({len(lengths)}), got {len(key_lengths)}"
        )
    if not (mask is None or (isinstance(mask, Mask) and isinstance(mask.rule, Window))):
        raise RedblueError(
            f"mask must be a window within each sequence, such as Mask.causal(), got {mask!r}: call attention with "
            "Mask.documents(...) & another mask"
        )
    packed = Mask.documents(lengths, key_lengths, within=mask)
    q, k, v = (x.swapaxes(0, 1)[None] for x in (q, k, v))
    options: dict[str, Any] = {"scale": scale, "softcap": softcap, "sinks": sinks, "dropout": dropout, "seed": seed}
    out, lse = api.attention(q, k, v, mask=packed, return_lse=True, schedule=schedule, **options)
    out = out[0].swapaxes(0, 1)
    return (out, lse[0]) if return_lse else out


def _lengths(name: str, given: Any, of: str, total: int) -> np.ndarray:
    """Of each sequence. Raises RedblueError, naming the entry, for what are no cumulative lengths of `total`."""
    starts = whole(name, given.detach().cpu().numpy() if api.is_torch(given) else given)
    if not len(starts) or starts[0]:
        raise RedblueError(f"{name}[0] must be 0, got {starts[0] if len(starts) else 'an empty array'}")
    back = np.flatnonzero(np.diff(starts) < 0)
    if len(back):
        i = back[0] + 1
        raise RedblueError(f"{name} must not descend, but {name}[{i}] = {starts[i]} follows {starts[i - 1]}")
    if starts[-1] != total:
        raise RedblueError(f"{name} must end with the rows of {of}, {total}, got {starts[-1]}")
    return np.diff(starts)


def _shown(array: Any) -> str:
    return f"shape {tuple(array.shape)}" if hasattr(array, "shape") else type(array).__name__
