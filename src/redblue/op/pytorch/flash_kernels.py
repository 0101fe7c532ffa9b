"""Kernels for the signatures of PyTorch's flash-attention ops, on CPU tensors.

Two layouts exist. Padded batches are (batch, n, heads, d), with cum_seq_q and cum_seq_k None. Packed sequences are
(total, heads, d). As in flash-attn, windows and is_causal are aligned with the last query and the last key of a
sequence. lse is float32, (batch, heads, n) or (heads, total), and -inf for a query that attends no key.
The state of the random generator that a forward op returns holds redblue's seed. So the backward op drops the same
probabilities.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from redblue.base.dtypes import dtype_name
from redblue.base.errors import RedblueError
from redblue.kernels.cpu.arrays import dense_strides
from redblue.kernels.options import Options, check_array, checked
from redblue.masks import Mask
from redblue.op.packed import documents, known_window, lengths_between, packed_calls
from redblue.op.pytorch import ops
from redblue.op.pytorch.dispatch import drawn_seed, mask_argument
from redblue.op.pytorch.layouts import expanded_shapes
from redblue.op.pytorch.paged.gather import used_keys

FLASH_DTYPES = torch.float32, torch.bfloat16, torch.float16


class Call(NamedTuple):
    """The tensors of a call as (batch, heads, n, d), and its mask.

    lengths: the lengths of packed sequences in queries and in keys; None for padded batches.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Mask
    lengths: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def packed(self) -> bool:
        return self.lengths is not None

    def of_layout(self, x: Tensor) -> Tensor:
        """Convert a tensor (batch, heads, n, d) to the op's layout; the inverse of `inside`."""
        return x[0].transpose(0, 1) if self.packed else x.transpose(1, 2)

    def inside(self, x: Tensor) -> Tensor:
        """Convert a tensor of the op's layout to (batch, heads, n, d)."""
        return x.transpose(0, 1)[None] if self.packed else x.transpose(1, 2)


# The ops -------------------------------------------------------------------------------------------------------------


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    seqused_k: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> tuple[Tensor, ...]:
    """aten::_flash_attention_forward."""
    _check_debug_mask(return_debug_mask)
    inputs = query, key, value
    for name, x in (("seqused_k", seqused_k), ("alibi_slopes", alibi_slopes), ("block_table", block_table)):
        if x is not None and torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
            raise RedblueError(f"{name} is for inference only, as PyTorch's op has no gradient with it: use no_grad()")
    window = _window(is_causal, window_size_left, window_size_right)
    if cum_seq_q is None or (cum_seq_k is None and block_table is None):
        if seqused_k is not None or block_table is not None or cum_seq_q is not None or cum_seq_k is not None:
            raise RedblueError(
                "packed sequences need cum_seq_q and cum_seq_k, or cum_seq_q, seqused_k and block_table; padded "
                "batches take none of the four"
            )
        call = _padded(*inputs, window)
    else:
        if seqused_k is not None or block_table is not None:
            key, value, cum_seq_k = used_keys(key, value, cum_seq_q, cum_seq_k, seqused_k, block_table)
        assert cum_seq_k is not None
        call = _packed(query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, window)
    slopes = _slopes(call, alibi_slopes, cum_seq_q)
    if _in_parts(num_splits, call.packed and slopes is not None, dropout_p):
        out, lse = _parts(call, window, scale, slopes, separate=num_splits == 1)
        return (*_shaped(call, out, lse, query), *_states(query, None))
    options = _options(call.mask, scale, dropout_p, _seed(query, dropout_p), slopes)
    out, lse = ops.forward(call.q, call.k, call.v, options)
    return (*_shaped(call, out, lse, query), *_states(query, options.seed))


def forward_into(out: Tensor, query: Tensor, key: Tensor, value: Tensor, *arguments: Any, **options: Any) -> Tensor:
    """aten::_flash_attention_forward_no_dropout_inplace: write the output to `out`, and return lse."""
    dropout = options.get("dropout_p", arguments[4] if len(arguments) > 4 else 0.0)
    if dropout:
        raise RedblueError(f"dropout_p must be 0 with a given output, got {dropout}")
    if out.shape != query.shape or out.dtype != query.dtype:
        raise RedblueError(
            f"out must be {tuple(query.shape)} of {dtype_name(query.dtype)}, as query is, "
            f"got {tuple(out.shape)} of {dtype_name(out.dtype)}"
        )
    result, lse, *_ = forward(query, key, value, *arguments, **options)
    out.copy_(result)
    return lse


def backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    rng_state: Tensor | None,
    unused: Tensor | None,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """aten::_flash_attention_backward. out and logsumexp may cover more keys than `key`, as in ring attention."""
    window = _window(is_causal, window_size_left, window_size_right)
    if cum_seq_q is None or cum_seq_k is None:
        if cum_seq_q is not None or cum_seq_k is not None:
            raise RedblueError("packed sequences need both cum_seq_q and cum_seq_k, padded batches take neither")
        call = _padded(query, key, value, window)
    else:
        call = _packed(query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, window)
    options = _options(call.mask, scale, dropout_p, _kept_seed(rng_state) if dropout_p else None)
    dout, out = call.inside(grad_out), call.inside(out)
    lse = logsumexp[None] if call.packed else logsumexp
    gradients = ops.backward(dout, None, call.q, call.k, call.v, out, lse, options, False)
    dq, dk, dv = (
        _strided_as(x, call.of_layout(gradient))
        for x, gradient in zip((query, key, value), gradients, strict=False)  # the first three of five
    )
    return dq, dk, dv


