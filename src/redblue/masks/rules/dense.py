"""Dense boolean arrays as rules, and other rules sampled into them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from redblue.masks.rules.layouts import Blocks
from redblue.masks.rules.rule import Rule, Sizes, fits

ANY = 1 << 60  # edge of a block that covers any axis: a dense array of one row or column broadcasts


@dataclass(frozen=True)
class Dense(Blocks):
    """A boolean array (n_q, n_k); an axis of length 1 takes any number of queries or keys."""

    @classmethod
    def of_array(cls, array: np.ndarray) -> Dense:
        rows, cols = array.shape
        return cls(np.packbits(array).tobytes(), (rows, cols), (ANY if rows == 1 else 1, ANY if cols == 1 else 1))

    def __repr__(self) -> str:
        return f"Mask.from_dense({shown(self.layout)})"

    @property
    def sizes(self) -> Sizes:
        rows, cols = (None if n == 1 else n for n in self.shape)
        return rows, cols

    @property
    def takes_any(self) -> bool:
        return self.sizes == (None, None)

    def check(self, n_q: int, n_k: int) -> None:
        fits("the dense mask", self.sizes, n_q, n_k, "give an array of that shape")

    def resized(self, old: tuple[int, int], new: tuple[int, int]) -> Blocks:
        return self if old == new else sampled(self, old, new)


def shown(array: np.ndarray) -> str:
    """A boolean array as its rows, or in short."""
    if array.size <= 16:
        return repr(array.tolist())
    return f"<{' x '.join(map(str, array.shape))}, {array.mean():.3g} of them True>"


def sampled(rule: Rule, old: tuple[int, int], new: tuple[int, int]) -> Dense:
    """The rule on other sizes: each pair attends where the one at the same share of both axes did."""
    pattern = rule.laid(*old)
    q, k = (np.arange(after) * before // max(1, after) for before, after in zip(old, new, strict=True))
    found = np.zeros(new, bool)
    if found.size and old[0] and old[1]:
        for i in range(new[0]):
            found[i] = pattern.attends(q[i], k)
    return Dense.of_array(found)


def resized(rule: Rule, old: tuple[int, int], new: tuple[int, int]) -> Rule:
    """The same kind of rule for other numbers of queries and keys; a sampled array where the rule has no own way."""
    own = rule.resized(old, new)
    return sampled(rule, old, new) if own is None else own
