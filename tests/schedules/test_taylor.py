"""Approximate attention by Taylor features: definition, closed form, error, and that plans never choose it."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import redblue as rb
from redblue import schedules
from redblue.bounds import lower_bounds
from redblue.lab import counts
from redblue.machine import Counting, Numeric
from redblue.schedules import Cost, NotCovered, Schedule, TooFewWords, taylor
from redblue.schedules.taylor import Tiles, rank


def by_definition(arrays, degree):
    """Attention with the Taylor polynomial in place of the exponential, and its log-sum-exp."""
    s = arrays["q"] @ arrays["k"].T / math.sqrt(arrays["q"].shape[1])
    weights = np.sum([s**t / math.factorial(t) for t in range(degree + 1)], axis=0)
    sums = weights.sum(axis=1)
    return {"out": weights @ arrays["v"] / sums[:, None], "lse": np.log(sums)}


@given(
    st.sampled_from(taylor.DEGREES),
    st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 3), st.integers(1, 4)),
    st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(1, 90), st.integers(1, 4)),
)
def test_a_run_equals_the_definition_and_the_closed_form(degree, sizes, edges):
    problem, tiles, name = rb.Problem(*sizes), Tiles(*edges), f"taylor_{degree}"
    arrays, _ = counts.example(problem, sum(sizes))
    cost = schedules.get(name).cost(problem, tiles)
    machine, outputs = counts.execute(schedules.get(name), problem, tiles, Numeric(cost.peak), arrays)
    expected = by_definition(arrays, degree)
    assert max(counts.relative_error(outputs[each], expected[each]) for each in expected) < 1e-11
    assert Cost(machine.reads, machine.writes, machine.peak, machine.flops) == cost


def test_words_are_linear_in_n_where_the_sums_fit():
    """Every word is then moved once: the bound for approximations, plus the log-sum-exps."""
    for n in (1 << 10, 1 << 20):
        problem = rb.Problem(n, n, 8)
        moved = rb.count("taylor_2", problem, words=4096)
        (least,) = (bound.words for bound in lower_bounds(problem, 4096) if bound.name == "approximate, Omega")
        assert moved.words == least + n
        assert moved.tiles["features"] == rank(8, 2) == 45


def test_beyond_the_cache_features_cost_what_keys_cost():
    """4 n r d^2 / M words at leading order, as for flash on r keys."""
    n, d, words = 1 << 22, 64, 1 << 18
    moved = rb.count("taylor_4", rb.Problem(n, n, d), words=words).words
    assert moved == pytest.approx(4 * n * rank(d, 4) * d**2 / words, rel=0.05)


@given(st.integers(1, 40), st.integers(1, 6), st.integers(1, 600), st.sampled_from(taylor.DEGREES))
def test_the_chosen_tiles_fit_and_are_the_best(n, d, words, degree):
    problem, schedule = rb.Problem(n, n, d), schedules.get(f"taylor_{degree}")
    r = rank(d, degree)
    every = (Tiles(i, 1, g) for i in range(1, n + 1) for g in {*range(1, min(r, words) + 1), r})
    fitting = [cost.words for candidate in every if (cost := schedule.cost(problem, candidate)).peak <= words]
    if not fitting:
        with pytest.raises(TooFewWords, match="needs a cache of at least"):
            schedule.tiles(problem, words)
        return
    tiles = schedule.tiles(problem, words)
    cost = schedule.cost(problem, tiles)
    assert cost.peak <= words
    assert cost.words == min(fitting)


def test_the_error_falls_with_the_degree_and_grows_with_the_scores():
    problem = rb.Problem(24, 24, 3)
    arrays, _ = counts.example(problem, 1)
    errors = []
    for size in (0.5, 1.5):
        scaled = arrays | {name: arrays[name] * size for name in "qk"}
        exact = counts.reference.forward(scaled["q"], scaled["k"], scaled["v"], np.ones((24, 24), bool)).out
        for degree in taylor.DEGREES:
            schedule = schedules.get(f"taylor_{degree}")
            _, got = counts.execute(schedule, problem, Tiles(4, 4, 100), Numeric(), scaled)
            errors.append(np.abs(got["out"] - exact).max())
    assert errors[0] > 10 * errors[1] > 100 * errors[2] > 0
    assert all(large > 3 * small for small, large in zip(errors[:3], errors[3:], strict=True))


def test_nothing_takes_an_approximation():
    q = np.zeros((1, 1, 4, 4), np.float32)
    for name in schedules.APPROXIMATE:
        assert name not in rb.list_schedules()
        assert name not in schedules.covering(rb.Problem(8, 8, 4))
        with pytest.raises(rb.RedblueError, match="schedule must be one of auto"):
            rb.attention(q, q, q, schedule=name)
        assert "pproximate" in schedules.get(name).title
        own = Schedule(name, "title", "source", schedules.get("flash").passes)
        with pytest.raises(rb.RedblueError, match="belongs to a built-in schedule"):
            rb.register_schedule(own)


def test_masks_and_gradients_are_refused():
    with pytest.raises(NotCovered, match="takes no mask"):
        rb.count("taylor_2", rb.Problem(8, 8, 4, mask=rb.Mask.causal()), words=4096)
    with pytest.raises(NotCovered, match="has no pass for direction"):
        rb.count("taylor_2", rb.Problem(8, 8, 4, direction="backward"), words=4096)
    with pytest.raises(TooFewWords, match="taylor_2 forward"):
        counts.execute(
            schedules.get("taylor_2"),
            rb.Problem(8, 8, 4),
            schedules.get("taylor_2").tiles(rb.Problem(8, 8, 4), 5),
            Counting(),
        )
