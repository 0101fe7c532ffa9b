"""FlashAttention 2's functions on packed sequences (total, heads, d), with gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from torch import Tensor
from torch.nn import functional

from redblue.base.errors import RedblueError
from redblue.integrations.flash_attn import graph_ops, probabilities
from redblue.integrations.flash_attn.arguments import (
    check_heads,
    check_sinks,
    check_slopes,
    check_tensors,
    draw_seed,
    options_of,
    unpacked,
)
from redblue.integrations.flash_attn.packing import KeyRows, checked_sequences, starts_of
from redblue.op.checks import check_flag
from redblue.op.packed import PackedCall, packed_attention, packed_calls, rows_of
from redblue.op.varlen import is_captured


def flash_attn_varlen_func(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Any = None,
    s_aux: Any = None,
) -> Any:
    """Attention within packed sequences: q (total_q, H, d), k (total_k, H_kv, d), v (total_k, H_kv, d_v).

    cu_seqlens_q, cu_seqlens_k: the cumulative lengths of the sequences, from 0. max_seqlen_q, max_seqlen_k: at least
    the longest lengths. Rows after the last sequence give 0. Within a sequence, the other arguments mean the same as
    in `flash_attn_func`. alibi_slopes: (H,) or (sequences, H).
    block_table: (sequences, blocks) numbers of the pages that hold a sequence's keys; k and v are then
    (pages, page, H_kv, d).
    return_attn_probs: also return the log-sum-exp (H, total_q), and S_dmask (sequences, H, n_q, n_k).

    Returns out (total_q, H, d_v), or (out, lse, S_dmask), with gradients. Raises RedblueError, naming the argument, for
    an unsupported value.
    """
    check_flag("return_attn_probs", return_attn_probs)
    if block_table is None and not (return_attn_probs and dropout_p) and is_captured(q, cu_seqlens_q):
        _check_shapes(q, k, v)
        check_sinks(s_aux, q.shape[1])
        options = options_of(dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, s_aux)
        starts = cu_seqlens_q, cu_seqlens_k
        out, lse = graph_ops.attention_varlen(q, k, v, *starts, max_seqlen_q, max_seqlen_k, options)
        return (out, lse, probabilities.empty(q)) if return_attn_probs else out
    sequences = Sequences.checked(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, alibi_slopes, block_table
    )
    check_sinks(s_aux, q.shape[1])
    options = options_of(dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, s_aux)
    if return_attn_probs and options["dropout"]:
        options["seed"] = draw_seed()
    k, v = sequences.keys.packed(k), sequences.keys.packed(v)
    out, lse = forward(q, k, v, sequences, options)
    return (out, lse, s_dmask(q, k, sequences, options)) if return_attn_probs else out


class Sequences(NamedTuple):
    """The packed sequences of a call: their lengths, the places of their keys, and the user's longest lengths."""

    lengths: np.ndarray
    keys: KeyRows
    longest: tuple[int, int]

    @staticmethod
    def checked(
        q: Any,
        k: Any,
        v: Any,
        cu_seqlens_q: Any,
        cu_seqlens_k: Any,
        max_seqlen_q: Any,
        max_seqlen_k: Any,
        alibi_slopes: Any,
        block_table: Any = None,
        **more: Any,
    ) -> Sequences:
        """Read the arguments. Raises RedblueError unless tensors and sequences fit. more: arguments of `KeyRows`."""
        _check_shapes(q, k, v, block_table)
        starts = cu_seqlens_q, cu_seqlens_k
        longest = max_seqlen_q, max_seqlen_k
        sequences = Sequences(*checked_sequences(q.shape[0], k.shape, *starts, *longest, block_table, **more))
        check_slopes(alibi_slopes, len(sequences.lengths), q.shape[1])
        return sequences

    @property
    def starts(self) -> tuple[np.ndarray, np.ndarray]:
        """(sequences + 1,) each: the first query and the first packed key of each sequence, and the totals."""
        return starts_of(self.lengths), starts_of(self.keys.lengths)

    def calls(self, options: dict[str, Any]) -> list[PackedCall]:
        """The calls of `attention` that compute the sequences."""
        return packed_calls(self.lengths, self.keys.lengths, options)


def _check_shapes(q: Any, k: Any, v: Any, block_table: Any = None) -> None:
    """Raise RedblueError unless q, k and v are tensors whose shapes fit each other."""
    check_tensors("(total, heads, d)", q=q)
    check_tensors("(total, heads, d)" if block_table is None else "(pages, page, heads, d)", k=k, v=v)
    if v.shape[:-1] != k.shape[:-1]:
        raise RedblueError(f"v must have the keys and heads of k, {tuple(k.shape[:-1])}, got {tuple(v.shape[:-1])}")
    check_heads(q, k)


def forward(q: Tensor, k: Tensor, v: Tensor, sequences: Sequences, options: Any) -> tuple[Tensor, Tensor]:
    """The output and the log-sum-exp (H, total_q). Rows after the last sequence get 0 and -inf."""
    used = int(sequences.lengths.sum())
    out, lse = packed_attention(rows_of(q, slice(0, used)), k, v, sequences.lengths, sequences.keys.lengths, options)
    if (left := q.shape[0] - used) > 0:
        out = functional.pad(out, (0, 0, 0, 0, 0, left))
        lse = functional.pad(lse, (0, left), value=float("-inf"))
    return out, lse


def s_dmask(q: Tensor, k: Tensor, sequences: Sequences, options: Any) -> Tensor:
    """S_dmask (sequences, H, n_q, n_k) of packed sequences; n_q and n_k are the longest lengths, rounded up."""
    if not options["dropout"]:
        return probabilities.empty(q)
    lengths, key_lengths, starts, key_starts = sequences.lengths, sequences.keys.lengths, *sequences.starts
    result = probabilities.rounded_up(q.new_zeros(len(lengths), q.shape[1], *sequences.longest))
    for call in sequences.calls(options):
        queries, keys = (x[rows].transpose(0, 1)[None] for x, rows in ((q, call.queries), (k, call.keys)))
        p = probabilities.signed(queries, keys, call.options)[0]
        for i, (n_q, n_k) in enumerate(zip(lengths, key_lengths, strict=True)):
            a, c = starts[i] - call.queries.start, key_starts[i] - call.keys.start
            if a >= 0 and c >= 0 and starts[i + 1] <= call.queries.stop and key_starts[i + 1] <= call.keys.stop:
                result[i, :, :n_q, :n_k] = p[:, a : a + n_q, c : c + n_k]
    return result


def flash_attn_varlen_kvpacked_func(
    q: Any,
    kv: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """`flash_attn_varlen_func` on keys and values in one tensor: q (total_q, H, d), kv (total_k, 2, H_kv, d).

    The other arguments, the results and the errors are those of `flash_attn_varlen_func`.
    """
    k, v = unpacked("kv", kv, 2, "(total, 2, heads, d)")
    sequences = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
    options = softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    return flash_attn_varlen_func(q, k, v, *sequences, dropout_p, *options)


def flash_attn_varlen_qkvpacked_func(
    qkv: Any,
    cu_seqlens: Any,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """`flash_attn_varlen_func` on queries, keys and values in one tensor, qkv (total, 3, H, d).

    The other arguments, the results and the errors are those of `flash_attn_varlen_func`.
    """
    q, k, v = unpacked("qkv", qkv, 3, "(total, 3, heads, d)")
    sequences = cu_seqlens, cu_seqlens, max_seqlen, max_seqlen
    options = softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    return flash_attn_varlen_func(q, k, v, *sequences, dropout_p, *options)
