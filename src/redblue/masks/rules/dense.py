"""The rule of a dense boolean array, and the sampling of other rules into such an array."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from redblue.masks.rules.layouts import Blocks
from redblue.masks.rules.rule import Rule, Sizes, check_sizes

ANY_LENGTH = 1 << 60  # block edge that covers an axis of any length: an axis of length 1 broadcasts


@dataclass(frozen=True)
class Dense(Blocks):
    """A boolean array (n_q, n_k). An axis of length 1 broadcasts: it fits any number of queries or keys."""

    @classmethod
    def of_array(cls, array: np.ndarray) -> Dense:
        """Make the rule of a 2-D boolean array."""
        rows, cols = array.shape
        return cls.of_bits(np.packbits(array).tobytes(), (rows, cols))

    @classmethod
    def of_bits(cls, bits: bytes, shape: tuple[int, int]) -> Dense:
        """Make the rule of the bits of a 2-D boolean array, packed by np.packbits."""
        rows, cols = shape
        return cls(bits, shape, (ANY_LENGTH if rows == 1 else 1, ANY_LENGTH if cols == 1 else 1))

    def __repr__(self) -> str:
        return f"Mask.from_dense({_short(self.layout)})"

    @property
    def sizes(self) -> Sizes:
        rows, cols = (None if n == 1 else n for n in self.shape)
        return rows, cols

    @property
    def fits_any_sizes(self) -> bool:
        return self.sizes == (None, None)

    def check(self, n_q: int, n_k: int) -> None:
        check_sizes("the dense mask", self.sizes, n_q, n_k, "give an array of that shape")

    def resized(self, old: tuple[int, int], new: tuple[int, int]) -> Blocks:
        return self if old == new else _sampled(self, old, new)


def _short(array: np.ndarray) -> str:
    """Format a boolean array: its rows if it is small, else its shape and density."""
    if array.size <= 16:
        return repr(array.tolist())
    return f"<{' x '.join(map(str, array.shape))}, {array.mean():.3g} of them True>"


def _sampled(rule: Rule, old: tuple[int, int], new: tuple[int, int]) -> Dense:
    """Sample a rule into an array for other sizes: a pair takes the value at the same fraction of both old axes."""
    pattern = rule.pattern(*old)
    q, k = (np.arange(after) * before // max(1, after) for before, after in zip(old, new, strict=True))
    result = np.zeros(new, bool)
    if result.size and old[0] and old[1]:
        for i in range(new[0]):
            result[i] = pattern.attends(q[i], k)
    return Dense.of_array(result)


def resized(rule: Rule, old: tuple[int, int], new: tuple[int, int]) -> Rule:
    """Return the same kind of rule for other (n_q, n_k); a sampled array if the rule cannot be resized otherwise."""
    result = rule.resized(old, new)
    return _sampled(rule, old, new) if result is None else result
