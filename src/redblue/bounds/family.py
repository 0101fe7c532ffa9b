"""The bound of arXiv 2410.09397 for sparse attention: of a family of inputs, never of one mask.

Theorem 4.5 there: among all inputs with Z_input nonzero entries in Q, K and V, and Z_QK in Q K^T, some need
Omega(min(Z_input^2 / M, Z_input sqrt(Z_QK) / sqrt(M))) words, forward and backward. Its constant is not known, and one
given mask may need less: docs/theory.md, "Sparse attention", has masks on which a schedule moves less than the form.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from redblue.problem import Problem


@dataclass(frozen=True)
class Family:
    """z_input: entries of the rows of Q, K and V that attend at all; z_qk: attended pairs. Of one stream."""

    z_input: int
    z_qk: int

    @property
    def dividing_words(self) -> float:
        """M at which the two terms are equal, Z_input^2 / Z_QK: d^2 up to a constant where nothing is masked."""
        return self.z_input**2 / self.z_qk if self.z_qk else math.inf

    def form(self, words: int) -> int:
        """The Omega form with the constant left out: order only."""
        return min(self.z_input**2 // words, math.isqrt(self.z_input**2 * self.z_qk // words))


def family(problem: Problem) -> Family:
    """Of one stream of the problem, with inputs that are dense where the mask lets them be used."""
    stream = problem.one_stream()
    pairs = stream.mask.on(stream.n_q, stream.n_k)
    rows = sum(map(len, pairs.rows_of(range(stream.n_k))))
    keys = sum(map(len, pairs.cols_of(range(stream.n_q))))
    return Family(rows * stream.d + keys * (stream.d + stream.d_v), pairs.nnz)
