"""Every schedule: closed form = counting run = numeric run, results = float64, and the figures of the papers."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redblue import (
    Mask,
    Problem,
    RedblueError,
    TooFewWords,
    UnknownName,
    count,
    counts,
    list_schedules,
    reference,
    schedules,
)
from redblue.machine import CapacityError, Counting, Numeric, UseAfterFree
from spaces import problems, tile_edges

ALL = pytest.mark.parametrize("schedule", schedules.SCHEDULES.values(), ids=lambda s: s.name)
BOTH = pytest.mark.parametrize("direction", ["forward", "backward"])


def figures(c):
    return c.reads, c.writes, c.flops


@ALL
@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_closed_form_equals_both_machines_and_results_equal_float64(schedule, data):
    problem = data.draw(problems())
    tiles = data.draw(tile_edges(schedule, problem))
    closed = count(schedule.name, problem, tiles=tiles)
    counted = counts.run(schedule.name, problem, tiles=tiles)
    assert figures(closed) == figures(counted)
    assert counted.peak <= closed.peak
    if problem.mask.is_full:
        assert counted.peak == closed.peak
    checked = counts.check(schedule.name, problem, tiles=tiles)
    assert checked.error < 1e-10
    assert tuple(problem.streams * x for x in figures(checked.count)) == figures(counted)
    assert checked.count.peak == counted.peak


@ALL
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_planned_tiles_run_within_their_capacity(schedule, data):
    problem, words = data.draw(problems()), data.draw(st.integers(1, 200))
    try:
        closed = count(schedule.name, problem, words=words)
    except TooFewWords:
        return
    assert closed.peak <= words
    ran = counts.run(schedule.name, problem, words=words)  # a run without CapacityError is the proof
    assert figures(ran) == figures(closed)
    assert counts.check(schedule.name, problem, words=words).error < 1e-10


@ALL
@BOTH
def test_too_few_words_says_the_least_that_works(schedule, direction):
    problem = Problem(6, 7, 5, 3, direction=direction)
    with pytest.raises(TooFewWords, match="needs a cache of at least") as refusal:
        count(schedule.name, problem, words=1)
    least = int(str(refusal.value).split("at least ")[1].split()[0])
    assert counts.run(schedule.name, problem, words=least).peak == least
    with pytest.raises(TooFewWords):
        count(schedule.name, problem, words=least - 1)


@ALL
@BOTH
def test_one_word_less_than_the_peak_is_refused(schedule, direction):
    problem = Problem(6, 7, 5, 3, direction=direction)
    chosen = schedule.tiles(problem, 90)
    peak = schedule.cost(problem, chosen).peak
    counts.execute(schedule, problem, chosen, Counting(peak))
    with pytest.raises(CapacityError):
        counts.execute(schedule, problem, chosen, Counting(peak - 1))


def run_on(schedule, direction, magnitude):
    """Outputs and expectations at tiles of 2, with Q and K scaled up."""
    problem = Problem(6, 8, 4, 3, dtype="float64", mask=Mask.causal(), direction=direction)
    rng = np.random.default_rng(1)
    arrays = {name: rng.standard_normal(counts.shape_of(name, problem)) for name in ("q", "k", "v", "dout")}
    arrays["q"] *= magnitude
    arrays["k"] *= magnitude
    attends = problem.mask.to_dense(6, 8)
    expected = reference.forward(arrays["q"], arrays["k"], arrays["v"], attends)._asdict()
    arrays |= expected
    if direction == "backward":
        expected = reference.backward(arrays["q"], arrays["k"], arrays["v"], arrays["dout"], attends)._asdict()
    edges = dict.fromkeys(schedule.direction(problem).edges, 2)
    _, outputs = counts.execute(schedule, problem, schedule.make_tiles(problem, edges), Numeric(), arrays)
    return outputs, expected


@ALL
@BOTH
def test_scores_that_overflow_a_naive_exponential(schedule, direction):
    outputs, expected = run_on(schedule, direction, magnitude=50)
    for name, got in outputs.items():
        assert counts.relative_error(got, expected[name]) < 1e-10, name


@ALL
@BOTH
def test_any_finite_scores_give_finite_results(schedule, direction):
    """Scores of 1e200, whose rounding alone is far beyond what exp can take."""
    outputs, _ = run_on(schedule, direction, magnitude=1e100)
    assert all(np.isfinite(got).all() for got in outputs.values())


def test_the_comparison_helper_can_fail():
    x = np.array([1.0, -np.inf, 4.0])
    assert counts.relative_error(x, x) == 0
    assert counts.relative_error(np.array([1.0, -np.inf, 2.0]), x) == 0.5
    assert counts.relative_error(np.array([1.0, 0.0, 4.0]), x) == np.inf
    assert counts.relative_error(np.array([np.nan, -np.inf, 4.0]), x) == np.inf


def test_a_broken_schedule_is_found():
    """A schedule that frees its values too early, or forgets to rescale, does not pass."""
    flash = schedules.get("flash")

    def with_forward(run):
        return dataclasses.replace(flash, passes={"forward": dataclasses.replace(flash.passes["forward"], run=run)})

    def frees_early(m, problem, t, q, k, v, out, lse):
        q_i = m.load(q[range(problem.n_q)])
        m.free(q_i)
        m.new("s", q_i * 1)

    def forgets_values(m, problem, t, q, k, v, out, lse):
        m.store(out[range(problem.n_q)], m.zeros("o", problem.n_q, problem.value_dim))
        m.store(lse[range(problem.n_q)], m.zeros("l", problem.n_q))

    problem = Problem(4, 4, 2)
    broken = with_forward(frees_early)
    with pytest.raises(UseAfterFree):
        counts.execute(broken, problem, None, Counting())
    broken = with_forward(forgets_values)
    schedules.SCHEDULES["broken"] = broken
    try:
        assert counts.check("broken", problem, tiles={}).error > 0.1
    finally:
        del schedules.SCHEDULES["broken"]


# The figures of the papers ------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "words"), [(4, 2336), (8, 1312), (16, 800)])
def test_flash_forward_line_count(rows, words):
    """2 n d + n + 2 n d T_r (FlashAttention-2's order) at n = 32, d = 4."""
    assert count("flash", Problem(32, 32, 4), tiles={"rows": rows}).words == words


def test_standard_line_counts():
    """4 n d + 4 n^2 forward, 8 n d + 7 n^2 backward, where every operand is read once."""
    assert count("standard", Problem(32, 32, 4), words=10**5).words == 4608
    assert count("standard", Problem(32, 32, 4, direction="backward"), words=10**5).words == 8 * 128 + 7 * 1024


@pytest.mark.parametrize(("x", "name"), [(0.5, "flash"), (0.8, "flash"), (1.5, "hybrid"), (3, "small_cache")])
def test_best_forward_schedule_reaches_its_constant(x, name):
    """Within 12 % of 4 x^2, (1 + x)^2, 4 x + 1 (docs/theory.md, 'Three regimes')."""
    n, d = 65536, 128
    words = {s: count(s, Problem(n, n, d), words=int((d / x) ** 2)).words / n**2 for s in list_schedules()}
    leading = min(4 * x**2, (1 + x) ** 2, 4 * x + 1)
    assert min(words, key=words.__getitem__) == name
    assert leading <= words[name] < 1.12 * leading


@pytest.mark.parametrize(("x", "name"), [(0.5, "flash"), (1.2, "hybrid"), (1.6, "hybrid"), (4, "small_cache")])
def test_best_backward_schedule_reaches_its_constant(x, name):
    """Within 12 % of 14 x^2, 2 x^2 + 6 x + 3, 10 x + 3 (docs/theory.md, 'Three regimes')."""
    n, d = 1 << 20, 512
    problem = Problem(n, n, d, direction="backward")
    words = {s: count(s, problem, words=int((d / x) ** 2)).words / n**2 for s in ("flash", "hybrid", "small_cache")}
    leading = min(14 * x**2, 2 * x**2 + 6 * x + 3, 10 * x + 3)
    assert min(words, key=words.__getitem__) == name
    assert leading <= words[name] < 1.12 * leading


@pytest.mark.parametrize(("x", "name"), [(0.79, "flash"), (0.84, "hybrid"), (0.95, "hybrid")])
def test_backward_regimes_meet_at_one_and_a_half_d_squared(x, name):
    """14 x^2 below x = sqrt(2/3), 5 x^2 + 6 from there to 1: a result d wide caps the tiles of its product."""
    n, d = 1 << 23, 2048
    problem = Problem(n, n, d, direction="backward")
    words = {s: count(s, problem, words=int((d / x) ** 2)).words / n**2 for s in ("flash", "hybrid", "small_cache")}
    leading = min(14 * x**2, 5 * x**2 + 6)
    assert min(words, key=words.__getitem__) == name
    assert leading <= words[name] < 1.03 * leading


def test_causal_halves_every_leading_constant():
    n, words = 16384, 8192
    for name in ("flash", "hybrid", "small_cache"):
        for direction in ("forward", "backward"):
            full = count(name, Problem(n, n, 128, direction=direction), words=words).words
            causal = count(name, Problem(n, n, 128, mask=Mask.causal(), direction=direction), words=words).words
            assert causal / full == pytest.approx(0.5, abs=0.02)


def test_heads_add_up_and_groups_share_their_keys():
    one = count("flash", Problem(64, 64, 8), words=512).words
    assert count("flash", Problem(64, 64, 8, heads=3, batch=2), words=512).words == 6 * one
    grouped = count("flash", Problem(64, 64, 8, heads=4, kv_heads=1), words=512)
    assert grouped.words == count("flash", Problem(256, 64, 8), words=512).words


# Bad input ----------------------------------------------------------------------------------------


def test_unknown_schedules_name_the_nearest():
    with pytest.raises(UnknownName, match="unknown schedule 'flesh'; nearest: flash"):
        count("flesh", Problem(4, 4, 4), words=100)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "give the cache's capacity in words, or the tiles"),
        ({"words": 0}, "words must be a whole number of at least 1, got 0"),
        ({"words": 2.5}, "words must be"),
        ({"words": 2.5, "tiles": {"rows": 1}}, "words must be"),
        ({"tiles": {"row": 3}}, "has no tile edge 'row'; it has rows, cols, depth"),
        ({"tiles": {"rows": 0}}, "tile edge rows must be a whole number of at least 1, got 0"),
        ({"tiles": {"rows": 3, "cols": 4, "depth": 2}}, r"rows \(3\) must be a multiple of depth \(2\)"),
        ({"tiles": {"rows": 4, "cols": 4}, "words": 10}, "holds 32 words, got 10"),
    ],
)
def test_bad_counts_are_refused(arguments, says):
    with pytest.raises(RedblueError, match=says):
        count("small_cache", Problem(8, 8, 4), **arguments)


def test_sizes_beyond_the_search_are_refused():
    with pytest.raises(RedblueError, match=r"n_q .* is 1,000,000,000: the tile search takes at most"):
        count("flash", Problem(10**9, 10**9, 128), words=10**4)
    with pytest.raises(RedblueError, match="d is 10,000,000,000,000,000"):
        count("small_cache", Problem(4, 4, 10**16), words=100)
    assert count("flash", Problem(10**9, 10**9, 128), tiles={"rows": 1000}).words > 10**17


def test_runs_that_would_not_end_are_refused():
    with pytest.raises(RedblueError, match="closed form counts the same"):
        counts.run("flash", Problem(10**5, 10**5, 64), words=9999)
    with pytest.raises(RedblueError, match="too many to run"):
        counts.run("small_cache", Problem(10**6, 10**6, 8), tiles={"rows": 10**5, "cols": 10**5, "depth": 10})
