"""FlashAttention 2's functions on padded batches (batch, n, heads, d), with gradients."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from redblue.integrations.flash_attn import probabilities
from redblue.integrations.flash_attn.arguments import (
    check_batches,
    check_sinks,
    check_slopes,
    draw_seed,
    options_of,
    unpacked,
)
from redblue.op.api import attention
from redblue.op.checks import check_flag


def flash_attn_func(
    q: Any,
    k: Any,
    v: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    s_aux: Any = None,
) -> Any:
    """Attention on q (batch, n_q, H, d), k (batch, n_k, H_kv, d), v (batch, n_k, H_kv, d_v); H is a multiple of H_kv.

    dropout_p: the share of probabilities that become 0. softmax_scale: the factor of the scores; 1 / sqrt(d) if None.
    window_size: (left, right) keys around a query's own, -1 for no limit; the last query's own key is the last key.
    causal: no key after the query's own. softcap: 0 for none. alibi_slopes: (H,) or (batch, H). deterministic changes
    nothing: results are always deterministic.
    return_attn_probs: also return the log-sum-exp of each row (batch, H, n_q), which is -inf for a row without keys,
    and S_dmask: with dropout, the probabilities, negative where they were dropped; else an empty tensor.
    s_aux: attention sinks (H,); later versions of FlashAttention use this name.

    Returns out (batch, n_q, H, d_v), or (out, lse, S_dmask), with gradients. Raises RedblueError, naming the argument,
    for an unsupported value.
    """
    check_flag("return_attn_probs", return_attn_probs)
    check_batches(q, k, v)
    check_slopes(alibi_slopes, q.shape[0], q.shape[2])
    check_sinks(s_aux, q.shape[2])
    options = options_of(dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, s_aux)
    if return_attn_probs and options["dropout"]:
        options["seed"] = draw_seed()
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out, lse = attention(q, k, v, return_lse=True, **options)
    out = out.transpose(1, 2)
    return (out, lse, s_dmask(q, k, options)) if return_attn_probs else out


def s_dmask(q: Tensor, k: Tensor, options: dict[str, Any]) -> Tensor:
    """S_dmask for q and k of shape (batch, heads, n, d)."""
    if not options["dropout"]:
        return probabilities.empty(q)
    return probabilities.rounded_up(probabilities.signed(q, k, options))


def flash_attn_kvpacked_func(
    q: Any,
    kv: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """`flash_attn_func` on keys and values in one tensor: q (batch, n_q, H, d), kv (batch, n_k, 2, H_kv, d).

    The other arguments, the results and the errors are those of `flash_attn_func`.
    """
    k, v = unpacked("kv", kv, 2, "(batch, n, 2, heads, d)")
    options = softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    return flash_attn_func(q, k, v, dropout_p, *options)


def flash_attn_qkvpacked_func(
    qkv: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """`flash_attn_func` on queries, keys and values in one tensor, qkv (batch, n, 3, H, d).

    The other arguments, the results and the errors are those of `flash_attn_func`.
    """
    q, k, v = unpacked("qkv", qkv, 3, "(batch, n, 3, heads, d)")
    options = softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    return flash_attn_func(q, k, v, dropout_p, *options)
