"""The formulas of the lower bounds: words of one stream of a problem in a cache of `words` words.

Each function evaluates one row of the table in redblue.bounds.rows, which names the row's conditions and source.
"""

from __future__ import annotations

import math

from redblue.bounds import one_mask as one_mask_phases
from redblue.bounds.cover import cover
from redblue.bounds.family import family
from redblue.bounds.table import phase_loads
from redblue.paged_problem import PagedProblem
from redblue.problem import Problem


def _live(p: Problem) -> tuple[int, int, int]:
    """Return the numbers of rows and of keys with an attended pair, and of attended pairs."""
    pairs = p.mask.on(p.n_q, p.n_k)
    rows, keys = pairs.rows_of(range(p.n_k)), pairs.cols_of(range(p.n_q))
    return sum(map(len, rows)), sum(map(len, keys)), pairs.nnz


def _outputs(p: Problem) -> int:
    """Return the number of output words, all of which must be stored."""
    if p.direction == "gradient_x":
        return p.d**2
    return p.n_q * p.d_v if p.direction == "forward" else p.n_q * p.d + p.n_k * (p.d + p.d_v)


def compulsory(p: Problem, words: int) -> int:
    """Every input that is used is loaded once, and every output is stored once (Theorem 0)."""
    rows, keys, _ = _live(p)
    if p.direction == "gradient_x":  # A1, E; A2, A3; X, Y
        inputs = rows * (p.d + p.d_v) + keys * 2 * p.d + bool(rows) * p.d * (p.d + p.d_v)
    else:
        inputs = rows * (p.d + p.d_v * (p.direction == "backward")) + keys * (p.d + p.d_v)
    return inputs + _outputs(p)


def compulsory_paged(p: PagedProblem, words: int) -> int:
    """Every row of a page that is used is loaded once, however many sequences share it (Theorem 0 for pages)."""
    used = sum(stop - first for ranges in p.used_rows.values() for first, stop in ranges)
    return p.live_rows * p.d + used * p.key_words + p.n_q * (p.d_v + 1)


def compulsory_entries(p: PagedProblem) -> int:
    """One entry of the page table for each page that is used; all streams may share them."""
    return len(p.used_rows)


def phases(p: Problem, words: int) -> int:
    """Loads of all phases, minus the sums that begin in the cache without a load, plus all outputs (Theorem 3)."""
    sums = _outputs(p)  # each output is the end of one sum
    if p.direction == "gradient_x":
        sums = p.n_q * p.d_v + max(p.n_q, p.n_k) * p.d  # O, and dS A2 or A1^T dS
    return phase_loads(p.direction, p.d, p.d_v, words, _live(p)[2]) - sums + _outputs(p)


def one_mask(p: Problem, words: int) -> int:
    """Loads of all phases, whose rows and columns contain only this mask's pairs (Theorem 5)."""
    pairs = p.mask.on(p.n_q, p.n_k)
    return one_mask_phases.loads(cover(pairs), p.direction, p.d, p.d_v, words, pairs.nnz) if pairs.nnz else 0


def large_cache(p: Problem, words: int) -> int:
    """Phases of L loads that touch W = M + L words, with W = 2 M or the minimum for Theorem 1."""
    d, d_v, pairs = p.d, p.d_v, _live(p)[2]
    four_delta_squared = 4 * (d + d_v) ** 2 if d_v <= d else 16 * d * d_v
    reach = max(2 * words, 3 * d_v**2)
    # A phase may gain fractions of pairs, so round only after the division.
    whole = -(-pairs * four_delta_squared // reach**2)
    crossing = math.ceil(pairs / (math.sqrt(reach + d_v**2) - d_v) ** 2 * (1 - 1e-9))
    return (reach - words) * (min(whole, crossing) - 1)


def small_cache(p: Problem, words: int) -> int:
    """Charges of the products Q K^T and P V, minus the Z charges for scores that are begun (Theorem 2)."""
    pairs = _live(p)[2]
    reached = (1 + 0.75 * words / p.d**2) ** 1.5 * (1 + 1e-9)
    return int(2 * pairs * (p.d + p.d_v) / math.sqrt(words) / reached) - pairs - 2 * words


def any_arithmetic(p: Problem, words: int) -> int:
    """Phases of M loads; each can determine at most max((2 M / d)^2, 4 M) scores (Theorem 4)."""
    most = max(4 * words * words // p.d**2, 4 * words)
    return words * (-(-_live(p)[2] // most) - 1)


def order_forward(p: Problem, words: int) -> int:
    """min(n^2 d^2 / M, n^2 d / sqrt(M))."""
    pairs = p.n_q * p.n_k
    return min(pairs * p.d**2 // words, math.isqrt((pairs * p.d) ** 2 // words))


def order_backward(p: Problem, words: int) -> int:
    """min((n^2 d^2 + n d^3) / M, (n^2 d + n d^2) / sqrt(M))."""
    n, d = max(p.n_q, p.n_k), p.d
    return min((n**2 * d**2 + n * d**3) // words, math.isqrt((n**2 * d + n * d**2) ** 2 // words))


def order_sparse(p: Problem, words: int) -> int:
    """min(Z_in^2 / M, Z_in sqrt(Z_QK) / sqrt(M))."""
    return family(p).form(words)


def order_any_arithmetic(p: Problem, words: int) -> int:
    """min(n^2 d^2 / M, n^2)."""
    pairs = p.n_q * p.n_k
    return min(pairs * p.d**2 // words, pairs)


def order_binary(p: Problem, words: int) -> int:
    """min(n^2 d^2 / M, n^2) / log(n)^2."""
    return int(order_any_arithmetic(p, words) / max(1.0, math.log2(max(p.n_q, p.n_k))) ** 2)


def is_long(p: Problem, words: int) -> bool:
    """Return whether the papers' forms apply: a full mask and M <= n d."""
    return p.mask.is_full and words <= max(p.n_q, p.n_k) * p.d