def sdpa_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """aten::_scaled_dot_product_flash_attention, on tensors (batch, heads, n, d)."""
    _check_debug_mask(return_debug_mask)
    _check_inputs(query, key, value, 4)
    options = _options(_window(is_causal, None, None), scale, dropout_p, _seed(query, dropout_p))
    out, lse = ops.forward(query, key, value, options)
    state, unused, debug = _states(query, options.seed)
    n_q, n_k = query.shape[2], key.shape[2]
    return _strided_as(query, out), lse, None, None, n_q, n_k, state, unused, debug


def sdpa_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Tensor | None,
    philox_offset: Tensor | None,
    *,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """aten::_scaled_dot_product_flash_attention_backward."""
    if _is_present(cum_seq_q) or _is_present(cum_seq_k):
        raise RedblueError(
            "cum_seq_q and cum_seq_k must be None, as for padded batches: call _flash_attention_backward for packed "
            "sequences"
        )
    dout, q, k, v, out = (x.transpose(1, 2) for x in (grad_out, query, key, value, out))
    settings = dropout_p, is_causal, philox_seed, philox_offset
    gradients = backward(dout, q, k, v, out, logsumexp, None, None, max_q, max_k, *settings, scale=scale)
    dq, dk, dv = (_strided_as(x, y.transpose(1, 2)) for x, y in zip((query, key, value), gradients, strict=True))
    return dq, dk, dv


# Their parts ---------------------------------------------------------------------------------------------------------


def _padded(query: Tensor, key: Tensor, value: Tensor, window: Mask) -> Call:
    _check_inputs(query, key, value, 4)
    return Call(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), window)


def _packed(
    query: Tensor, key: Tensor, value: Tensor, starts: Tensor, key_starts: Tensor, max_q: int, max_k: int, window: Mask
) -> Call:
    _check_inputs(query, key, value, 3)
    lengths = lengths_between("cum_seq_q", starts, "query", query.shape[0])
    key_lengths = lengths_between("cum_seq_k", key_starts, "key", key.shape[0])
    for name, most, of in (("max_q", max_q, lengths), ("max_k", max_k, key_lengths)):
        if of.max(initial=0) > most:
            raise RedblueError(f"{name} must be at least the length of the longest sequence, {of.max()}, got {most}")
    if len(lengths) != len(key_lengths):
        raise RedblueError(
            f"cum_seq_k must be for as many sequences as cum_seq_q ({len(lengths)}), got {len(key_lengths)}"
        )
    q, k, v = (x.transpose(0, 1)[None] for x in (query, key, value))
    return Call(q, k, v, documents(lengths, key_lengths, window), (lengths, key_lengths))


def _check_inputs(query: Tensor, key: Tensor, value: Tensor, rank: int) -> None:
    """Raise RedblueError unless the op supports tensors of these types and shapes."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.dim() != rank:
            raise RedblueError(f"{name} must have {rank} dimensions, got shape {tuple(x.shape)}")
        if x.dtype not in FLASH_DTYPES:
            allowed = ", ".join(map(dtype_name, FLASH_DTYPES))
            raise RedblueError(
                f"{name} must be of type {allowed}, as these ops return lse as float32, got {dtype_name(x.dtype)}: "
                "redblue.attention and redblue.attention_varlen take float64"
            )
    if value.shape[-1] != query.shape[-1] and not _takes_other_widths():
        raise RedblueError(
            f"value must have the head dimension of query, {query.shape[-1]}, in this version of PyTorch, got "
            f"{value.shape[-1]}: redblue.attention and redblue.attention_varlen take other dimensions"
        )


@cache
def _takes_other_widths() -> bool:
    """Whether the ops of this PyTorch support values whose head dimension differs from that of the queries."""
    q, v = (torch.empty(1, 1, 1, d, device="meta") for d in (1, 2))
    out, *_ = torch.ops.aten._flash_attention_forward(q, q, v, None, None, 1, 1, 0.0, False, False)
    return out.shape[-1] == v.shape[-1]


def _check_debug_mask(return_debug_mask: bool) -> None:
    if return_debug_mask:
        raise RedblueError("return_debug_mask must be False: the dropout mask is never in memory")


def _window(is_causal: bool, left: int | None, right: int | None) -> Mask:
    """The mask of a window; a side that is negative or None is open."""
    return known_window(-1 if left is None else left, 0 if is_causal else -1 if right is None else right)


def _options(mask: Mask, scale: float | None, dropout: float, seed: Tensor | None, slopes: Any = None) -> Options:
    """The options of a call of redblue's kernels. They hold the mask only by its name, so the caller must keep it."""
    options = checked(Options(scale=scale, dropout=dropout))
    return options._replace(mask=mask_argument(mask, "auto", captured=False), seed=seed, alibi=slopes)


