"""Exact search: the cheapest game on a graph of up to 128 nodes, with a proof that no game is cheaper.

The search is A* over the states of the game, in the compiled core. Four reductions keep it small without losing an
optimum:

- One step computes one node. A pebble is deleted only to make room for that node, stored only when it is deleted, and
  loaded only just before the computation. Moves that are free and never harmful are made at once: deleting a useless
  pebble, storing a sink, and with recomputation computing a node for which there is free room.
- States that a symmetry of the graph maps onto each other are merged.
- The lower bound on the remaining cost is, with recomputation, a minimum cut: the words to load and store if red
  pebbles were unlimited from here on. Without recomputation, each value that is still needed and not red is loaded, and
  each sink stored.
- A successor is generated only when the search reaches its total cost (partial expansion A*; Yoshizumi, Miura, Ishida,
  AAAI 2000), and a pebble is not deleted if the total cost would then exceed the cost that the search has reached.

A beam search finds a first game before A* starts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from redblue.base.errors import RedblueError
from redblue.base.integers import whole_number
from redblue.compiled import _core
from redblue.pebble.graph import Graph
from redblue.pebble.moves import COMPUTE, DELETE, LOAD, STORE, Game
from redblue.pebble.referee import check
from redblue.pebble.rules import Rules, board_of, check_red, rules_of

MAX_NODES = 128
BEAM = 10  # states per level of the beam search for a first game
MAX_SYMMETRIES = 256  # symmetries of the graph in use; each is applied to every state
MAX_MOVE_COST = (
    1_000_000  # per word moved or node computed, in cost units (the largest unit of which all costs are multiples)
)
MAX_GAME_COST = 1 << 30  # in cost units: the search counts in 32 bits


class Progress(NamedTuple):
    """Progress of a search.

    cost: of the best game so far, None before the first. lower_bound: proved so far. nodes: states expanded.
    stored: states in memory.
    """

    cost: float | None
    lower_bound: float
    nodes: int
    stored: int
    seconds: float


@dataclass(frozen=True)
class Solution:
    """A game, and the proof of how good it is.

    cost: by the costs of the rules. optimal: whether it is proved that no game is cheaper.
    lower_bound: proved for every game; equal to `cost` if optimal. nodes: states expanded.
    """

    cost: float
    moves: Game
    optimal: bool
    lower_bound: float
    nodes: int
    seconds: float


def least_cost(graph: Graph, red: int, rules: str | Rules = "red-blue", memory_bytes: int = 2 << 20) -> float:
    """Return the lower bound that the search proves within `memory_bytes` of states. Raises as `solve` does."""
    return search(graph, red, rules_of(rules), 0, None, memory_bytes, 0).lower_bound


def search(
    graph: Graph,
    red: int,
    rules: Rules,
    seconds: float,
    progress: Callable[[Progress], None] | None,
    memory_bytes: int,
    beam: int,
) -> Solution:
    """Run the compiled search. seconds: 0 for no limit. beam: width of the beam search, 0 for none."""
    red, memory_bytes = check_red(graph, red, rules), whole_number("memory_bytes", memory_bytes)
    costs, unit = _accepted_costs(graph, rules)
    start = time.perf_counter()

    def keep_on(at: _core.PebbleProgress) -> bool:
        if progress is not None:
            best = None if at.cost < 0 else _by_rules(at.cost, unit)
            lower_bound, taken = _by_rules(at.lower_bound, unit), time.perf_counter() - start
            progress(Progress(best, lower_bound, at.expanded, at.stored, taken))
        return True

    limits = _core.PebbleLimits(seconds=seconds, bytes=memory_bytes, beam=beam, symmetries=MAX_SYMMETRIES)
    result = _core.search_pebbles(board_of(graph, (red,), rules), costs, limits, keep_on)
    if result.cost >= 0:
        moves = Game.from_arrays(result.kinds, result.nodes, result.parents)
        cost = _by_rules(result.cost, unit)
    else:
        moves = _first_game(graph, rules)
        cost = check(graph, moves, red, rules).cost
    return Solution(
        cost=cost,
        moves=moves,
        optimal=result.proved,
        lower_bound=_by_rules(result.lower_bound, unit),
        nodes=result.expanded,
        seconds=time.perf_counter() - start,
    )


def accepts(graph: Graph, rules: Rules) -> bool:
    """Whether the search takes games on this graph with these rules, costs and weights."""
    try:
        _accepted_costs(graph, rules)
    except RedblueError:
        return False
    return True


def _accepted_costs(graph: Graph, rules: Rules) -> tuple[_core.PebbleCosts, Fraction]:
    """Return the costs as _unit_costs does. Raises RedblueError for games that the search cannot hold or count."""
    _check_size(graph, rules)
    costs, unit = _unit_costs(rules)
    _check_total(graph, rules, costs)
    return costs, unit


def _first_game(graph: Graph, rules: Rules) -> Game:
    """Return a legal but expensive game: for each node, load its parents, compute and store it, delete all pebbles."""
    words, blue, moves = rules.words_of(graph), rules.starts_blue(graph), []
    for v in np.flatnonzero(~blue).tolist():
        parents = sorted(graph.parents_of(v).tolist(), key=lambda p: words[p])
        if rules.partial and parents:
            for p in parents:
                moves += [(LOAD, p), (COMPUTE, v, p), (DELETE, p)]
        else:
            sliding = parents[-1:] if rules.sliding else []
            moves += [(LOAD, p) for p in parents] + [(COMPUTE, v, *sliding)]
            moves += [(DELETE, p) for p in parents if p not in sliding]
        moves += [(STORE, v), (DELETE, v)]
    return Game.of(moves)


def _unit_costs(rules: Rules) -> tuple[_core.PebbleCosts, Fraction]:
    """Return the costs of a load, a store and a computation in cost units, and the cost unit."""
    # Convert floats by the decimals: a cost of 0.1 means a tenth, not the nearest binary fraction.
    costs = [Fraction(repr(c)) for c in (rules.load_cost, rules.store_cost, rules.compute_cost)]
    scale = math.lcm(*(c.denominator for c in costs))
    divisor = math.gcd(*(int(c * scale) for c in costs)) or 1
    load, store, compute = (int(c * scale) // divisor for c in costs)
    if max(load, store, compute) > MAX_MOVE_COST:
        raise RedblueError(
            f"load_cost {rules.load_cost}, store_cost {rules.store_cost} and compute_cost {rules.compute_cost} must be "
            f"at most {MAX_MOVE_COST:,} multiples of one unit: round them"
        )
    return _core.PebbleCosts(load=load, store=store, compute=compute), Fraction(divisor, scale)


def cost_unit(rules: Rules) -> Fraction:
    """Return the cost unit: the largest number of which all costs of moves, and so of games, are multiples."""
    return _unit_costs(rules)[1]


def _check_total(graph: Graph, rules: Rules, costs: _core.PebbleCosts) -> None:
    """Raise RedblueError if the game of _first_game could cost more than the search can count."""
    words, computed = rules.words_of(graph), graph.n + len(graph.parents)
    loaded, stored = int(words[graph.parents].sum()), int(words.sum())
    total = costs.load * loaded + costs.store * stored + costs.compute * computed
    if total >= MAX_GAME_COST:
        raise RedblueError(
            f"a game may cost up to {total:,} units of {float(_unit_costs(rules)[1]):g}, and solve counts to less than "
            f"{MAX_GAME_COST:,}: round costs or weights"
        )


def _by_rules(cost: int, unit: Fraction) -> float:
    """Convert cost units to a cost by the rules, an int if it is whole."""
    exact = cost * unit
    return int(exact) if exact.denominator == 1 else float(exact)


def _check_size(graph: Graph, rules: Rules) -> None:
    """Raise RedblueError for games that the compiled search cannot hold."""
    if rules.levels > 2:
        raise RedblueError(f"solve plays two levels of memory, these rules have {rules.levels}: use heuristic instead")
    if graph.n > MAX_NODES:
        raise RedblueError(f"solve takes at most {MAX_NODES} nodes, this graph has {graph.n}: use heuristic")
    if rules.partial and len(graph.parents) > 2 * MAX_NODES:
        raise RedblueError(
            f"with partial computation solve takes at most {2 * MAX_NODES} edges, this graph has "
            f"{len(graph.parents)}: use heuristic"
        )
