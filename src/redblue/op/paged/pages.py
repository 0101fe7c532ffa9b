"""The sequences of a paged cache: their queries, their keys, and the pages in which the keys lie."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from redblue.base.errors import RedblueError
from redblue.base.integers import int64_array
from redblue.op import api


@dataclass(frozen=True)
class Sequences:
    """The checked sequences of a call, B of them.

    starts: (B + 1,), the first packed row of each sequence's queries, and the total number of queries. lengths: (B,),
    the number of keys of each sequence. table: (B, most pages), contiguous: the pages of each sequence. All three are
    int64. page: number of keys in a page. The arrays are copies, because the caller may change a table while the
    kernels run without Python's lock.
    """

    starts: np.ndarray
    lengths: np.ndarray
    table: np.ndarray
    page: int

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.starts, self.lengths, self.table

    @cached_property
    def addresses(self) -> tuple[int, int, int]:
        """The addresses of the arrays."""
        return self.starts.ctypes.data, self.lengths.ctypes.data, self.table.ctypes.data

    @cached_property
    def longest(self) -> int:
        """The number of keys of the longest sequence; 0 without sequences."""
        return int(self.lengths.max(initial=0))

    @cached_property
    def total(self) -> int:
        """The number of queries of all sequences together."""
        return int(self.starts[-1])

    @property
    def queries(self) -> np.ndarray:
        """The number of queries of each sequence."""
        return np.diff(self.starts)

    def places(self, sequence: int, first: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """The page of each position first .. stop - 1 of the sequence, and the row within the page."""
        positions = np.arange(first, stop)
        return self.table[sequence, positions // self.page], positions % self.page


def whole_numbers(name: str, values: Any, sequences: int | None = None) -> np.ndarray:
    """A copy of a list, array or tensor of whole numbers. Raises RedblueError, which names it, for anything else.

    sequences: the required number of entries, one for each sequence; None: any number.
    """
    array = int64_array(name, on_cpu(name, values))
    if sequences is not None and len(array) != sequences:
        raise RedblueError(f"{name} must have one entry for each of {sequences} sequences, got {len(array)}")
    return array


def on_cpu(name: str, values: Any) -> Any:
    """The values of a tensor as an array; anything else unchanged.

    Raises RedblueError for a tensor on the meta device, and for a sparse, nested, floating-point or complex tensor.
    """
    if not api.is_torch(values):
        return values
    is_dense = not values.is_nested and str(values.layout) == "torch.strided"
    if values.is_meta or not is_dense or values.is_floating_point() or values.is_complex():
        kind = "meta device" if values.is_meta else f"{values.layout}, {values.dtype}"
        raise RedblueError(f"{name} must be a dense tensor of whole numbers or booleans with values, got {kind}")
    return values.detach().cpu().numpy()


def checked_lengths(name: str, values: Any, sequences: int) -> np.ndarray:
    """One whole number of at least 0 for each sequence. Raises RedblueError, which names the entry."""
    lengths = whole_numbers(name, values, sequences)
    if (lengths < 0).any():
        i = int(np.argmax(lengths < 0))
        raise RedblueError(f"{name}[{i}] must be at least 0, got {lengths[i]}")
    return lengths


def table_of(page_table: Any, lengths: np.ndarray, page: int, pages: int, names: tuple[str, str]) -> np.ndarray:
    """A copy of the table. Raises RedblueError for a table too short for the lengths, and for a page out of range.

    names: the names of the table and of the lengths, for messages. Entries beyond the lengths are not checked.
    """
    name, of_lengths = names
    page_table = on_cpu(name, page_table)
    try:
        table = np.array(page_table)
    except ValueError:  # a ragged list
        raise RedblueError(f"{name} must have rows of one length: pad shorter rows with any numbers") from None
    if table.ndim != 2 or table.dtype.kind not in "iu" or len(table) != len(lengths):
        wanted = f"whole numbers ({len(lengths)} sequences, pages per sequence)"
        raise RedblueError(f"{name} must be {wanted}, got {table.dtype} {table.shape}")
    needed = -(-lengths // max(1, page))
    if not page and lengths.any():
        raise RedblueError(f"pages must hold at least one key for {of_lengths}, got pages of 0 keys")
    if len(lengths) and needed.max() > table.shape[1]:
        i = int(needed.argmax())
        raise RedblueError(
            f"{name} has {table.shape[1]} pages for each sequence, but {of_lengths}[{i}] = {lengths[i]} keys need "
            f"{needed[i]} pages of {page}: give a table with more columns"
        )
    used = np.arange(table.shape[1]) < needed[:, None]
    wrong = used & ((table < 0) | (table >= pages))
    if wrong.any():
        i, j = np.argwhere(wrong)[0]
        raise RedblueError(f"{name}[{i}, {j}] must be a page, 0 to {pages - 1}, got {table[i, j]}")
    return np.ascontiguousarray(table, np.int64)
