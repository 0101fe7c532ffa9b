"""The certified bounds on phases, compared with the original (primal) problem."""

import numpy as np
import pytest

from redblue import RedblueError
from redblue.bounds import phases, table
from redblue.bounds.phases import CONSUMERS, PhaseProblem, Point, Weights, certify
from redblue.problem import DIRECTIONS
from support.examples import thorough

WEIGHTS = {
    "forward": Weights(0.6, 0.28, 0, 0, 0, 0.68),
    "backward": Weights(0, 0, 0.28, 0.12, 0.27, 0.3),
    "gradient_x": Weights(0.2, 0.1, 0.3, 0.12, 0.35, 0.37),
}


def earned(direction, xi, xi_v, w, words, started):
    """The gain that Theorem 3 (docs/lab/theory.md) allows a phase with these words (arrays of shares of W)."""
    t_s, t_d, a_s, b_s, a_d, b_d, y, z, more1, more2 = words
    whole, whole_dp = a_s * b_s / xi**2, a_d * b_d / xi_v**2
    from_p, from_ds = whole + t_s, np.minimum(whole + t_s, whole_dp) + t_d

    def products(r, c, pairs, size):
        return np.minimum(np.sqrt(r * c * pairs) / size, pairs)

    gain = w.scores * products(a_s, b_s, t_s + started[0], xi) - w.scores_start * started[0]
    gain = gain + w.dp * products(a_d, b_d, t_d + started[1], xi_v) - w.dp_start * started[1]
    if direction == "forward":  # y: V, z: O
        gain = gain + w.p * products(y, z, from_p, xi_v)
    elif direction == "backward":  # dO is a_d, z: dV; dQ takes K, dK takes Q
        gain = gain + w.p * products(a_d, z, from_p, xi_v)
        gain = gain + w.ds * (products(more1, b_s, from_ds, xi) + products(a_s, more2, from_ds, xi))
    else:  # V is b_d, z: O; dS A2
        gain = gain + w.p * products(z, b_d, from_p, xi_v) + w.ds * products(more1, b_s, from_ds, xi)
    return gain


def ways_to_spend(direction, rng, count):
    words = rng.dirichlet(np.full(10, 0.35), count).T
    unused = {"forward": (1, 4, 5, 8, 9), "backward": (6,), "gradient_x": (6, 9)}[direction]
    words[list(unused)] = 0
    return words / words.sum(axis=0)


def max_earned(direction, xi, xi_v, w):
    """The largest gain found by random distributions of words, and hill climbing from the best of them."""
    rng, best = np.random.default_rng(3), 0.0
    words, started = ways_to_spend(direction, rng, 20000), (1 / xi**2) ** rng.uniform(-2, 1, (2, 20000))
    for scale in np.geomspace(1, 1e-3, 40):
        gain = earned(direction, xi, xi_v, w, words, started)
        best = max(best, gain.max())
        order = np.argsort(-gain)[:500]
        words = np.abs(words[:, order].repeat(10, axis=1) * (1 + scale * rng.normal(size=(10, 5000))))
        words = words / words.sum(axis=0)
        started = np.abs(started[:, order].repeat(10, axis=1) * (1 + scale * rng.normal(size=(2, 5000))))
    return best


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("xi", "xi_v"), [thorough(0.1, 0.1), (0.5, 0.4), (0.7, 1.4), thorough(3.0, 2.0)])
def test_nothing_earns_more_than_the_certificate(direction, xi, xi_v):
    certificate = certify(PhaseProblem(direction, xi, xi_v, WEIGHTS[direction]), gap=0.05, max_boxes=1 << 17)
    assert 0 < certificate.reached <= certificate.gain
    assert 0.85 * certificate.gain <= max_earned(direction, xi, xi_v, WEIGHTS[direction]) <= certificate.gain


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_nothing_earns_more_than_the_table_says(direction):
    """Rows spread over the whole table."""
    rows = table.rows(direction)
    for row in rows[7 :: len(rows) // 9]:
        w = Weights(*(row[name] for name in Weights._fields))
        best = max_earned(direction, row["xi"], row["xi_v"], w) / w.total(direction)
        assert 0.75 * row["gain"] <= best <= row["gain"], row


@pytest.mark.parametrize("direction", ["forward", thorough("backward"), thorough("gradient_x")])
def test_the_table_is_what_certify_says(direction):
    """Random rows are certified again; `make certify` certifies all rows."""
    rows = table.rows(direction)
    for row in np.random.default_rng(5).choice(len(rows), 4, replace=False):
        weights = Weights(*(rows[row][name] for name in Weights._fields))
        problem = PhaseProblem(direction, rows[row]["xi"], rows[row]["xi_v"], weights)
        again = certify(problem, gap=0.01, max_boxes=1 << 20)
        total, listed = weights.total(direction), rows[row]["gain"]
        assert again.reached / total <= listed
        assert again.gain / total == pytest.approx(listed, rel=1e-5)


def test_a_phase_of_the_large_cache_by_hand():
    """Branch and bound finds Theorem 1's W^2 / 16 d^2 pairs at d = d_v, W >= 8 d^2."""
    certificate = certify(PhaseProblem("forward", 0.25, 0.25, Weights(0, 0, 0, 0, 0, 1)), gap=0.001)
    assert certificate.reached <= 1 <= certificate.gain <= 1.01
    assert certificate.gain == pytest.approx(1 / (16 * 0.25**2), rel=0.01)


def test_boxes_are_bounded_everywhere_not_only_in_their_corners():
    """Both upper bounds of a box lie above the values at random points inside the box."""
    rng = np.random.default_rng(0)
    for direction in DIRECTIONS:
        problem = PhaseProblem(direction, 0.6, 0.45, WEIGHTS[direction])
        scale = np.array([1, 0.5, 1, 0.5])[:, None] * (1 if CONSUMERS[direction] else np.array([[1], [1], [0], [0]]))
        low = rng.random((4, 400)) * scale / 4
        high = low + rng.random((4, 400)) * scale / 6
        inside = low + rng.random((4, 400)) * (high - low)
        gain = phases.value(problem, Point(*inside))
        assert (gain <= phases._upper(problem, Point(*low), Point(*high)) + 1e-9).all()
        assert (gain <= phases._coarse(problem, Point(*low), Point(*high)) + 1e-9).all()


def test_sums_that_begin_for_nothing_are_refused():
    with pytest.raises(RedblueError, match="dp_start must be above 0 if dp is above 0"):
        PhaseProblem("backward", 1.0, 1.0, Weights(0, 0, 0.5, 0, 0.1, 0.3))


def test_weights_that_earn_nothing_cost_nothing():
    assert Weights(0, 0, 0, 0, 0.5, 0).total("backward") == 1
    assert Weights(0, 0, 0, 0, 0.5, 0).total("gradient_x") == 0.5
