"""Every schedule over a network moves at least as many words as every bound allows, on any problem."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redblue import Mask, Problem, RedblueError
from redblue.bounds import network_bounds
from redblue.schedules import network
from redblue.schedules.network import PLACEMENTS, SCHEDULES
from support.examples import examples
from support.spaces import problems


def work(c):
    """The attended pairs that each process of a layout works on, pair by pair."""
    p, attends = c.problem, c.problem.mask.to_dense(c.problem.n_q, c.problem.n_k)
    pairs = []
    for process in range(c.grid.processes):
        row, col, _ = c.grid.place(process)
        nodes = [c.grid.node(row, place) for place in range(c.grid.cols)]
        queries = [c.queries.positions[shard] for node in nodes for shard in node]
        nodes = [c.grid.node(place, col) for place in range(c.grid.rows)]
        keys = [c.keys.positions[shard] for node in nodes for shard in node]
        live = attends[np.ix_(np.concatenate(queries), np.concatenate(keys))].sum()
        pairs.append(int(live) * p.batch * p.heads // c.grid.head_parts)
    return pairs


def check(c):
    """Compare a counted run with the bounds for any work and for its own work, and for its memory."""
    moved = network.count(c).traffic
    both = int((moved.sent + moved.received).max())
    for kind in ("any", work(c)):
        for bound in network_bounds(c.problem, c.grid.processes, int(moved.peak.max()), work=kind):
            assert bound.words <= moved.words, (bound, c.problem, c.grid, c.travel)
            assert bound.both_words <= both, (bound, c.problem, c.grid, c.travel)
            assert bound.most_words <= moved.most_words
    for bound in network_bounds(c.problem, c.grid.processes, work=work(c), shares="any"):
        assert bound.words <= moved.words


@pytest.mark.parametrize("name", SCHEDULES)
@examples(40)
@given(problem=problems(), processes=st.integers(1, 6), placement=st.sampled_from([*PLACEMENTS]))
def test_every_bound_lies_below_every_schedule(name, problem, processes, placement):
    if problem.direction == "backward":
        processes = min(processes, problem.n_q, problem.n_k)
    try:
        layouts = network.layouts(name, problem, processes, placement)
    except RedblueError:
        return  # the heads cannot be divided
    for c in layouts:
        check(c)


def test_the_work_of_a_layout_is_all_pairs():
    problem = Problem(12, 12, 4, heads=4, kv_heads=2, mask=Mask.causal())
    for name in SCHEDULES:
        for c in network.layouts(name, problem, 2, "zigzag"):
            assert sum(work(c)) == 4 * 78
            check(c)


GAPS = {"ring": 1.51, "all_gather": 1.51, "mesh": 1.01, "ring_heads": 1.51}


@pytest.mark.parametrize("name", GAPS)
def test_the_constants_of_the_schedules(name):
    """4 processes, one head, a full mask: a square mesh meets the bound; a ring moves (sqrt(P) + 1) / 2 times it."""
    problem = Problem(4096, 4096, 64)
    moved = network.traffic(network.fewest_words(network.layouts(name, problem, 4)))
    bounds = network_bounds(problem, 4, work="balanced")
    gap = moved.most_words / bounds[0].most_words
    assert GAPS[name] - 0.02 < gap <= GAPS[name]