def _shaped(call: Call, out: Tensor, lse: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
    """The output and lse in the op's layout."""
    return _strided_as(query, call.of_layout(out)), lse[0] if call.packed else lse


def _strided_as(x: Tensor, result: Tensor) -> Tensor:
    """The result with its dimensions in the order of x in memory, which torch.compile expects."""
    if x.shape == result.shape:
        strides = x.stride() if x.is_contiguous() else torch.empty_like(x, device="meta").stride()
    else:
        inner_first = sorted(range(x.dim()), key=lambda i: x.stride(i) or math.inf)
        strides = dense_strides(result.shape, inner_first[::-1])
    if all(n <= 1 or a == b for n, a, b in zip(result.shape, result.stride(), strides, strict=True)):
        return result
    return result.new_empty_strided(result.shape, strides).copy_(result)


def _parts(
    call: Call, window: Mask, scale: float | None, slopes: Tensor | None, separate: bool
) -> tuple[Tensor, Tensor]:
    """The output and lse, computed in several calls.

    separate: one call for each sequence, instead of as few calls as alibi allows.
    """
    q, k, v = call.q, call.k, call.v
    if call.lengths is not None:
        packed = packed_calls(*call.lengths, {"mask": window, "alibi": slopes}, separate)
        parts = [
            (q[:, :, part.queries], k[:, :, part.keys], v[:, :, part.keys], part.options["mask"], part.options["alibi"])
            for part in packed
        ]
    else:
        own = [None] * len(q) if slopes is None else slopes.expand(len(q), q.shape[1])
        parts = [(q[i : i + 1], k[i : i + 1], v[i : i + 1], window, own[i]) for i in range(len(q))]
    if not parts:
        return q.new_empty((*q.shape[:-1], v.shape[-1])), q.new_empty(q.shape[:-1], dtype=torch.float32)
    results = [ops.forward(q, k, v, _options(mask, scale, 0.0, None, own)) for q, k, v, mask, own in parts]
    out, lse = (torch.cat(x, 2 if call.packed else 0) for x in zip(*results, strict=True))
    return out, lse


def _slopes(call: Call, slopes: Tensor | None, starts: Tensor | None) -> Tensor | None:
    """The slopes of alibi. Raises RedblueError unless they are (heads,) or (batch, heads)."""
    if slopes is None:
        return None
    sizes = expanded_shapes(call.q.shape, call.k.shape, call.v.shape).sizes
    batch = call.q.shape[0] if starts is None else len(starts) - 1
    shape, heads = tuple(slopes.shape), call.q.shape[1]
    if shape not in ((heads,), (batch, heads)):
        raise RedblueError(f"alibi_slopes must be ({heads},) or ({batch}, {heads}), got {shape}")
    check_array("alibi", (heads,), dtype_name(slopes.dtype), sizes, dtype_name(call.q.dtype))
    return slopes


def _in_parts(num_splits: int | None, packed_with_slopes: bool, dropout: float) -> bool:
    """Whether a call is computed in parts, by `_parts`.

    num_splits=1 requests sums that do not depend on the other sequences. Packed sequences with slopes need parts,
    because alibi's distances count within a sequence.
    """
    if num_splits is not None and num_splits < 0:
        raise RedblueError(f"num_splits must be 0 (automatic) or more, got {num_splits}")
    if (num_splits == 1 or packed_with_slopes) and dropout:
        name = "num_splits=1" if num_splits == 1 else "alibi_slopes of packed sequences"
        raise RedblueError(f"{name} is for inference only: dropout_p must be 0, got {dropout}")
    return num_splits == 1 or packed_with_slopes


# The random generator's state ----------------------------------------------------------------------------------------


def _seed(query: Tensor, dropout: float) -> Tensor | None:
    """A seed from PyTorch's generator; None without dropout."""
    return drawn_seed(query, None) if dropout else None


def _states(query: Tensor, seed: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The op's last three outputs: the state with the seed, a number that is always 0, and an empty debug mask."""
    empty = query.new_empty(0)
    seed = torch.zeros((), dtype=torch.int64) if seed is None else seed
    if _has_two_states():
        return seed, torch.zeros((), dtype=torch.int64), empty
    state = torch.stack((seed, torch.zeros_like(seed))).view(torch.uint64)
    return state, torch.zeros((), dtype=torch.uint64), empty


def _kept_seed(state: Tensor | None) -> Tensor:
    """The seed in the state that a forward op returned."""
    if state is None or not state.numel():
        raise RedblueError("rng_state must be the one that the forward op returned with dropout_p, got none")
    return state.reshape(-1)[0].view(torch.int64)


@cache
def _has_two_states() -> bool:
    """Whether this PyTorch returns the seed and its offset as two numbers, as it did before rng_state."""
    return torch.ops.aten._flash_attention_forward.default._schema.returns[2].name != "rng_state"


def _is_present(x: Tensor | None) -> bool:
    return x is not None and x.numel() > 0
