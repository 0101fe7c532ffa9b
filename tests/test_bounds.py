import contextlib
import math

import pytest

from redblue import Mask, Problem, RedblueError, TooFewWords, bounds, count, lower_bound, lower_bounds

MASKS = [Mask.full(), Mask.causal(), Mask.sliding_window(16), Mask.sliding_window(3, 2, align="bottom-right")]


def best_count(problem, words, names):
    found = []
    for name in names:
        with contextlib.suppress(TooFewWords):
            found.append(count(name, problem, words=words).words)
    return min(found, default=None)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("mask", MASKS, ids=repr)
@pytest.mark.parametrize("d", [1, 2, 8, 32, 128, 512])
def test_every_bound_lies_below_every_count(d, mask, direction):
    compared = 0
    for x in (0.1, 0.3, 0.5, 0.7, 0.9, 1, 1.3, 1.6, 2, 3, 5, 10):
        for n_q, n_k in ((1, 1), (7, 7), (1, 300), (300, 5), (64, 64), (1000, 1000), (8192, 8192)):
            words = max(1, int((d / x) ** 2))
            problem = Problem(n_q, n_k, d, max(1, d - 1), heads=2, kv_heads=1, mask=mask, direction=direction)
            proved = [b for b in lower_bounds(problem, words) if b.proved]
            for names, holding in (
                (("flash", "hybrid", "small_cache"), proved),
                (("standard",), [b for b in proved if b.holds_if_p_kept]),
            ):
                least = best_count(problem, words, names)
                if least is not None:
                    compared += 1
                    assert all(b.words <= least for b in holding), (problem, words)
    assert compared >= 20


def test_the_gap_stays_small():
    """Best count over best bound, n = 16 d, over x = d / sqrt(M): the scoreboard that later bounds must lower."""
    for direction, limit in (("forward", 6), ("backward", 12)):
        for d in (32, 128, 512):
            for x in (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 1, 1.3, 1.6, 2, 3, 5, 10):
                problem, words = Problem(16 * d, 16 * d, d, direction=direction), int((d / x) ** 2)
                least = best_count(problem, words, ("flash", "hybrid", "small_cache"))
                assert least is not None or words < 100
                assert least is None or least <= limit * lower_bound(problem, words).words, (direction, d, x)


def test_compulsory_traffic_is_reached_when_everything_fits():
    problem = Problem(64, 48, 8, 5)
    assert lower_bound(problem, 10**6).name == "compulsory"
    lse = 64
    assert count("flash", problem, words=10**6).words == lower_bound(problem, 10**6).words + lse


def test_formulas_at_leading_order():
    """x^2 and 2 x - 1 forward, 4 x^2 and 4 x - 2 backward, in words per pair."""
    n, d = 1 << 22, 256
    for x, direction, expected in ((0.25, "forward", 2 * 0.25**2), (4, "forward", 2 * 4 - 1),
                                   (0.125, "backward", 4 * 0.125**2), (4, "backward", 4 * 4 - 2)):  # fmt: skip
        words = lower_bound(Problem(n, n, d, direction=direction), int((d / x) ** 2)).words / n**2
        assert words == pytest.approx(expected, rel=0.03)


def test_order_only_rows_are_never_the_bound():
    problem = Problem(4096, 4096, 64)
    rows = lower_bounds(problem, 4096)
    assert {b.name for b in rows if not b.proved} == {"Theta", "sparse"}
    assert all(b.constant == "not known" for b in rows if not b.proved)
    assert lower_bound(problem, 4096).proved
    theta = next(b for b in rows if b.name == "Theta")
    assert theta.words == 4096**2 * min(64**2 // 4096, 64 / math.sqrt(4096))


def test_order_only_rows_keep_to_their_conditions():
    causal = Problem(4096, 4096, 64, mask=Mask.causal())
    assert "Theta" not in {b.name for b in lower_bounds(causal, 4096)}
    assert "Theta" not in {b.name for b in lower_bounds(Problem(64, 64, 64), 10**6)}


@pytest.mark.parametrize("words", [1000, 40000])
def test_the_formula_of_phases_says_what_is_computed(words):
    """On both sides of M = K / 2, for n so large that the lower terms vanish."""
    n, d, d_v = 1 << 22, 64, 32
    k = 4 * d * (d + d_v)
    found = next(b for b in lower_bounds(Problem(n, n, d, d_v), words) if b.name == "phases")
    expected = k / (4 * words) if words >= k / 2 else 1 - words / k
    assert found.words == pytest.approx(expected * n * n, rel=1e-3)
    assert "K = 4 d (d + d_v)" in found.formula


def test_every_row_says_where_it_is_from():
    for row in bounds.BOUNDS:
        assert row.formula
        assert row.conditions
        assert row.source


def test_streams_add_up():
    one = lower_bound(Problem(256, 256, 16), 64).words
    assert lower_bound(Problem(256, 256, 16, heads=3, batch=2), 64).words == 6 * one


@pytest.mark.parametrize("words", [0, -5, 1.5, True])
def test_bad_capacities_are_refused(words):
    with pytest.raises(RedblueError, match="words must be a whole number of at least 1"):
        lower_bound(Problem(4, 4, 4), words)
