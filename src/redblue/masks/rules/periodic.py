"""Rules that repeat along the diagonal: dilated windows, strided attention and n-of-m sparsity."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from redblue.base.integers import ceil_div
from redblue.masks.patterns import closed_forms
from redblue.masks.patterns.composed import Joined
from redblue.masks.patterns.diagonals import Diagonal, Dilated, Periodic
from redblue.masks.patterns.pattern import Pattern
from redblue.masks.rules.rule import Rule


@dataclass(frozen=True)
class DilatedWindow(Rule):
    """Query i attends keys i + t step, for t = -window .. window."""

    window: int
    step: int

    def __repr__(self) -> str:
        return f"Mask.dilated({self.window}, step={self.step})"

    def pattern(self, n_q: int, n_k: int) -> Pattern:
        window = min(self.window, (n_q + n_k) // self.step + 1)
        return Dilated(n_q, n_k, window * self.step, self.step)

    def pair_count(self, n_q: int, n_k: int) -> int:
        below, above = (closed_forms.diagonals(*n, self.step, self.window + 1) for n in ((n_q, n_k), (n_k, n_q)))
        return below + above - min(n_q, n_k)  # both count the main diagonal

    def resized(self, old: tuple[int, int], new: tuple[int, int]) -> DilatedWindow:
        """Scale the window in proportion to n_k; the step stays."""
        return DilatedWindow(ceil_div(self.window * new[1], old[1]), self.step)


@dataclass(frozen=True)
class Strided(Rule):
    """Query i attends keys i - stride .. i, and every stride-th key before."""

    stride: int

    def __repr__(self) -> str:
        return f"Mask.strided({self.stride})"

    def pattern(self, n_q: int, n_k: int) -> Pattern:
        longest = n_q + n_k
        stride = max(1, min(self.stride, longest))
        both_sides = Dilated(n_q, n_k, (longest // stride + 1) * stride, stride)
        far = Joined(n_q, n_k, (both_sides, Diagonal(n_q, n_k, -longest, 1), np.bitwise_and))
        return _NearAndFar(n_q, n_k, (Diagonal(n_q, n_k, -stride, 1), far, np.bitwise_or))

    def pair_count(self, n_q: int, n_k: int) -> int:
        # The distances 0 and `stride` are in both sets.
        diagonals = ((1, self.stride + 1), (self.stride, n_q + 2), (self.stride, 2))
        near, far, both = (closed_forms.diagonals(n_q, n_k, step, count) for step, count in diagonals)
        return near + far - both


class _NearAndFar(Joined):
    """The union of a window and the strided keys before it.

    For a range of queries, the outer set of the far keys is not exact: it may contain a key j of the range that lies a
    multiple of the stride after some query. But query j is in the range and attends key j, so the union is exact.
    """

    @property
    def exact(self) -> tuple[bool, bool]:
        return True, super().exact[1]


@dataclass(frozen=True)
class NOfM(Rule):
    """Query i attends key j where (i + j) mod m < n: n of every m consecutive keys."""

    n: int
    m: int

    def __repr__(self) -> str:
        return f"Mask.n_of_m({self.n}, {self.m})"

    @property
    def is_full(self) -> bool:
        return self.n == self.m

    def pattern(self, n_q: int, n_k: int) -> Pattern:
        return Periodic(n_q, n_k, self.n, self.m)

    def pair_count(self, n_q: int, n_k: int) -> int:
        return closed_forms.periodic(n_q, n_k, self.n, self.m)
