import itertools
import os
import random
import signal
import threading
import time

import pytest

from redblue import RedblueError
from redblue.pebble import (
    COMPUTE,
    Rules,
    attention_graph,
    chain_graph,
    check,
    fft_graph,
    from_edges,
    least_red,
    matmul_graph,
    random_graph,
    solve,
    tree_graph,
)
from redblue.pebble.milp import relaxation, solve_milp
from redblue.pebble.search import BEAM, search
from support.examples import thorough
from support.pebbles import cheapest, drawn

NAMES = ("red-blue", "one-shot", "partial")


def optimum(graph, red, rules="red-blue"):
    """The cost of a proved solution, which the referee must accept at that cost."""
    solution = solve(graph, red, rules)
    assert solution.optimal
    assert solution.lower_bound == solution.cost
    assert check(graph, solution.moves, red, rules).cost == pytest.approx(solution.cost)
    return solution.cost


def some_rules(seed):
    """Rules of every kind, half of them plain."""
    draw, graph = random.Random(seed), drawn(seed)
    name = NAMES[seed % 3]
    options = {
        "weights": tuple(draw.randint(1, 3) for _ in range(graph.n)),
        "sinks_end_blue": False,
        "inputs_start_blue": False,
        "sliding": name != "partial",
        "load_cost": draw.choice((0, 0.5, 2, 3)),
        "store_cost": draw.choice((0, 0.1, 2, 3)),
        "compute_cost": draw.choice((0.25, 1, 3)),
        "constants": (int(graph.sources[0]),),
    }
    kept = {key: value for key, value in options.items() if seed % 2 and draw.random() < 0.35}
    return graph, least_red(graph, Rules(name, **kept)) + draw.randint(0, 2), Rules(name, **kept)


@pytest.mark.parametrize(
    ("graph", "rules", "costs"),
    [
        (fft_graph(4), "red-blue", {3: 14, 4: 11, 5: 9, 6: 8}),
        (fft_graph(4), "partial", {2: 19, 3: 12, 4: 10, 5: 8}),
        (tree_graph(2, 2), "red-blue", {3: 7, 4: 5}),
        (tree_graph(2, 3), "red-blue", {3: 15, 4: 11, 5: 9}),
        # k^D + 2 k^(D-1) - 1 with k + 1 red pebbles
        (tree_graph(3, 2), "red-blue", {4: 14}),
        (tree_graph(2, 4), "red-blue", {3: 31}),
        # k^D + 2 k^(D-k) - 1 with partial computation
        (tree_graph(2, 2), "partial", {3: 5}),
        (tree_graph(2, 3), "partial", {3: 11}),
        (tree_graph(3, 3), "partial", {4: 28}),
    ],
    ids=str,
)
def test_published_optima(graph, rules, costs):
    assert {red: optimum(graph, red, rules) for red in costs} == costs


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("graph", "rules", "costs"),
    [
        (matmul_graph(2, 2, 2), "red-blue", {4: 17, 5: 14, 6: 13, 7: 12}),
        (matmul_graph(2, 2, 2, "products"), "red-blue", {3: 25, 4: 17, 5: 14, 6: 13, 7: 12}),
        (attention_graph(2, 1), "red-blue", {4: 16, 5: 11, 6: 10, 7: 9, 8: 8}),
        (attention_graph(2, 2), "red-blue", {5: 24, 8: 16}),
        (fft_graph(8), "one-shot", {4: 31}),
    ],
    ids=str,
)
def test_further_optima(graph, rules, costs):
    assert {red: optimum(graph, red, rules) for red in costs} == costs


def test_recomputation_can_pay():
    graph = random_graph(198, nodes=8, sources=2)
    assert (optimum(graph, 3), optimum(graph, 3, "one-shot")) == (3, 5)


@pytest.mark.parametrize("first", [0, 60, *map(thorough, range(120, 360, 60))])
def test_every_optimum_is_that_of_brute_force(first):
    for seed in range(first, first + 60):
        graph, red, rules = some_rules(seed)
        assert optimum(graph, red, rules) == pytest.approx(cheapest(graph, red, rules)), (seed, red, rules)


@pytest.mark.parametrize("first", [0, *map(thorough, range(30, 180, 30))])
def test_the_integer_program_agrees(first):
    for seed in range(first, first + 30):
        graph, name = drawn(seed, 5), NAMES[seed % 3]
        rules = Rules(name, weights=tuple(1 + (v + seed) % 2 for v in range(graph.n)) if seed % 4 == 0 else None)
        red = least_red(graph, rules) + seed % 2
        least = solve(graph, red, rules)
        computes = sum(move.kind == COMPUTE for move in least.moves)
        other = solve_milp(graph, red, rules, steps=max(computes, int((~rules.starts_blue(graph)).sum())))
        assert other is not None
        assert other.cost == least.cost, (seed, red, rules)
        assert other.optimal == (name != "red-blue")
        if other.optimal:
            assert relaxation(graph, red, rules) <= least.cost + 1e-6


def test_whole_costs_are_exact():
    """They have more digits than a float holds."""
    rules = Rules(load_cost=3 * (2**53 + 1), store_cost=2**53 + 1)
    assert optimum(chain_graph(3), 2, rules) == 4 * (2**53 + 1)


def test_more_red_never_costs_more():
    for seed in range(30):
        graph = drawn(seed, 8)
        least = least_red(graph)
        costs = [optimum(graph, red) for red in range(least, least + 4)]
        assert all(a >= b for a, b in itertools.pairwise(costs))


