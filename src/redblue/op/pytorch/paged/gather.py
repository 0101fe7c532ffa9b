"""Copies of the keys and values that packed sequences use: rows of one tensor, or rows of pages."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from redblue.base.errors import RedblueError
from redblue.op.paged.pages import checked_lengths, table_of, whole_numbers


def used_keys(
    key: Tensor,
    value: Tensor,
    starts: Tensor,
    key_starts: Tensor | None,
    used: Tensor | None,
    table: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Copies of the keys and values that the sequences use, packed as (total, heads, d), and their cumulative lengths.

    starts: the cumulative lengths of the queries. used: number of used keys of each sequence. Without a table, the
    keys of sequence i begin at key_starts[i]. With a table, key and value are (pages, page size, heads, d), and
    table[i] names the pages of sequence i.
    """
    sequences = len(starts) - 1
    if used is None:
        raise RedblueError("block_table needs seqused_k, the number of keys of each sequence: give it, too")
    lengths = checked_lengths("seqused_k", used, sequences)
    if table is None:
        first = whole_numbers("cum_seq_k", key_starts)
        if len(first) != sequences + 1:
            raise RedblueError(
                f"cum_seq_k must have {sequences + 1} entries for {sequences} sequences, got {len(first)}"
            )
        rows = _in_place(lengths, first, key.shape[0])
        key, value = (x.index_select(0, rows) for x in (key, value))
    else:
        pages, offsets = _in_pages(lengths, table, key, value)
        key, value = key[pages, offsets], value[pages, offsets]
    return key, value, torch.from_numpy(np.append(0, np.cumsum(lengths)))


def _in_place(lengths: np.ndarray, first: np.ndarray, total: int) -> Tensor:
    """The rows of the used keys where every sequence has its own part of the rows."""
    room = np.diff(first)
    if len(first) and (first[0] or (room < 0).any() or first[-1] > total):
        raise RedblueError(f"cum_seq_k must ascend from 0 to at most the rows of key, {total}, got {first.tolist()}")
    wrong = np.flatnonzero(lengths > room)
    if len(wrong):
        i = wrong[0]
        raise RedblueError(f"seqused_k[{i}] must be 0 to {room[i]}, the keys of the sequence, got {lengths[i]}")
    return torch.from_numpy(np.repeat(first[:-1], lengths) + _counted(lengths))


def _in_pages(lengths: np.ndarray, table: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """The page and the place in the page of every used key."""
    if key.dim() != 4 or value.dim() != 4 or key.shape[:3] != value.shape[:3]:
        shapes = f"got {tuple(key.shape)} and {tuple(value.shape)}"
        raise RedblueError(f"with block_table, key and value must be (pages, page size, heads, d), {shapes}")
    count, size = key.shape[:2]
    pages = table_of(table, lengths, size, count, ("block_table", "seqused_k"))
    place = _counted(lengths)
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    return torch.from_numpy(pages[sequence, place // max(1, size)]), torch.from_numpy(place % max(1, size))


def _counted(lengths: np.ndarray) -> np.ndarray:
    """0 .. n - 1 for each length n, one after another."""
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
