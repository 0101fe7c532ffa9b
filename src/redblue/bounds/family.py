"""The lower bound of arXiv 2410.09397 for sparse attention, which holds for a family of inputs, not for one mask.

Theorem 4.5: among all inputs with Z_input nonzero entries in Q, K and V and Z_QK in Q K^T, some need
Omega(min(Z_input^2 / M, Z_input sqrt(Z_QK) / sqrt(M))) words, forward and backward. The constant is unknown. A given
mask may need less: docs/lab/theory.md, "Sparse attention", has masks on which a schedule moves less than this form.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from redblue.problem import Problem


@dataclass(frozen=True)
class Family:
    """The parameters of the bound, for one stream.

    z_input: entries of the rows of Q, K and V that belong to some attended pair. z_qk: attended pairs.
    """

    z_input: int
    z_qk: int

    @property
    def dividing_words(self) -> float:
        """The M at which the two terms are equal, Z_input^2 / Z_QK; without a mask, d^2 up to a constant."""
        return self.z_input**2 / self.z_qk if self.z_qk else math.inf

    def form(self, words: int) -> int:
        """Return the value of the Omega form without its constant; it indicates only the order."""
        return min(self.z_input**2 // words, math.isqrt(self.z_input**2 * self.z_qk // words))


def family(problem: Problem) -> Family:
    """Return the parameters for one stream of the problem, with dense inputs in all rows that attend."""
    stream = problem.one_stream()
    pairs = stream.mask.on(stream.n_q, stream.n_k)
    rows = sum(map(len, pairs.rows_of(range(stream.n_k))))
    keys = sum(map(len, pairs.cols_of(range(stream.n_q))))
    return Family(rows * stream.d + keys * (stream.d + stream.d_v), pairs.nnz)
