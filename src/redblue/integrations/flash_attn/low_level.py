"""The passes of FlashAttention 2 as separate functions, which ring-flash-attn, yunchang and diffusers call.

They record no gradients. Their parameters have the names, order and defaults of FlashAttention 2.8, because callers
read them with `inspect`; for the same reason, these functions have no decorators.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from redblue.base.errors import RedblueError
from redblue.base.integers import whole_number
from redblue.integrations.flash_attn import packed, probabilities
from redblue.integrations.flash_attn.arguments import (
    check_batches,
    check_slopes,
    check_tensors,
    draw_seed,
    options_of,
)
from redblue.integrations.flash_attn.batched import s_dmask
from redblue.kernels.options import Options
from redblue.op.api import attention
from redblue.op.checks import check_flag
from redblue.op.pytorch import dispatch
from redblue.op.pytorch.layouts import sums_of


def _flash_attn_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    return_softmax: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(out, softmax_lse, S_dmask, rng_state) of a padded batch. rng_state holds the seed of dropout."""
    check_flag("return_softmax", return_softmax)
    check_batches(q, k, v)
    check_slopes(alibi_slopes, q.shape[0], q.shape[2])
    sides = window_size_left, window_size_right
    options, rng_state = _with_seed(q, options_of(dropout_p, softmax_scale, causal, sides, softcap, alibi_slopes))
    with torch.no_grad():
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        out, lse = attention(q, k, v, return_lse=True, **options)
        probabilities_of_pairs = s_dmask(q, k, options) if return_softmax else probabilities.empty(q)
    return out.transpose(1, 2), lse, probabilities_of_pairs, rng_state


def _flash_attn_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    rng_state: Tensor | None = None,
) -> Tensor:
    """Write the gradients into dq, dk and dv unless they are None. Returns the row sums of dout * out, (B, H, n_q).

    out and softmax_lse may be the merged outputs of several blocks of keys; k and v are then one of these blocks. With
    dropout, rng_state must be the result of the forward pass.
    """
    check_batches(q, k, v)
    check_tensors("(batch, n, heads, d)", dout=dout, out=out)
    check_slopes(alibi_slopes, q.shape[0], q.shape[2])
    targets = _targets(q=q, k=k, v=v, dq=dq, dk=dk, dv=dv)
    sides = window_size_left, window_size_right
    options = options_of(dropout_p, softmax_scale, causal, sides, softcap, alibi_slopes, deterministic)
    record = Options(**options, seed=_seed_of(options["dropout"], rng_state))
    tensors = [x.transpose(1, 2) for x in (dout, q, k, v, out)]
    *gradients, delta = dispatch.attention_backward(*tensors, lse=_lse_of(q, softmax_lse), options=record)
    for target, gradient in zip(targets, gradients, strict=True):
        if target is not None:
            target.copy_(gradient.transpose(1, 2))
    return delta


