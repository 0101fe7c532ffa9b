"""The pebble game as an integer program for HiGHS: slower than redblue.pebble.search, and independent of it.

Time runs in steps. Each step deletes pebbles, then loads the words that its computation needs, then computes one node
(with partial computation, marks one edge), and then may store that node. A pebble that is red at the end of a step was
red during the step's computation. Every game can be reordered into such steps at the same cost.
"""

from __future__ import annotations

import time

import numpy as np

from redblue.base.errors import RedblueError
from redblue.pebble.graph import Graph
from redblue.pebble.integer_program import Program
from redblue.pebble.moves import COMPUTE, DELETE, LOAD, STORE, Game
from redblue.pebble.referee import check
from redblue.pebble.rules import Rules, check_red, rules_of
from redblue.pebble.search import Solution, cost_unit


def solve_milp(
    graph: Graph,
    red: int,
    rules: str | Rules = "red-blue",
    steps: int | None = None,
    time_limit: float | None = None,
) -> Solution | None:
    """Find the cheapest game of at most `steps` computations; None if there is none or time ran out before one.

    steps: by default one per node (with partial computation, per edge). More steps help only with recomputation
        ("red-blue"). As no number of steps is known to be enough there, `optimal` is True only for the other rules.
    time_limit: seconds.
    Raises RedblueError without SciPy, for sliding, for more than two levels, for costs without a common unit, for too
    few `steps`, and for `red` below the least that works. The number of nodes is not limited.
    """
    rules = rules_of(rules)
    unit = float(cost_unit(rules))
    start = time.perf_counter()
    model = _model(graph, red, rules, steps)
    result = model.solve(time_limit=time_limit, mip_rel_gap=0)
    if result.x is None:
        return None
    moves = _moves(graph, model, np.round(result.x).astype(int))
    exact = rules.name != "red-blue"
    bound = result.mip_dual_bound if exact else 0.0
    cost = check(graph, moves, red, rules).cost
    # All costs are multiples of a unit, so a cost less than one unit above the bound is the optimum.
    optimal = exact and result.status == 0 and cost - bound < 0.999 * unit
    return Solution(
        cost=cost,
        moves=moves,
        optimal=optimal,
        lower_bound=cost if optimal else bound,
        nodes=int(result.mip_node_count),
        seconds=time.perf_counter() - start,
    )


def relaxation(graph: Graph, red: int, rules: str | Rules = "one-shot") -> float:
    """Return a lower bound on the cost of every game: the optimum of the integer program without integrality.

    Only for rules without recomputation: with recomputation no number of steps is enough for all games.
    Raises RedblueError as solve_milp does, and for "red-blue".
    """
    rules = rules_of(rules)
    if rules.name == "red-blue":
        raise RedblueError("the relaxation bounds games without recomputation: give the rules 'one-shot' or 'partial'")
    return _model(graph, red, rules, None).least_cost()


class _Model(Program):
    """The integer program of a game. computations: (node, parent or -1) for each row of the block "do"."""

    def __init__(self, computations: list[tuple[int, int]]) -> None:
        super().__init__()
        self.computations = computations


