"""FlashAttention 2's attention with a cache of keys and values, for generation."""

from __future__ import annotations

from typing import Any

from redblue.base.integers import whole_number
from redblue.integrations.flash_attn import graph_ops
from redblue.integrations.flash_attn.arguments import check_sinks, check_slopes, check_tensors, options_of
from redblue.integrations.flash_attn.caches import computed
from redblue.op.checks import check_flag
from redblue.op.varlen import is_captured


def flash_attn_with_kvcache(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    k: Any = None,
    v: Any = None,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    cache_seqlens: Any = None,
    cache_batch_idx: Any = None,
    cache_leftpad: Any = None,
    block_table: Any = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Any = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
    s_aux: Any = None,
) -> Any:
    """Attention of q (batch, n_q, H, d) on caches (rows, capacity, H_kv, d), after k and v were appended in place.

    k, v: (batch, new, H_kv, d), written from position cache_seqlens[b] on. cache_seqlens: the number of filled
    positions of each cache entry, one number for all or (batch,); None: all positions, only without k and v.
    cache_batch_idx: (batch,), the cache's row of each batch entry; if entries that append share a row or a page, any of
    their keys may overwrite the others. cache_leftpad: (batch,), number of first positions that hold no keys.
    block_table: (batch, blocks); the caches are then pages (pages, page, H_kv, d).
    rotary_cos, rotary_sin: (positions, rotary_dim / 2), for k and q, whose positions count from cache_seqlens; without
    causal or a window, all queries have the position cache_seqlens. num_splits changes nothing: redblue splits the keys
    itself. return_softmax_lse: also return the log-sum-exp of each row (batch, H, n_q). s_aux: attention sinks (H,).
    The other arguments are as in `flash_attn_func`.

    Returns out (batch, n_q, H, d_v), or (out, lse). There is no backward pass. Raises RedblueError, naming the
    argument, for an unsupported value, and for tensors that require gradients while PyTorch records gradients.
    """
    for name, flag in (("rotary_interleaved", rotary_interleaved), ("return_softmax_lse", return_softmax_lse)):
        check_flag(name, flag)
    whole_number("num_splits", num_splits, 0)
    check_tensors("(batch, n, heads, d)", q=q)
    check_slopes(alibi_slopes, q.shape[0], q.shape[2])
    check_sinks(s_aux, q.shape[2])
    options = options_of(0.0, softmax_scale, causal, window_size, softcap, alibi_slopes, s_aux=s_aux)
    run = graph_ops.with_kvcache if is_captured(q, cache_seqlens) else computed
    places = cache_seqlens, cache_batch_idx, cache_leftpad, block_table
    out, lse = run(q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, *places, rotary_interleaved, options)
    return (out, lse) if return_softmax_lse else out
