"""The referee: the papers' rules, move by move, and the name of each broken rule."""

import time
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redblue import RedblueError, memory, pebble
from redblue.pebble import (
    COMPUTE,
    DELETE,
    LOAD,
    STORE,
    Further,
    Game,
    IllegalMove,
    Move,
    Rules,
    Unfinished,
    check,
    referee,
)
from support.examples import examples
from support.games import Illegal, Plain, graphs, naive_game, rule_sets

CHAIN = pebble.chain_graph(3)
PLAYED = [(LOAD, 0), (COMPUTE, 1), (DELETE, 0), (COMPUTE, 2), (STORE, 2)]


def test_a_game_is_counted():
    verdict = check(CHAIN, PLAYED, red=2)
    assert (verdict.cost, verdict.loads, verdict.stores, verdict.computes, verdict.peak) == (2, 1, 1, 2, 2)
    assert verdict.by_boundary == ((1, 1),)


def test_costs_and_weights():
    rules = Rules(load_cost=3, store_cost=5, compute_cost=7, weights=(10, 1, 2))
    verdict = check(CHAIN, PLAYED, red=11, rules=rules)
    assert (verdict.loads, verdict.stores, verdict.peak) == (10, 2, 11)
    assert verdict.cost == 30 + 10 + 14


@examples(100)
@given(data=st.data())
def test_the_referee_is_the_rules(data):
    """In random, mostly legal games, both implementations stop at the same move, or agree on end and cost."""
    graph = data.draw(graphs(most=7))
    rules = data.draw(rule_sets(graph))
    red = pebble.least_red(graph, rules) + data.draw(st.integers(0, 2))
    draw = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    plain, moves = Plain(graph, red, rules), []
    for _ in range(data.draw(st.integers(0, 40))):
        legal = plain.moves()
        odd = Move(*(int(x) for x in draw.integers((0, -1, -1, 0), (4, graph.n + 1, graph.n, rules.levels))))
        moves.append(legal[draw.integers(len(legal))] if legal and draw.random() < 0.97 else odd)
        try:
            plain.move(*moves[-1])
        except Illegal:
            with pytest.raises(IllegalMove) as broken:
                check(graph, moves, red, rules)
            assert broken.value.number == len(moves) - 1
            assert broken.value.move == moves[-1]
            return
    if plain.done:
        assert check(graph, moves, red, rules).cost == plain.cost
    else:
        with pytest.raises(Unfinished):
            check(graph, moves, red, rules)


@given(graphs())
def test_a_naive_game_needs_the_least_red_and_no_less(graph):
    game, red = naive_game(graph), pebble.least_red(graph)
    verdict = check(graph, game, red)
    assert verdict == check(graph, game, red, "one-shot")
    assert verdict.loads == len(graph.parents)
    assert verdict.peak == (red if len(graph.parents) else 0)
    with pytest.raises(RedblueError, match=f"red is {red - 1}: this graph needs at least {red}|at least 1, got 0"):
        check(graph, game, red - 1)


def partial(*moves):
    return pebble.from_edges([("a", "c"), ("b", "c"), ("c", "d")]), moves, 2, Rules("partial")


AGGREGATED = [
    (LOAD, 0), (COMPUTE, 2, 0), (DELETE, 0), (LOAD, 1), (COMPUTE, 2, 1), (DELETE, 1), (COMPUTE, 3, 2), (STORE, 3)
]  # fmt: skip


def test_partial_computation_aggregates_parents_one_by_one():
    graph, moves, red, rules = partial(*AGGREGATED)
    assert check(graph, moves, red, rules).cost == 3


