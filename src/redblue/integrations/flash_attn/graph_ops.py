"""FlashAttention's packed sequences and its caches in graphs of torch.compile and torch.export.

The PyTorch ops are redblue::flash_attn_starts and redblue::flash_attn_with_kvcache. A graph has no lengths of sequences
while it is made, so the ops check lengths at run time, by FlashAttention's rules. Eager calls do not use the ops.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from redblue.base.errors import RedblueError
from redblue.base.integers import whole_number
from redblue.integrations.flash_attn.arguments import check_slopes, check_tensors
from redblue.integrations.flash_attn.caches import check_no_gradients, computed
from redblue.integrations.flash_attn.packing import checked_sequences, starts_of
from redblue.kernels.options import Options
from redblue.op.packed import known_window
from redblue.op.pytorch import varlen
from redblue.op.pytorch.dispatch import mask_argument
from redblue.op.pytorch.layouts import sums_of
from redblue.op.pytorch.ops import HOST_TAGS, library
from redblue.op.pytorch.paged.ops import number_tensor

library.define(
    "flash_attn_starts(Tensor cu_seqlens_q, Tensor cu_seqlens_k, SymInt rows_q, SymInt rows_k, SymInt max_seqlen_q, "
    "SymInt max_seqlen_k) -> (Tensor starts_q, Tensor starts_k)",
    tags=HOST_TAGS,
)
library.define(
    "flash_attn_with_kvcache(Tensor q, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor? k, Tensor? v, "
    "Tensor? rotary_cos, Tensor? rotary_sin, Tensor? cache_seqlens, SymInt? cache_length, Tensor? cache_batch_idx, "
    "Tensor? cache_leftpad, Tensor? block_table, bool rotary_interleaved, SymInt left, SymInt right, float? scale, "
    "float? softcap, Tensor? alibi, Tensor? sinks) -> (Tensor out, Tensor lse)",
    tags=HOST_TAGS,
)


# Packed sequences ----------------------------------------------------------------------------------------------------


def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    options: dict[str, Any],
) -> tuple[Tensor, Tensor]:
    """The output and the log-sum-exp (H, total_q) as calls of ops. Rows after the last sequence get 0 and -inf."""
    starts = number_tensor("cu_seqlens_q", cu_seqlens_q), number_tensor("cu_seqlens_k", cu_seqlens_k)
    for name, x in zip(("cu_seqlens_q", "cu_seqlens_k"), starts, strict=True):
        if x.dim() != 1:
            raise RedblueError(f"{name} must be a list of whole numbers, got shape {tuple(x.shape)}")
    longest = [_longest(*x) for x in (("max_seqlen_q", max_seqlen_q), ("max_seqlen_k", max_seqlen_k))]
    sizes = q.shape[0], k.shape[0], *longest
    starts_q, starts_k = torch.ops.redblue.flash_attn_starts.default(*starts, *sizes)
    check_slopes(options["alibi"], starts[0].shape[0] - 1, q.shape[1])
    return varlen.attention_varlen(q, k, v, starts_q, starts_k, Options(**options), all_rows=False)


def _longest(name: str, max_seqlen: Any) -> Any:
    """`max_seqlen` as an integer, which may be symbolic."""
    if isinstance(max_seqlen, int) and not isinstance(max_seqlen, bool):
        return max_seqlen
    return max_seqlen.item() if isinstance(max_seqlen, Tensor) else whole_number(name, max_seqlen, 0)


def _starts(starts: Tensor, key_starts: Tensor, rows: int, key_rows: int, *longest: int) -> tuple[Tensor, Tensor]:
    """The checked starts, as int64 tensors on the CPU. Raises RedblueError, naming the argument, for wrong ones."""
    lengths, keys, _ = checked_sequences(rows, (key_rows,), starts, key_starts, *longest)
    return torch.from_numpy(starts_of(lengths)), torch.from_numpy(starts_of(keys.lengths))


def _fake_starts(starts: Tensor, key_starts: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    queries, keys = (x.new_empty(x.shape, dtype=torch.int64, device="cpu") for x in (starts, key_starts))
    return queries, keys


# Caches --------------------------------------------------------------------------------------------------------------


def with_kvcache(
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
    """caches.computed as a call of the op."""
    tensors = {"k_cache": k_cache, "v_cache": v_cache} | ({} if k is None and v is None else {"k": k, "v": v})
    check_tensors("(rows, n, heads, d)", **tensors)
    for name, x in (("rotary_cos", rotary_cos), ("rotary_sin", rotary_sin)):
        if x is not None:
            check_tensors("(positions, features)", **{name: x})
    sinks = options["sinks"]
    check_no_gradients(q=q, **tensors, s_aux=sinks, rotary_cos=rotary_cos, rotary_sin=rotary_sin)
    lengths = cache_seqlens if isinstance(cache_seqlens, Tensor) else None
    length = cache_seqlens if lengths is None else None
    places = [
        None if x is None else number_tensor(name, x)
        for name, x in (
            ("cache_batch_idx", cache_batch_idx),
            ("cache_leftpad", cache_leftpad),
            ("block_table", block_table),
        )
    ]
    window = mask_argument(options["mask"], "auto", False)
    numbers = options["scale"], options["softcap"], options["alibi"], sinks
    cache = q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, lengths, length
    flat = *cache, *places, rotary_interleaved, window.left, window.right, *numbers
    with torch.no_grad():
        return torch.ops.redblue.flash_attn_with_kvcache.default(*flat)


def _with_kvcache(*arguments: Any) -> tuple[Tensor, Tensor]:
    *cache, lengths, length, batch_idx, leftpad, table, interleaved, left, right = arguments[:-4]
    options = dict(zip(("scale", "softcap", "alibi", "sinks"), arguments[-4:], strict=True))
    options |= {"mask": known_window(left, right), "dropout": 0.0}
    seqlens = length if lengths is None else lengths
    out, lse = computed(*cache, seqlens, batch_idx, leftpad, table, interleaved, options)  # pyright: ignore
    return out.contiguous(), lse.contiguous()


def _fake_with_kvcache(q: Tensor, k_cache: Tensor, v_cache: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    batch, n_q, heads, _ = q.shape
    out, lse = (batch, n_q, heads, v_cache.shape[-1]), (batch, heads, n_q)
    return q.new_empty(out), q.new_empty(lse, dtype=sums_of(q.dtype))


for name, kernel, fake in (
    ("flash_attn_starts", _starts, _fake_starts),
    ("flash_attn_with_kvcache", _with_kvcache, _fake_with_kvcache),
):
    library.impl(name, kernel, "CPU")
    library.impl(name, kernel, "CUDA")
    torch.library.register_fake(f"redblue::{name}", fake, lib=library)
