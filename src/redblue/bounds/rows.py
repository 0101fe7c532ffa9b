"""Table of lower bounds on the words that any schedule must move, each with its conditions and its source.

Proved rows have explicit constants and proofs (docs/lab/theory.md). Order-only rows are the papers' Theta and
Omega forms without their unknown constants: they show the shape of a curve and are never bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from redblue.base.arguments import checked_arguments
from redblue.base.integers import whole_number
from redblue.bounds import formulas
from redblue.paged_problem import AnyProblem

ALL_PRODUCTS = "every product of every attended pair is formed; recomputation allowed"
ANY_ORDER = ALL_PRODUCTS + "; sums may be split and merged"
CHAINS = ALL_PRODUCTS + "; every sum is added up one product at a time, in any order"
NOT_GIVEN = "; P is not given"
NO_FORKS = "; no partial sum of a score or of dP is continued twice"
FORMED_BY_X = "; Q = A1 X, V = A3 Y, S = Q A2^T, O = P V, then O - E, and one of dS A2 and A1^T dS are formed"
BY_X = CHAINS + FORMED_BY_X
PAGES = ALL_PRODUCTS + "; O and lse are stored; only the table says where pages are, and some page is in no table"
FIELD = (
    "any arithmetic, also fast matrix multiplication; words from F_q, q > n + 1, n the keys of all streams; "
    "data-independent addresses and times; "
)


@dataclass(frozen=True)
class Bound:
    """A bound for one problem and one capacity.

    words: words over all streams; for order-only rows, the value of the form.
    formula: words of one stream. Z is the number of attended pairs; R and C are the numbers of rows and keys with an
        attended pair; M is the cache in words, and x = d / sqrt(M). On a paged cache, C counts rows of pages (a shared
        row once), n_q counts the rows of all sequences, and E counts the pages in use.
    constant: the factor of `formula`, or the words per attended pair for d = d_v and large n; for order-only rows, "not
        known".
    conditions: the algorithms and inputs for which the bound holds.
    source: the theorem and its place. proved: whether the words are a proved bound; False for order-only rows.
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
    is valid. once(problem): words that all streams may share, counted once. any_order: also holds if sums are split and
    merged. needs_scores: does not hold if P is given. The other fields are as in Bound.
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
    any_order: bool = False
    needs_scores: bool = False


SAHA_YE = "Saha & Ye, ICML 2024 (arXiv 2402.07443)"
BACKWARD_PAPER = "arXiv 2410.09397"
PHASES = "max over L of L (ceil(Z / G(d, d_v, M + L)) - 1) + M"
LENGTHS = "max over L of L (p - 1) + M, p phases of W = {} words, "
COMPULSORY = {
    "forward": "R d + C (d + d_v) + n_q d_v",
    "backward": "R (d + d_v) + C (d + d_v) + n_q d + n_k (d + d_v)",
    "gradient_x": "R (d + d_v) + 2 C d + 2 d^2 + d d_v",
}
# Words per pair from the certified table, for d = d_v and large n.
CONSTANTS = {
    "forward": "3.9 x^2 for small x, 3.8 x at x = 10",
    "backward": "10.2 x^2 for small x, 7.5 x at x = 10",
    "gradient_x": "7.8 x^2 for small x, 7.2 x at x = 10",
}
STORED_CONSTANTS = {
    "forward": ("3.0 at x = 0.97, 7.0 at x = 1.94", "n_q d_v"),
    "backward": ("7.3 at x = 0.97, 15.7 at x = 1.94", "n_q d - n_k (d + d_v)"),
    "gradient_x": ("5.7 at x = 0.97, 13.3 at x = 1.94", "2 n_q d_v - 2 max(n_q, n_k) d + d^2"),
}
SUMS = {"gradient_x": " - n_q d_v - max(n_q, n_k) d + d^2"}