THREE = Rules(further=(Further(1),))  # three levels; the middle one holds one word
BROKEN = [
    ("pebble", r"move 0 \(load x\[1\]\) .* x\[1\] has no blue pebble to load", (CHAIN, [(LOAD, 1)], 2)),
    ("pebble", "has no red pebble to store", (CHAIN, [(STORE, 0)], 2)),
    ("pebble", "has no red pebble to delete", (CHAIN, [(DELETE, 0)], 2)),
    ("input", r"x\[0\] is an input", (CHAIN, [(COMPUTE, 0)], 2)),
    ("parents", r"not red: x\[1\]", (CHAIN, [(COMPUTE, 2)], 2)),
    ("capacity", "move 2 .* needs 1 more words at its level, where 2 of 2", (CHAIN, [*PLAYED[:2], PLAYED[3]], 2)),
    ("once", r"x\[1\] may be computed only once, and was", (CHAIN, [*PLAYED[:2], (COMPUTE, 1)], 2, "one-shot")),
    ("sliding", r"the pebble of x\[0\] may not slide to x\[1\]", (CHAIN, [(LOAD, 0), (COMPUTE, 1, 0)], 2)),
    ("parent", "has no parent x", (CHAIN, [*PLAYED[:2], (COMPUTE, 2, 0)], 2, Rules(sliding=True))),
    ("kind", "no move of kind 9", (CHAIN, [(9, 0)], 2)),
    ("node", "no node 3: its nodes are 0 to 2", (CHAIN, [(LOAD, 3)], 2)),
    ("level", "this move has no level 1", (CHAIN, [(LOAD, 0, -1, 1)], 2)),
    ("level", "this move has no level -2", (CHAIN, [(LOAD, 0, -1, -2)], 2)),
    ("parent", "c has no parent d; it has a, b", partial((COMPUTE, 2, 3))),
    ("parent", "c has no parent -1", partial((COMPUTE, 2))),
    ("parents", "not red: a", partial((COMPUTE, 2, 0))),
    ("once", "c may be computed from a only once", partial(*AGGREGATED[:2], (COMPUTE, 2, 0))),
    ("incomplete", "c is not finished, so it cannot be aggr", partial(*AGGREGATED[:3], (COMPUTE, 3, 2))),
    ("dark", "c is dark red", partial(*AGGREGATED[:3], (DELETE, 2))),
    ("dark", "d is dark red", partial(*AGGREGATED[:7], (DELETE, 3))),
    ("not loaded", "load it", partial(*AGGREGATED[:3], (STORE, 2), (DELETE, 2), (LOAD, 1), (COMPUTE, 2, 1))),
    ("pebble", "no pebble of level 1 to load", (CHAIN, [(LOAD, 0)], 2, THREE)),
    (
        "capacity",
        r"x\[1\] needs 1 more words at its level, where 1 of 1 are held",
        (CHAIN, [(LOAD, 0, -1, 1), (LOAD, 0), (COMPUTE, 1), (STORE, 1)], 2, THREE),
    ),
]


@pytest.mark.parametrize(("rule", "says", "game"), BROKEN)
def test_each_broken_rule_is_named(rule, says, game):
    with pytest.raises(IllegalMove, match=says) as broken:
        check(*game)
    assert broken.value.rule == rule


def test_every_rule_was_broken():
    assert {rule for rule, _, _ in BROKEN} == {rule for rule, _ in referee.BROKEN.values()}


def test_missing_parents_are_named():
    graph = pebble.matmul_graph(1, 2, 1)
    with pytest.raises(IllegalMove, match="not red: a") as broken:
        check(graph, [(LOAD, 2), (COMPUTE, 4)], 4)
    assert (broken.value.number, broken.value.node, broken.value.missing) == (1, "c[0,0]+1", ("a[0,0]",))


def test_unfinished_games_say_what_lacks():
    graph = pebble.tree_graph(2, 1)
    moves = [(LOAD, 0), (LOAD, 1), (COMPUTE, 2)]
    with pytest.raises(Unfinished, match=r"sinks without their blue pebble: t0\[0\]") as short:
        check(graph, moves, 3)
    assert short.value.sinks == ("t0[0]",)
    assert check(graph, moves, 3, Rules(sinks_end_blue=False)).cost == 2
    with pytest.raises(Unfinished, match=r"without their pebble: t0\[0\]"):
        check(graph, [*moves, (DELETE, 2)], 3, Rules(sinks_end_blue=False))
    many = pebble.stencil_graph(9, 1)
    with pytest.raises(Unfinished, match="and 3 more"):
        check(many, [], 4)
    with pytest.raises(Unfinished, match="nodes with unmarked edges: c"):
        check(*partial((LOAD, 0), (COMPUTE, 2, 0), (STORE, 2)))


def test_levels_of_a_machine_can_be_played():
    red, rules = pebble.hierarchy(memory("h100-sxm"), bytes_per_word=2)
    assert rules.levels == len(memory("h100-sxm").levels)
    down = [Move(LOAD, 0, level=level) for level in reversed(range(rules.levels - 1))]
    up = [Move(STORE, 2, level=level) for level in range(rules.levels - 1)]
    verdict = check(CHAIN, [*down, (COMPUTE, 1), (COMPUTE, 2), *up], red, rules)
    assert verdict.by_boundary == ((1, 1),) * (rules.levels - 1)
    assert verdict.cost == sum(rules.load_costs) + sum(rules.store_costs)


