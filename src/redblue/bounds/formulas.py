"""The formulas of the lower bounds: words of one stream of a problem in a cache of `words` words.

Each function evaluates one row of the table in redblue.bounds.rows, which names the row's conditions and source.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from redblue.bounds import closed
from redblue.bounds import one_mask as one_mask_phases
from redblue.bounds.cover import cover
from redblue.bounds.family import family
from redblue.bounds.table import phase_loads, stored_charges
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


def _begun(p: Problem) -> int:
    """Return the number of sums that begin in the cache without a load: the outputs, except for the gradient by X."""
    if p.direction == "gradient_x":
        return p.n_q * p.d_v + max(p.n_q, p.n_k) * p.d  # O, and dS A2 or A1^T dS
    return _outputs(p)


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
    return _net(p, phase_loads(p.direction, p.d, p.d_v, words, _live(p)[2]))


def stored_phases(p: Problem, words: int) -> int:
    """`phases` with stores: every sum that begins is charged once more (Theorem 10)."""
    direction = "recomputed" if p.direction == "backward" else p.direction
    return _net(p, stored_charges(direction, p.d, p.d_v, words, _live(p)[2]) - _begun(p))


def one_mask(p: Problem, words: int) -> int:
    """Loads of all phases, whose rows and columns contain only this mask's pairs (Theorem 5)."""
    pairs = p.mask.on(p.n_q, p.n_k)
    return one_mask_phases.loads(cover(pairs), p.direction, p.d, p.d_v, words, pairs.nnz) if pairs.nnz else 0


def _sizes(p: Problem) -> closed.Sizes:
    return closed.Sizes(p.d, p.d_v, _live(p)[2], p.n_q, p.n_k)


def _net(p: Problem, charges: int) -> int:
    """Convert charges to words: for the gradient by X, the sums of O and J begin without a load, and dX is stored."""
    return charges - _begun(p) + _outputs(p)


LARGE = {
    "forward": closed.large_forward,
    "backward": closed.large_backward,
    "gradient_x": closed.large_gradient_x,
}
# Each direction has the charges of its products, and the number of sums (scores, dP) that begin per pair
SMALL = {
    "forward": (closed.small_forward, 1),
    "backward": (closed.small_backward, 1),
    "gradient_x": (closed.small_gradient_x, 2),
}


def large_cache(p: Problem, words: int, split: bool = False) -> int:
    """Phases of whole rows and keys (Theorems 1 and 7)."""
    sizes = _sizes(p)
    longest = max(3 * p.d_v**2, 48 * p.d**2) - words
    return _net(p, closed.best(words, lambda reach: LARGE[p.direction](sizes, reach), split=split, lengths=(longest,)))


def small_cache(p: Problem, words: int, split: bool = False) -> int:
    """Charges of all products, minus the charges for beginning scores and dP (Theorems 2 and 6)."""
    products, begun = SMALL[p.direction]
    return _products(p, words, products, 0 if split else begun, split)


def small_cache_recomputed(p: Problem, words: int, split: bool = False) -> int:
    """As `small_cache`, for a backward pass without P, which must also form the products of the scores (Theorem 6)."""
    return _products(p, words, closed.small_recomputed, 0 if split else 2, split)


def _products(p: Problem, words: int, products: Callable[[closed.Sizes, int], int], begun: int, split: bool) -> int:
    sizes = _sizes(p)
    return _net(p, closed.best(words, lambda reach: products(sizes, reach), split=split) - begun * sizes.pairs)


def any_arithmetic(p: Problem, words: int) -> int:
    """Loads of phases, each of which determines few scores (backward: few dP_ij), whatever it computes (Theorem 4)."""
    return closed.any_arithmetic(p.d_v if p.direction == "backward" else p.d, _live(p)[2], words)


def inputs_and_outputs(p: Problem, words: int) -> int:
    """Every word of Q, K and V, and every word of O."""
    return (p.n_q + p.n_k) * (p.d + p.d_v)


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
