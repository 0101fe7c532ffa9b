"""Heuristic for large graphs: play many orders of computing with several evictions, and keep the cheapest game."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from redblue.base.arguments import checked_arguments
from redblue.base.integers import whole_number
from redblue.compiled import _core
from redblue.pebble.bounds import GraphBound, lower_bound
from redblue.pebble.graph import Graph
from redblue.pebble.levels import deepen
from redblue.pebble.moves import COMPUTE, LOAD, STORE, Game
from redblue.pebble.orders import orders
from redblue.pebble.referee import Verdict, check
from redblue.pebble.rules import Rules, board_of, check_red, rules_of

MAX_STEPS = 5_000_000  # nodes that the local search plays in all its tries together
MENDED = ", mended"  # suffix to the name of an order that the local search changed
# Every order is tried with the first eviction. Orders within this factor of the least cost are tried with the others.
NEAR_BEST = 1.2


class Eviction(NamedTuple):
    """A rule that picks the word to evict.

    recent: if True, evict the least recently used word; if False, the word whose next use is furthest away.
    ratio: factor by which the next use counts as nearer if the word must be stored before it is evicted; None:
        (load_cost + store_cost) / load_cost.
    """

    recent: bool
    ratio: float | None


EVICTIONS = {
    "furthest, by its cost": Eviction(recent=False, ratio=None),
    "furthest (Belady)": Eviction(recent=False, ratio=1),
    "furthest, stored words first": Eviction(recent=False, ratio=float("inf")),
    "least recently used": Eviction(recent=True, ratio=1),
}


@dataclass(frozen=True)
class HeuristicGame:
    """A legal game, checked by the referee, without a proof that no game is cheaper.

    order, eviction: names of the order of computing and of the eviction that gave this game. tried: games compared.
    """

    graph: Graph
    red: int
    rules: Rules
    cost: float
    moves: Game
    order: str
    eviction: str
    tried: int
    verdict: Verdict

    @cached_property
    def bound(self) -> GraphBound:
        """The largest known lower bound, computed when first asked for (up to some seconds). Needs SciPy."""
        return lower_bound(self.graph, self.red, self.rules)

    @property
    def gap(self) -> float:
        """Cost divided by the lower bound: 1 proves that the game is optimal. NaN if both are 0."""
        return self.cost / self.bound.words if self.bound.words else math.inf if self.cost else math.nan


class _Attempt(NamedTuple):
    cost: float
    moves: Game
    order: np.ndarray
    name: str
    eviction: str


@checked_arguments
def heuristic(
    graph: Graph, red: int, rules: str | Rules = "red-blue", *, tries: int = 3000, seed: int = 0
) -> HeuristicGame:
    """Search for a cheap game: play every order of computing with several evictions, then improve the best order.

    tries: number of tries of the local search. Each try moves one node of the best order to another place, and the new
        order is kept if it costs no more. Large graphs get fewer tries (MAX_STEPS).
    seed: the seed of the local search's random numbers.
    A node whose parents are all red is recomputed instead of loaded, if recomputation is allowed and costs no more than
    a load. With more than two levels of memory, the game of the first two is extended level by level. Ctrl-C ends the
    search, and the best game so far is returned.
    Raises RedblueError if `red` words cannot compute every node, and for invalid rules, `tries` and `seed`.
    """
    rules = rules_of(rules)
    red, tries, seed = check_red(graph, red, rules), whole_number("tries", tries, 0), whole_number("seed", seed, 0)
    tried, best = 0, None
    try:
        for attempt in _attempts(graph, red, rules, tries, np.random.default_rng(seed)):
            tried += 1
            if best is None or attempt.cost < best.cost:
                best = attempt
    except KeyboardInterrupt:
        if best is None:
            raise
    assert best is not None
    moves = deepen(graph, best.moves, rules)
    verdict = check(graph, moves, red, rules)
    return HeuristicGame(graph, red, rules, verdict.cost, moves, best.name, best.eviction, tried, verdict)


def _attempts(graph: Graph, red: int, rules: Rules, tries: int, draw: np.random.Generator) -> Iterator[_Attempt]:
    """Yield every game to compare."""
    play = _player(graph, red, rules)
    first, *others = EVICTIONS
    with_first = []
    for name, order in orders(graph, _needed(graph, rules), red):
        with_first.append(play(order, name, first))
        yield with_first[-1]
    best = min(with_first, key=lambda attempt: attempt.cost)
    for near in [attempt for attempt in with_first if attempt.cost <= NEAR_BEST * best.cost]:
        for other in others:
            attempt = play(near.order, near.name, other)
            yield attempt
            best = min(best, attempt, key=lambda attempt: attempt.cost)
    for _ in range(min(tries, MAX_STEPS // graph.n) if best.order.size > 1 else 0):
        attempt = play(_shifted(graph, best.order, draw), f"{best.name.removesuffix(MENDED)}{MENDED}", best.eviction)
        yield attempt
        if attempt.cost <= best.cost:
            best = attempt


def _needed(graph: Graph, rules: Rules) -> np.ndarray:
    """Whether each node must be computed, (n,): all nodes with parents, and isolated nodes that do not start blue."""
    needed = graph.in_degree > 0
    needed[graph.sinks] |= ~rules.starts_blue(graph)[graph.sinks]
    return needed


def _player(graph: Graph, red: int, rules: Rules) -> Callable[[np.ndarray, str, str], _Attempt]:
    """Return a function that plays an order with an eviction, on two levels of memory."""
    board, words = board_of(graph, (red,), rules), rules.words_of(graph)
    cost_ratio = (rules.load_cost + rules.store_cost) / rules.load_cost if rules.load_cost else 1
    recomputes = rules.name == "red-blue" and rules.compute_cost <= rules.load_cost

    def play(order: np.ndarray, name: str, eviction: str) -> _Attempt:
        recent, ratio = EVICTIONS[eviction]
        moves = _core.pebble_play(board, order, recent, cost_ratio if ratio is None else ratio, recomputes)
        kinds, nodes, _ = moves
        loads, stores = (int(words[nodes[kinds == kind]].sum()) for kind in (LOAD, STORE))
        computes = np.count_nonzero(kinds == COMPUTE)
        cost = rules.load_cost * loads + rules.store_cost * stores + rules.compute_cost * computes
        return _Attempt(cost, Game.from_arrays(*moves), order, name, eviction)

    return play


def _shifted(graph: Graph, order: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Move a random node to a random place between its parents and its children."""
    position = np.full(graph.n, -1)
    position[order] = np.arange(order.size)
    old = int(draw.integers(order.size))
    v = int(order[old])
    first = int(position[graph.parents_of(v)].max(initial=-1)) + 1
    last = int(position[graph.children_of(v)].min(initial=order.size)) - 1
    new = int(draw.integers(first, last + 1))
    return np.insert(np.delete(order, old), new, v)