def test_costs_of_a_machine_are_its_bandwidths():
    machine = memory("h100-sxm")
    rates = [boundary.bandwidth_bytes_per_second for boundary in machine.boundaries]
    _, rules = pebble.hierarchy(machine)
    for cost, rate, before, cost_before in zip(rules.load_costs[1:], rates[1:], rates, rules.load_costs, strict=False):
        assert cost == (pytest.approx(rates[0] / rate) if rates[0] and rate else cost_before), before


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: check(CHAIN, [], -1), "red must be a whole number of at least 1, got -1"),
        (lambda: check(CHAIN, [], 2.5), "red must be a whole number of at least 1, got 2.5"),
        (lambda: check(CHAIN, [], 1), "red is 1: this graph needs at least 2"),
        (lambda: check(CHAIN, [], 2, "pebbles"), "'partial' or Rules, got 'pebbles'"),
        (lambda: check(CHAIN, ["load"], 2), "move 0 must be whole numbers"),
        (lambda: check(CHAIN, [(LOAD,)], 2), "move 0 must be whole numbers"),
        (lambda: check(CHAIN, [], 2, Rules(weights=(1,))), "weights are given for 1 nodes, the graph has 3"),
        (lambda: check(CHAIN, [], 2, Rules(constants=(1,))), "constants name node 1, which is no source"),
        (lambda: check(CHAIN, [(LOAD, 10**30)], 2), "the node of move 0 must be a whole number from"),
        (lambda: check(CHAIN, [(256, 0), *PLAYED[1:]], 2), "the kind of move 0 must be .* from -128 to 127, got 256"),
        (lambda: check(CHAIN, [(LOAD, 0, -1, 256), *PLAYED[1:]], 2), "the level of move 0 must be .* got 256"),
        (lambda: Game.from_arrays([0.9, 1], [0, 0]), "the kind of move 0 must be a whole number .* got 0.9"),
        (lambda: Game.from_arrays([0], [0.5]), "the node of move 0 must be"),
        (lambda: check(CHAIN, [], 10**30), "red must be at most"),
        (lambda: Rules(weights=3), "weights must be a list or a tuple, got 3"),
        (lambda: Rules(further=(3,)), r"further\[0\] must be a list or a tuple, got 3"),
        (lambda: Rules(further=((),)), "a level of `further` is"),
        (lambda: Rules(sliding="no"), "sliding must be True or False, got 'no'"),
        (lambda: Rules(constants=(0.5,)), r"constants\[0\] must be a whole number"),
        (lambda: Rules(load_cost=float("nan")), "load_cost must be a number"),
        (lambda: Rules(weights=(0,)), r"weights\[0\] must be a whole number of at least 1, got 0"),
        (lambda: Rules(weights=(1, 2**31 + 1)), r"weights\[1\] must be at most 2,147,483,648, got 2,147,483,649"),
        (lambda: Rules(load_cost=10**19), "load_cost must be a number of at least 0"),
        (lambda: Rules(load_cost=Fraction(10**400)), "load_cost must be a number of at least 0"),
        (lambda: Rules(load_cost=-1), "load_cost must be a number of at least 0, got -1"),
        (lambda: Rules(further=((0,),)), r"further\[0\].words must be"),
        (lambda: Rules(further=((4,),) * 6), "at most 7 levels"),
        (lambda: Rules("partial", sliding=True), "no sliding"),
        (lambda: Rules("partial", further=((4,),)), "two levels"),
        (lambda: Game.from_arrays([0, 1], [0]), "one length"),
    ],
)  # fmt: skip
def test_bad_input(make, says):
    with pytest.raises(RedblueError, match=says):
        make()


def test_games_read_like_lists_of_moves():
    game = Game.of(PLAYED)
    assert list(game) == [Move(*move) for move in PLAYED]
    assert (len(game), game[1], game[-1]) == (5, Move(COMPUTE, 1), Move(STORE, 2))
    assert game[1:3] == Game.of(PLAYED[1:3])
    assert game != Game.of(PLAYED[:4])
    assert game != PLAYED
    assert Game.of(game) is game
    assert str(Move(COMPUTE, 2, 1)) == "compute 2 from 1"
    assert str(Move(LOAD, 2, level=1)) == "load 2 at level 1"
    assert list(Game.of([])) == []


def test_a_million_moves_take_two_seconds_at_most():
    """Ten million in under 20 s."""
    rounds = 250_000
    graph = pebble.chain_graph(2)
    game = Game.from_arrays([LOAD, COMPUTE, STORE, DELETE] * rounds, [0, 1, 1, 1] * rounds)
    start = time.perf_counter()
    assert check(graph, game, 2).stores == rounds
    assert time.perf_counter() - start < 2