def _model(graph: Graph, red: int, rules: Rules, steps: int | None) -> _Model:
    """Build the integer program. Its blocks are indexed [node or computation, step]; step 0 is the start."""
    check_red(graph, red, rules)
    if rules.levels > 2 or rules.sliding:
        raise RedblueError("the integer program plays two levels of memory without sliding")
    blue, words, n = rules.starts_blue(graph), rules.words_of(graph), graph.n
    computations = [(int(v), -1) for v in np.flatnonzero(~blue) if not rules.partial or not graph.in_degree[v]]
    if rules.partial:
        computations += list(zip(graph.heads.tolist(), graph.parents.tolist(), strict=True))
    model, least = _Model(computations), len(computations)
    steps = least if steps is None or rules.name != "red-blue" else steps
    if steps < least:
        raise RedblueError(f"steps is {steps}: this graph needs at least {least}, one per node to compute")
    is_red = model.block("red", n, steps + 1)  # at the end of each step
    is_blue = model.block("blue", n, steps + 1)
    loads = model.block("load", n, steps + 1, cost=rules.load_cost * words)
    stores = model.block("store", n, steps + 1, cost=rules.store_cost * words)
    do = model.block("do", least, steps + 1, cost=rules.compute_cost)
    # Per node, the rows of "do" that compute it; per row of "do", the nodes that it needs red.
    computing = [[i for i, (node, _) in enumerate(computations) if node == v] for v in range(n)]
    needs = [[p] if p >= 0 else graph.parents_of(v).tolist() for v, p in computations]
    using = [  # per node, the rows of "do" that need it red
        [i for i, (node, _) in enumerate(computations) if v in needs[i] or (node == v and rules.partial)]
        for v in range(n)
    ]
    for v in range(n):
        model.at_most(0, (1, [is_red[v, 0], loads[v, 0], stores[v, 0], *do[computing[v], 0]]))
        model.at_most(float(blue[v]), (1, is_blue[v, 0]))
        for t in range(1, steps + 1):
            model.at_most(0, (1, is_red[v, t]), (-1, [is_red[v, t - 1], loads[v, t], *do[computing[v], t]]))
            model.at_most(0, (1, loads[v, t]), (-1, is_blue[v, t - 1]))
            model.at_most(0, (1, stores[v, t]), (-1, is_red[v, t]))
            model.at_most(0, (1, is_blue[v, t]), (-1, [is_blue[v, t - 1], stores[v, t]]))
    for t in range(1, steps + 1):
        model.at_most(red, *((float(words[v]), is_red[v, t]) for v in range(n)))
        model.at_most(1, (1, do[:, t]))
        for i, (node, _) in enumerate(computations):
            for v in (node, *needs[i]):
                model.at_most(0, (1, do[i, t]), (-1, is_red[v, t]))
        if t > 1:
            model.at_most(0, (1, do[:, t]), (-1, do[:, t - 1]))
        for v in range(n):
            model.at_most(0, (1, loads[v, t]), (-1, [do[i, t] for i in using[v]]))
            model.at_most(0, (1, stores[v, t]), (-1, do[computing[v], t]))
    for i in range(least):
        if rules.name != "red-blue":
            model.at_most(-1, (-1, do[i]))
            model.at_most(1, (1, do[i]))
    for v in graph.sinks:
        model.at_most(-1, (-1, [is_blue[v, steps], *([] if rules.sinks_end_blue else [is_red[v, steps]])]))
    if rules.partial:
        _aggregation(graph, model, computing)
    return model


def _aggregation(graph: Graph, model: _Model, computing: list[list[int]]) -> None:
    """Add the rows that only partial computation needs.

    computing: per node, the rows of the block "do" that aggregate a parent into it.
    """
    is_red, is_blue, loads, stores, do = (model.blocks[name] for name in ("red", "blue", "load", "store", "do"))
    steps, sinks = do.shape[1] - 1, {*graph.sinks.tolist()}
    using = [[i for i, (_, parent) in enumerate(model.computations) if parent == v] for v in range(graph.n)]
    finished = model.block("finished", graph.n, steps + 1)  # every edge into and out of the node is marked
    for v in range(graph.n):
        for t in range(1, steps + 1):
            for i in using[v] + computing[v]:
                model.at_most(0, (1, finished[v, t]), (-1, do[i, : t + 1]))
            if v in sinks:
                model.at_most(0, (1, finished[v, t]))
            # A dark red pebble cannot be deleted.
            model.at_most(0, (1, is_red[v, t - 1]), (-1, [is_red[v, t], is_blue[v, t - 1], finished[v, t - 1]]))
            # Aggregating more makes the copy in slow memory stale.
            model.at_most(1, (1, [is_blue[v, t], *do[computing[v], t]]), (-1, stores[v, t]))
            for i in using[v]:  # a parent is complete before it is aggregated
                for j in computing[v]:
                    model.at_most(0, (1, do[i, t]), (-1, do[j, :t]))
            for i in computing[v]:  # the partial aggregate must be red
                for j in computing[v]:
                    if j != i:
                        model.at_most(1, (1, [do[i, t], *do[j, :t]]), (-1, [is_red[v, t - 1], loads[v, t]]))
        model.at_most(0, (1, finished[v, 0]))


def _moves(graph: Graph, model: _Model, values: np.ndarray) -> Game:
    """Read the game from a solution of the integer program."""
    is_red, loads, stores, do = (values[model.blocks[name]] for name in ("red", "load", "store", "do"))
    moves = []
    for t in range(1, is_red.shape[1]):
        moves += [(DELETE, v) for v in range(graph.n) if is_red[v, t - 1] and not is_red[v, t]]
        moves += [(LOAD, v) for v in range(graph.n) if loads[v, t]]
        moves += [(COMPUTE, *model.computations[i]) for i in range(len(do)) if do[i, t]]
        moves += [(STORE, v) for v in range(graph.n) if stores[v, t]]
    return Game.of(moves)
