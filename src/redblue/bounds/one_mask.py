"""The phase problem of one mask: a bound on the work of a phase whose rows and columns contain few attended pairs.

docs/lab/theory.md, Theorem 5. A phase touches at most W = M + L words that were not computed in it. `phases` bounds its
work for any mask, counting every pair of its rows and columns; here K(u), the maximum of attended pairs in u rows and
columns of this mask, replaces that count. Take a product with s = d or d_v features, n words of its two factors and e
pairs. The phase forms at most s min(e, sigma(e) n / s) of its multiplications, with sigma(e) = sup min(e, K(u)) / u.
Without a mask, sigma(e) = sqrt(e) / 2, which is the Loomis-Whitney inequality.

The phase problem is bounded from above by branch and bound over three numbers of words: of Q and K (A_S), of dO and V
(A_D, backward only), and of scores and probabilities of pairs (t). The gain of a phase increases with the number of its
pairs and with the number of its remaining words. The gain in a box is therefore at most that for the pairs at its upper
end and the remaining words at its lower end. This needs no concavity of K.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from redblue.bounds.cover import Cover
from redblue.bounds.phases import Weights
from redblue.bounds.table import certified, rows

LENGTHS = (0.5, 1, 2, 4, 16)  # lengths L of phases, in units of M
GAP = 0.04  # relative gap at which branch and bound stops
MAX_BOXES = 1 << 15  # boxes at the same time
STARTS, WORDS = 512, 64  # grid points, in pairs and in words, of the table of gains from scores
ROUNDING = 1 + 1e-9
TINY = 1e-300
CHILDREN = np.array(list(itertools.product((0, 1), repeat=3))).T[:, None, :]


class Task(NamedTuple):
    """One phase problem. words: W, the words of a phase. weights: the gain per product."""

    direction: str
    d: int
    d_v: int
    words: int
    weights: Weights


def even(direction: str, d: int, d_v: int) -> list[Weights]:
    """Return weights with which a word earns the same in every product that reads it.

    Forward: two variants, which differ in the charge for each score that is begun. Backward: only the products dQ, dK
    and dV earn; dP would share dO with dV.
    """
    if direction == "forward":
        share = d / (d + d_v)
        return [Weights(share + start, start, 0, 0, 0, 1 - share) for start in (0.02, 0.1)]
    share = d / (2 * d + d_v)
    return [Weights(0, 0, 0, 0, share, 1 - 2 * share)]


def candidates(direction: str, d: int, d_v: int, words: int) -> list[Weights]:
    """Return weights to try (any weights are valid): those of the nearest row of the certified table, and of `even`."""
    xi, xi_v, _ = certified(direction)
    distance = sum(abs(np.log((size / features) ** 2 * words)) for size, features in ((xi, d), (xi_v, d_v)))
    table = rows(direction)[int(np.argmin(distance))]
    return [Weights(*(table[name] for name in Weights._fields)), *even(direction, d, d_v)]


def loads(cover: Cover, direction: str, d: int, d_v: int, words: int, pairs: int) -> int:
    """Return a lower bound of loads plus output sums begun, for any computation on a mask with this cover.

    pairs: attended pairs of the mask. The result is the maximum over phase lengths and weights.
    """
    best = 0.0
    for length in {max(1, int(share * words)) for share in LENGTHS}:
        if cover.is_dense_to((words + length) / min(d, d_v)):
            continue  # the mask does not limit such a phase
        for weights in candidates(direction, d, d_v, words + length):
            # The table's weights are rounded: a pair earns their total in all phases together, which is not exactly 1.
            total = weights.total(direction) * pairs
            short = best + length - words
            enough = length * total / short if short > 0 else math.inf  # a phase that earns this cannot raise `best`
            earned = max_earned(cover, Task(direction, d, d_v, words + length, weights), enough)
            count = math.ceil(total / earned * (1 - 1e-12))
            best = max(best, length * (count - 1) + words if count >= 2 else 0)
    return int(best)


def max_earned(cover: Cover, task: Task, enough: float = math.inf) -> float:
    """Return an upper bound of a phase's gain, in pairs: tight to within GAP, or coarser if a phase can reach `enough`.

    Boxes are halved until the bound of each is close to a gain that some phase reaches.
    """
    backward = task.direction == "backward"
    scores_gain = _net_gain(cover, task)
    low, size = np.zeros((3, 1)), np.array([[1.0], [float(backward)], [1.0]]) * task.words
    free = size > 0
    reached = settled = 0.0
    while True:
        low = low[:, low.sum(axis=0) < task.words]
        high = np.minimum(low + size, low + task.words - low.sum(axis=0))
        upper = _max_gain(cover, task, scores_gain, low, high)
        reached = max(reached, float(_max_gain(cover, task, scores_gain, low, low).max()))
        split = upper > reached * (1 + GAP)
        most = max(settled, float(upper.max()))
        if not split.any() or split.sum() * 8 > MAX_BOXES or reached >= enough or size.max() < 1:
            return max(1.0, most * ROUNDING)
        settled = max(settled, float(upper[~split].max(initial=0)))
        size = size / 2
        halves = CHILDREN[:, :, :8] if free.all() else CHILDREN[:, :, [0, 1, 4, 5]]
        low = (low[:, split, None] + halves * size[:, :, None]).reshape(3, -1)


def _max_gain(cover: Cover, task: Task, scores_gain: Any, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return an upper bound of the gain in each box. low, high: (3, boxes), the ends of A_S, A_D and t."""
    w, d, d_v = task.weights, task.d, task.d_v
    whole = cover.most(high[0] / d)
    left = task.words - low.sum(axis=0)  # words left for outputs (and, forward, for V)
    p_pairs, p_rest = whole + high[2], high[1]
    if task.direction == "forward":
        return scores_gain(high[0], low[2]) + w.scores_start * high[2] + w.p * _products(cover, p_pairs, left / d_v)
    ds_pairs = np.minimum(whole, cover.most(high[1] / d_v)) + high[2]
    p_slope, ds_slope = (np.maximum(cover.slope(pairs), TINY) for pairs in (p_pairs, ds_pairs))
    best = np.zeros(low.shape[1])
    # dV takes z of the words left, dQ and dK take the others. The best z is an end, or saturates one of the products.
    for z in (0.0, left, p_pairs / p_slope * d_v - p_rest, left + high[0] - ds_pairs / ds_slope * 2 * d):
        z = np.clip(z, 0, left)
        dv = np.minimum(p_pairs, p_slope * (p_rest + z) / d_v)
        dqk = np.minimum(ds_pairs, ds_slope * (high[0] + left - z) / (2 * d))
        best = np.maximum(best, w.p * dv + 2 * w.ds * dqk)
    return scores_gain(high[1], low[2]) + w.dp_start * high[2] + best


