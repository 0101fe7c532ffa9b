"""Attention over packed sequences: concatenated sequences of different lengths."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from redblue.base.errors import RedblueError
from redblue.kernels.options import PackedArguments
from redblue.masks import Mask
from redblue.masks.rules.bands import Window
from redblue.op.checks import check_flag
from redblue.op.packed import packed_attention, packed_lengths
from redblue.op.signatures import documented, options_of

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
    The mask is Mask.causal(), a sliding window or Mask.full(), within each sequence. With align="bottom-right", the
    last query of a sequence has the position of the sequence's last key. alibi's distances always assume these
    positions; its slopes are (H,), or (sequences, H). All other options of `attention` are accepted, except a bias.

    return_lse: also return the log-sum-exp of each row's scores, sinks included; differentiable.

    Returns out (total_q, H, d_v), or (out, lse) with lse (H, total_q). Raises RedblueError, naming the argument, for an
    unsupported value.
    """
    check_flag("return_lse", return_lse)
    record = options_of("attention_varlen", options, PackedArguments)
    mask = record.mask
    for name, array in (("q", q), ("k", k), ("v", v)):
        if len(getattr(array, "shape", ())) != 3:
            raise RedblueError(f"{name} must be packed as (total, heads, d), got {_shown(array)}")
    if not (mask is None or (isinstance(mask, Mask) and isinstance(mask.rule, Window))):
        raise RedblueError(
            f"mask must be a window within each sequence, such as Mask.causal(), got {mask!r}: call attention with "
            "Mask.documents(...) & another mask"
        )
    if is_captured(q, cu_seqlens_q):
        from redblue.op.pytorch import varlen

        out, lse = varlen.attention_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, record)
        return (out, lse) if return_lse else out
    lengths, key_lengths = packed_lengths(cu_seqlens_q, cu_seqlens_k, q.shape[0], k.shape[0])
    out, lse = packed_attention(q, k, v, lengths, key_lengths, options)
    return (out, lse) if return_lse else out


def is_captured(q: Any, cu_seqlens_q: Any) -> bool:
    """Whether PyTorch makes a graph of a call on these tensors, so that cu_seqlens have no values yet.

    Not for DTensors, for which the ops of graphs have no rules: a call on DTensors breaks the graph.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(q, torch.Tensor):
        return False
    if torch.compiler.is_compiling():
        distributed = sys.modules.get("torch.distributed.tensor")
        return distributed is None or not isinstance(q, distributed.DTensor)
    return isinstance(cu_seqlens_q, torch._subclasses.FakeTensor)


def _shown(array: Any) -> str:
    return f"shape {tuple(array.shape)}" if hasattr(array, "shape") else type(array).__name__