# direction: number p of phases of W words; words per pair for d = d_v, large n and M; theorem
LARGE_CACHE = {
    "forward": (
        "p = Z / max(W^2 / 4 delta^2, (sqrt(W + d_v^2) - d_v)^2), W >= 3 d_v^2; delta = d + d_v if d_v <= d, "
        "else delta^2 = 4 d d_v",
        "4 x^2 for x <= 1/2",
        "1",
    ),
    "backward": (
        "p = Z / max over t of ((W - t)^2 / c + min(t, sqrt(t) (W - t) / 2 h)), c = 8 (d + d_v) h, h = 2 d + u d_v, "
        "u = 1 if d_v <= d, else 2 d / (d + d_v)",
        "12 x^2 for small x",
        "7",
    ),
    "gradient_x": (
        "p = (Z - 2 n_q W / 5 d) / max over t of ((W - t)^2 / 40 d^2 + min(t, 3 sqrt(t) (W - t) / 10 d)) at d = d_v",
        "10 x^2 for small x",
        "7",
    ),
}
SMALL_CACHE = {
    "forward": ("p = Z (d + d_v) / ((W + W^2 / 4 d^2) / 3)^(3/2)", "4 x - 1 for large x", "2"),
    "backward": ("p = 2 Z (d + d_v) / ((W + W^2 / 4 m^2) / 3)^(3/2), m = min(d, d_v)", "8 x - 1 for large x", "6"),
    "gradient_x": (
        "p = 2 Z (d + v) / ((W + W^2 / 4 m^2) / 3)^(3/2), m = min(d, d_v), v = d_v or, if d_v > d, sqrt(d d_v)",
        "8 x - 2 for large x",
        "6",
    ),
}
RECOMPUTED = "p = Z (2 d_v + 1.5 sqrt(3) d) / ((W + W^2 / 4 m^2) / 3)^(3/2), m = min(d, d_v)"
BEGUN = {"forward": " - Z", "backward": " - Z", "gradient_x": " - 2 Z"}