def _products(cover: Cover, pairs: Any, words: Any) -> Any:
    """Return an upper bound of the multiplications per feature for `pairs` pairs and `words` words per feature."""
    return np.minimum(pairs, cover.slope(pairs) * words)


def _net_gain(cover: Cover, task: Task) -> Callable[[Any, Any], Any]:
    """Return a function of A and t that bounds the net gain of the products of scores (backward: of dP).

    A: words of their factors. t: pairs that cross phases. The net gain is at most weight min(e, sigma(e) A / s) -
    start (e - t), maximised over e >= t, the number of pairs with such products; the caller adds the term start t.
    The function interpolates a table safely: between two grid points of e it takes the gain of the larger and the
    charge of the smaller; between two grid points of A it takes the larger A.
    """
    w, backward = task.weights, task.direction == "backward"
    weight, start, size = (w.dp, w.dp_start, task.d_v) if backward else (w.scores, w.scores_start, task.d)
    if not weight:
        return lambda words, t: 0.0
    pairs = np.append(0.0, np.geomspace(1, max(2.0, cover.pairs[-1], task.words), STARTS))
    grid = np.linspace(0, task.words, WORDS + 1)
    gain = weight * np.minimum(pairs[1:], cover.slope(pairs[1:]) * grid[:, None] / size) - start * pairs[:-1]
    table = np.maximum.accumulate(gain[:, ::-1], axis=1)[:, ::-1]  # maximum over all e from a grid point on

    def earned(words: Any, t: Any) -> Any:
        grid_point = np.minimum(np.ceil(words * (WORDS / task.words) * (1 - 1e-12)), WORDS).astype(int)
        return table[grid_point, np.minimum(np.searchsorted(pairs, t, "right") - 1, STARTS - 1)]

    return earned
