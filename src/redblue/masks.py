"""Which (query, key) pairs attend: masks, as users make and hold them.

A mask is a rule without sizes. `on(n_q, n_k)` lays it on queries and keys, which gives what schedules ask (`Pairs`).
Each kind of rule has a file of its own: bands (full, causal, sliding window) and layouts of blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from redblue.bands import Band, Window
from redblue.layouts import Blocks
from redblue.pairs import Pairs, Runs, TileSums, Transposed


class Rule(Protocol):
    """One kind of mask: a value (equality, hash), whose repr reads like the constructor of Mask that makes it."""

    @property
    def is_full(self) -> bool: ...
    def on(self, n_rows: int, n_cols: int, group: int) -> Pairs:
        """The rule laid on rows of which `group` belong to each query. Raises RedblueError where it does not fit."""
        ...

    def resized(self, old: tuple[int, int], new: tuple[int, int]) -> Rule:
        """The same kind of rule for other numbers of queries and keys; the same rule if they are the same."""
        ...


@dataclass(frozen=True)
class Mask:
    """Which keys each query attends; True means *attend*. Use the constructors.

    rule: the kind of mask and its figures.
    group: consecutive rows that belong to one query (grouped-query attention stacks its heads so).
    """

    rule: Rule
    group: int = 1

    @classmethod
    def full(cls) -> Mask:
        """Every query attends every key."""
        return cls(Window())

    @classmethod
    def causal(cls, align: str = "top-left") -> Mask:
        """Query i attends keys 0..i (PyTorch's is_causal); "bottom-right" for decoding with a longer key cache."""
        return cls(Window(right=0, align=align))

    @classmethod
    def sliding_window(cls, left: int | None, right: int | None = 0, align: str = "top-left") -> Mask:
        """Query i attends keys i-left..i+right."""
        return cls(Window(left, right, align))

    @classmethod
    def blocks(cls, layout: Any, block: int | Sequence[int]) -> Mask:
        """Query i attends key j where layout[i // bq, j // bk] is True: block-sparse attention.

        layout: boolean array (ceil(n_q / bq), ceil(n_k / bk)), copied. block: (bq, bk), the blocks' edges in queries
        and keys, or one number for both; the last block of an axis may be shorter.
        Raises RedblueError for other layouts and blocks and, once laid on n_q and n_k, for a shape that does not fit.

        Proposition 4 of Dao et al. (NeurIPS 2022, arXiv 2205.14135) is about such masks: with a share s of nonzero
        blocks, FlashAttention-1 that skips the zero ones moves Theta(n d + s n^2 d^2 / M) words. Here every schedule
        but `standard` skips what no query of a tile attends, whatever its tiles and the blocks.
        """
        return cls(Blocks.of(layout, block))

    def __repr__(self) -> str:
        return repr(self.rule)

    @property
    def is_full(self) -> bool:
        """Whether every query attends every key, however many there are."""
        return self.rule.is_full

    def for_group(self, group: int) -> Mask:
        """The same mask when each query fills `group` consecutive rows."""
        return replace(self, group=self.group * group)

    def on(self, n_q: int, n_k: int) -> Pairs:
        """The mask laid on n_q rows and n_k keys. Raises RedblueError where it does not fit."""
        return self.rule.on(n_q, n_k, self.group)

    def resized(self, old: tuple[int, int], new: tuple[int, int]) -> Mask:
        """The same kind of mask for other numbers of queries and keys: windows scaled, layouts thinned out."""
        return self if old == new else replace(self, rule=self.rule.resized(old, new))

    def nnz(self, n_q: int, n_k: int) -> int:
        """Pairs that attend."""
        return self.on(n_q, n_k).nnz

    def density(self, n_q: int, n_k: int) -> float:
        """Share of all n_q x n_k pairs that attend."""
        return self.nnz(n_q, n_k) / (n_q * n_k)

    def to_dense(self, n_q: int, n_k: int) -> np.ndarray:
        """Boolean (n_q, n_k) array, True where query attends key."""
        return self.on(n_q, n_k).dense(range(n_q), range(n_k))


__all__ = ["Band", "Mask", "Pairs", "Rule", "Runs", "TileSums", "Transposed"]
