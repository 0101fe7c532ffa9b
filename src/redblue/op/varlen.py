"""Attention over sequences of different lengths that are packed one behind the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from redblue.base.errors import RedblueError
from redblue.kernels.options import PackedArguments, documented, options_of
from redblue.masks import Mask
from redblue.masks.numbers import whole
from redblue.masks.rules.bands import Window
from redblue.op import api
from redblue.op.checks import check_flag

if TYPE_CHECKING:
    from typing_extensions import Unpack


@documented(PackedArguments)
def attention_varlen(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any = None,
    *,
    return_lse: bool = False,
    **options: Unpack[PackedArguments],
) -> Any:
    """Attention within packed sequences: nothing is padded, and no pair across sequences is computed.

    q (total_q, H, d), k (total_k, H_kv, d), v (total_k, H_kv, d_v): PyTorch tensors (with autograd) or arrays.
    cu_seqlens_q, cu_seqlens_k: the cumulative lengths of the sequences, (sequences + 1,) whole numbers from 0 to
    total_q (total_k). Sequences may be empty. cu_seqlens_k is cu_seqlens_q if left out.
    The mask is Mask.causal(), a sliding window or Mask.full(), within each sequence; align="bottom-right" counts from a
    sequence's last query and key. alibi counts distances from there, too, and needs sequences with as many queries as
    keys. The other options are those of `attention`, except a bias.

    Returns out (total_q, H, d_v), or (out, lse) with lse (H, total_q). Raises RedblueError, naming the argument, for a
    value that it cannot take.
    """
    check_flag("return_lse", return_lse)
    mask = options_of("attention_varlen", options, without="bias").mask
    for name, array in (("q", q), ("k", k), ("v", v)):
        if len(getattr(array, "shape", ())) != 3:
            raise RedblueError(f"{name} must be packed as (total, heads, d), got {_shown(array)}")
    lengths = lengths_between("cu_seqlens_q", cu_seqlens_q, "q", q.shape[0])
    same = cu_seqlens_k is None
    key_lengths = lengths_between(
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
    if options.get("alibi") is not None:
        _check_alibi(lengths, key_lengths)
    packed = Mask.documents(lengths, key_lengths, within=mask)
    q, k, v = (x.swapaxes(0, 1)[None] for x in (q, k, v))
    out, lse = api.attention(q, k, v, return_lse=True, **{**options, "mask": packed})
    out = out[0].swapaxes(0, 1)
    return (out, lse[0]) if return_lse else out


def _check_alibi(lengths: np.ndarray, key_lengths: np.ndarray) -> None:
    """Raise RedblueError unless the kernel computes the right distances within every sequence.

    The kernel aligns the last query of the packed array with its last key. This also aligns the last query of a
    sequence with the sequence's last key if as many queries as keys follow the sequence.
    """
    shifts = np.cumsum(key_lengths - lengths)  # the position of a sequence's last key, less that of its last query
    has_pairs = (lengths > 0) & (key_lengths > 0)
    misaligned = np.flatnonzero(has_pairs & (shifts != shifts[-1])) if len(shifts) else shifts
    if len(misaligned):
        raise RedblueError(
            f"alibi needs as many keys as queries in every sequence after sequence {misaligned[-1]}, because distances "
            "are counted from the last query and key of all: call attention for each sequence, or with a padded batch"
        )


def lengths_between(name: str, starts: Any, of: str, total: int) -> np.ndarray:
    """The length of each sequence. Raises RedblueError, naming the entry, unless `starts` ascend from 0 to `total`."""
    starts = whole(name, starts.detach().cpu().numpy() if api.is_torch(starts) else starts)
    if not len(starts) or starts[0]:
        raise RedblueError(f"{name}[0] must be 0, got {starts[0] if len(starts) else 'an empty array'}")
    descents = np.flatnonzero(np.diff(starts) < 0)
    if len(descents):
        i = descents[0] + 1
        raise RedblueError(f"{name} must not descend, but {name}[{i}] = {starts[i]} follows {starts[i - 1]}")
    if starts[-1] != total:
        raise RedblueError(f"{name} must end with the rows of {of}, {total}, got {starts[-1]}")
    return np.diff(starts)


def _shown(array: Any) -> str:
    return f"shape {tuple(array.shape)}" if hasattr(array, "shape") else type(array).__name__
