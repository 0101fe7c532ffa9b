"""Packed sequences: the checks of their lengths, their masks, and the calls of `attention` that compute them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from redblue.base.errors import RedblueError
from redblue.base.integers import int64_array
from redblue.kernels.options import ARRAYS
from redblue.masks import Mask
from redblue.op import api
from redblue.op.paged.pages import on_cpu

KEPT = 16  # entries in each of two caches: lengths of sequences, and masks of packed sequences


def packed_attention(
    q: Any, k: Any, v: Any, lengths: np.ndarray, key_lengths: np.ndarray, options: Mapping[str, Any]
) -> tuple[Any, Any]:
    """The output and the log-sum-exp of checked packed sequences. options: as in `packed_calls`."""
    outputs = [_computed(call, q, k, v) for call in packed_calls(lengths, key_lengths, options)]
    return outputs[0] if len(outputs) == 1 else _joined(outputs)


class PackedCall(NamedTuple):
    """A call of `attention` for consecutive packed sequences: their rows of q, of k and v, and the call's options."""

    queries: slice
    keys: slice
    options: dict[str, Any]


def packed_calls(
    lengths: np.ndarray, key_lengths: np.ndarray, options: Mapping[str, Any], separate: bool = False
) -> list[PackedCall]:
    """The calls of `attention` that compute packed sequences of these lengths: one, unless an option needs several.

    Options whose arrays depend on positions, such as alibi, need several calls: see `_aligned`.

    options: those of `attention_varlen`, with the mask of a single sequence. Each of several calls gets a
    different seed, so that dropout differs between sequences. separate: one call for each sequence.
    """
    mask, seed = options.get("mask"), options.get("seed")
    by_position = [name for name, rules in ARRAYS.items() if rules.by_position and options.get(name) is not None]
    if not by_position and not separate:
        together = mask if len(lengths) == 1 else documents(lengths, key_lengths, mask)
        queries, keys = slice(0, int(lengths.sum())), slice(0, int(key_lengths.sum()))
        return [PackedCall(queries, keys, {**options, "mask": together})]
    of_sequences = [name for name in by_position if _row_per_sequence(name, options[name], len(lengths))]
    groups = _aligned(lengths, key_lengths, separate or bool(of_sequences))
    starts, key_starts = (np.append(0, np.cumsum(x)) for x in (lengths, key_lengths))
    calls = []
    for i, (first, end) in enumerate(groups):
        own: dict[str, Any] = dict(options)
        single = end - first == 1
        own["mask"] = mask if single else documents(lengths[first:end], key_lengths[first:end], mask)
        for name in of_sequences:
            x = options[name]
            own[name] = x[first] if len(lengths) else x.sum(0)  # without sequences, zeros of the same heads
        if i and isinstance(seed, (int, np.integer)):  # None stays None; `attention` refuses other types
            own["seed"] = int(seed) + i
        queries = slice(int(starts[first]), int(starts[end]))
        calls.append(PackedCall(queries, slice(int(key_starts[first]), int(key_starts[end])), own))
    return calls


def bottom_right(left: int, right: int) -> Mask:
    """The window of these sides in flash-attn's sense: a negative side is open; the last query is at the last key."""
    return Mask.sliding_window(None if left < 0 else left, None if right < 0 else right, align="bottom-right")


known_window = lru_cache(maxsize=256)(bottom_right)  # for ops, which get the same numbers at each call


def documents(lengths: np.ndarray, key_lengths: np.ndarray, within: Mask | None) -> Mask:
    """Mask.documents from a cache, because all layers of a model pass the same lengths."""
    return _documents(lengths.tobytes(), key_lengths.tobytes(), within)


@lru_cache(maxsize=KEPT)
def _documents(lengths: bytes, key_lengths: bytes, within: Mask | None) -> Mask:
    return Mask.documents(np.frombuffer(lengths, np.int64), np.frombuffer(key_lengths, np.int64), within=within)


def _row_per_sequence(name: str, x: Any, sequences: int) -> bool:
    """Whether an option's array is (sequences, H) for several sequences, and not (H,) or (1, H) for all of them."""
    shape = tuple(getattr(x, "shape", ()))
    if len(shape) != 2 or shape[0] == 1:
        return False
    if shape[0] != sequences:
        raise RedblueError(
            f"{name} must be (heads,) or (sequences, heads), of {sequences} sequences, got shape {shape}"
        )
    return True


