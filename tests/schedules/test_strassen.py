"""Attention by Strassen's algorithm: its result, its closed form, its count below the bound for standard products."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redblue import pebble, schedules
from redblue.bounds import lower_bounds
from redblue.lab import counts
from redblue.machine import Counting, Numeric, Tracing
from redblue.machine.tracing import SPARE
from redblue.problem import Problem
from redblue.schedules import Cost, NotCovered, strassen
from redblue.schedules.strassen import Tiles


@given(
    st.integers(0, 2),
    st.tuples(*[st.integers(1, 3)] * 4),
    st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(1, 9)),
)
def test_a_run_equals_the_reference_and_the_closed_form(levels, sizes, edges):
    n_q, n_k, d, d_v = (size * 2**levels for size in sizes)
    rows, cols, width = edges
    problem, tiles = Problem(n_q, n_k, d, d_v), Tiles(rows, cols, width, levels)
    arrays, expected = counts.example(problem, sum(sizes))
    cost = strassen.cost(problem, tiles)
    machine, outputs = counts.execute(strassen.schedule, problem, tiles, Numeric(cost.peak), arrays)
    assert max(counts.relative_error(outputs[name], expected[name]) for name in outputs) < 1e-12
    assert Cost(machine.reads, machine.writes, machine.peak, machine.flops) == cost


def test_a_run_is_a_legal_pebble_game_of_the_same_cost():
    problem, tiles = Problem(8, 4, 4, 8), Tiles(2, 2, 4, 1)
    cost = strassen.cost(problem, tiles)
    machine = Tracing(cost.peak)
    counts.execute(strassen.schedule, problem, tiles, machine)
    recorded = machine.recording()
    assert pebble.check(recorded.graph, recorded.moves, red=cost.peak + SPARE).cost == cost.words


def test_each_level_saves_an_eighth_of_the_products():
    problem = Problem(64, 64, 32)
    flops = [strassen.cost(problem, Tiles(4, 4, 8, levels)).flops for levels in range(3)]
    assert [flops[0] * 7, flops[1] * 7] == [flops[1] * 8, flops[2] * 8]


def test_it_moves_fewer_words_than_standard_products_must():
    """At d = 64 sqrt(M) two levels are below Theorem 2; the bound for any arithmetic holds."""
    side, d = 31, 2048
    words = side * (side + 2)
    problem = Problem(1 << 16, 1 << 16, d)
    rows = {bound.name: bound.words for bound in lower_bounds(problem, words) if bound.proved}
    moved = [strassen.cost(problem, Tiles(side, side, words // 4, levels)).words for levels in range(4)]
    assert rows["any arithmetic"] < min(moved) < rows["small cache"] < moved[0]
    assert all(strassen.peak(problem, Tiles(side, side, words // 4, levels)) <= words for levels in range(4))


def test_no_plan_and_no_call_takes_it():
    assert "strassen" not in schedules.SCHEDULES
    assert not strassen.schedule.drop_in


def test_axes_that_do_not_halve_are_refused():
    with pytest.raises(NotCovered, match="got d = 6: give a multiple of 4, or fewer levels"):
        counts.execute(strassen.schedule, Problem(8, 8, 6, 8), Tiles(2, 2, 2, 2), Counting())
