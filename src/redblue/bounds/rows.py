"""Table of lower bounds on the words that any schedule must move, each with its conditions and its source.

Proved rows have explicit constants and proofs (docs/lab/theory.md). Order-only rows are the papers' Theta and
Omega forms without their unknown constants: they show the shape of a curve and are never bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from redblue.base.arguments import checked_arguments
from redblue.base.integers import whole_number
from redblue.bounds import formulas
from redblue.paged_problem import AnyProblem

ALL_PRODUCTS = "every product of every attended pair is formed; recomputation allowed"
CHAINS = ALL_PRODUCTS + "; every sum is added up one product at a time, in any order"
BY_X = CHAINS + "; Q = A1 X, V = A3 Y, S = Q A2^T, O = P V, then O - E, and one of dS A2 and A1^T dS are formed"
PAGES = ALL_PRODUCTS + "; O and lse are stored; only the table says where pages are, and some page is in no table"
FIELD = "any arithmetic, also fast matrix multiplication; words from F_q, q > n; data-independent addresses and times; "


@dataclass(frozen=True)
class Bound:
    """A bound for one problem and one capacity.

    words: over all streams; for order-only rows, the value of the form. In `formula`, Z is the number of attended
    pairs, and R and C are the numbers of rows and keys with an attended pair. On a paged cache, C counts rows of pages,
    each once however many sequences share it, n_q the rows of all sequences, and E the pages that are used. All bounds
    are for algorithms that form every product of every attended pair (docs/lab/theory.md).
    """

    name: str
    words: int
    formula: str
    constant: str
    conditions: str
    source: str
    proved: bool


@dataclass(frozen=True)
class Row:
    """A row of the table: one bound for one direction.

    evaluate(stream, M): words of one stream of the problem in a cache of M words. applies(stream, M): whether the bound
    is valid. once(problem): words that all streams may share, counted once. The other fields are those of Bound.
    """

    name: str
    direction: str
    formula: str
    constant: str
    conditions: str
    source: str
    proved: bool
    evaluate: Callable[[Any, int], int]
    applies: Callable[[Any, int], bool] = lambda stream, words: True
    once: Callable[[Any], int] = lambda problem: 0


SAHA_YE = "Saha & Ye, ICML 2024 (arXiv 2402.07443)"
BACKWARD_PAPER = "arXiv 2410.09397"
PHASES = "max over L of L (ceil(Z / G(d, d_v, M + L)) - 1)"
COMPULSORY = {
    "forward": "R d + C (d + d_v) + n_q d_v",
    "backward": "R (d + d_v) + C (d + d_v) + n_q d + n_k (d + d_v)",
    "gradient_x": "R (d + d_v) + 2 C d + 2 d^2 + d d_v",
}
# Words per pair from the certified table, for d = d_v and large n.
CONSTANTS = {
    "forward": "3.96 x^2 for x <= 1/2, 3.9 x at x = 10",
    "backward": "10.2 x^2 for small x, 7.3 x at x = 10",
    "gradient_x": "7.8 x^2 for small x, 6.1 x at x = 10",
}
SUMS = {"gradient_x": " - n_q d_v - max(n_q, n_k) d + d^2"}

PROVED = (
    *(
        Row(
            "compulsory",
            direction,
            formula,
            "1",
            ALL_PRODUCTS,
            "docs/lab/theory.md, Theorem 0",
            True,
            formulas.compulsory,
        )
        for direction, formula in COMPULSORY.items()
    ),
    *(
        Row(
            "phases",
            direction,
            PHASES + SUMS.get(direction, ""),
            constant,
            BY_X if direction == "gradient_x" else CHAINS,
            "docs/lab/theory.md, Theorem 3; G bounded by certified branch and bound",
            True,
            formulas.phases,
        )
        for direction, constant in CONSTANTS.items()
    ),
    *(
        Row(
            "one mask",
            direction,
            "max over L of L (ceil(Z / G(K, d, d_v, M + L)) - 1), K(u): most pairs of this mask in u rows and keys",
            "as for phases, with K(u) in place of u^2 / 4",
            CHAINS + "; for this one mask",
            "docs/lab/theory.md, Theorem 5; G bounded by branch and bound, K by quick properties of the mask",
            True,
            formulas.one_mask,
            lambda stream, words: not stream.mask.is_full,
        )
        for direction in ("forward", "backward")
    ),
    Row(
        "large cache",
        "forward",
        "L (ceil(Z / max(W^2 / 4 delta^2, (sqrt(W + d_v^2) - d_v)^2)) - 1), W = M + L = max(2 M, 3 d_v^2)",
        "4 (4 x^2 at d = d_v, M >= 4 d^2)",
        CHAINS,
        "docs/lab/theory.md, Theorem 1",
        True,
        formulas.large_cache,
    ),
    Row(
        "small cache",
        "forward",
        "2 Z (d + d_v) / sqrt(M) (1 + 3 M / 4 d^2)^(-3/2) - Z - 2 M",
        "4 (4 x at d = d_v, x -> oo)",
        CHAINS,
        "docs/lab/theory.md, Theorem 2",
        True,
        formulas.small_cache,
    ),
    Row(
        "compulsory",
        "paged",
        "R d + C (d + d_v) + n_q (d_v + 1) per key/value head, and E; C d in place of C (d + d_v) if V is a part of K",
        "1",
        PAGES,
        "docs/lab/theory.md, Theorem 0 for pages",
        True,
        formulas.compulsory_paged,
        once=formulas.compulsory_entries,
    ),
    Row(
        "any arithmetic",
        "forward",
        "M (ceil(Z / max(4 M^2 / d^2, 4 M)) - 1)",
        "1/4",
        FIELD + "every score of an attended pair is in the cache at some time",
        "docs/lab/theory.md, Theorem 4, after " + SAHA_YE + ", Thm 4.8",
        True,
        formulas.any_arithmetic,
    ),
)
ORDER_ONLY = (
    Row(
        "Theta",
        "forward",
        "min(n^2 d^2 / M, n^2 d / sqrt(M))",
        "not known",
        "order only; standard matrix multiplication, full mask, M <= n d",
        SAHA_YE + ", Thm 3.1",
        False,
        formulas.order_forward,
        formulas.is_long,
    ),
    Row(
        "any arithmetic, Omega",
        "forward",
        "min(n^2 d^2 / M, n^2)",
        "not known",
        "order only; any matrix multiplication, entries from F_q with q > n, full mask, M <= n d",
        SAHA_YE + ", Thm 4.8",
        False,
        formulas.order_any_arithmetic,
        formulas.is_long,
    ),
    Row(
        "binary entries, Omega",
        "forward",
        "min(n^2 d^2 / M, n^2) / log(n)^2",
        "not known",
        "order only; any matrix multiplication, binary entries, full mask, M <= n d",
        SAHA_YE + ", Thm 4.14",
        False,
        formulas.order_binary,
        formulas.is_long,
    ),
    *(
        Row(
            "sparse",
            direction,
            "min(Z_in^2 / M, Z_in sqrt(Z_QK) / sqrt(M))",
            "not known",
            "order only; for the family of inputs with these counts, not for one given mask",
            BACKWARD_PAPER + ", Thm 4.5",
            False,
            formulas.order_sparse,
        )
        for direction in ("forward", "backward")
    ),
    *(
        Row(
            "Theta",
            direction,
            "min((n^2 d^2 + n d^3) / M, (n^2 d + n d^2) / sqrt(M))",
            "not known",
            "order only; stated for the gradient with respect to X = W_Q W_K^T, full mask, M <= n d",
            BACKWARD_PAPER + ", Thm 1.1",
            False,
            formulas.order_backward,
            formulas.is_long,
        )
        for direction in ("backward", "gradient_x")
    ),
)
BOUNDS = PROVED + ORDER_ONLY


MAX_WORDS = 10**300  # of a cache: a float holds it


@checked_arguments
def lower_bounds(problem: AnyProblem, words: int) -> list[Bound]:
    """Return all bounds for the problem in a cache of `words` words: proved ones first, each group in descending order.

    Streams share no data, so a game on all streams contains a game on each, and their bounds add up.
    Raises RedblueError unless `words` is a whole number of at least 1.
    """
    words = whole_number("words", words, most=MAX_WORDS)
    stream = problem.one_stream()
    bounds = [
        Bound(
            row.name,
            problem.streams * max(0, row.evaluate(stream, words.__index__())) + row.once(stream),
            row.formula,
            row.constant,
            row.conditions,
            row.source,
            row.proved,
        )
        for row in BOUNDS
        if row.direction == problem.direction and row.applies(stream, words)
    ]
    return sorted(bounds, key=lambda bound: (not bound.proved, -bound.words))


@checked_arguments
def lower_bound(problem: AnyProblem, words: int) -> Bound:
    """Return the largest proved bound on the words that any schedule moves on the problem in a cache of `words` words.

    The bound holds for every schedule that forms every product of every attended pair and adds up each sum one product
    at a time. Backward, it holds whether P is recomputed or given.
    """
    return lower_bounds(problem, words)[0]