def _flash_attn_varlen_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    return_softmax: bool = False,
    block_table: Tensor | None = None,
    leftpad_k: Tensor | None = None,
    seqused_k: Tensor | None = None,
    zero_tensors: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(out, softmax_lse, S_dmask, rng_state) of packed sequences; softmax_lse is (H, total_q).

    seqused_k: the number of used keys of each sequence. leftpad_k: the number of keys at the beginning of
    each sequence that are left out. zero_tensors changes nothing: all rows are written.
    """
    check_flag("return_softmax", return_softmax)
    check_flag("zero_tensors", zero_tensors)
    sequences = packed.Sequences.checked(
        *(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, alibi_slopes, block_table),
        seqused_k=seqused_k,
        leftpad_k=leftpad_k,
    )
    sides = window_size_left, window_size_right
    options, rng_state = _with_seed(q, options_of(dropout_p, softmax_scale, causal, sides, softcap, alibi_slopes))
    probabilities_of_pairs = probabilities.empty(q)
    with torch.no_grad():
        k, v = sequences.keys.packed(k), sequences.keys.packed(v)
        out, lse = packed.forward(q, k, v, sequences, options)
        if return_softmax:
            probabilities_of_pairs = packed.s_dmask(q, k, sequences, options)
    return out, lse, probabilities_of_pairs, rng_state


def _flash_attn_varlen_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    rng_state: Tensor | None = None,
    zero_tensors: bool = False,
) -> Tensor:
    """`_flash_attn_backward` for packed sequences. Rows that belong to no sequence get gradients of 0."""
    check_flag("zero_tensors", zero_tensors)
    sequences = packed.Sequences.checked(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, alibi_slopes)
    check_tensors("(total, heads, d)", dout=dout, out=out)
    check_tensors("(heads, total)", softmax_lse=softmax_lse)
    sides = window_size_left, window_size_right
    options = options_of(dropout_p, softmax_scale, causal, sides, softcap, alibi_slopes, deterministic)
    options["seed"] = _seed_of(options["dropout"], rng_state)
    lse, delta = _lse_of(q, softmax_lse), softmax_lse.new_zeros(softmax_lse.shape)
    targets = _targets(q=q, k=k, v=v, dq=dq, dk=dk, dv=dv)
    (*_, used), (*_, used_keys) = sequences.starts
    for target, rows in zip(targets, (used, used_keys, used_keys), strict=True):
        if target is not None:
            target[rows:].zero_()
    for call in sequences.calls(options):
        rows = call.queries, call.queries, call.keys, call.keys, call.queries
        tensors = [x[own].transpose(0, 1)[None] for x, own in zip((dout, q, k, v, out), rows, strict=True)]
        part, record = lse[None, :, call.queries], Options(**call.options)
        *gradients, row_sums = dispatch.attention_backward(*tensors, lse=part, options=record)
        for target, gradient, own in zip(targets, gradients, (call.queries, call.keys, call.keys), strict=True):
            if target is not None:
                target[own].copy_(gradient[0].transpose(0, 1))
        delta[:, call.queries] = row_sums[0]
    return delta


def _targets(**tensors: Any) -> list[Tensor | None]:
    """dq, dk and dv. Raises RedblueError unless each is None or fits q, k or v."""
    targets = [tensors[f"d{name}"] for name in "qkv"]
    for name, target in zip("qkv", targets, strict=True):
        if target is None:
            continue
        x = tensors[name]
        wanted = f"d{name} must be None or a floating-point tensor of shape {tuple(x.shape)} on {x.device}"
        if not isinstance(target, Tensor):
            raise RedblueError(f"{wanted}, got {type(target).__name__}")
        if target.shape != x.shape or target.device != x.device or not target.is_floating_point():
            raise RedblueError(f"{wanted}, got {target.dtype} of shape {tuple(target.shape)} on {target.device}")
    return targets


def _with_seed(q: Tensor, options: Any) -> tuple[dict[str, Any], Tensor]:
    """The options with a new seed if there is dropout, and FlashAttention's rng_state, which holds the seed."""
    seed = draw_seed() if options["dropout"] else None
    return {**options, "seed": seed}, torch.tensor([seed or 0, 0], dtype=torch.int64, device=q.device)


def _seed_of(dropout: float, rng_state: Any) -> int | None:
    """The seed in rng_state. Raises RedblueError if dropout needs one that is missing."""
    if not dropout:
        return None
    if rng_state is None:
        raise RedblueError(
            "rng_state must be the result of the forward pass if dropout_p is above 0, got None: another state "
            "drops different probabilities"
        )
    return whole_number("rng_state[0]", rng_state[0], -math.inf, math.inf)


def _lse_of(q: Tensor, softmax_lse: Any) -> Tensor:
    """The log-sum-exp in the type of the sums. FlashAttention's +inf for rows without keys works like -inf."""
    if not isinstance(softmax_lse, Tensor):
        raise RedblueError(f"softmax_lse must be a PyTorch tensor, got {type(softmax_lse).__name__}")
    if not softmax_lse.is_floating_point():
        raise RedblueError(f"softmax_lse must be of a floating-point type, got {softmax_lse.dtype}")
    return softmax_lse.to(sums_of(q.dtype))
