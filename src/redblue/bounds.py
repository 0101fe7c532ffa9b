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

ALL_PRODUCTS = "every product of every attended pair is formed; recomputation allowed"
CHAIN = ALL_PRODUCTS + "; each score is summed one product at a time, in any order"


@dataclass(frozen=True)
class Bound:
    """A bound on one problem at one capacity. words: over all streams; for order-only rows, the form's value.

    Z: attended pairs; R, C: rows and keys that attend at all. All bounds are for algorithms that form every product
    of every attended pair (docs/theory.md).
    """

    name: str
    words: int
    formula: str
    constant: str
    conditions: str
    source: str
    proved: bool
    holds_if_p_kept: bool  # also for a backward pass that is given the probabilities, as `standard` is


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
    holds_if_p_kept: bool = True
    applies: Callable[[Problem, int], bool] = lambda stream, words: True


def _live(p: Problem) -> tuple[int, int, int]:
    """Rows and keys that attend at all, and attended pairs."""
    pairs = p.mask.on(p.n_q, p.n_k)
    rows, keys = pairs.rows_of(range(p.n_k)), pairs.cols_of(range(p.n_q))
    return sum(map(len, rows)), sum(map(len, keys)), pairs.nnz


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


PHASES = "K Z / 4M if M >= K/2, else (1 - M/K) Z, less O(M + K), K = {k}, plus {outputs}"
SAHA_YE = "Saha & Ye, ICML 2024 (arXiv 2402.07443), Thm 3.1"
BACKWARD_PAPER = "arXiv 2410.09397"

BOUNDS = (
    Row(
        "compulsory",
        "forward",
        "R d + C (d + d_v) + n_q d_v",
        "1",
        ALL_PRODUCTS,
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
        PHASES.format(k="4 d (d + d_v)", outputs="n_q d_v"),
        "2 (x^2 at d = d_v) for M >> d^2",
        ALL_PRODUCTS,
        "docs/theory.md, Theorem 2",
        True,
        lambda p, m: _phases(p, m, 4 * p.d * (p.d + p.value_dim)),
    ),
    Row(
        "compulsory",
        "backward",
        "R (d + d_v) + C (d + d_v) + n_q d + n_k (d + d_v)",
        "1",
        ALL_PRODUCTS,
        "docs/theory.md, Theorem 0",
        True,
        _compulsory,
    ),
    Row(
        "dP products",
        "backward",
        "2 Z d_v / sqrt(M) - Z - 2 M + n_q d + n_k (d + d_v)",
        "2",
        CHAIN,
        "docs/theory.md, Theorem 1",
        True,
        lambda p, m: _products(p, m, p.value_dim, 1),
    ),
    Row(
        "S and dP products",
        "backward",
        "2 Z (d + d_v) / sqrt(M) - 2 Z - 2 M + n_q d + n_k (d + d_v)",
        "2",
        CHAIN + "; P is recomputed from Q and K, not kept",
        "docs/theory.md, Theorem 1",
        True,
        lambda p, m: _products(p, m, p.d + p.value_dim, 2),
        holds_if_p_kept=False,
    ),
    Row(
        "phases",
        "backward",
        PHASES.format(k="4 (d + d_v)^2", outputs="n_q d + n_k (d + d_v)"),
        "4 (x^2 at d = d_v) for M >> d^2",
        ALL_PRODUCTS,
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
        applies=lambda p, m: p.mask.is_full and m <= max(p.n_q, p.n_k) * p.d,
    ),
    Row(
        "sparse",
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
        applies=lambda p, m: p.mask.is_full and m <= max(p.n_q, p.n_k) * p.d,
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
            row.holds_if_p_kept,
        )
        for row in BOUNDS
        if row.direction == problem.direction and row.applies(stream, words)
    ]
    return sorted(found, key=lambda bound: (not bound.proved, -bound.words))


def lower_bound(problem: Problem, words: int) -> Bound:
    """The largest proved bound on the words that any schedule moves on the problem through a cache of `words` words.

    Any that forms every product of every attended pair, and, backward, is given Q, K, V, O, lse and dO, not P.
    """
    return lower_bounds(problem, words)[0]
