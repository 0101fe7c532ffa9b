"""Lower bounds on the words that any schedule must move, each with its conditions and its proof.

Proved rows carry explicit constants (docs/theory.md holds the proofs); order-only rows are the papers' Theta forms
with the unknown constant left out: a guide to the shape of the curve, never a bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from redblue.errors import RedblueError
from redblue.problem import Problem

CHAIN = "each score is summed one product at a time, in any order; recomputation allowed"
ALL_PRODUCTS = "every product q_i k_j and p_ij v_j of an attended pair is formed; recomputation allowed"


@dataclass(frozen=True)
class Bound:
    """A bound on one problem at one capacity. words: over all streams; for order-only rows, the form's value."""

    name: str
    words: int
    formula: str
    constant: str
    conditions: str
    source: str
    proved: bool


@dataclass(frozen=True)
class Row:
    """A kind of bound. evaluate(stream, M): words for one stream of the problem in a cache of M words."""

    name: str
    direction: str
    formula: str
    constant: str
    conditions: str
    source: str
    proved: bool
    evaluate: Callable[[Problem, int], int]


def _live(p: Problem) -> tuple[int, int, int]:
    """Rows and keys that attend at all, and attended pairs."""
    pairs = p.mask.on(p.n_q, p.n_k)
    return len(pairs.rows_of(range(p.n_k))), len(pairs.cols_of(range(p.n_q))), pairs.nnz


def _outputs(p: Problem) -> int:
    if p.direction == "forward":
        return p.n_q * p.value_dim
    return p.n_q * p.d + p.n_k * (p.d + p.value_dim)


def _compulsory(p: Problem, words: int) -> int:
    rows, keys, _ = _live(p)
    rows_read = p.d if p.direction == "forward" else p.d + p.value_dim  # Q, or Q and dO
    return rows * rows_read + keys * (p.d + p.value_dim) + _outputs(p)


