import math
from dataclasses import replace

import pytest

from redblue import Problem, RedblueError, pebble
from redblue import lower_bound as attention_bound
from redblue import lower_bounds as attention_bounds
from redblue.pebble import (
    Further,
    Rules,
    attention_graph,
    chain_graph,
    diamond_graph,
    fft_graph,
    least_red,
    lower_bound,
    lower_bounds,
    matmul_graph,
    random_graph,
    solve,
    stencil_graph,
    tree_graph,
)
from redblue.pebble.bounds import _rounded
from redblue.pebble.cuts import spectral, wavefront
from redblue.pebble.partition import largest_phase, verify, words_moved
from support.examples import thorough
from support.pebbles import drawn

METHODS = {
    "red-blue": {"compulsory", "partition", "search"},
    "one-shot": {"compulsory", "partition", "wavefront", "spectral", "search", "relaxation"},
    "partial": {"compulsory", "search", "relaxation"},
}
SOLVED = [
    (fft_graph(4), 3),
    thorough(fft_graph(4), 4),
    (tree_graph(2, 3), 3),
    (tree_graph(3, 2), 4),
    thorough(matmul_graph(2, 2, 2), 4),
    (matmul_graph(2, 2, 2, "products"), 3),
    (attention_graph(2, 1), 4),
    thorough(attention_graph(2, 1), 6),
    (stencil_graph(4, 2), 4),
    (diamond_graph(3, 3), 3),
    (chain_graph(9), 2),
]


@pytest.mark.parametrize("rules", METHODS)
@pytest.mark.parametrize(("graph", "red"), SOLVED, ids=str)
def test_every_bound_lies_below_the_optimum(graph, red, rules):
    solution = solve(graph, red, rules)
    assert solution.optimal
    bounds = lower_bounds(graph, red, rules)
    # The relaxation is left out if it would take long.
    assert METHODS[rules] - {"relaxation"} <= {bound.method for bound in bounds} <= METHODS[rules]
    assert all(0 <= bound.words <= solution.cost for bound in bounds), (bounds, solution.cost)
    assert lower_bound(graph, red, rules) == bounds[0]


@pytest.mark.parametrize("first", range(0, 60, 30))
def test_every_bound_lies_below_random_optima(first):
    for seed in range(first, first + 30):
        graph = drawn(seed, 9)
        name = tuple(METHODS)[seed % 3]
        rules = Rules(name, load_cost=1 + seed % 2, store_cost=1 + seed // 2 % 3, compute_cost=seed % 5 / 4)
        if seed % 4 == 1:
            rules = replace(rules, weights=tuple(1 + v % 3 for v in range(graph.n)), sinks_end_blue=seed % 8 == 1)
        red = least_red(graph, rules) + seed % 2
        solution = solve(graph, red, rules)
        for bound in lower_bounds(graph, red, rules):
            assert bound.words <= solution.cost + 1e-9, (seed, rules, bound)


def test_some_bounds_beat_the_compulsory_one():
    again, place = wavefront(stencil_graph(8, 6), 4, Rules("one-shot"))
    assert (again, place[0]) == (4, "x")
    assert lower_bound(fft_graph(4), 3).words == 14
    assert lower_bound(fft_graph(4), 3).method == "search"
    assert "relaxation" in {bound.method for bound in lower_bounds(fft_graph(4), 3, "partial")}


def test_the_spectral_bound_sees_an_expander():
    """Many edges of a random graph cross every cut into phases."""
    assert spectral(random_graph(1, nodes=1400, sources=20, in_degree=8), 9, Rules("one-shot"))[0] >= 15


@pytest.mark.thorough
def test_attention_bounds_lie_below_the_optima():
    for (n, d), reds in {(2, 1): range(4, 9), (2, 2): (5, 6, 7, 8), (3, 1): (9, 10, 12)}.items():
        for red in reds:
            solution = solve(attention_graph(n, d), red)
            assert solution.optimal
            assert attention_bound(Problem(n, n, d), words=red).words <= solution.cost


@pytest.mark.thorough
@pytest.mark.parametrize(("n", "d", "d_v"), [(6, 1, 1), (8, 2, 2), (12, 3, 1), (10, 1, 4), (16, 4, 4), (24, 2, 2)])
def test_attention_bounds_lie_below_good_games(n, d, d_v):
    """Chains and sums in any order, on graphs that are too large for an optimum."""
    graph, positive = attention_graph(n, d, d_v=d_v), 0
    for red in (d + d_v + 8, 3 * d + 20, 4 * n, 8 * n):
        moved = pebble.heuristic(graph, red, tries=0).cost
        for split_sums in (False, True):
            bounds = attention_bounds(Problem(n, n, d, d_v), red, split_sums=split_sums)
            positive += sum(bound.words > 0 for bound in bounds if bound.proved and bound.name != "compulsory")
            assert all(bound.words <= moved for bound in bounds if bound.proved)
    assert positive


def test_levels_add_up():
    graph = fft_graph(8)
    three = Rules(further=(Further(4, 10, 100),))
    assert lower_bound(graph, 4, three).words == 8 + 8 + 80 + 800
    assert len(lower_bound(graph, 4, three).certificate) == 2


@pytest.mark.parametrize(("graph", "red"), SOLVED[:6], ids=str)
def test_phases_are_verified(graph, red):
    for words in (1, red):
        phase = largest_phase(graph, red, words)
        verify(graph, red, phase)
        assert len(phase.nodes) == phase.max_nodes
        assert words_moved(graph, phase) <= solve(graph, red).cost


PHASE = largest_phase(matmul_graph(2, 2, 2), 4, 2)


@pytest.mark.parametrize(
    ("cheat", "says"),
    [
        ({"dominator": PHASE.dominator[1:]}, "the dominator misses a path"),
        ({"minimum": PHASE.minimum[1:]}, "the minimum set is not"),
        ({"words": 0}, "words at least, not 0"),
        ({"max_nodes": PHASE.max_nodes - 1}, "more than the maximum of 5"),
    ],
)
def test_a_false_phase_is_refused(cheat, says):
    verify(matmul_graph(2, 2, 2), 4, PHASE)
    with pytest.raises(RedblueError, match=says):
        verify(matmul_graph(2, 2, 2), 4, replace(PHASE, **cheat))


def test_nodes_of_many_words_take_no_longer():
    """One variable per word would take hours. Equal weights scale the words of a phase, so its nodes stay the same."""
    graph = fft_graph(4)
    weighted = Rules(weights=(5000,) * graph.n)
    for words in (1, 3, 6):
        phase = largest_phase(graph, 15000, 5000 * words, weighted)
        assert phase.max_nodes == largest_phase(graph, 3, words).max_nodes
        verify(graph, 15000, phase, weighted)
    assert "partition" in {bound.method for bound in lower_bounds(graph, 15000, weighted)}
    huge = Rules(weights=(10**9,) * graph.n)
    assert "partition" not in {bound.method for bound in lower_bounds(graph, 3 * 10**9, huge)}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    "fields",
    [
        {"load_cost": 3.141592653589793},  # has no unit in common with 1 that is large enough
        {"load_cost": 10**6, "weights": (1000,) * 4},  # costs more than the search counts to
    ],
)
def test_bounds_that_need_no_search_hold_for_all_costs(name, fields):
    graph, rules = fft_graph(2), Rules(name, **fields)
    with pytest.raises(RedblueError, match="round"):
        solve(graph, least_red(graph, rules), rules)
    found = {bound.method: bound.words for bound in lower_bounds(graph, least_red(graph, rules), rules)}
    assert METHODS[name] - found.keys() <= {"search", "wavefront", "spectral"}
    assert "search" not in found
    words = sum(rules.words_of(graph)[:2])
    assert found["compulsory"] == pytest.approx(words * (rules.load_cost + 1))


