"""How many attended pairs a few rows and columns of one mask can have: the cover of the mask.

kappa(r, c) is the most attended pairs in any r rows and c columns, K(u) the most for r + c <= u. Both are hard to find
exactly (a full block of given sides is a biclique), so `cover` bounds K from above by what is quick to know of a
mask; `exact` tries every set of rows of a small one. docs/theory.md, "One mask", has the proofs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from redblue.base.integers import ceil_div, smaller
from redblue.bounds.degrees import Side, sides
from redblue.masks.patterns.band import Band
from redblue.masks.patterns.pairs import Pairs, Transposed

MOST_ROWS = 10  # rows, or columns, up to which every set of them is tried
EVERY = 512  # K is kept at every u up to here, beyond in steps of 1/128
CELLS = 64  # in which r is looked for, for each u
ROUNDING = 1 + 1e-12


@dataclass(frozen=True, eq=False)
class Cover:
    """K of one mask, as steps: no u <= at[s] rows and columns have more than pairs[s] attended pairs.

    at: ascending whole numbers, from 1 (no pair) to all rows and columns. pairs: ascending.
    """

    at: np.ndarray
    pairs: np.ndarray

    def most(self, u: Any) -> Any:
        """K(u), or more: the most attended pairs that u rows and columns have. u: any numbers, not negative."""
        step = np.searchsorted(self.at, np.floor(u), side="left")
        return self.pairs[np.minimum(step, len(self.at) - 1)]

    def slope(self, e: Any) -> Any:
        """sigma(e) = sup over u of min(e, K(u)) / u, or more: the most pairs per word where only e pairs take part."""
        step = np.searchsorted(self.pairs, e, side="right")  # the first that holds more than e
        least = np.append(self._least, math.inf)[step]
        return np.maximum(np.append(0.0, self._steepest)[step], e / least) * ROUNDING

    @functools.cached_property
    def _least(self) -> np.ndarray:
        """The fewest rows and columns in each step: one more than in the step before."""
        return np.append(1.0, self.at[:-1] + 1.0)

    @functools.cached_property
    def _steepest(self) -> np.ndarray:
        return np.maximum.accumulate(self.pairs / self._least)

    def is_dense_to(self, u: float) -> bool:
        """Whether K(u) is floor(u^2 / 4), as without a mask: then no bound that goes by K can gain."""
        near = np.minimum(np.floor(u), self.at[-1])
        return bool(self.most(near) >= near // 2 * (near - near // 2))


@functools.lru_cache(maxsize=64)
def cover(pairs: Pairs) -> Cover:
    """The cover of a mask that is laid on rows and columns; exact for small ones."""
    if min(pairs.n_rows, pairs.n_cols) <= MOST_ROWS and max(pairs.n_rows, pairs.n_cols) <= EVERY:
        return steps_of(exact(pairs.dense(range(pairs.n_rows), range(pairs.n_cols))))
    return upper(pairs)


def exact(attends: np.ndarray) -> np.ndarray:
    """kappa, shape (rows + 1, columns + 1), by trying every set of rows (of columns, if they are fewer)."""
    if attends.shape[0] > attends.shape[1]:
        return exact(attends.T).T
    rows, cols = attends.shape
    sets = (np.arange(2**rows)[:, None] >> np.arange(rows)) & 1
    fullest = -np.sort(-(sets @ attends.astype(np.int64)), axis=1)  # of each set, columns by their pairs
    kappa = np.zeros((rows + 1, cols + 1), np.int64)
    np.maximum.at(kappa[:, 1:], sets.sum(axis=1), fullest.cumsum(axis=1))
    return kappa


def steps_of(kappa: np.ndarray) -> Cover:
    """K from kappa."""
    total = np.add.outer(*(np.arange(length) for length in kappa.shape))
    most = np.zeros(total.max() + 1, np.int64)
    np.maximum.at(most, total, kappa)
    return Cover(np.arange(1, len(most)), np.maximum.accumulate(most)[1:].astype(float))


def upper(pairs: Pairs) -> Cover:
    """An upper bound of K that is quick to find for masks of any size."""
    last = pairs.n_rows + pairs.n_cols
    far = max(0, math.ceil(math.log(last / EVERY, 1 + 1 / 128))) if last > EVERY else 0
    beyond = np.ceil(EVERY * (1 + 1 / 128) ** np.arange(1, far)).astype(np.int64)
    at = np.unique(np.concatenate([np.arange(1, min(EVERY, last) + 1), beyond[beyond < last], [last]]))
    at = at[at >= 1]
    kappa = kappas(pairs)
    # For each u, r lies in one of the cells [u share, u next share]; 1/2 is an edge of them.
    shares = np.linspace(0, 1, CELLS + 1)
    low, high = np.ceil(at[:, None] * shares[:-1]), np.floor(at[:, None] * shares[1:])
    rows, cols = np.minimum(high, pairs.n_rows), np.minimum(at[:, None] - low, pairs.n_cols)
    square = np.where((low <= at[:, None] / 2) & (high >= at[:, None] / 2), at[:, None] / 2, high)
    square = np.where(low > at[:, None] / 2, low, square)  # the r of the cell that is nearest to u / 2
    found = np.minimum(kappa(rows, cols), np.floor(square * (at[:, None] - square))).max(axis=1)
    return Cover(at, np.maximum.accumulate(np.minimum(found, pairs.nnz)))


def kappas(pairs: Pairs) -> Callable[[Any, Any], Any]:
    """kappa(r, c), or more, for arrays of whole r and c: the least of all that is known of the mask."""
    if isinstance(pairs, Transposed):
        turned = kappas(pairs.of)
        return lambda r, c: turned(c, r)
    rows, cols = sides(pairs)

    def kappa(r: Any, c: Any) -> Any:
        found = np.minimum(r * c, np.minimum(_by_side(rows, r, c), _by_side(cols, c, r)))
        return np.minimum(found, band(pairs, r, c)) if isinstance(pairs, Band) else found

    return kappa


def band(pairs: Band, r: Any, c: Any) -> Any:
    """Of a band: h (p + c - h) for p queries and c columns, both h = ceil(width / 2) or more; times the heads."""
    half, queries = ceil_div(pairs.end - pairs.first, 2), ceil_div(r, pairs.group)
    wide = smaller(queries, c) > half
    return pairs.group * np.where(wide, half * (queries + c - half), queries * c)


def _by_side(side: Side, r: Any, c: Any) -> Any:
    """By what is known of the rows: how many columns each attends, and how many of them two have in common."""
    found = side.largest(r, c)
    if side.shared is not None:
        found = np.minimum(found, np.floor(np.sqrt(r * c * np.minimum(r * c, side.common(r))) * ROUNDING))
    return found
