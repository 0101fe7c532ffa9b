"""Every schedule in every direction: closed form = counting run = numeric run, and results = float64."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redblue import Mask, NotCovered, Problem, RedblueError, TooFewWords, UnknownName, count, schedules
from redblue.lab import counts, reference
from redblue.machine import CapacityError, Counting, Numeric, UseAfterFree
from support.examples import examples
from support.spaces import PASSES, covered, tile_edges

EVERY_PASS = pytest.mark.parametrize(("schedule", "direction"), PASSES)
SAFE_PASSES = pytest.mark.parametrize(("schedule", "direction"), [p for p in PASSES if p.values[0].safe])

OPERATOR = {
    "forward": {"q", "k", "v", "out", "lse"},
    "backward": {"q", "k", "v", "out", "lse", "dout", "dq", "dk", "dv"},
    "gradient_x": {"a1", "a2", "a3", "e", "x", "y", "dx"},
}


def figures(c):
    return c.reads, c.writes, c.flops


@EVERY_PASS
@examples(40)
@given(data=st.data())
def test_closed_form_equals_both_machines_and_results_equal_float64(schedule, direction, data):
    problem = data.draw(covered(schedule, direction))
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


@EVERY_PASS
@examples(20)
@given(data=st.data())
def test_planned_tiles_run_within_their_capacity(schedule, direction, data):
    problem, words = data.draw(covered(schedule, direction)), data.draw(st.integers(1, 200))
    try:
        closed = count(schedule.name, problem, words=words)
    except TooFewWords:
        return
    assert closed.peak <= words
    ran = counts.run(schedule.name, problem, words=words)  # the run proves the count unless it raises CapacityError
    assert figures(ran) == figures(closed)
    assert counts.check(schedule.name, problem, words=words).error < 1e-10


@EVERY_PASS
def test_too_few_words_says_the_least_that_works(schedule, direction):
    problem = Problem(6, 7, 5, 3, direction=direction)
    with pytest.raises(TooFewWords, match="needs a cache of at least") as refusal:
        count(schedule.name, problem, words=1)
    least = int(str(refusal.value).split("at least ")[1].split()[0])
    assert counts.run(schedule.name, problem, words=least).peak == least
    with pytest.raises(TooFewWords):
        count(schedule.name, problem, words=least - 1)


@EVERY_PASS
def test_one_word_less_than_the_peak_is_refused(schedule, direction):
    problem = Problem(6, 7, 5, 3, direction=direction)
    chosen = schedule.tiles(problem, 130)
    peak = schedule.cost(problem, chosen).peak
    counts.execute(schedule, problem, chosen, Counting(peak))
    with pytest.raises(CapacityError):
        counts.execute(schedule, problem, chosen, Counting(peak - 1))


@EVERY_PASS
def test_what_drops_in_takes_and_gives_what_the_operator_does(schedule, direction):
    """Any backward pass can therefore follow any forward pass."""
    arrays = set(schedule.passes[direction].arrays)
    assert schedule.drop_in == (arrays == OPERATOR[direction])


def test_a_direction_without_a_pass_and_a_mask_that_is_not_taken_are_refused():
    with pytest.raises(NotCovered, match="saha_ye has no pass for direction 'backward': it has forward"):
        count("saha_ye", Problem(4, 4, 4, direction="backward"), words=100)
    with pytest.raises(NotCovered, match=r"saha_ye takes no mask, got Mask.causal\(\)"):
        count("saha_ye", Problem(4, 4, 4, mask=Mask.causal()), words=100)
    with pytest.raises(NotCovered, match="flash_onepass has no pass for direction 'forward': it has backward"):
        count("flash_onepass", Problem(4, 4, 4), tiles={})


# Scores that overflow -----------------------------------------------------------------------------


def run_on(schedule, direction, magnitude):
    """Outputs and expected outputs with tiles of 2 and both factors of the scores scaled up."""
    mask = Mask.full() if schedule.full_only else Mask.causal()
    problem = Problem(6, 8, 4, 3, dtype="float64", mask=mask, direction=direction)
    arrays, _ = counts.example(problem, seed=1)
    for name in {"q", "k", "a1", "a2"} & set(arrays):
        arrays[name] *= magnitude
    attends = mask.to_dense(problem.n_q, problem.n_k)
    if direction == "gradient_x":
        expected = reference.gradient_x(**arrays, attends=attends)
    else:
        q, k, v, dout = (arrays[name] for name in ("q", "k", "v", "dout"))
        expected = reference.forward(q, k, v, attends)
        arrays |= expected._asdict()
        if direction == "backward":
            expected = reference.backward(q, k, v, dout, attends)
    edges = dict.fromkeys(schedule.direction(problem).edges, 2)
    _, outputs = counts.execute(schedule, problem, schedule.make_tiles(problem, edges), Numeric(), arrays)
    return outputs, expected._asdict()


@SAFE_PASSES
def test_scores_that_overflow_a_naive_exponential(schedule, direction):
    outputs, expected = run_on(schedule, direction, magnitude=50)
    for name, got in outputs.items():
        assert counts.relative_error(got, expected[name]) < 1e-10, name


@SAFE_PASSES
def test_any_finite_scores_give_finite_results(schedule, direction):
    """Scores of 1e200, whose rounding errors alone exceed the range of exp."""
    outputs, _ = run_on(schedule, direction, magnitude=1e100)
    assert all(np.isfinite(got).all() for got in outputs.values())


def test_the_comparison_helper_can_fail():
    x = np.array([1.0, -np.inf, 4.0])
    assert counts.relative_error(x, x) == 0
    assert counts.relative_error(np.array([1.0, -np.inf, 2.0]), x) == 0.5
    assert counts.relative_error(np.array([1.0, 0.0, 4.0]), x) == np.inf
    assert counts.relative_error(np.array([np.nan, -np.inf, 4.0]), x) == np.inf


def test_a_broken_schedule_is_found():
    """A schedule that frees its values too early or does not rescale is refused."""
    flash = schedules.get("flash")

    def with_forward(run):
        return dataclasses.replace(flash, passes={"forward": dataclasses.replace(flash.passes["forward"], run=run)})

    def frees_early(m, problem, t, q, k, v, out, lse):
        q_i = m.load(q[range(problem.n_q)])
        m.free(q_i)
        m.new("s", q_i * 1)

    def forgets_values(m, problem, t, q, k, v, out, lse):
        m.store(out[range(problem.n_q)], m.zeros("o", problem.n_q, problem.d_v))
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
    with pytest.raises(RedblueError, match=r"n_q .* = 1,000,000,000, .* tile search. Axes must be at most"):
        count("flash", Problem(10**9, 10**9, 128, mask=Mask.n_of_m(1, 2)), words=10**4)
    with pytest.raises(RedblueError, match="d = 10,000,000,000,000,000"):
        count("small_cache", Problem(4, 4, 10**16), words=100)
    assert count("flash", Problem(10**9, 10**9, 128), tiles={"rows": 1000}).words > 10**17


def test_runs_that_would_not_end_are_refused(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(counts, "execute", lambda *_: pytest.fail("it was begun"))
        with pytest.raises(RedblueError, match="closed form counts the same"):
            counts.run("flash", Problem(10**5, 10**5, 64), words=9999)
    with pytest.raises(RedblueError, match="too many to run"):
        counts.run("small_cache", Problem(10**6, 10**6, 8), tiles={"rows": 10**5, "cols": 10**5, "depth": 10})


@pytest.mark.parametrize(
    ("schedule", "direction", "large"),
    [("flash", "backward", ("rows", "cols")), ("gradient_x", "gradient_x", ("rows", "cols"))],
)
def test_runs_are_given_up_whichever_phase_takes_the_moves(schedule, direction, large, monkeypatch):
    """There are few tiles of scores here, but many of dK and dV, or of the gradient."""
    problem, tiles = Problem(64, 64, 8, direction=direction), dict.fromkeys(large, 64)
    monkeypatch.setattr(counts, "MAX_MOVES", 10_000)
    with pytest.raises(RedblueError, match=r"more than 10,000 moves.* closed form counts the same at once"):
        counts.run(schedule, problem, tiles=tiles)
    monkeypatch.setattr(counts, "MAX_MOVES", 10_000_000)
    assert figures(counts.run(schedule, problem, tiles=tiles)) == figures(count(schedule, problem, tiles=tiles))


@EVERY_PASS
@examples(20)
@given(data=st.data())
def test_what_is_refused_at_once_would_not_have_ended(schedule, direction, data):
    problem = data.draw(covered(schedule, direction))
    tiles = schedule.make_tiles(problem, data.draw(tile_edges(schedule, problem)))
    machine, _ = counts.execute(schedule, problem, tiles, Counting())
    assert counts._min_moves(schedule, problem, tiles) <= machine.clock


@pytest.mark.parametrize(
    ("schedule", "direction"), [*PASSES, pytest.param(schedules.get("taylor_2"), "forward", id="taylor_2-forward")]
)
@pytest.mark.parametrize("mask", [Mask.full(), Mask.causal(), Mask.sliding_window(3, 1)], ids=repr)
def test_no_run_takes_fewer_moves_than_its_lower_bound(schedule, direction, mask):
    """Tiles with some edges of 1 and all others long: a factor of the bound that belongs to another phase shows."""
    if schedule.full_only and not mask.is_full:
        return
    d = 2 if schedule.name == "taylor_2" else 24
    problem = Problem(10, 40, d, d // 2, mask=mask, direction=direction)
    edges = schedule.direction(problem).edges
    for ones in ((), *((edge,) for edge in edges), ("rows", "cols"), ("rows", "cols", "depth")):
        tiles = {edge: 1 if edge in ones else 64 for edge in edges if edge not in ("chunk", "span")}
        for edge in {"rows", "cols"} & {*tiles}:
            tiles[edge] = max(tiles[edge], tiles.get("depth", 1))
        made = schedule.make_tiles(problem, tiles)
        machine, _ = counts.execute(schedule, problem, made, Counting())
        assert counts._min_moves(schedule, problem, made) <= machine.clock, made


def test_a_run_that_ends_in_time_is_not_refused():
    """`depth` cuts the keys of dQ here, not the features of scores."""
    problem, schedule = Problem(1100, 1100, 128, direction="backward"), schedules.get("spilled_ds")
    assert counts._min_moves(schedule, problem, schedule.tiles(problem, 4000)) <= 2_301_478  # moves of the run
