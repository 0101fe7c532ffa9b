"""The keys of packed sequences that a cache holds: its used part, or pages of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from redblue.base.errors import RedblueError
from redblue.masks.numbers import whole


def used_keys(
    key: Tensor,
    value: Tensor,
    starts: Tensor,
    key_starts: Tensor | None,
    used: Tensor | None,
    table: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Copies of the keys and values that the sequences use, packed as (total, heads, d), and their cumulative lengths.

    starts: the cumulative lengths of the queries. used: how many keys of each sequence are used. Without a table, the
    keys of sequence i begin at key_starts[i]. With one, key and value are (pages, page size, heads, d), and table[i]
    names the pages of sequence i.
    """
    sequences = len(starts) - 1
    if used is None:
        raise RedblueError("block_table needs seqused_k, the number of keys of each sequence")
    lengths = _per_sequence("seqused_k", used, sequences)
    if table is None:
        first = _per_sequence("cum_seq_k", key_starts, sequences + 1)
        rows = _in_place(lengths, first, key.shape[0])
        key, value = (x.index_select(0, rows) for x in (key, value))
    else:
        pages, offsets = _in_pages(lengths, table, sequences, key, value)
        key, value = key[pages, offsets], value[pages, offsets]
    return key, value, torch.from_numpy(np.append(0, np.cumsum(lengths)))


def _per_sequence(name: str, x: Any, count: int) -> np.ndarray:
    numbers = whole(name, x.detach().cpu().numpy())
    if len(numbers) != count:
        raise RedblueError(f"{name} must have {count} entries for the sequences of cum_seq_q, got {len(numbers)}")
    return numbers


def _in_place(lengths: np.ndarray, first: np.ndarray, total: int) -> Tensor:
    """The rows of the used keys where every sequence has its own part of the rows."""
    room = np.diff(first)
    if len(first) and (first[0] or (room < 0).any() or first[-1] > total):
        raise RedblueError(f"cum_seq_k must ascend from 0 to at most the rows of key, {total}, got {first.tolist()}")
    _check_room(lengths, room, "keys of the sequence")
    return torch.from_numpy(np.repeat(first[:-1], lengths) + _counted(lengths))


def _in_pages(lengths: np.ndarray, table: Tensor, sequences: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """The page and the place in the page of every used key."""
    if key.dim() != 4 or value.dim() != 4 or key.shape[:3] != value.shape[:3]:
        shapes = f"got {tuple(key.shape)} and {tuple(value.shape)}"
        raise RedblueError(f"with block_table, key and value must be (pages, page size, heads, d), {shapes}")
    if table.dim() != 2 or table.shape[0] != sequences or table.is_floating_point():
        raise RedblueError(
            f"block_table must be whole numbers ({sequences}, pages per sequence), got {tuple(table.shape)} of "
            f"{str(table.dtype).removeprefix('torch.')}"
        )
    count, size = key.shape[:2]
    _check_room(lengths, np.full(sequences, table.shape[1] * size), "places in the pages of the sequence")
    place = _counted(lengths)
    sequence = np.repeat(np.arange(sequences), lengths)
    pages = table.numpy().astype(np.int64)[sequence, place // max(1, size)]
    wrong = np.flatnonzero((pages < 0) | (pages >= count))
    if len(wrong):
        i = sequence[wrong[0]]
        raise RedblueError(f"block_table[{i}] must name pages 0 to {count - 1}, got {pages[wrong[0]]}")
    return torch.from_numpy(pages), torch.from_numpy(place % max(1, size))


def _check_room(lengths: np.ndarray, room: np.ndarray, what: str) -> None:
    wrong = np.flatnonzero((lengths < 0) | (lengths > room))
    if len(wrong):
        i = wrong[0]
        raise RedblueError(f"seqused_k[{i}] must be 0 to {room[i]}, the {what}, got {lengths[i]}")


def _counted(lengths: np.ndarray) -> np.ndarray:
    """0 .. n - 1 for each length n, one after another."""
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
