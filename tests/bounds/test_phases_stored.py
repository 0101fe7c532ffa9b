"""Theorem 10, which counts stores: its table compared with phases drawn word by word, its bounds with counts."""

import contextlib

import numpy as np
import pytest

from redblue import NotCovered, Problem, TooFewWords, count, list_schedules, lower_bounds, schedules
from redblue.bounds import table
from redblue.bounds.phases import CONSUMERS, PhaseProblem, Weights, certify
from redblue.problem import DIRECTIONS
from support.examples import thorough

KINDS = tuple(name for name in CONSUMERS if name != "backward")


def spent(direction, xi, xi_v, kept, words, shares, w):
    """Return the words that a phase moves, including stores, and its gain.

    words: of the pairs of both sides, of Q, K, dO, V and of the result arrays. shares: of crossing pairs whose scores
    (or dP) the phase continues; of the possible products with P and with dS that it computes; of pairs that it begins.
    """
    t_s, t_d, a_s, b_s, a_d, b_d, y, z, more = words
    continued_s, continued_d, made_p, made_ds, begun_s, begun_d = shares
    whole, whole_dp = a_s * b_s / xi**2, a_d * b_d / xi_v**2
    from_p = whole + t_s
    complete = np.minimum(from_p, whole_dp)

    def steps(r, c, pairs, size):
        return np.minimum(np.sqrt(r * c * pairs) / size, pairs)

    gain = w.scores * steps(a_s, b_s, continued_s * t_s + begun_s, xi) - w.scores_start * begun_s
    gain = gain + w.dp * steps(a_d, b_d, continued_d * t_d + begun_d, xi_v) - w.dp_start * begun_d
    from_ds = complete + t_d
    p = made_p * steps(
        *((y, z) if direction == "forward" else (a_d, z) if direction == "recomputed" else (z, b_d)), from_p, xi_v
    )
    ds = [made_ds * steps(more, b_s, from_ds, xi)] if direction != "forward" else [0 * t_s]
    if direction == "recomputed":
        ds.append(made_ds * steps(a_s, y, from_ds, xi))
    results = {"forward": z, "recomputed": z + more + y, "gradient_x": z + more}[direction]
    stores = (
        results + np.maximum(continued_s * t_s, p - whole) + np.maximum(continued_d * t_d, sum(ds) / len(ds) - complete)
    )
    return words.sum(axis=0) + np.maximum(0, stores - kept), gain + w.p * p + w.ds * sum(ds)


def max_gained(direction, xi, xi_v, kept, w):
    """The largest gain of random phases, and of phases near the best of them."""
    rng = np.random.default_rng(7)
    used = np.ones((9, 1))
    used[list({"forward": (1, 4, 5, 8), "recomputed": (), "gradient_x": (6,)}[direction])] = 0
    words = rng.dirichlet(np.full(9, 0.35), 20000).T * used
    shares = np.concatenate(
        [rng.random((4, 20000)) ** 0.3, rng.exponential(1, (2, 20000)) / xi**2 * rng.choice([0, 0.1, 1], (2, 20000))]
    )
    if direction == "forward":
        shares[[1, 3, 5]] = 0
    best = 0.0
    for size in np.geomspace(1, 1e-3, 40):
        for _ in range(4):  # shrink to a phase that fits
            words = words / np.maximum(1, spent(direction, xi, xi_v, kept, words, shares, w)[0])
        taken, gain = spent(direction, xi, xi_v, kept, words, shares, w)
        gain = np.where(taken <= 1 + 1e-9, gain, 0)
        best = max(best, gain.max())
        top = np.argsort(-gain)[:500]
        words = np.abs(words[:, top].repeat(10, axis=1) * (1 + size * rng.normal(size=(9, 5000))))
        shares = np.abs(shares[:, top].repeat(10, axis=1) * (1 + size * rng.normal(size=(6, 5000))))
        shares[:4] = np.minimum(shares[:4], 1)
        words = words / np.maximum(1e-9, words.sum(axis=0))
    return best


@pytest.mark.parametrize("direction", KINDS)
def test_no_phase_gains_more_than_the_table_says(direction):
    rows = table.rows(direction, table.STORED)
    for row in rows[:: len(rows) // 4]:
        weights = Weights(*(row[name] for name in Weights._fields))
        best = max_gained(direction, row["xi"], row["xi_v"], row["kept"], weights) / weights.total(direction)
        assert 0.7 * row["gain"] <= best <= row["gain"], row


@pytest.mark.parametrize("direction", ["forward", thorough("recomputed"), thorough("gradient_x")])
def test_the_table_is_what_certify_says(direction):
    row = table.rows(direction, table.STORED)[2]
    weights = Weights(*(row[name] for name in Weights._fields))
    problem = PhaseProblem(direction, row["xi"], row["xi_v"], weights, row["kept"])
    assert certify(problem, 0.01).gain / weights.total(direction) == pytest.approx(row["gain"], rel=1e-5)


@pytest.mark.thorough
def test_stores_that_count_only_lower_a_gain():
    weights = Weights(0.3, 0.13, 0, 0, 0, 0.83)
    gains = [certify(PhaseProblem("forward", 0.55, 0.55, weights, kept), 0.02).gain for kept in (1, 0.6, 0.3, 0.1)]
    assert gains[0] >= 0.98 * gains[1]
    assert gains[1] > gains[2] > gains[3] > 0.3 * gains[0]


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_bounds_lie_below_every_count(direction):
    """Random sizes and capacities. The stores bound is the best bound in some of these cases."""
    rng, compared, largest = np.random.default_rng(11), 0, 0
    names = [name for name in list_schedules(direction) if not schedules.get(name).takes_p(direction)]
    for _ in range(120):
        d = int(rng.choice([4, 8, 16, 32, 64]))
        d_v = d if rng.random() < 0.6 else int(rng.integers(2, 80))
        words = max(4, int((d / np.exp(rng.uniform(np.log(0.6), np.log(4)))) ** 2))
        n_q, n_k = (int(n) for n in np.exp(rng.uniform(np.log(8), np.log(20000), 2)))
        problem = Problem(n_q, n_k, d, d_v, direction=direction)
        bounds = {bound.name: bound.words for bound in lower_bounds(problem, words) if bound.proved}
        least = None
        for name in names:
            with contextlib.suppress(TooFewWords, NotCovered):
                moved = count(name, problem, words=words).words
                least = moved if least is None else min(least, moved)
        if least is not None and bounds["phases with stores"] > 0:
            compared += 1
            assert bounds["phases with stores"] <= least, (problem, words)
            largest += bounds["phases with stores"] == max(bounds.values())
    assert compared > 20
    assert largest


def test_a_pass_that_is_given_p_has_no_such_bound():
    problem = Problem(4096, 4096, 64, direction="backward")
    assert "phases with stores" in {bound.name for bound in lower_bounds(problem, 4096)}
    for which in ({"p_given": True}, {"split_sums": True}):
        assert "phases with stores" not in {bound.name for bound in lower_bounds(problem, 4096, **which)}
