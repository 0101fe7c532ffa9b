"""Conversion between padded and packed batches, with the names and results of flash_attn.bert_padding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from redblue.base.errors import RedblueError
from redblue.base.integers import whole_number


def index_first_axis(x: Tensor, indices: Tensor) -> Tensor:
    """The rows of x (rows, ...) at these indices (count,): (count, ...), with gradient.

    Raises RedblueError, naming the argument, for indices of other types or out of range.
    """
    indices = _checked_indices("x", x, indices)
    return x.index_select(0, indices)


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """A tensor (first_axis_dim, ...) with the rows of `values` (count, ...) at these indices (count,), with gradient.

    The other rows are 0. Raises RedblueError, naming the argument, for indices of other types or out of range.
    """
    rows = whole_number("first_axis_dim", first_axis_dim, 0)
    indices = _checked_indices("values", values, indices, rows)
    if len(indices) != len(values):
        raise RedblueError(f"indices must have one entry for each of {len(values)} rows, got {len(indices)}")
    return values.new_zeros(rows, *values.shape[1:]).index_copy(0, indices.long(), values)


def index_first_axis_residual(x: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of x at these indices, and x itself."""
    return index_first_axis(x, indices), x


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """Pack the positions of hidden_states (batch, n, ...) where attention_mask (batch, n) is not 0.

    unused_mask: further positions, (batch, n), that are packed, too, but not counted in the last result.
    Returns the packed rows (total, ...), their indices in the flattened batch, the cumulative lengths (batch + 1,) as
    int32, the longest length, and the number of attended positions of each entry (batch,).
    """
    _check_mask("attention_mask", attention_mask, hidden_states)
    packed = attention_mask
    if unused_mask is not None:
        _check_mask("unused_mask", unused_mask, hidden_states)
        packed = attention_mask + unused_mask
    lengths = packed.sum(-1, dtype=torch.int32)
    used = attention_mask.sum(-1, dtype=torch.int32)
    return *_packed(hidden_states, packed.flatten().nonzero().flatten(), lengths), used


def unpad_input_for_concatenated_sequences(
    hidden_states: Tensor, attention_mask_in_length: Tensor
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Pack a batch (batch, n, ...) in which each row holds several concatenated sequences, from position 0 on.

    attention_mask_in_length: (batch, n); the entries of a row that are not 0 are the lengths of its sequences.
    Returns the packed rows, their indices, the cumulative lengths of all sequences, and the longest length.
    """
    _check_mask("attention_mask_in_length", attention_mask_in_length, hidden_states)
    filled = attention_mask_in_length.sum(-1, keepdim=True)
    n = attention_mask_in_length.shape[1]
    if (filled > n).any():
        raise RedblueError(f"attention_mask_in_length must fill at most {n} positions of a row, got {filled.max()}")
    lengths = attention_mask_in_length[attention_mask_in_length != 0]
    positions = torch.arange(n, device=filled.device)
    return _packed(hidden_states, (positions < filled).flatten().nonzero().flatten(), lengths)


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """A batch (batch, seqlen, ...) that holds packed rows at these indices of the flattened batch, and 0 elsewhere."""
    batch, seqlen = whole_number("batch", batch, 0), whole_number("seqlen", seqlen, 0)
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))


def _packed(hidden_states: Tensor, indices: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    """The rows at these indices, the indices, the cumulative lengths and the longest one."""
    starts = functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    longest = int(lengths.max()) if len(lengths) else 0
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, starts, longest


def _check_mask(name: str, mask: Any, hidden_states: Any) -> None:
    """Raise RedblueError unless the mask is a tensor (batch, n) for states (batch, n, ...)."""
    for tensor, x in ((name, mask), ("hidden_states", hidden_states)):
        if not isinstance(x, Tensor):
            raise RedblueError(f"{tensor} must be a PyTorch tensor, got {type(x).__name__}")
    if mask.dim() != 2 or mask.shape != hidden_states.shape[:2]:
        shapes = f"{tuple(mask.shape)} for hidden_states of shape {tuple(hidden_states.shape)}"
        raise RedblueError(f"{name} must be (batch, n) for hidden_states (batch, n, ...), got {shapes}")


def _checked_indices(name: str, x: Any, indices: Any, rows: int | None = None) -> Tensor:
    """The indices. Raises RedblueError unless x is a tensor and they are below `rows` (default: the rows of x).

    On a GPU, PyTorch itself checks their range.
    """
    if not isinstance(x, Tensor) or not x.dim():
        got = "a tensor of no dimension" if isinstance(x, Tensor) else type(x).__name__
        raise RedblueError(f"{name} must be a PyTorch tensor of at least one dimension, got {got}")
    rows = len(x) if rows is None else rows
    if not isinstance(indices, Tensor) or indices.dim() != 1 or indices.dtype not in (torch.int32, torch.int64):
        got = f"{indices.dtype} {tuple(indices.shape)}" if isinstance(indices, Tensor) else type(indices).__name__
        raise RedblueError(f"indices must be a tensor (n,) of int32 or int64, got {got}")
    if indices.device != x.device:
        raise RedblueError(f"indices must be on the device of {name}, {x.device}, got {indices.device}")
    if indices.is_cpu and len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < rows:
        raise RedblueError(f"indices must be 0 to {rows - 1}, got {int(indices.min())} to {int(indices.max())}")
    return indices
