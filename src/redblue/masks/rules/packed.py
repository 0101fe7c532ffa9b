"""Rules of packed documents: each document attends itself, in full or in a window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from redblue.base.errors import RedblueError
from redblue.masks.numbers import Numbers, numbers
from redblue.masks.patterns.packed import Packed, PackedWindows
from redblue.masks.patterns.pattern import Pattern
from redblue.masks.rules.bands import Window
from redblue.masks.rules.rule import Rule, Sizes, check_sizes

MAX_TOKENS = 1 << 60  # tokens of all documents together


def documents(lengths: Any, key_lengths: Any, within: Rule | None) -> Documents:
    """Make the rule of packed documents from a user's arguments (see Mask.documents).

    Raises RedblueError, which names the argument, for invalid lengths and if `within` is not a window.
    """
    queries, keys = _check_lengths(lengths, key_lengths)
    if within is None or within.is_full:
        return Documents(queries, keys)
    if not isinstance(within, Window):
        raise RedblueError(
            f"within must be a window, such as Mask.causal(), got {within!r}: combine other masks with &"
        )
    return WindowedDocuments(queries, keys, within)


def _check_lengths(lengths: Any, key_lengths: Any) -> tuple[Numbers, Numbers]:
    """Check a user's lengths of documents in queries and in keys; key_lengths None stands for `lengths`.

    Raises RedblueError, which names the argument.
    """
    queries = numbers("lengths", lengths)
    keys = queries if key_lengths is None else numbers("key_lengths", key_lengths)
    if len(keys) != len(queries):
        raise RedblueError(f"key_lengths must have as many entries as lengths ({len(queries)}), got {len(keys)}")
    for name, checked in (("lengths", queries), ("key_lengths", keys)):
        total = checked.array.sum(dtype=np.float64)
        if total > MAX_TOKENS:
            raise RedblueError(f"{name} must add up to at most {MAX_TOKENS:,}, got about {total:.3g}")
    return queries, keys


@dataclass(frozen=True)
class Documents(Rule):
    """Consecutive documents: a query attends every key of its document.

    lengths, key_lengths: queries and keys of each document.
    """

    lengths: Numbers
    key_lengths: Numbers

    def __repr__(self) -> str:
        return f"Mask.documents({self._lengths_text})"

    @property
    def _lengths_text(self) -> str:
        keys = "" if self.key_lengths == self.lengths else f", key_lengths={self.key_lengths!r}"
        return f"{self.lengths!r}{keys}"

    @property
    def sizes(self) -> Sizes:
        return int(self.lengths.array.sum()), int(self.key_lengths.array.sum())

    def _starts(self, n_q: int, n_k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the first query and the first key of each document, followed by n_q and n_k."""
        check_sizes(
            "the mask of documents", self.sizes, n_q, n_k, "the lengths, padding included, must add up to the size"
        )
        return np.append(0, np.cumsum(self.lengths.array)), np.append(0, np.cumsum(self.key_lengths.array))

    def pattern(self, n_q: int, n_k: int) -> Pattern:
        return Packed(n_q, n_k, *self._starts(n_q, n_k))


@dataclass(frozen=True)
class WindowedDocuments(Documents):
    """Consecutive documents: a query attends the keys of its document that lie in its window."""

    window: Window

    def __repr__(self) -> str:
        return f"Mask.documents({self._lengths_text}, within={self.window!r})"

    def pattern(self, n_q: int, n_k: int) -> Pattern:
        starts, key_starts = self._starts(n_q, n_k)
        lengths, key_lengths, window = self.lengths.array, self.key_lengths.array, self.window
        offset = key_lengths - lengths if window.align == "bottom-right" else 0 * lengths
        widest = n_q + n_k  # stands for an open side
        left, right = (widest if side is None else min(side, widest) for side in (window.left, window.right))
        # Query i of document t has position i + diagonal[t] among the keys.
        diagonal = key_starts[:-1] - starts[:-1] + offset
        return PackedWindows(n_q, n_k, starts, key_starts, diagonal - left, diagonal + right + 1)
