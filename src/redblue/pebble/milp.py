"""The pebble game as an integer program, for HiGHS: slower than redblue.pebble.search, and independent of it.

Time runs in steps of one computation each. In a step pebbles are taken off, then words loaded that it needs, then one
node is computed (partial: one edge marked) and stored, if at all; a red pebble that is there at the end of a step was
there when the node was computed. Any game can be put in that order at no cost. Needs SciPy: pip install
"redblue[pebble]".
"""

from __future__ import annotations

import time

import numpy as np

from redblue.base.errors import RedblueError
from redblue.pebble.graph import Graph
from redblue.pebble.moves import COMPUTE, DELETE, LOAD, STORE, Game
from redblue.pebble.program import Program
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
    """The cheapest game of at most `steps` computations; None if there is none, or none was found in the time.

    steps: if None, as many as there is to compute; only with recomputation can more help. So `optimal` is True only
    where nothing is recomputed or nothing is moved beyond what must be. time_limit: seconds.
    Raises RedblueError without SciPy, for sliding, and as `solve` does (any number of nodes is taken, and patience).
    """
    rules = rules_of(rules)
    start = time.perf_counter()
    model = _model(graph, red, rules, steps)
    found = model.solve(whole=True, time_limit=time_limit, mip_rel_gap=0)
    if found.x is None:
        return None
    moves = _moves(graph, model, np.round(found.x).astype(int))
    exact = rules.name != "red-blue"
    least = found.mip_dual_bound if exact else 0.0
    cost = check(graph, moves, red, rules).cost
    # Costs are multiples of a unit: what is less than one above the bound is the optimum.
    optimal = exact and found.status == 0 and cost - least < 0.999 * float(cost_unit(rules))
    return Solution(
        cost=cost,
        moves=moves,
        optimal=optimal,
        lower_bound=cost if optimal else least,
        nodes=int(found.mip_node_count),
        seconds=time.perf_counter() - start,
    )


def relaxation(graph: Graph, red: int, rules: str | Rules = "one-shot") -> float:
    """What every game costs at least: the integer program without integrality. Raises RedblueError as solve_milp.

    Only where nothing is recomputed: else no number of steps is enough for all games.
    """
    rules = rules_of(rules)
    if rules.name == "red-blue":
        raise RedblueError("the relaxation bounds games without recomputation: give the rules 'one-shot' or 'partial'")
    found = _model(graph, red, rules, None).solve(whole=False)
    return float(found.fun)


class _Model(Program):
    """The game's program. does: what the rows of its block "do" stand for: (node, parent or -1)."""

    def __init__(self, does: list[tuple[int, int]]) -> None:
        super().__init__()
        self.does = does


