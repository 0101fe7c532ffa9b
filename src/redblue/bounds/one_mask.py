"""The phase problem of one mask: how much a phase can do when its rows and columns cover only so many pairs.

docs/theory.md, Theorem 5. A phase touches at most W = M + L words that were not computed in it. `phases` bounds what it
can do for any mask, by products of rows and columns; here K(u), the most pairs of this mask in u rows and columns,
takes their place. With n words of a product's two factors, of s = d or d_v features, and e pairs, the phase forms at
most s min(e, sigma(e) n / s) of its products, sigma(e) = sup min(e, K(u)) / u; without a mask that is sqrt(e) / 2,
which is Loomis and Whitney's inequality.

The value is bounded from above by branch and bound over three numbers of words: of Q and K (A1), of dO and V (A2,
backward only), and of pairs' scores and probabilities (t). All that a phase earns grows with the pairs that it has and
with the words that are left, so a box is worth at most what its upper end has of the former and its lower end of the
latter. No concavity is needed of the mask.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from redblue.bounds.cover import Cover
from redblue.bounds.phases import Weights
from redblue.bounds.table import rows

LENGTHS = (0.5, 1, 2, 4, 16)  # phases' L, in M
GAP = 0.04  # between what a phase is proved and known to earn at most
MOST_BOXES = 1 << 15  # at once
STARTS, WORDS = 512, 64  # numbers of pairs, and of words, between which the starts of scores are charged
ROUNDING = 1 + 1e-9
TINY = 1e-300
CHILDREN = np.array(list(itertools.product((0, 1), repeat=3))).T[:, None, :]
CONSUMERS = {"forward": 0, "backward": 2}  # products that take dS


class Task(NamedTuple):
    """One phase problem: sizes, the words W of a phase, and what its products earn."""

    direction: str
    d: int
    d_v: int
    words: int
    weights: Weights


def even(direction: str, d: int, d_v: int) -> list[Weights]:
    """Weights with which every word earns alike, whatever product reads it.

    Forward, with two charges for each score that is begun. Backward of dQ, dK and dV: dP would share dO with dV.
    """
    if direction == "forward":
        share = d / (d + d_v)
        return [Weights(share + start, start, 0, 0, 0, 1 - share) for start in (0.02, 0.1)]
    share = d / (2 * d + d_v)
    return [Weights(0, 0, 0, 0, share, 1 - 2 * share)]


def candidates(direction: str, d: int, d_v: int, words: int) -> list[Weights]:
    """Weights to try, of which all are valid: even ones, and those of the certified table nearest to these sizes."""

    def away(row: dict[str, str]) -> float:
        sizes = (float(row["xi"]) / d, float(row["xi_v"]) / d_v)
        return sum(abs(math.log(size**2 * words)) for size in sizes)

    table = min(rows(direction), key=away)
    return [Weights(*(float(table[name]) for name in Weights._fields)), *even(direction, d, d_v)]


def loads(cover: Cover, direction: str, d: int, d_v: int, words: int, pairs: int) -> int:
    """Loads and output sums begun of any computation on a mask with this cover: the most that any phase shows."""
    best = 0.0
    for length in {max(1, int(share * words)) for share in LENGTHS}:
        if cover.is_dense_to((words + length) / min(d, d_v)):
            continue  # no less than without a mask
        for weights in candidates(direction, d, d_v, words + length):
            earned = most_earned(
                cover, Task(direction, d, d_v, words + length, weights), length * pairs / (best + length)
            )
            best = max(best, length * (math.ceil(pairs / earned * (1 - 1e-12)) - 1))
    return int(best)


def most_earned(cover: Cover, task: Task, enough: float = math.inf) -> float:
    """An upper bound of what a phase earns, in pairs: to within GAP, or (more coarsely) once it earns `enough`.

    Boxes are halved until each is worth little more than what some phase is known to earn.
    """
    backward = task.direction == "backward"
    begun = _begun(cover, task)
    low, size = np.zeros((3, 1)), np.array([[1.0], [float(backward)], [1.0]]) * task.words
    free = size > 0
    reached = settled = 0.0
    while True:
        low = low[:, low.sum(axis=0) < task.words]
        high = np.minimum(low + size, low + task.words - low.sum(axis=0))
        upper = _worth(cover, task, begun, low, high)
        reached = max(reached, float(_worth(cover, task, begun, low, low).max()))
        split = upper > reached * (1 + GAP)
        most = max(settled, float(upper.max()))
        if not split.any() or split.sum() * 8 > MOST_BOXES or reached >= enough or size.max() < 1:
            return max(1.0, most * ROUNDING)
        settled = max(settled, float(upper[~split].max(initial=0)))
        size = size / 2
        halves = CHILDREN[:, :, :8] if free.all() else CHILDREN[:, :, [0, 1, 4, 5]]
        low = (low[:, split, None] + halves * size[:, :, None]).reshape(3, -1)


def _worth(cover: Cover, task: Task, begun: Any, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """What is earned at most where the words of Q and K, dO and V, and pairs lie between low and high."""
    w, d, d_v = task.weights, task.d, task.d_v
    whole = cover.most(high[0] / d)
    left = task.words - low.sum(axis=0)  # for outputs, and forward for V
    p_pairs, p_rest = whole + high[2], high[1]
    if task.direction == "forward":
        return begun(high[0], low[2]) + w.scores_start * high[2] + w.p * _products(cover, p_pairs, left / d_v)
    ds_pairs = np.minimum(whole, cover.most(high[1] / d_v)) + high[2]
    p_slope, ds_slope = (np.maximum(cover.slope(pairs), TINY) for pairs in (p_pairs, ds_pairs))
    best = np.zeros(low.shape[1])
    # dV takes z of the words that are left, dQ and dK the others: best at an end, or where one has what it can use.
    for z in (0.0, left, p_pairs / p_slope * d_v - p_rest, left + high[0] - ds_pairs / ds_slope * 2 * d):
        z = np.clip(z, 0, left)
        dv = np.minimum(p_pairs, p_slope * (p_rest + z) / d_v)
        dqk = np.minimum(ds_pairs, ds_slope * (high[0] + left - z) / (2 * d))
        best = np.maximum(best, w.p * dv + 2 * w.ds * dqk)
    return begun(high[1], low[2]) + w.dp_start * high[2] + best


def _products(cover: Cover, pairs: Any, words: Any) -> Any:
    """The products of one kind, over s, that `pairs` pairs can have with s times `words` words of their factors."""
    return np.minimum(pairs, cover.slope(pairs) * words)


def _begun(cover: Cover, task: Task) -> Callable[[Any, Any], Any]:
    """What the products of scores (backward: of dP) earn, by the words of their factors and by t, less what they pay.

    At most weight min(e, sigma(e) A / s) - start (e - t), where e >= t pairs have such products, t of which cross; that
    + start t is left to the caller. Between two of a list of e the gain is that of the larger, the charge that of the
    smaller; between two of a list of A, A is the larger.
    """
    w, backward = task.weights, task.direction == "backward"
    weight, start, size = (w.dp, w.dp_start, task.d_v) if backward else (w.scores, w.scores_start, task.d)
    if not weight:
        return lambda words, t: 0.0
    pairs = np.append(0.0, np.geomspace(1, max(2.0, cover.pairs[-1], task.words), STARTS))
    grid = np.linspace(0, task.words, WORDS + 1)
    gain = weight * np.minimum(pairs[1:], cover.slope(pairs[1:]) * grid[:, None] / size) - start * pairs[:-1]
    table = np.maximum.accumulate(gain[:, ::-1], axis=1)[:, ::-1]  # the most from some number of pairs on

    def earned(words: Any, t: Any) -> Any:
        at = np.minimum(np.ceil(words * (WORDS / task.words) * (1 - 1e-12)), WORDS).astype(int)
        return table[at, np.minimum(np.searchsorted(pairs, t, "right") - 1, STARTS - 1)]

    return earned
