"""Packed sequences in FlashAttention's description: cumulative lengths, pages, used keys and left padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from redblue.base.errors import RedblueError
from redblue.base.integers import whole_number
from redblue.op.packed import lengths_of, rows_of
from redblue.op.paged.pages import table_of, whole_numbers


def sequence_lengths(name: str, cu_seqlens: Any) -> np.ndarray:
    """The length of each sequence. Raises RedblueError, naming the entry, unless cu_seqlens ascend from 0."""
    return lengths_of(name, whole_numbers(name, cu_seqlens))


def check_longest(name: str, max_seqlen: Any, lengths: np.ndarray) -> int:
    """`max_seqlen` as a number. Raises RedblueError if a sequence is longer."""
    longest = whole_number(name, max_seqlen, 0)
    if len(lengths) and lengths.max() > longest:
        raise RedblueError(f"{name} must be at least the longest sequence, {lengths.max()}, got {longest}")
    return longest


def check_rows(name: str, rows: int, lengths: np.ndarray) -> None:
    """Raise RedblueError if there are fewer rows than the sequences fill."""
    total = int(lengths.sum())
    if total > rows:
        raise RedblueError(f"{name} must have the rows of its sequences, {total}, got {rows}")


class KeyRows:
    """The places of each sequence's keys in k: rows of a packed k (total, ...), or pages (blocks, page, ...).

    shape: k's shape. lengths: the number of keys of each sequence. firsts: the first position of these keys in the
    sequence; not set if all rows of k are used in place.
    """

    def __init__(
        self,
        shape: Sequence[int],
        cu_seqlens_k: Any,
        block_table: Any = None,
        seqused_k: Any = None,
        leftpad_k: Any = None,
    ) -> None:
        self.whole_lengths = whole_lengths = sequence_lengths("cu_seqlens_k", cu_seqlens_k)
        self.total = int(whole_lengths.sum())
        self.pages = None
        self._in_place = block_table is None and seqused_k is None and leftpad_k is None
        if self._in_place:  # the checks below have nothing to change or to refuse
            self.lengths = whole_lengths
            check_rows("k", shape[0], whole_lengths)
            return
        n = len(whole_lengths)
        ends = whole_lengths if seqused_k is None else whole_numbers("seqused_k", seqused_k, n)
        self.firsts = np.zeros_like(ends) if leftpad_k is None else whole_numbers("leftpad_k", leftpad_k, n)
        if block_table is None and ((ends < 0) | (ends > whole_lengths)).any():
            raise RedblueError(f"seqused_k must be 0 to the sequence's length, {whole_lengths.tolist()}, got {ends}")
        if ((self.firsts < 0) | (self.firsts > ends)).any():
            raise RedblueError(f"leftpad_k must be 0 to the sequence's used keys, {ends.tolist()}, got {self.firsts}")
        self.lengths = ends - self.firsts
        of_lengths = "the lengths of cu_seqlens_k" if seqused_k is None else "seqused_k"
        if block_table is None:
            check_rows("k", shape[0], whole_lengths)
        else:
            self.pages = Pages(shape, block_table, ends, of_lengths)

    def packed(self, x: Tensor) -> Tensor:
        """The keys' rows of k or v, sequences concatenated; a view if the rows have this order already."""
        if self._in_place:
            return rows_of(x, slice(0, self.total))
        sequences = np.repeat(np.arange(len(self.lengths)), self.lengths)
        within = np.arange(len(sequences)) - np.repeat(np.cumsum(self.lengths) - self.lengths, self.lengths)
        positions = within + self.firsts[sequences]
        if self.pages is not None:
            return self.pages.rows(x, sequences, positions)
        starts = np.cumsum(self.whole_lengths) - self.whole_lengths
        return x[torch.from_numpy(starts[sequences] + positions).to(x.device)]


def checked_sequences(
    rows: int,
    k_shape: Sequence[int],
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    block_table: Any = None,
    **more: Any,
) -> tuple[np.ndarray, KeyRows, tuple[int, int]]:
    """The lengths, the places of the keys, and the user's longest lengths, for a q of `rows` rows.

    more: arguments of `KeyRows`. Raises RedblueError, naming the argument, unless the sequences fit q and k.
    """
    lengths = sequence_lengths("cu_seqlens_q", cu_seqlens_q)
    check_rows("q", rows, lengths)
    keys = KeyRows(k_shape, cu_seqlens_k, block_table, **more)
    if len(keys.lengths) != len(lengths):
        raise RedblueError(f"cu_seqlens_k must describe the {len(lengths)} sequences of q, got {len(keys.lengths)}")
    longest = check_longest("max_seqlen_q", max_seqlen_q, lengths)
    return lengths, keys, (longest, check_longest("max_seqlen_k", max_seqlen_k, keys.lengths))


def starts_of(lengths: np.ndarray) -> np.ndarray:
    """(sequences + 1,): the first row of each packed sequence, and the total."""
    return np.append(0, np.cumsum(lengths))


class Pages:
    """The page table of the keys of each sequence.

    shape: k's shape (blocks, page, ...). block_table: (sequences, blocks per sequence). lengths: positions that must
    lie in pages; of_lengths names them in messages. Raises RedblueError if a position has no page.
    """

    def __init__(self, shape: Sequence[int], block_table: Any, lengths: np.ndarray, of_lengths: str) -> None:
        self.page = int(shape[1])
        names = "block_table", of_lengths
        self.table = table_of(block_table, lengths, self.page, int(shape[0]), names)

    def places(self, sequences: np.ndarray, positions: np.ndarray, device: torch.device) -> tuple[Tensor, Tensor]:
        """The block, and the row within it, of these positions of these sequences."""
        page = max(1, self.page)
        blocks = torch.from_numpy(self.table[sequences, positions // page]), torch.from_numpy(positions % page)
        return blocks[0].to(device), blocks[1].to(device)

    def rows(self, x: Tensor, sequences: np.ndarray, positions: np.ndarray) -> Tensor:
        """The rows of x at these positions of these sequences."""
        return x[self.places(sequences, positions, x.device)]