def _products(p: Problem, words: int, features: int, scores: int) -> int:
    """2 Z features / sqrt(M) - scores Z - 2 M loads, and every output stored (Theorem 1)."""
    pairs = _live(p)[2]
    return math.isqrt(4 * (pairs * features) ** 2 // words) - scores * pairs - 2 * words + _outputs(p)


def _phases(p: Problem, words: int, k: int) -> int:
    """At most max(W^2 / k, W) pairs per phase of L loads, W = M + L (Theorem 2 and 3), and every output stored."""
    pairs = _live(p)[2]

    def loads(length: int) -> int:
        reach = words + length
        per_phase = max(-(-reach * reach // k), reach)
        return length * (-(-pairs // per_phase) - 1)

    return max(loads(length) for length in (words, k - words) if length > 0) + _outputs(p)


def _order_forward(p: Problem, words: int) -> int:
    pairs = p.n_q * p.n_k
    return min(pairs * p.d**2 // words, math.isqrt((pairs * p.d) ** 2 // words))


def _order_backward(p: Problem, words: int) -> int:
    n, d = max(p.n_q, p.n_k), p.d
    return min((n**2 * d**2 + n * d**3) // words, math.isqrt((n**2 * d + n * d**2) ** 2 // words))


def _order_sparse(p: Problem, words: int) -> int:
    rows, keys, pairs = _live(p)
    entries = rows * p.d + keys * (p.d + p.value_dim)
    return min(entries**2 // words, math.isqrt(entries**2 * pairs // words))


SAHA_YE = "Saha & Ye, ICML 2024 (arXiv 2402.07443), Thm 3.1"
BACKWARD_PAPER = "arXiv 2410.09397"

BOUNDS = (
    Row(
        "compulsory",
        "forward",
        "n_q d + n_k (d + d_v) + n_q d_v",
        "1",
        "every input of an attended pair is read and every output written once",
        "docs/theory.md, Theorem 0",
        True,
        _compulsory,
    ),
    Row(
        "score products",
        "forward",
        "2 Z d / sqrt(M) - Z - 2 M + n_q d_v",
        "2",
        CHAIN,
        "docs/theory.md, Theorem 1, after Smith et al. (arXiv 1702.02017)",
        True,
        lambda p, m: _products(p, m, p.d, 1),
    ),
    Row(
        "phases",
        "forward",
        "min(d (d + d_v) / M, 1 - M / 4d(d + d_v)) Z - O(M + d^2) + n_q d_v",
        "2 (x^2 at d = d_v) for M >> d^2",
        ALL_PRODUCTS,
        "docs/theory.md, Theorem 2",
        True,
        lambda p, m: _phases(p, m, 4 * p.d * (p.d + p.value_dim)),
    ),
    Row(
        "compulsory",
        "backward",
        "n_q (d + d_v) + n_k (d + d_v) + n_q d + n_k (d + d_v)",
        "1",
        "Q, K, V and dO of attended pairs are read, and dQ, dK, dV written, once",
        "docs/theory.md, Theorem 0",
        True,
        _compulsory,
    ),
    Row(
        "dP products",
        "backward",
        "2 Z d_v / sqrt(M) - Z - 2 M + outputs",
        "2",
        CHAIN + "; holds also where P was kept",
        "docs/theory.md, Theorem 1",
        True,
        lambda p, m: _products(p, m, p.value_dim, 1),
    ),
    Row(
        "S and dP products",
        "backward",
        "2 Z (d + d_v) / sqrt(M) - 2 Z - 2 M + outputs",
        "2",
        CHAIN + "; P is recomputed from Q and K, not kept",
        "docs/theory.md, Theorem 1",
        True,
        lambda p, m: _products(p, m, p.d + p.value_dim, 2),
    ),
    Row(
        "phases",
        "backward",
        "min((d + d_v)^2 / M, 1 - M / 4(d + d_v)^2) Z - O(M + d^2) + outputs",
        "4 (x^2 at d = d_v) for M >> d^2",
        "every dS_ij is formed from its p_ij and dP_ij; holds also where P was kept; recomputation allowed",
        "docs/theory.md, Theorem 3",
        True,
        lambda p, m: _phases(p, m, 4 * (p.d + p.value_dim) ** 2),
    ),
    Row(
        "Theta",
        "forward",
        "min(n^2 d^2 / M, n^2 d / sqrt(M))",
        "not known",
        "order only; full mask, M <= n d",
        SAHA_YE,
        False,
        _order_forward,
    ),
    Row(
        "sparse family",
        "forward",
        "min(Z_in^2 / M, Z_in sqrt(Z_QK) / sqrt(M))",
        "not known",
        "order only; for the family of inputs with these counts, not for one given mask",
        BACKWARD_PAPER + ", Thm 4.5",
        False,
        _order_sparse,
    ),
    Row(
        "Theta",
        "backward",
        "min((n^2 d^2 + n d^3) / M, (n^2 d + n d^2) / sqrt(M))",
        "not known",
        "order only; stated for the gradient with respect to X = W_Q W_K^T, full mask",
        BACKWARD_PAPER + ", Thm 1.1",
        False,
        _order_backward,
    ),
)


def lower_bounds(problem: Problem, words: int) -> list[Bound]:
    """Every bound for the problem's direction in a cache of `words` words, proved ones first, largest first.

    Streams share nothing: a game on all of them contains a game on each, so their bounds add up.
    Raises RedblueError for words below 1.
    """
    if isinstance(words, bool) or not hasattr(words, "__index__") or words < 1:
        raise RedblueError(f"words must be a whole number of at least 1, got {words!r}")
    stream = problem.one_stream()
    found = [
        Bound(
            row.name,
            problem.streams * max(0, row.evaluate(stream, words.__index__())),
            row.formula,
            row.constant,
            row.conditions,
            row.source,
            row.proved,
        )
        for row in BOUNDS
        if row.direction == problem.direction
    ]
    return sorted(found, key=lambda bound: (not bound.proved, -bound.words))


def lower_bound(problem: Problem, words: int) -> Bound:
    """The largest proved bound on the words any schedule moves on the problem through a cache of `words` words."""
    return lower_bounds(problem, words)[0]
