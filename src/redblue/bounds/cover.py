"""Bound the number of attended pairs in a few rows and columns of one mask: the cover of the mask.

kappa(r, c) is the maximum of attended pairs in any r rows and c columns, and K(u) the maximum over r + c <= u. Both are
hard to compute exactly (a full block is a biclique), so `cover` bounds K from above, using properties of the mask that
are quick to compute. For small masks `exact` tries every set of rows. Proofs: docs/lab/theory.md,
"One mask".
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

MAX_EXACT = 10  # rows (or columns) up to which every subset is tried
DENSE_UP_TO = 512  # K is stored at every u up to here; beyond, in geometric steps of 1/128
CELLS = 64  # intervals of r examined for each u
ROUNDING = 1 + 1e-12  # factor that covers floating-point rounding


@dataclass(frozen=True, eq=False)
class Cover:
    """K of one mask as a step function: u <= sizes[s] rows and columns have at most pairs[s] attended pairs.

    sizes: ascending whole numbers, from 1 (no pair) to the number of rows and columns. pairs: ascending.
    """

    sizes: np.ndarray
    pairs: np.ndarray

    def most(self, u: Any) -> Any:
        """Return an upper bound of K(u), the maximum of attended pairs in u rows and columns. u: at least 0."""
        step = np.searchsorted(self.sizes, np.floor(u), side="left")
        return self.pairs[np.minimum(step, len(self.sizes) - 1)]

    def slope(self, e: Any) -> Any:
        """Return an upper bound of sigma(e) = sup over u of min(e, K(u)) / u.

        This is the maximum of attended pairs per row or column, if at most e pairs are taken.
        """
        step = np.searchsorted(self.pairs, e, side="right")  # the first step with more than e pairs
        least = np.append(self._least, math.inf)[step]
        return np.maximum(np.append(0.0, self._steepest)[step], e / least) * ROUNDING

    @functools.cached_property
    def _least(self) -> np.ndarray:
        """The minimum u of each step: one more than the end of the step before."""
        return np.append(1.0, self.sizes[:-1] + 1.0)

    @functools.cached_property
    def _steepest(self) -> np.ndarray:
        """The maximum of pairs / u over each step and the steps before."""
        return np.maximum.accumulate(self.pairs / self._least)

    def is_dense_to(self, u: float) -> bool:
        """Return whether K(u) = floor(u^2 / 4), as without a mask; a bound based on K then gains nothing."""
        near = np.minimum(np.floor(u), self.sizes[-1])
        return bool(self.most(near) >= near // 2 * (near - near // 2))


@functools.lru_cache(maxsize=64)
def cover(pairs: Pairs) -> Cover:
    """Return the cover of a mask on given sizes; exact for small masks, an upper bound for others."""
    if min(pairs.n_rows, pairs.n_cols) <= MAX_EXACT and max(pairs.n_rows, pairs.n_cols) <= DENSE_UP_TO:
        return steps_of(exact(pairs.dense(range(pairs.n_rows), range(pairs.n_cols))))
    return upper(pairs)


def exact(attends: np.ndarray) -> np.ndarray:
    """Return kappa, of shape (rows + 1, columns + 1), by trying every set of rows (or of columns, if fewer).

    attends: boolean matrix, rows by columns.
    """
    if attends.shape[0] > attends.shape[1]:
        return exact(attends.T).T
    rows, cols = attends.shape
    sets = (np.arange(2**rows)[:, None] >> np.arange(rows)) & 1
    fullest = -np.sort(-(sets @ attends.astype(np.int64)), axis=1)  # per set: pairs in each column, descending
    kappa = np.zeros((rows + 1, cols + 1), np.int64)
    np.maximum.at(kappa[:, 1:], sets.sum(axis=1), fullest.cumsum(axis=1))
    return kappa


def steps_of(kappa: np.ndarray) -> Cover:
    """Return the cover K(u) = max over r + c <= u of kappa(r, c)."""
    total = np.add.outer(*(np.arange(length) for length in kappa.shape))
    most = np.zeros(total.max() + 1, np.int64)
    np.maximum.at(most, total, kappa)
    return Cover(np.arange(1, len(most)), np.maximum.accumulate(most)[1:].astype(float))


def upper(pairs: Pairs) -> Cover:
    """Return an upper bound of K that is quick to compute for masks of any size."""
    last = pairs.n_rows + pairs.n_cols
    far = max(0, math.ceil(math.log(last / DENSE_UP_TO, 1 + 1 / 128))) if last > DENSE_UP_TO else 0
    beyond = np.ceil(DENSE_UP_TO * (1 + 1 / 128) ** np.arange(1, far)).astype(np.int64)
    u = np.unique(np.concatenate([np.arange(1, min(DENSE_UP_TO, last) + 1), beyond[beyond < last], [last]]))
    u = u[u >= 1]
    kappa = kappas(pairs)
    # For each u, r lies in a cell [u share, u next share]. kappa(r, u - r) is at most kappa(highest r, highest c) of
    # the cell, and at most the maximum of r (u - r) over the cell. One cell boundary is at share 1/2.
    shares = np.linspace(0, 1, CELLS + 1)
    low, high = np.ceil(u[:, None] * shares[:-1]), np.floor(u[:, None] * shares[1:])
    rows, cols = np.minimum(high, pairs.n_rows), np.minimum(u[:, None] - low, pairs.n_cols)
    square = np.where((low <= u[:, None] / 2) & (high >= u[:, None] / 2), u[:, None] / 2, high)
    square = np.where(low > u[:, None] / 2, low, square)  # the r of the cell closest to u / 2
    most = np.minimum(kappa(rows, cols), np.floor(square * (u[:, None] - square))).max(axis=1)
    return Cover(u, np.maximum.accumulate(np.minimum(most, pairs.nnz)))


def kappas(pairs: Pairs) -> Callable[[Any, Any], Any]:
    """Return a function of arrays r and c that bounds kappa(r, c) from above by the minimum of all known bounds."""
    if isinstance(pairs, Transposed):
        transposed = kappas(pairs.of)
        return lambda r, c: transposed(c, r)
    rows, cols = sides(pairs)

    def kappa(r: Any, c: Any) -> Any:
        bound = np.minimum(r * c, np.minimum(_by_side(rows, r, c), _by_side(cols, c, r)))
        return np.minimum(bound, band(pairs, r, c)) if isinstance(pairs, Band) else bound

    return kappa


def band(pairs: Band, r: Any, c: Any) -> Any:
    """Bound kappa of a band: heads * h (p + c - h) for p queries and c columns, if both exceed h = ceil(width / 2)."""
    half, queries = ceil_div(pairs.end - pairs.first, 2), ceil_div(r, pairs.group)
    wide = smaller(queries, c) > half
    return pairs.group * np.where(wide, half * (queries + c - half), queries * c)


def _by_side(side: Side, r: Any, c: Any) -> Any:
    """Bound kappa(r, c) by the degrees of the rows, and by the number of columns that rows have in common."""
    bound = side.largest(r, c)
    if side.shared is not None:
        bound = np.minimum(bound, np.floor(np.sqrt(r * c * np.minimum(r * c, side.common(r))) * ROUNDING))
    return bound
