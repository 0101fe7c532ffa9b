"""Schedules, counts and bounds on every mask: closed form = count, results = float64, no bound above a count."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redblue import Mask, Problem, TooFewWords, count, lower_bounds, schedules
from redblue.lab import counts
from support.examples import examples
from support.mask_oracle import compositions
from support.spaces import PASSES, tile_edges

MASKED = pytest.mark.parametrize(
    ("schedule", "direction"),
    [each for each in PASSES if not each.values[0].full_only],
    ids=lambda x: getattr(x, "name", x),
)


@st.composite
def problems(draw: st.DrawFn, direction: str) -> Problem:
    n_q, n_k = draw(st.integers(1, 13)), draw(st.integers(1, 13))
    heads = 1 if direction == "gradient_x" else draw(st.integers(1, 3))
    mask, _ = draw(compositions(n_q, n_k, most=3))
    return Problem(n_q, n_k, 3, 2, heads=heads, kv_heads=1, dtype="float64", mask=mask, direction=direction)


@MASKED
@examples(8)
@given(data=st.data())
def test_closed_form_is_the_count_and_results_are_float64(schedule, direction, data):
    problem = data.draw(problems(direction))
    tiles = data.draw(tile_edges(schedule, problem))
    closed, ran = count(schedule.name, problem, tiles=tiles), counts.run(schedule.name, problem, tiles=tiles)
    assert (closed.reads, closed.writes, closed.flops) == (ran.reads, ran.writes, ran.flops)
    assert ran.peak <= closed.peak
    checked = counts.check(schedule.name, problem, tiles=tiles)
    assert checked.error < 1e-10
    assert checked.count.peak == ran.peak


@MASKED
@examples(6)
@given(data=st.data())
def test_planned_tiles_fit_and_no_bound_lies_above(schedule, direction, data):
    problem, words = data.draw(problems(direction)), data.draw(st.integers(1, 200))
    with contextlib.suppress(TooFewWords):
        closed = count(schedule.name, problem, words=words)
        assert closed.peak <= words
        assert counts.run(schedule.name, problem, words=words).words == closed.words
        if schedule.drop_in:
            assert all(bound.words <= closed.words for bound in lower_bounds(problem, words) if bound.proved)


def test_masks_that_say_the_same_count_the_same():
    """A window and documents as a rule, as a graph and as a dense array."""
    mask = Mask.sliding_window(9, 3) & Mask.documents([20, 0, 13, 31])
    graph, dense = Mask.from_csr(*mask.to_csr(), n_k=64), Mask.from_dense(mask.to_dense())
    for name in ("flash", "small_cache", "hybrid"):
        for tiles in ({"rows": 7, "cols": 5, "depth": 1}, {"rows": 16, "cols": 16, "depth": 4}):
            edges = {edge: tiles[edge] for edge in schedules.get(name).passes["forward"].edges if edge in tiles}
            costs = {
                count(name, Problem(64, 64, 8, mask=same_mask), tiles=edges).words
                for same_mask in (mask, graph, dense, ~(~mask | ~graph))
            }
            assert len(costs) == 1, (name, tiles)
