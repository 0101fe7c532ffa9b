"""The phase problem: a rigorous upper bound on the work of one phase of an attention computation.

docs/lab/theory.md, Theorem 3, cuts any computation into phases. A phase touches at most W = M + L words that were not
computed in it. The work of a phase is limited by a small optimisation problem over the use of these words. From its
value G follows the lower bound of L (Z / G - 1) words for Z attended pairs. This module bounds G from above by branch
and bound. `phases.csv` holds the certified values, so that evaluating a lower bound is a look-up. `phases_stored.csv`
holds the values of Theorem 10, in which stores count as well.

All quantities are in units of W words. Four branching variables in [0, 1] are the shares of the W words that are

    t_S  words of one pair's score or probability         alpha = sqrt(a_S b_S), of the words of Q and of K
    t_D  words of one pair's dP                           beta = sqrt(a_D b_D), of the words of dO and of V

with 2 alpha + 2 beta + t_S + t_D <= 1. Convex duality bounds the use of the remaining words, mostly accumulators.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from redblue.base.errors import RedblueError

# Number of products that use dS and share a factor with the scores: dQ uses K, dK uses Q; the gradient by X needs one.
CONSUMERS = {"forward": 0, "backward": 2, "recomputed": 2, "gradient_x": 1}
ROUNDING = 1 + 1e-6  # far above the rounding errors of float64 here, even in the root of a difference
TINY = 1e-300
CORNERS = tuple(itertools.product((False, True), repeat=4))
# Multipliers of stores to try: the fields (stored, p_fee, ds_fee) of Dual.
NO_FEE = (0, 0, 0)
FEES_FORWARD = [NO_FEE, *((stored, p, 0) for stored in (0.33, 0.67, 1) for p in (0, 0.33, 0.67, 1))]
FEES_BOTH = [NO_FEE, (0.5, 0.5, 0.5), *((1, p, ds) for ds in (0, 0.5, 1) for p in (0, 0.5, 1))]


class Weights(NamedTuple):
    """The gain of a phase per product, in pairs. Any choice gives a valid bound; the best gives the largest.

    scores, dp: gain for all products of one pair's s_ij, or dP_ij. scores_start, dp_start: charge for beginning such a
    sum. ds: gain for all products of one pair in one array computed from dS; p: the same for the array computed from P.
    """

    scores: float
    scores_start: float
    dp: float
    dp_start: float
    ds: float
    p: float

    def total(self, direction: str) -> float:
        """Return the total gain of one pair over the whole computation."""
        earned = self.scores - self.scores_start + self.dp - self.dp_start + self.p
        return earned + CONSUMERS[direction] * self.ds


class Point(NamedTuple):
    """Values of the branching variables: numbers, or arrays over boxes."""

    t_s: Any
    alpha: Any
    t_d: Any
    beta: Any


class Pairs(NamedTuple):
    """Numbers of pairs whose P, and whose dS, is available, and how many of them are computed from inputs."""

    p: Any
    ds: Any
    whole_p: Any
    whole_ds: Any


@dataclass(frozen=True)
class PhaseProblem:
    """One problem at xi = d / sqrt(W) and xi_v = d_v / sqrt(W).

    direction: "recomputed" is backward with P not given; "backward" holds with P given, too. kept: M / W. If it is
    below 1, stores count: sums and words of pairs that are loaded need stores of their own (Theorem 10).
    """

    direction: str
    xi: float
    xi_v: float
    weights: Weights
    kept: float = 1.0

    def __post_init__(self) -> None:
        for name in ("scores", "dp"):
            weight, start = getattr(self.weights, name), getattr(self.weights, f"{name}_start")
            if weight > 0 and start <= 0:
                raise RedblueError(
                    f"{name}_start must be above 0 if {name} is above 0 ({weight}): else nothing bounds the gain"
                )

    def supply(self, x: Point, by: Point) -> Pairs:
        """Return the numbers of pairs whose P, and whose dS, is available at x: computed from inputs, or supplied.

        A dS that is not supplied is computed from an available P and from a dP whose row and key are complete. The
        smaller of the numbers of these two kinds of pairs limits such dS. The point `by` decides which of the two
        numbers is taken, so that the result is convex in each single variable for every x.
        """
        whole, dp = (x.alpha / self.xi) ** 2, (x.beta / self.xi_v) ** 2
        fewer = np.where((by.alpha / self.xi) ** 2 + by.t_s <= (by.beta / self.xi_v) ** 2, whole + x.t_s, dp)
        return Pairs(whole + x.t_s, fewer + x.t_d, whole, fewer)

    @property
    def fees(self) -> np.ndarray:
        """The multipliers of stores to try, of shape (3, number, 1)."""
        some = [NO_FEE] if self.kept >= 1 else FEES_FORWARD if self.direction == "forward" else FEES_BOTH
        return np.array(some).T[:, :, None]


class Dual(NamedTuple):
    """Multipliers of the inner problem.

    price: twice the price of a word. ds, p: the share of the gain of products with dS, and with P, that is bounded by
    words; the number of available pairs bounds the rest.
    stored: multiplier of the condition on stores, in words. p_fee, ds_fee: the part of it for pairs whose products with
    P, or dS, use loaded words; the rest of it is for pairs whose scores, or dP, are continued.
    """

    price: Any
    ds: Any
    p: Any
    stored: Any
    p_fee: Any
    ds_fee: Any


def _net(problem: PhaseProblem, dual: Dual) -> tuple[Any, Any, Any, Any]:
    """Return the fees per pair of products with P and with dS, and the gains of one product that remain."""
    w, n = problem.weights, CONSUMERS[problem.direction]
    word = dual.price / 2 * dual.stored
    p_fee, ds_fee = np.minimum(word * dual.p_fee, w.p), np.minimum(word * dual.ds_fee, n * w.ds)
    return p_fee, ds_fee, w.p - p_fee, w.ds - ds_fee / max(n, 1)


def _inner(problem: PhaseProblem, x: Point, pairs: Pairs, dual: Dual) -> Any:
    """Return an upper bound of the gain of the products that consume P and dS.

    Products with r and c words of their two factors gain w sqrt(r c). Summed over all products, the gain is at most the
    words spent times half the largest eigenvalue of the matrix of all w. So the bound is valid for every dual whose
    price is at least this eigenvalue.
    """
    n, price, stored = CONSUMERS[problem.direction], dual.price, dual.stored
    p_fee, ds_fee, p, ds = _net(problem, dual)
    q2 = (dual.ds * ds / problem.xi) ** 2 * pairs.ds / (1 + stored)
    v2 = (dual.p * p / problem.xi_v) ** 2 * pairs.p / (1 + stored)
    if n == 2:  # both factors of the scores, Q and K, are shared
        paid = x.alpha * (price - q2 / np.maximum(price, TINY))
    elif n == 1:
        paid = x.alpha * np.sqrt(np.maximum(price**2 - q2, 0))
    else:
        paid = x.alpha * price
    paid = paid + x.beta * np.sqrt(np.maximum(price**2 - v2, 0))
    capped = (1 - dual.ds) * n * ds * pairs.ds + (1 - dual.p) * p * pairs.p
    free = p_fee * pairs.whole_p + ds_fee * pairs.whole_ds  # pairs computed from inputs need no store
    return price * (1 + stored * problem.kept - x.t_s - x.t_d) / 2 - paid + capped + free


def _chains(problem: PhaseProblem, x: Point, top: Point, dual: Dual) -> Any:
    """Return an upper bound of the gain of the products of the scores and of dP at x, valid for all x up to `top`.

    With n pairs worked on, e of them begun before, the gain is w sqrt(rho n) - start (n - e) - fee e. Here e <= t, and
    rho is the number of pairs that the words could complete. The square root is bounded by a tangent with a slope of at
    most `start`. Then n = e is the maximum, with e = t or 0, and the result is convex in each variable.
    """
    w, gain = problem.weights, 0.0
    p_fee, ds_fee, *_ = _net(problem, dual)
    word = dual.price / 2 * dual.stored
    sides = (
        (w.scores, w.scores_start, x.t_s, x.alpha, top.t_s, top.alpha, problem.xi, word - p_fee),
        (w.dp, w.dp_start, x.t_d, x.beta, top.t_d, top.beta, problem.xi_v, word - ds_fee),
    )
    for weight, start, t, words, t_top, words_top, xi, fee in sides:
        if weight:
            least = words_top / xi * max(1.0, weight / (2 * start))  # the root of a point with a slope of at most start
            paying = weight * words_top / xi / np.maximum(2 * fee, TINY)  # beyond, a pair costs more than it gains
            root = np.maximum(least, np.minimum(np.sqrt(t_top), paying)) + TINY
            slope = weight * words / xi / (2 * root)
            gain = gain + slope * root**2 + t * np.maximum(slope - fee, 0)
    return gain


def _gain(problem: PhaseProblem, x: Point, pairs: Pairs, top: Point, dual: Dual) -> Any:
    return _inner(problem, x, pairs, dual) + _chains(problem, x, top, dual)


def _solve(problem: PhaseProblem, x: Point, pairs: Pairs, rounds: int) -> Dual:
    """Return near-optimal multipliers at x: golden-section search over the price, with the shares in closed form."""
    n, w = CONSUMERS[problem.direction], problem.weights
    root_p, root_ds = np.sqrt(pairs.p), np.sqrt(pairs.ds)
    cap_q, cap_v = n * root_ds * problem.xi, root_p * problem.xi_v
    stored, p_part, ds_part = problem.fees
    if problem.direction == "backward":
        p_part = 0 * p_part

    def dual_at(price: Any) -> Dual:
        dual = Dual(price, 1.0, 1.0, stored, p_part, ds_part)
        *_, p, ds = _net(problem, dual)
        more = np.sqrt(1 + stored)
        q, v = ds * root_ds / problem.xi / more + TINY, p * root_p / problem.xi_v / more + TINY
        if n == 2:
            paid = np.minimum(price, more * cap_q * price / np.maximum(2 * x.alpha, TINY))
        else:
            paid = price * more * cap_q / np.sqrt(x.alpha**2 + (more * cap_q) ** 2 + TINY)
        paid_v = price * more * cap_v / np.sqrt(x.beta**2 + (more * cap_v) ** 2 + TINY)
        return dual._replace(ds=np.minimum(q, paid) / q, p=np.minimum(v, paid_v) / v)

    def gain(dual: Dual) -> Any:
        return _gain(problem, x, pairs, x, dual)

    golden = (np.sqrt(5) - 1) / 2
    q, v = w.ds * root_ds / problem.xi + 0 * stored, w.p * root_p / problem.xi_v + 0 * stored
    low, high = 0 * q, 1.5 * (q + v) + TINY
    for _ in range(rounds):
        left, right = high - golden * (high - low), low + golden * (high - low)
        falls = gain(dual_at(left)) < gain(dual_at(right))
        low, high = np.where(falls, low, left), np.where(falls, right, high)
    # The minimum may lie at a kink: a price for which a share reaches 1, or price 0.
    best = dual_at((low + high) / 2)
    for price in (q, v, 0 * q):
        best = _better(best, dual_at(price), gain(best) <= gain(dual_at(price)))
    chosen = np.argmin(gain(best), axis=0)
    return Dual(*(np.take_along_axis(np.broadcast_to(m, q.shape), chosen[None], 0)[0] for m in best))


def _better(first: Dual, second: Dual, is_first: Any) -> Dual:
    return Dual(*(np.where(is_first, a, b) for a, b in zip(first, second, strict=True)))


def _upper(problem: PhaseProblem, low: Point, high: Point) -> Any:
    """Return an upper bound of the gain in each box [low, high].

    For fixed multipliers (those of the box's centre) the bound is convex in each single variable, so its maximum over a
    box is at a corner. Near the maximum the error decreases with the square of the box size.
    """
    middle = Point(*((a + b) / 2 for a, b in zip(low, high, strict=True)))
    dual = _solve(problem, middle, problem.supply(middle, middle), rounds=12)
    pairs = problem.supply(high, middle)  # the price must be at least the eigenvalue in the whole box
    *_, p, ds = _net(problem, dual)
    price = dual.price * np.sqrt(1 + dual.stored)
    dual = dual._replace(
        ds=np.minimum(dual.ds, price * problem.xi / np.sqrt(ds**2 * pairs.ds + TINY)),
        p=np.minimum(dual.p, price * problem.xi_v / np.sqrt(p**2 * pairs.p + TINY)),
    )
    best = np.full(np.shape(middle.t_s), -np.inf)
    for corner in CORNERS:
        x = Point(*(b if up else a for up, a, b in zip(corner, low, high, strict=True)))
        best = np.maximum(best, _gain(problem, x, problem.supply(x, middle), high, dual))
    return best


def _coarse(problem: PhaseProblem, low: Point, high: Point) -> Any:
    """Return another upper bound, better in large boxes, from the pairs at the upper end and words at the lower end."""
    pairs = problem.supply(high, high)
    dual = _solve(problem, low, pairs, rounds=8)
    return _inner(problem, low, pairs, dual) + _chains(problem, high, high, dual)


def value(problem: PhaseProblem, x: Point, rounds: int = 30) -> Any:
    """Return the gain of phases with the given shares of words, up to the error of the search for multipliers."""
    pairs = problem.supply(x, x)
    return _gain(problem, x, pairs, x, _solve(problem, x, pairs, rounds))


class Certificate(NamedTuple):
    """A certified bound. gain: no phase gains more, per word of W. reached: the gain at the point `where`, which limits
    how much smaller a certified gain could be.
    """

    gain: float
    reached: float
    where: Point


def certify(problem: PhaseProblem, gap: float = 0.05, max_boxes: int = 1 << 20) -> Certificate:
    """Bound the phase problem from above, to within a relative `gap`, or as closely as `max_boxes` boxes allow."""
    one_chain = CONSUMERS[problem.direction] == 0
    free = np.array([True, True, not one_chain, not one_chain])
    cost = np.array([1.0, 2.0, 1.0, 2.0])[:, None]
    size = free[:, None] / cost
    low = np.zeros((4, 1))
    children = np.array(list(itertools.product(*((0, 1) if f else (0,) for f in free)))).T
    reached, where, boxes = 0.0, Point(0.0, 0.0, 0.0, 0.0), 0
    settled = 0.0  # the largest bound among boxes within the gap of `reached`
    while True:
        low = low[:, (cost * low).sum(axis=0) < 1]
        room = (1 - (cost * low).sum(axis=0)) / cost
        high = np.minimum(low + size, low + room * free[:, None])
        upper = np.minimum(_upper(problem, Point(*low), Point(*high)), _coarse(problem, Point(*low), Point(*high)))
        for points in (low, (low + high) / 2):
            some = points[:, np.argsort(-upper)[:64]]
            some = some[:, (cost * some).sum(axis=0) <= 1]
            if some.shape[1]:
                gains = value(problem, Point(*some))
                if gains.max() > reached:
                    reached = float(gains.max())
                    where = Point(*(float(x) for x in some[:, gains.argmax()]))
        split = upper > reached * (1 + gap)
        boxes += low.shape[1]
        if not split.any() or boxes + split.sum() * children.shape[1] > max_boxes:
            return Certificate(max(settled, float(upper.max())) * ROUNDING, reached, where)
        settled = max(settled, float(upper[~split].max(initial=0)))
        low, size = low[:, split], size / 2
        low = (low[:, :, None] + (children * size)[:, None, :]).reshape(4, -1)