def _aligned(lengths: np.ndarray, key_lengths: np.ndarray, separate: bool) -> list[tuple[int, int]]:
    """(first, end) of groups of consecutive sequences in which the kernel computes the correct distances.

    The kernel aligns the last query of its array with its last key. This also aligns the last query of a sequence with
    the sequence's last key if as many queries as keys follow the sequence. separate: one group for each sequence.
    """
    shifts = np.cumsum(key_lengths - lengths)  # the position of a sequence's last key, minus that of its last query
    has_pairs = (lengths > 0) & (key_lengths > 0)
    groups: list[tuple[int, int]] = []
    first, shift = 0, None  # first sequence of the current group, and the shift of its sequences with pairs
    for i in range(len(lengths)):
        if i > first and (separate or shift not in (None, shifts[i])):
            groups.append((first, i))
            first, shift = i, None
        if has_pairs[i]:
            shift = shifts[i]
    return [*groups, (first, len(lengths))]


def _computed(call: PackedCall, q: Any, k: Any, v: Any) -> tuple[Any, Any]:
    """The output and the log-sum-exp of a call's sequences, packed as in `attention_varlen`."""
    parts = (rows_of(q, call.queries), rows_of(k, call.keys), rows_of(v, call.keys))
    q, k, v = (x.swapaxes(0, 1)[None] for x in parts)
    out, lse = api.attention(q, k, v, return_lse=True, **call.options)
    return out[0].swapaxes(0, 1), lse[0]


def rows_of(x: Any, rows: slice) -> Any:
    """x[rows]; x itself for all rows, because the gradient of a slice is a copy."""
    return x if rows.start == 0 and rows.stop == x.shape[0] else x[rows]


def _joined(outputs: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    """The concatenated outputs of several calls."""
    outs, lses = zip(*outputs, strict=True)
    if api.is_torch(outs[0]):
        import torch

        return torch.cat(outs), torch.cat(lses, -1)
    return np.concatenate(outs), np.concatenate(lses, -1)


def packed_lengths(
    cu_seqlens_q: Any, cu_seqlens_k: Any, rows_q: int, rows_k: int, all_rows: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """The lengths of packed sequences in queries and in keys. Raises RedblueError, naming the argument, for wrong ones.

    all_rows: whether the sequences must end at the last rows; else they may end earlier.
    """
    lengths = lengths_between("cu_seqlens_q", cu_seqlens_q, "q", rows_q, all_rows)
    same = cu_seqlens_k is None
    name, starts = ("cu_seqlens_q", cu_seqlens_q) if same else ("cu_seqlens_k", cu_seqlens_k)
    key_lengths = lengths_between(name, starts, "k", rows_k, all_rows)
    if len(lengths) != len(key_lengths):
        raise RedblueError(
            f"cu_seqlens_k must be for as many sequences as cu_seqlens_q ({len(lengths)}), got {len(key_lengths)}"
        )
    return lengths, key_lengths


def lengths_between(name: str, starts: Any, of: str, total: int, all_rows: bool = True) -> np.ndarray:
    """The length of each sequence. Raises RedblueError, naming the entry, unless `starts` ascend from 0 to `total`.

    all_rows: if False, they may end before `total`.
    """
    starts = int64_array(name, on_cpu(name, starts))
    lengths = lengths_of(name, starts)
    if not all_rows and starts[-1] > total:
        raise RedblueError(f"{name} must end at {total}, the rows of {of}, or before, got {starts[-1]}")
    if all_rows and starts[-1] != total:
        raise RedblueError(f"{name} must end at {total}, the rows of {of}, got {starts[-1]}")
    return lengths


def lengths_of(name: str, starts: np.ndarray) -> np.ndarray:
    """The lengths between int64 starts, read-only. Raises RedblueError, naming the entry, unless they ascend from 0."""
    return _lengths_of(name, starts.tobytes())


@lru_cache(maxsize=KEPT)
def _lengths_of(name: str, memory: bytes) -> np.ndarray:
    starts = np.frombuffer(memory, np.int64)
    if not len(starts) or starts[0]:
        raise RedblueError(f"{name}[0] must be 0, got {starts[0] if len(starts) else 'an empty array'}")
    lengths = np.diff(starts)
    descents = np.flatnonzero(lengths < 0)
    if len(descents):
        i = descents[0] + 1
        raise RedblueError(f"{name} must not descend, but {name}[{i}] = {starts[i]} follows {starts[i - 1]}")
    lengths.flags.writeable = False
    return lengths