def _model(graph: Graph, red: int, rules: Rules, steps: int | None) -> _Model:
    check_red(graph, red, rules)
    if rules.levels > 2 or rules.sliding:
        raise RedblueError("the integer program plays two levels of memory without sliding")
    blue, words, n = rules.starts_blue(graph), rules.words_of(graph), graph.n
    does = [(int(v), -1) for v in np.flatnonzero(~blue) if not rules.partial or not graph.in_degree[v]]
    if rules.partial:
        does += list(zip(graph.heads.tolist(), graph.parents.tolist(), strict=True))
    model, least = _Model(does), len(does)
    steps = least if steps is None or rules.name != "red-blue" else steps
    if steps < least:
        raise RedblueError(f"steps is {steps}: this graph needs at least {least}, one per node to compute")
    has = model.block("has", n, steps + 1)  # red at the end of each step
    saved = model.block("saved", n, steps + 1)  # blue
    loads = model.block("load", n, steps + 1, cost=rules.load_cost * words)
    stores = model.block("store", n, steps + 1, cost=rules.store_cost * words)
    do = model.block("do", least, steps + 1, cost=rules.compute_cost)
    into = [[i for i, (node, _) in enumerate(model.does) if node == v] for v in range(n)]
    needs = [[p] if p >= 0 else graph.parents_of(v).tolist() for v, p in model.does]
    uses = [
        [i for i, (node, _) in enumerate(model.does) if v in needs[i] or (node == v and rules.partial)]
        for v in range(n)
    ]
    for v in range(n):
        model.at_most(0, (1, [has[v, 0], loads[v, 0], stores[v, 0], *do[into[v], 0]]))
        model.at_most(float(blue[v]), (1, saved[v, 0]))
        for t in range(1, steps + 1):
            model.at_most(0, (1, has[v, t]), (-1, [has[v, t - 1], loads[v, t], *do[into[v], t]]))
            model.at_most(0, (1, loads[v, t]), (-1, saved[v, t - 1]))
            model.at_most(0, (1, stores[v, t]), (-1, has[v, t]))
            model.at_most(0, (1, saved[v, t]), (-1, [saved[v, t - 1], stores[v, t]]))
    for t in range(1, steps + 1):
        model.at_most(red, *((float(words[v]), has[v, t]) for v in range(n)))
        model.at_most(1, (1, do[:, t]))
        for i, (node, _) in enumerate(model.does):
            for v in (node, *needs[i]):
                model.at_most(0, (1, do[i, t]), (-1, has[v, t]))
        if t > 1:
            model.at_most(0, (1, do[:, t]), (-1, do[:, t - 1]))
        for v in range(n):
            model.at_most(0, (1, loads[v, t]), (-1, [do[i, t] for i in uses[v]]))
            model.at_most(0, (1, stores[v, t]), (-1, do[into[v], t]))
    for i in range(least):
        if rules.name != "red-blue":
            model.at_most(-1, (-1, do[i]))
            model.at_most(1, (1, do[i]))
    for v in graph.sinks:
        model.at_most(-1, (-1, [saved[v, steps], *([] if rules.sinks_end_blue else [has[v, steps]])]))
    if rules.partial:
        _aggregation(graph, model, into)
    return model


def _aggregation(graph: Graph, model: _Model, into: list[list[int]]) -> None:
    """What holds with partial computation alone."""
    has, saved, loads, stores, do = (model.blocks[name] for name in ("has", "saved", "load", "store", "do"))
    steps, sinks = do.shape[1] - 1, {*graph.sinks.tolist()}
    out = [[i for i, (_, parent) in enumerate(model.does) if parent == v] for v in range(graph.n)]
    over = model.block("over", graph.n, steps + 1)  # no longer needed: nothing in or out is unmarked
    for v in range(graph.n):
        for t in range(1, steps + 1):
            for i in out[v] + into[v]:
                model.at_most(0, (1, over[v, t]), (-1, do[i, : t + 1]))
            if v in sinks:
                model.at_most(0, (1, over[v, t]))
            # A dark red pebble stays.
            model.at_most(0, (1, has[v, t - 1]), (-1, [has[v, t], saved[v, t - 1], over[v, t - 1]]))
            # What slow memory holds is out of date once more is aggregated.
            model.at_most(1, (1, [saved[v, t], *do[into[v], t]]), (-1, stores[v, t]))
            for i in out[v]:  # finished first
                for j in into[v]:
                    model.at_most(0, (1, do[i, t]), (-1, do[j, :t]))
            for i in into[v]:  # aggregated where the rest of it is
                for j in into[v]:
                    if j != i:
                        model.at_most(1, (1, [do[i, t], *do[j, :t]]), (-1, [has[v, t - 1], loads[v, t]]))
        model.at_most(0, (1, over[v, 0]))


def _moves(graph: Graph, model: _Model, values: np.ndarray) -> Game:
    """The game that a solution plays."""
    has, loads, stores, do = (values[model.blocks[name]] for name in ("has", "load", "store", "do"))
    moves = []
    for t in range(1, has.shape[1]):
        moves += [(DELETE, v) for v in range(graph.n) if has[v, t - 1] and not has[v, t]]
        moves += [(LOAD, v) for v in range(graph.n) if loads[v, t]]
        moves += [(COMPUTE, *model.does[i]) for i in range(len(do)) if do[i, t]]
        moves += [(STORE, v) for v in range(graph.n) if stores[v, t]]
    return Game.of(moves)