@pytest.mark.parametrize("name", ["one-shot", "partial"])
@pytest.mark.parametrize("cost", [1e-9, 1e-7, 0.1, 1, 7, 1e6, 1e9])
def test_the_relaxation_lies_below_optima_of_any_scale(name, cost):
    """HiGHS' tolerances are absolute: they must neither exceed a small optimum nor let a large bound round up."""
    for graph, fields in ((fft_graph(2), {}), (chain_graph(3), {}), (matmul_graph(1, 2, 1), {"compute_cost": cost})):
        rules = Rules(name, load_cost=cost, store_cost=cost, **fields)
        red = least_red(graph, rules)
        optimum = solve(graph, red, rules).cost
        found = {bound.method: bound.words for bound in lower_bounds(graph, red, rules)}
        assert 0 < found["relaxation"] <= optimum


@pytest.mark.parametrize(
    ("words", "cost", "rounded"),
    [
        (2.2, 1, 3),
        (2.0000001, 1, 2),
        (3e9 + 1, 10**6, 3 * 10**9),
        (2.2e-9, 1e-9, 3e-9),
        (4.1, math.pi, 4.1 * (1 - 1e-6)),
    ],
)
def test_a_bound_is_rounded_up_to_a_multiple_of_the_cost_unit(words, cost, rounded):
    assert _rounded(words, Rules("one-shot", load_cost=cost, store_cost=1 if cost == math.pi else cost)) == rounded


def test_red_below_the_least_is_refused():
    with pytest.raises(RedblueError, match="needs at least 3"):
        lower_bound(fft_graph(4), 2)


@pytest.mark.parametrize(
    ("graph", "red", "rules", "optimum"),
    [
        (pebble.chain_graph(1), 1, pebble.Rules(), 0),
        (pebble.chain_graph(1), 1, pebble.Rules(load_cost=10**6, store_cost=10**6, compute_cost=1), 0),
        (pebble.from_edges([("a", "b"), ("b", "c")]), 3, pebble.Rules(inputs_start_blue=False, store_cost=7), 7),
        (pebble.fft_graph(4), 12, pebble.Rules(inputs_start_blue=False, sinks_end_blue=False), 0),
    ],
    ids=["no move", "dear moves", "one store", "free"],
)
def test_where_hardly_anything_is_to_be_done(graph, red, rules, optimum):
    assert pebble.solve(graph, red, rules).cost == optimum
    assert all(0 <= bound.words <= optimum for bound in lower_bounds(graph, red, rules))
