"""Heuristic games: legal by any rules, as cheap as known optima on small graphs, close to schedules on large ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import redblue as rb
from redblue import RedblueError, pebble
from redblue.pebble import Further, Rules, check, heuristic, heuristics, least_red
from redblue.pebble.orders import orders
from support.examples import examples, thorough
from support.games import graphs, naive_game, rule_sets


@examples(80)
@given(data=st.data())
def test_any_rules_give_legal_games(data):
    graph = data.draw(graphs())
    rules = data.draw(rule_sets(graph, least_words=3))
    red = least_red(graph, rules) + data.draw(st.integers(0, 3))
    game = heuristic(graph, red, rules, tries=20)
    assert check(graph, game.moves, red, rules) == game.verdict
    assert game.cost == game.verdict.cost


@given(graphs(), st.integers(0, 3))
def test_never_dearer_than_the_naive_game(graph, more):
    red = least_red(graph) + more
    assert heuristic(graph, red, tries=0).cost <= check(graph, naive_game(graph), red).cost


# From docs/lab/theory.md and arXiv 2506.10854: graph, rules, and the costs for increasing numbers of red pebbles.
OPTIMA = [
    (pebble.fft_graph(4), "red-blue", [14, 11, 9, 8]),
    thorough(pebble.fft_graph(4), "partial", [19, 12, 10]),
    (pebble.tree_graph(2, 2), "red-blue", [7, 5]),
    thorough(pebble.tree_graph(2, 3), "red-blue", [15, 11, 9]),
    (pebble.tree_graph(3, 2), "red-blue", [9 + 6 - 1]),
    (pebble.chain_graph(9), "one-shot", [2, 2]),
]


@pytest.mark.parametrize(("graph", "rules", "costs"), OPTIMA)
def test_known_optima_are_reached(graph, rules, costs):
    least = least_red(graph, rules)
    assert [heuristic(graph, least + i, rules).cost for i in range(len(costs))] == costs


@given(graphs(most=14))
def test_orders_hold_every_node_once_after_its_parents(graph):
    needed = graph.in_degree > 0
    for name, order in orders(graph, needed, red=4):
        assert sorted(order.tolist()) == np.flatnonzero(needed).tolist(), name
        place = {v: i for i, v in enumerate(order.tolist())}
        for v in order.tolist():
            assert all(place[p] < place[v] for p in graph.parents_of(v).tolist() if p in place), name


def test_a_product_is_tiled():
    """2 m n k / sqrt(M) words at best; small tiles, which must leave space for their operands, move more."""
    game = heuristic(pebble.matmul_graph(12, 12, 12), red=60, tries=0)
    assert game.order.startswith("tiles of 6 x 6")
    assert game.cost < 1.15 * (2 * 12**3 / 6 + 144)


def test_attention_is_scheduled_as_the_schedules_do_it():
    graph = pebble.attention_graph(16, 8)
    problem = rb.Problem(16, 16, 8)
    for words in (40, 150):
        best = min(rb.count(name, problem, words=words).words for name in ("flash", "hybrid", "small_cache"))
        assert heuristic(graph, words, tries=0).cost < 1.1 * best


@pytest.mark.thorough
def test_large_graphs():
    graph = pebble.fft_graph(256)
    game = heuristic(graph, 18)  # 16 points, and two for a butterfly
    assert game.order.startswith("bands of 4 levels, by their loads")
    assert game.cost <= 2 * 2 * 256  # two bands, each of which reads and writes everything


def test_the_gap_is_to_the_best_bound():
    assert heuristic(pebble.tree_graph(2, 2), 3).gap == 1
    game = heuristic(pebble.matmul_graph(12, 12, 12), red=60, tries=0)
    assert game.gap == game.cost / pebble.lower_bound(game.graph, 60).words > 1


def test_levels_are_filled_one_after_the_other():
    graph = pebble.fft_graph(16)
    two = heuristic(graph, 4)
    three = heuristic(graph, 4, Rules(further=(Further(10, 2, 2),)))
    assert three.verdict.by_boundary[0] == (two.verdict.loads, two.verdict.stores)
    assert three.verdict.by_boundary[1] < three.verdict.by_boundary[0]
    with pytest.raises(RedblueError, match=r"level 1 holds 1 words, and node 'x\[0\]' has 2"):
        heuristic(pebble.chain_graph(2), 9, Rules(weights=(2, 1), further=(Further(1),)))


def test_ctrl_c_returns_the_best_so_far(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(heuristics, "_shifted", interrupted)
    assert heuristic(pebble.fft_graph(4), 6).cost == 8
    monkeypatch.setattr(heuristics, "orders", interrupted)
    with pytest.raises(KeyboardInterrupt):
        heuristic(pebble.fft_graph(4), 4)


def test_bad_input():
    with pytest.raises(RedblueError, match="red is 2: this graph needs at least 3"):
        heuristic(pebble.fft_graph(4), 2)
    with pytest.raises(RedblueError, match="red must be a whole number of at least 1, got -3"):
        heuristic(pebble.fft_graph(4), -3)


def test_a_search_that_is_stopped_takes_the_better_game():
    graph = pebble.attention_graph(2, 2)
    stopped = pebble.solve(graph, 7, time_limit=1e-6)
    assert stopped.cost <= heuristic(graph, 7).cost
    assert check(graph, stopped.moves, 7).cost == stopped.cost
    assert not stopped.optimal or stopped.cost == stopped.lower_bound
