"""The phase problem: how much of attention one phase can do, and a certificate that it can do no more.

docs/theory.md, Theorem 3, cuts any computation into phases that can touch at most W = M + L words which were not
computed in the phase, and shows that what a phase does is limited by a small optimisation over where these words go.
Its value G bounds the words from below: at least L (Z / G - 1). This module bounds G from above, rigorously, by branch
and bound; `phases.csv` holds what it certifies, so that a bound is a look-up.

Everything here is measured in W words: four branching variables in [0, 1] say which share of the W words are

    t1  words of one pair's score or probability          alpha  geometric mean of the words of Q and of K
    t2  words of one pair's dP                            beta   geometric mean of the words of dO and of V

(2 alpha + 2 beta + t1 + t2 <= 1), and what remains, accumulators above all, is spent by convex duality.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from redblue.base.errors import RedblueError

# Products that use dS and share a factor with the scores: dQ uses K, dK uses Q; the gradient by X needs one of them.
CONSUMERS = {"forward": 0, "backward": 2, "gradient_x": 1}
ROUNDING = 1 + 1e-6  # far above what float64 loses here, even in the root of a difference
TINY = 1e-300
CORNERS = tuple(itertools.product((False, True), repeat=4))


class Weights(NamedTuple):
    """What a phase earns per product, in pairs: any choice is valid, the best makes the bound largest.

    scores, dp: for all products of one pair's s_ij, dP_ij; scores_start, dp_start: charged when such a sum is begun.
    ds: for all products of one pair in one array made from dS; p: the same for the array made from P.
    """

    scores: float
    scores_start: float
    dp: float
    dp_start: float
    ds: float
    p: float

    def total(self, direction: str) -> float:
        """What one pair earns in all."""
        earned = self.scores - self.scores_start + self.dp - self.dp_start + self.p
        return earned + CONSUMERS[direction] * self.ds


class Point(NamedTuple):
    """Branching variables: numbers, or arrays over many boxes."""

    t1: Any
    alpha: Any
    t2: Any
    beta: Any


@dataclass(frozen=True)
class PhaseProblem:
    """One direction at xi = d / sqrt(W) and xi_v = d_v / sqrt(W)."""

    direction: str
    xi: float
    xi_v: float
    weights: Weights

    def __post_init__(self) -> None:
        for name in ("scores", "dp"):
            weight, start = getattr(self.weights, name), getattr(self.weights, f"{name}_start")
            if weight > 0 and start <= 0:
                raise RedblueError(
                    f"{name}_start must be above 0 where {name} is ({weight}): else nothing bounds the gain"
                )

    def supply(self, x: Point, by: Point) -> tuple[Any, Any]:
        """Pairs of which P, and of which dS, is at hand at x: computed from inputs alone, or kept.

        dS needs the scores whole and dP whole, so the fewer of the two; `by` says which is taken, so that the result
        is convex in each variable alone wherever x lies.
        """
        scores, dp = (x.alpha / self.xi) ** 2, (x.beta / self.xi_v) ** 2
        fewer = np.where(by.alpha / self.xi <= by.beta / self.xi_v, scores, dp)
        return scores + x.t1, fewer + x.t1 + x.t2


class Dual(NamedTuple):
    """Multipliers of the inner problem. price: of a word, twice; ds, p: share of an earning that is paid in words."""

    price: Any
    ds: Any
    p: Any


def _inner(problem: PhaseProblem, x: Point, pairs: tuple[Any, Any], dual: Dual) -> Any:
    """What the products that consume P and dS earn at most: an upper bound for every dual whose spectra hold.

    The words of a product's two factors, r and c, earn w sqrt(r c). Over all products that is at most half the largest
    eigenvalue of the matrix of the w times the words spent; the price is that eigenvalue.
    """
    w, n = problem.weights, CONSUMERS[problem.direction]
    from_p, from_ds = pairs
    price = dual.price
    q2 = (dual.ds * w.ds / problem.xi) ** 2 * from_ds
    v2 = (dual.p * w.p / problem.xi_v) ** 2 * from_p
    if n == 2:  # both factors of the scores, Q and K, are shared
        given = x.alpha * (price - q2 / np.maximum(price, TINY))
    elif n == 1:
        given = x.alpha * np.sqrt(np.maximum(price**2 - q2, 0))
    else:
        given = x.alpha * price
    given = given + x.beta * np.sqrt(np.maximum(price**2 - v2, 0))
    capped = (1 - dual.ds) * n * w.ds * from_ds + (1 - dual.p) * w.p * from_p
    return price * (1 - x.t1 - x.t2) / 2 - given + capped


def _solve(problem: PhaseProblem, x: Point, pairs: tuple[Any, Any], rounds: int) -> Dual:
    """Near-optimal multipliers at x: golden-section search over the price, the shares in closed form."""
    w, n = problem.weights, CONSUMERS[problem.direction]
    root_p, root_ds = np.sqrt(pairs[0]), np.sqrt(pairs[1])
    q, v = w.ds * root_ds / problem.xi + TINY, w.p * root_p / problem.xi_v + TINY
    cap_q, cap_v = n * root_ds * problem.xi, root_p * problem.xi_v

    def at(price: Any) -> Dual:
        if n == 2:
            paid = np.minimum(price, cap_q * price / np.maximum(2 * x.alpha, TINY))
        else:
            paid = price * cap_q / np.sqrt(x.alpha**2 + cap_q**2 + TINY)
        p = price * cap_v / np.sqrt(x.beta**2 + cap_v**2 + TINY)
        return Dual(price, np.minimum(q, paid) / q, np.minimum(v, p) / v)

    golden = (np.sqrt(5) - 1) / 2
    low, high = 0 * q, 1.5 * (q + v)
    for _ in range(rounds):
        left, right = high - golden * (high - low), low + golden * (high - low)
        falls = _inner(problem, x, pairs, at(left)) < _inner(problem, x, pairs, at(right))
        low, high = np.where(falls, low, left), np.where(falls, right, high)
    # The minimum may lie in a kink: where a share reaches 1, or where nothing is paid.
    best = at((low + high) / 2)
    for price in (q, v, 0 * q):
        other = at(price)
        better = _inner(problem, x, pairs, other) < _inner(problem, x, pairs, best)
        best = Dual(*(np.where(better, a, b) for a, b in zip(other, best, strict=True)))
    return best


def _chains(problem: PhaseProblem, x: Point, top: Point) -> Any:
    """What the products of the scores and of dP earn: at most this at x, for all x up to `top`.

    Of n pairs worked on, those begun in the phase are charged: the gain is w sqrt(rho n) - start (n - t), n >= t, rho
    the pairs that the words could make whole. The root is bounded by its tangent at a place where its slope is at
    most `start`, so n = t is worst; the result is linear in each variable.
    """
    w, gain = problem.weights, 0.0
    for weight, start, t, words, t_top, words_top, xi in (
        (w.scores, w.scores_start, x.t1, x.alpha, top.t1, top.alpha, problem.xi),
        (w.dp, w.dp_start, x.t2, x.beta, top.t2, top.beta, problem.xi_v),
    ):
        if weight:
            touch = np.maximum(t_top, (words_top / xi * max(1.0, weight / (2 * start))) ** 2) + TINY
            gain = gain + weight * words / xi * (np.sqrt(touch) + t / np.sqrt(touch)) / 2
    return gain


def _upper(problem: PhaseProblem, low: Point, high: Point) -> Any:
    """An upper bound of the gain in each box [low, high].

    With multipliers fixed (those of the box's middle), the bound is convex in each variable alone, so over a box it is
    largest in a corner. Near the maximum its error falls with the square of the box.
    """
    middle = Point(*((a + b) / 2 for a, b in zip(low, high, strict=True)))
    dual = _solve(problem, middle, problem.supply(middle, middle), rounds=12)
    from_p, from_ds = problem.supply(high, middle)  # the spectra must hold in the whole box
    w = problem.weights
    dual = Dual(
        dual.price,
        np.minimum(dual.ds, dual.price * problem.xi / np.sqrt(w.ds**2 * from_ds + TINY)),
        np.minimum(dual.p, dual.price * problem.xi_v / np.sqrt(w.p**2 * from_p + TINY)),
    )
    best = np.full(np.shape(middle.t1), -np.inf)
    for corner in CORNERS:
        x = Point(*(b if up else a for up, a, b in zip(corner, low, high, strict=True)))
        best = np.maximum(best, _inner(problem, x, problem.supply(x, middle), dual) + _chains(problem, x, high))
    return best


def _coarse(problem: PhaseProblem, low: Point, high: Point) -> Any:
    """Another upper bound, better in large boxes: pairs as at the upper end, words as at the lower end."""
    pairs = problem.supply(high, high)
    dual = _solve(problem, low, pairs, rounds=8)
    return _inner(problem, low, pairs, dual) + _chains(problem, high, high)


def value(problem: PhaseProblem, x: Point) -> Any:
    """The gain at points: what a phase can do if its words are spread like this (up to the search for multipliers)."""
    pairs = problem.supply(x, x)
    return _inner(problem, x, pairs, _solve(problem, x, pairs, rounds=30)) + _chains(problem, x, x)


class Certificate(NamedTuple):
    """gain: no phase earns more, per word of W. reached: what some phase may earn, so that gain cannot be far lower."""

    gain: float
    reached: float
    where: Point


def certify(problem: PhaseProblem, gap: float = 0.05, most_boxes: int = 1 << 20) -> Certificate:
    """Bound the phase problem from above, to within `gap` of its value, or as near as `most_boxes` boxes get."""
    one_chain = CONSUMERS[problem.direction] == 0
    free = np.array([True, True, not one_chain, not one_chain])
    cost = np.array([1.0, 2.0, 1.0, 2.0])[:, None]
    size = free[:, None] / cost
    low = np.zeros((4, 1))
    children = np.array(list(itertools.product(*((0, 1) if f else (0,) for f in free)))).T
    reached, where, boxes = 0.0, Point(0.0, 0.0, 0.0, 0.0), 0
    settled = 0.0  # the largest bound of all boxes that were near enough to what is reached
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
        if not split.any() or boxes + split.sum() * children.shape[1] > most_boxes:
            return Certificate(max(settled, float(upper.max())) * ROUNDING, reached, where)
        settled = max(settled, float(upper[~split].max(initial=0)))
        low, size = low[:, split], size / 2
        low = (low[:, :, None] + (children * size)[:, None, :]).reshape(4, -1)