def test_large_graphs_use_wider_sets():
    graph = chain_graph(100)
    assert optimum(graph, 2) == optimum(graph, 2, "one-shot") == optimum(graph, 2, "partial") == 2
    assert optimum(tree_graph(80, 1), 81) == 81
    assert optimum(tree_graph(64, 1), 2, "partial") == 65


def test_a_time_limit_gives_a_game_and_a_bound():
    graph = attention_graph(3, 2)
    start = time.perf_counter()
    solution = solve(graph, 6, time_limit=0.3)
    assert time.perf_counter() - start < 2
    assert not solution.optimal
    assert 24 <= solution.lower_bound < solution.cost == check(graph, solution.moves, 6).cost


@pytest.mark.thorough
def test_even_no_time_gives_a_game():
    for name in NAMES:
        graph = attention_graph(3, 2)
        solution = solve(graph, 5, name, time_limit=1e-9)
        assert not solution.optimal
        assert solution.cost == check(graph, solution.moves, 5, name).cost
    slides = Rules("one-shot", sliding=True)
    assert solve(tree_graph(2, 5), 2, slides, time_limit=1e-9).cost >= 33


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("name", NAMES)
def test_limits_end_an_expansion(name):
    """A node with 20 parents can be computed after millions of evictions: one expansion takes minutes."""
    graph = random_graph(1, nodes=60, sources=40, in_degree=20)
    rules = Rules(name)
    red = least_red(graph, rules) + 8

    def stopped(seconds=20, memory_bytes=1 << 30):
        solution = search(graph, red, rules, seconds, None, memory_bytes, BEAM)
        assert not solution.optimal
        assert 45 <= solution.lower_bound <= solution.cost == check(graph, solution.moves, red, rules).cost
        return solution.seconds

    assert stopped(seconds=0.2) < 2
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    assert stopped() < 5


def test_memory_ends_an_expansion():
    """The first sum of y evicts 12 of the 24 values x, which are needed again: a choice of millions of sets."""
    sums = [(f"{letter}{i}", f"sum {j} of {letter}") for letter in "xy" for i in range(24) for j in range(2)]
    chain = [("sum 0 of x", "sum 0 of y"), ("sum 0 of y", "sum 1 of x"), ("sum 1 of x", "sum 1 of y")]
    graph = from_edges([*sums, *chain])
    solution = search(graph, 36, Rules("one-shot"), 20, None, 1 << 20, BEAM)
    assert solution.seconds < 10
    assert 49 <= solution.lower_bound < solution.cost == check(graph, solution.moves, 36, "one-shot").cost


@pytest.mark.parametrize(("seconds", "memory_bytes"), [(1e-9, 1 << 28), (0, 1)])
def test_the_search_for_symmetries_is_short(seconds, memory_bytes):
    """It ends at the time limit, too. A product of 4 x 4 matrices has millions of renumberings to try."""
    start = time.process_time()
    search(matmul_graph(4, 4, 4), 4, Rules(), seconds, None, memory_bytes, BEAM)
    assert time.process_time() - start < 1


@pytest.mark.thorough
def test_bounded_memory_gives_a_game_and_a_bound():
    solution = solve(fft_graph(8), 4, memory_bytes=1 << 20)
    assert not solution.optimal
    assert 16 <= solution.lower_bound <= solution.cost


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_gives_the_best_so_far():
    graph = attention_graph(3, 2)

    def interrupt():
        os.kill(os.getpid(), signal.SIGINT)

    for start, progress in ((threading.Timer(0.3, interrupt).start, None), (lambda: None, lambda state: interrupt())):
        start()
        solution = solve(graph, 6, progress=progress, time_limit=20)
        assert solution.seconds < 15
        assert not solution.optimal
        assert solution.cost == check(graph, solution.moves, 6).cost


def test_progress_is_told():
    reports = []
    solve(attention_graph(3, 2), 6, progress=reports.append, time_limit=0.5)
    assert len(reports) >= 3
    assert reports[-1].cost is not None
    for a, b in itertools.pairwise(reports):
        assert (a.nodes, a.lower_bound, a.seconds) <= (b.nodes, b.lower_bound, b.seconds)


def test_what_progress_raises_comes_through():
    def stop(state):
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        solve(attention_graph(3, 2), 6, progress=stop)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: solve(chain_graph(129), 2), "at most 128 nodes, this graph has 129: use heuristic"),
        (lambda: solve(tree_graph(2, 2), 2), "red is 2: this graph needs at least 3"),
        (lambda: solve(tree_graph(2, 2), 3, time_limit=0), "time_limit must be more than 0 seconds, got 0"),
        (lambda: solve(tree_graph(2, 2), 3, Rules(further=((8,),))), "two levels of memory, these rules have 3"),
        (lambda: solve(tree_graph(2, 2), 3, Rules(load_cost=1 / 3)), "multiples of one unit: round them"),
        (lambda: solve(chain_graph(2), 2 * 10**6, Rules(load_cost=10**6, weights=(10**6,) * 2)), "round costs"),
        (lambda: solve_milp(tree_graph(2, 2), 3, Rules(sliding=True)), "without sliding"),
        (lambda: solve_milp(tree_graph(2, 2), 3, Rules(load_cost=1 / 3), 1), "multiples of one unit"),
        (lambda: solve_milp(tree_graph(2, 2), 3, steps=1), "steps is 1: this graph needs at least 3"),
        (lambda: relaxation(tree_graph(2, 2), 3, "red-blue"), "'one-shot' or 'partial'"),
    ],
)  # fmt: skip
def test_bad_input(call, says):
    with pytest.raises(RedblueError, match=says):
        call()
