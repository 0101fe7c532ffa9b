"""The cheapest game on a graph of up to 128 nodes, proved to be the cheapest.

A* over the states of the game (compiled, cpp/pebble_search.h). What keeps it small, each losing no optimum:

- One step computes one node. Pebbles are taken off only where room is needed for it, stored only as they are taken off,
  and loaded only just before. What is free and never wrong (a useless pebble, with recomputation any node that can be
  computed in free room, a sink's store) is done at once.
- States that a symmetry of the graph makes equal are one.
- What the rest costs at least: with recomputation a minimum cut, the words to load and store with any number of red
  pebbles from here on; else every value still needed that is not red is loaded, and every sink stored.
- States are made only when their total is due (partial expansion A*; Yoshizumi, Miura, Ishida, AAAI 2000), and no
  pebble is taken off without which the total would be more. A beam search finds a first game before.
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
from redblue.pebble.rules import Rules, check_red, rules_of

MOST_NODES = 128
BEAM = 10  # states per level of the search for a first game
SYMMETRIES = 256  # of the graph used at most: each is tried on every state
LARGEST_COST = 1_000_000  # of a word or a node, in the unit that makes all costs whole
MOST_COST = 1 << 30  # of a game, in that unit


class Progress(NamedTuple):
    """Where a search stands. cost: of the best game so far, None before the first. nodes: states expanded."""

    cost: float | None
    lower_bound: float
    nodes: int
    stored: int
    seconds: float


@dataclass(frozen=True)
class Solution:
    """A game and what is known of it.

    cost: by the rules' costs. optimal: whether no game is cheaper, which then is proved. lower_bound: what every game
    costs at least; equal to cost if optimal. nodes: states expanded.
    """

    cost: float
    moves: Game
    optimal: bool
    lower_bound: float
    nodes: int
    seconds: float


def least_cost(graph: Graph, red: int, rules: str | Rules = "red-blue", memory_bytes: int = 2 << 20) -> float:
    """What every game costs at least, as far as the search proves it in so much memory; raises as `solve` does."""
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
    red, memory_bytes = check_red(graph, red, rules), whole_number("memory_bytes", memory_bytes)
    _check_size(graph, rules)
    costs, unit = _whole_costs(rules)
    _check_total(graph, rules, costs)
    start = time.perf_counter()

    def keep_on(cost: int, lower_bound: int, nodes: int, stored: int) -> bool:
        if progress is not None:
            best = None if cost < 0 else _plain(cost, unit)
            progress(Progress(best, _plain(lower_bound, unit), nodes, stored, time.perf_counter() - start))
        return True

    cost, lower_bound, optimal, nodes, *arrays = _core.search_pebbles(
        graph.starts,
        graph.parents,
        rules.words_of(graph),
        rules.starts_blue(graph).astype(np.uint8),
        red,
        costs,
        (rules.name == "one-shot", rules.partial, rules.sliding, rules.sinks_end_blue),
        seconds,
        memory_bytes,
        beam,
        SYMMETRIES,
        keep_on,
    )
    moves = Game.from_arrays(*arrays) if cost >= 0 else _first_game(graph, rules)
    return Solution(
        cost=_plain(cost, unit) if cost >= 0 else check(graph, moves, red, rules).cost,
        moves=moves,
        optimal=optimal,
        lower_bound=_plain(lower_bound, unit),
        nodes=nodes,
        seconds=time.perf_counter() - start,
    )


def _first_game(graph: Graph, rules: Rules) -> Game:
    """A game of any cost: each node's parents are loaded, the node is computed and stored, and all are taken off."""
    words, blue, moves = rules.words_of(graph), rules.starts_blue(graph), []
    for v in np.flatnonzero(~blue).tolist():
        above = sorted(graph.parents_of(v).tolist(), key=lambda p: words[p])
        if rules.partial and above:
            for p in above:
                moves += [(LOAD, p), (COMPUTE, v, p), (DELETE, p)]
        else:
            slides = above[-1:] if rules.sliding else []
            moves += [(LOAD, p) for p in above] + [(COMPUTE, v, *slides)]
            moves += [(DELETE, p) for p in above if p not in slides]
        moves += [(STORE, v), (DELETE, v)]
    return Game.of(moves)


def _whole_costs(rules: Rules) -> tuple[tuple[int, int, int], Fraction]:
    """Costs of a load, a store, a computation in the largest unit that makes all of them whole, and that unit."""
    # By their decimals: 0.1 is meant as a tenth.
    costs = [Fraction(repr(float(c))) for c in (rules.load_cost, rules.store_cost, rules.compute_cost)]
    scale = math.lcm(*(c.denominator for c in costs))
    divisor = math.gcd(*(int(c * scale) for c in costs)) or 1
    load, store, compute = (int(c * scale) // divisor for c in costs)
    if max(load, store, compute) > LARGEST_COST:
        raise RedblueError(
            f"load_cost {rules.load_cost}, store_cost {rules.store_cost} and compute_cost {rules.compute_cost} must be "
            f"at most {LARGEST_COST:,} multiples of one unit: round them"
        )
    return (load, store, compute), Fraction(divisor, scale)


def cost_unit(rules: Rules) -> Fraction:
    """The largest number that the costs of all moves, and so of games, are multiples of."""
    return _whole_costs(rules)[1]


def _check_total(graph: Graph, rules: Rules, costs: tuple[int, int, int]) -> None:
    """The search counts costs in 32 bits: the first game that there always is must fit."""
    (load, store, compute), words = costs, rules.words_of(graph)
    loaded, stored = int(words[graph.parents].sum()), int(words.sum())
    most = load * loaded + store * stored + compute * (graph.n + len(graph.parents))
    if most >= MOST_COST:
        raise RedblueError(
            f"a game may cost up to {most:,} units of {float(_whole_costs(rules)[1]):g}, solve takes less than "
            f"{MOST_COST:,}: round costs or weights"
        )


def _plain(cost: int, unit: Fraction) -> float:
    """A cost in the rules' unit; whole if it is."""
    exact = cost * unit
    return int(exact) if exact.denominator == 1 else float(exact)


def _check_size(graph: Graph, rules: Rules) -> None:
    if rules.levels > 2:
        raise RedblueError(
            f"solve plays two levels of memory, these rules have {rules.levels}: use heuristic, and check"
        )
    if graph.n > MOST_NODES:
        raise RedblueError(f"solve takes at most {MOST_NODES} nodes, this graph has {graph.n}: use heuristic")
    if rules.partial and len(graph.parents) > 2 * MOST_NODES:
        raise RedblueError(
            f"with partial computation solve takes at most {2 * MOST_NODES} edges, this graph has "
            f"{len(graph.parents)}: use heuristic"
        )
