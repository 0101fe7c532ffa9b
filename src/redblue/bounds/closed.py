"""Bounds in closed form for large and for small caches, in whole numbers: no rounding can raise them.

docs/lab/theory.md, Theorems 1, 2, 4, 6 and 7. A computation is cut into phases. A phase touches at most W words that
were not computed in it, which limits the number of its steps. Most functions here return a lower bound of the number
of phases for one W, which is their parameter `reach`; `best` converts these numbers to charges. A charge is a load, or
an output sum that begins in the cache without a load.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from redblue.base.integers import ceil_div

EIGHTHS = (2, 4, 6, 8, 12, 16, 20, 24, 32, 64)  # lengths of phases, in units of M / 8
GRID = 32  # intervals of the words of crossing pairs
SCALE = 1 << 24  # denominator of irrational numbers, which are rounded to the safe side
HALF_ROOT_3 = 8660254, 10**7  # a fraction just below sqrt(3) / 2


class Sizes(NamedTuple):
    """The sizes of one stream. pairs: attended pairs. rows, keys: n_q (of all heads) and n_k."""

    d: int
    d_v: int
    pairs: int
    rows: int
    keys: int


def best(words: int, phases: Callable[[int], int], *, split: bool = False, lengths: tuple[int, ...] = ()) -> int:
    """Return a lower bound of the charges: the maximum over L of L (p - 1) + M, for p >= 2 phases of L charges each.

    M is added because the cache starts empty: the first phase may have M more charges than the others.

    phases(W): lower bound of the number of phases that touch at most W words each. split: sums may be split, so W
    counts the words at the end of a phase, too. lengths: values of L to try in addition to EIGHTHS.
    """
    most = 0
    for length in {*(max(1, words * eighths // 8) for eighths in EIGHTHS), *lengths}:
        if length >= 1 and (count := phases((2 if split else 1) * words + length)) >= 2:
            most = max(most, length * (count - 1) + words)
    return most


def any_arithmetic(d: int, pairs: int, words: int) -> int:
    """Theorem 4: L (p - 1) loads, p phases of at most M + L words, each with at most `determined` products of d terms.

    L = M + d^2 is the best length where there are many phases.
    """
    lengths = {max(1, (words + d**2) * quarters // 4) for quarters in (1, 2, 3, 4, 6, 8, 16)}
    return max(length * (max(1, ceil_div(pairs, determined(words + length, d))) - 1) for length in lengths)


def determined(reach: int, d: int) -> int:
    """Theorem 4: the most products of d terms that W words determine: W if W <= d^2, else (W + d^2)^2 / 4 d^2."""
    return reach if reach <= d**2 else (reach + d**2) ** 2 // (4 * d**2)


def _ceil_root(numerator: int, denominator: int) -> int:
    """Return the smallest whole number whose square is at least the fraction."""
    square = ceil_div(numerator, denominator)
    return math.isqrt(square - 1) + 1 if square else 0


def large_forward(s: Sizes, reach: int) -> int:
    """Theorem 1: at most max(W^2 / 4 delta^2, (sqrt(W + d_v^2) - d_v)^2) pairs per phase, if W >= 3 d_v^2.

    delta is d + d_v if d_v <= d, else 2 sqrt(d d_v).
    """
    if reach < 3 * s.d_v**2:
        return 0
    four_delta_squared = 4 * (s.d + s.d_v) ** 2 if s.d_v <= s.d else 16 * s.d * s.d_v
    side = math.isqrt((reach + s.d_v**2) * SCALE**2) + 1 - s.d_v * SCALE  # at least SCALE (sqrt(W + d_v^2) - d_v)
    return min(ceil_div(s.pairs * four_delta_squared, reach**2), ceil_div(s.pairs * SCALE**2, side**2))


def _products(steps: tuple[int, int], least: int, reach: int) -> int:
    """Return the number of phases for `steps` steps, if a phase has at most ((W + W^2 / 4 m^2) / 3)^(3/2) steps.

    steps: a fraction (numerator, denominator). least: m, the least number of words of a row or key that is complete.
    """
    numerator, denominator = steps
    cubed = (4 * least**2 * reach + reach**2) ** 3
    return _ceil_root(numerator**2 * 27 * 64 * least**6, denominator**2 * cubed)


def small_forward(s: Sizes, reach: int) -> int:
    """Theorem 2: the products Q K^T and P V."""
    return _products((s.pairs * (s.d + s.d_v), 1), s.d, reach)


def small_backward(s: Sizes, reach: int) -> int:
    """Theorem 6: the products dP, dV, dQ and dK. It holds whether P is given or not."""
    return _products((2 * s.pairs * (s.d + s.d_v), 1), min(s.d, s.d_v), reach)


def small_recomputed(s: Sizes, reach: int) -> int:
    """Theorem 6 if P is not given: also the product S of the scores. S, dQ and dK count sqrt(3) / 2 each."""
    numerator, denominator = HALF_ROOT_3
    return _products((s.pairs * (2 * s.d_v * denominator + 3 * s.d * numerator), denominator), min(s.d, s.d_v), reach)


def small_gradient_x(s: Sizes, reach: int) -> int:
    """Theorem 6: the products S, O, dP and J. If d_v > d, products with V count sqrt(d / d_v), since V is computed."""
    values = math.isqrt(s.d * s.d_v * SCALE**2) if s.d_v > s.d else s.d_v * SCALE
    return _products((2 * s.pairs * (s.d * SCALE + values), SCALE), min(s.d, s.d_v), reach)


def _whole_and_crossing(events: tuple[int, int], square: int, crossing: tuple[int, int], reach: int) -> int:
    """Return the number of phases for `events` pairs, if t of the W words of a phase belong to pairs that cross phases.

    A phase then gains at most (W - t)^2 / square from whole pairs, and min(t, sqrt(t) (W - t) r) from crossing pairs,
    where r is the fraction `crossing`. events, crossing: fractions (numerator, denominator). Between two grid points of
    t, the bound takes the smaller t in (W - t) and the larger t elsewhere. All quotients are rounded up.
    """
    most = 0
    for k in range(GRID):
        low, high = reach * k * k // GRID**2, ceil_div(reach * (k + 1) ** 2, GRID**2)
        root = (math.isqrt(high * SCALE**2) + 1) * (reach - low)
        crossed = min(high * SCALE, ceil_div(root * crossing[0], crossing[1]))
        most = max(most, ceil_div((reach - low) ** 2 * SCALE, square) + crossed)
    return ceil_div(events[0] * SCALE, events[1] * most)


def large_backward(s: Sizes, reach: int) -> int:
    """Theorem 7: at most W^2 / 48 d^2 whole pairs per phase at d = d_v."""
    d, d_v = s.d, s.d_v
    if d_v <= d:
        return _whole_and_crossing((s.pairs, 1), 8 * (d + d_v) * (2 * d + d_v), (1, 2 * (2 * d + d_v)), reach)
    return _whole_and_crossing((s.pairs, 1), 16 * d * (d + 2 * d_v), (d + d_v, 4 * d * (d + 2 * d_v)), reach)


def large_gradient_x(s: Sizes, reach: int) -> int:
    """Theorem 7: at most W^2 / 40 d^2 whole pairs per phase at d = d_v.

    a, b: the weights of all steps of a pair in O, and in J. A step of O does not count in the phase that finishes the
    step's word of O.
    """
    d, d_v = s.d, s.d_v
    if d_v <= d:
        a, b, values = (d + d_v) ** 2, (d + d_v) * (2 * d + d_v), d_v
    else:
        values = math.isqrt(d * d_v)
        a, b = d * (d + d_v + 2 * values), 2 * d * (2 * d + d_v)
    events = max(0, s.pairs * (a + b) - a * s.rows * min(s.keys, reach // d))
    crossing = max(a * d, b * values), 2 * (a + b) * d * values
    return _whole_and_crossing((events, a + b), 4 * (a + b), crossing, reach)