def closed_forms() -> Iterator[Row]:
    """Yield the rows of the closed forms, for chains (W = M + L) and for sums in any order (W = 2 M + L)."""
    for split in (False, True):
        conditions, suffix = (ANY_ORDER, ", any order") if split else (CHAINS, "")
        lengths = LENGTHS.format("2 M + L" if split else "M + L")
        for name, forms, evaluate in (
            ("large cache", LARGE_CACHE, formulas.large_cache),
            ("small cache", SMALL_CACHE, formulas.small_cache),
        ):
            for direction, (formula, constant, theorem) in forms.items():
                begun = BEGUN[direction] if name == "small cache" and not split else ""
                yield Row(
                    name + suffix,
                    direction,
                    lengths + formula + begun + SUMS.get(direction, ""),
                    "less than for chains" if split else constant,
                    conditions + FORMED_BY_X * (direction == "gradient_x"),
                    f"docs/lab/theory.md, Theorem {theorem}" + ", with Theorem 8" * split,
                    True,
                    partial(evaluate, split=split),
                    any_order=split,
                )
        yield Row(
            "small cache, P not given" + suffix,
            "backward",
            lengths + RECOMPUTED + " - 2 Z" * (not split),
            "less than for chains" if split else "(4 + 3 sqrt(3)) x - 2 = 9.196 x - 2 for large x",
            conditions + NOT_GIVEN,
            "docs/lab/theory.md, Theorem 6" + ", with Theorem 8" * split,
            True,
            partial(formulas.small_cache_recomputed, split=split),
            any_order=split,
            needs_scores=True,
        )


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
            any_order=True,
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
            "phases with stores",
            direction,
            f"max over L of L (ceil(Z / G(d, d_v, M, M + L + 3)) - 1) + M - {begun}",
            constant,
            (BY_X if direction == "gradient_x" else CHAINS) + NOT_GIVEN * (direction == "backward") + NO_FORKS,
            "docs/lab/theory.md, Theorem 10; G bounded by certified branch and bound",
            True,
            formulas.stored_phases,
            needs_scores=direction == "backward",
        )
        for direction, (constant, begun) in STORED_CONSTANTS.items()
    ),
    *(
        Row(
            "one mask",
            direction,
            "max over L of L (ceil(Z / G(K, d, d_v, M + L)) - 1) + M, K(u): most pairs of this mask in u rows and keys",
            "as for phases, with K(u) in place of u^2 / 4",
            CHAINS + "; for this one mask",
            "docs/lab/theory.md, Theorem 5; G bounded by branch and bound, K by quick properties of the mask",
            True,
            formulas.one_mask,
            lambda stream, words: not stream.mask.is_full,
        )
        for direction in ("forward", "backward")
    ),
    *closed_forms(),
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
        any_order=True,
    ),
    *(
        Row(
            "any arithmetic",
            direction,
            f"max over L of L (p - 1), p = ceil(Z / N), N = (M + L + {length}^2)^2 / 4 {length}^2, or M + L if less "
            f"than {length}^2",
            "x^2 / (1 + x^2)",
            FIELD + f"every {product} of an attended pair is in the cache at some time",
            "docs/lab/theory.md, Theorem 4, after " + SAHA_YE + ", Thm 4.8",
            True,
            formulas.any_arithmetic,
            any_order=True,
        )
        for direction, product, length in (
            ("forward", "score", "d"),
            ("backward", "dP_ij", "d_v"),
            ("gradient_x", "score", "d"),
        )
    ),
)
ORDER_ONLY = (
    Row(
        "approximate, Omega",
        "forward",
        "n_q (d + d_v) + n_k (d + d_v)",
        "not known",
        "order only; attention up to an additive error; Theorem 9 of docs/lab/theory.md proves this trivial bound, "
        "under a condition; the paper also states a bound for each regime",
        "Papp, Sobczyk & Zouzias 2026 (arXiv 2605.23751), abstract",
        False,
        formulas.inputs_and_outputs,
    ),
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


MAX_WORDS = 10**300  # limit of a cache, which still fits a float


@checked_arguments
def lower_bounds(problem: AnyProblem, words: int, *, p_given: bool = False, split_sums: bool = False) -> list[Bound]:
    """Return all bounds for the problem in a cache of `words` words: proved ones first, each group in descending order.

    p_given: return only bounds that also hold for a backward pass that reads the probabilities P, as `standard` does.
    split_sums: return only bounds that also hold if sums may be split into partial sums that are merged, as in decoding
    with split keys (`flash` with a span).
    Streams share no data, so a game on all streams contains a game on each stream, and their bounds add up.
    Raises RedblueError unless `words` is a whole number of at least 1. Each bound names its source.
    """
    words = whole_number("words", words, most=MAX_WORDS)
    stream = problem.one_stream()
    bounds = [
        Bound(
            row.name,
            problem.streams * max(0, row.evaluate(stream, words)) + row.once(stream),
            row.formula,
            row.constant,
            row.conditions,
            row.source,
            row.proved,
        )
        for row in BOUNDS
        if row.direction == problem.direction
        and not (p_given and row.needs_scores)
        and not (split_sums and row.proved and not row.any_order)
        and row.applies(stream, words)
    ]
    return sorted(bounds, key=lambda bound: (not bound.proved, -bound.words))


@checked_arguments
def lower_bound(problem: AnyProblem, words: int, *, p_given: bool = False, split_sums: bool = False) -> Bound:
    """Return the largest proved bound on the words that any schedule moves on the problem in a cache of `words` words.

    The bound holds for every schedule that forms every product of every attended pair, adds up each sum one product at
    a time, and continues no partial sum of a score or of dP twice; a backward schedule must not be given the
    probabilities P.
    p_given: the bound also holds if P is given. split_sums: the bound also holds if sums are split and merged.
    Raises RedblueError as `lower_bounds` does. The bound names its source, a theorem of docs/lab/theory.md.
    """
    return lower_bounds(problem, words, p_given=p_given, split_sums=split_sums)[0]
