"""Good legal games on large graphs: many orders of computing, times ways of evicting, and the best of all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from redblue.base.integers import whole_number
from redblue.compiled import _core
from redblue.pebble.bounds import GraphBound, lower_bound
from redblue.pebble.graph import Graph
from redblue.pebble.levels import deepen
from redblue.pebble.moves import COMPUTE, LOAD, STORE, Game
from redblue.pebble.orders import orders
from redblue.pebble.referee import Verdict, check
from redblue.pebble.rules import Rules, board_of, check_red, rules_of

MOST_STEPS = 5_000_000  # nodes that a local search may play, all its tries together
MENDED = ", mended"  # said of an order that the local search changed
CLOSE = 1.2  # orders within this factor of the best, with the first eviction, are tried with the others


class Eviction(NamedTuple):
    """Which word is given up: the one due last or, if `recent`, the one used longest ago.

    ratio: how many times further away a word must be that would have to be stored first; None: as many times as it
    costs more.
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
class Found:
    """A legal game, checked by the referee; no proof that none is cheaper.

    order, eviction: what it was made of. tried: games that were compared.
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
        """The best bound known for this graph; some seconds where it is found by a search. Needs SciPy."""
        return lower_bound(self.graph, self.red, self.rules)

    @property
    def gap(self) -> float:
        """Cost over the best bound: 1 proves that the game is optimal. NaN where both are 0."""
        return self.cost / self.bound.words if self.bound.words else math.inf if self.cost else math.nan


class _Attempt(NamedTuple):
    cost: float
    moves: Game
    order: np.ndarray
    name: str
    eviction: str


def heuristic(graph: Graph, red: int, rules: str | Rules = "red-blue", *, tries: int = 3000, seed: int = 0) -> Found:
    """The cheapest game found: orders of computing, times ways of evicting, then a local search of `tries` tries.

    The search moves one node of the best order at a time to another place, and keeps what is no dearer; on large graphs
    it tries less (MOST_STEPS). A load becomes a computation where recomputing is allowed and all parents are red. More
    than two levels of memory are filled one after the other, each with what the level before it asks for. Ctrl-C ends
    the search; the best so far is returned.
    Raises RedblueError as `check` does, for `red` and rules that cannot be played.
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
    return Found(graph, red, rules, verdict.cost, moves, best.name, best.eviction, tried, verdict)


def _attempts(graph: Graph, red: int, rules: Rules, tries: int, draw: np.random.Generator) -> Iterator[_Attempt]:
    """Every game that is compared."""
    play = _player(graph, red, rules)
    first, *others = EVICTIONS
    plain = []
    for name, order in orders(graph, _needed(graph, rules), red):
        plain.append(play(order, name, first))
        yield plain[-1]
    best = min(plain, key=lambda attempt: attempt.cost)
    for near in [attempt for attempt in plain if attempt.cost <= CLOSE * best.cost]:
        for other in others:
            attempt = play(near.order, near.name, other)
            yield attempt
            best = min(best, attempt, key=lambda attempt: attempt.cost)
    for _ in range(min(tries, MOST_STEPS // graph.n) if best.order.size > 1 else 0):
        attempt = play(_shifted(graph, best.order, draw), f"{best.name.removesuffix(MENDED)}{MENDED}", best.eviction)
        yield attempt
        if attempt.cost <= best.cost:
            best = attempt


def _needed(graph: Graph, rules: Rules) -> np.ndarray:
    """Which nodes must be computed: all but inputs, and inputs that are outputs too but start nowhere."""
    needed = graph.in_degree > 0
    needed[graph.sinks] |= ~rules.starts_blue(graph)[graph.sinks]
    return needed


def _player(graph: Graph, red: int, rules: Rules) -> Callable[[np.ndarray, str, str], _Attempt]:
    """Plays an order with an eviction, on two levels of memory."""
    board, words = board_of(graph, (red,), rules), rules.words_of(graph)
    dearer = (rules.load_cost + rules.store_cost) / rules.load_cost if rules.load_cost else 1
    recomputes = rules.name == "red-blue" and rules.compute_cost <= rules.load_cost

    def play(order: np.ndarray, name: str, eviction: str) -> _Attempt:
        recent, ratio = EVICTIONS[eviction]
        moves = _core.pebble_play(board, order, recent, dearer if ratio is None else ratio, recomputes)
        kinds, nodes, _ = moves
        loads, stores = (int(words[nodes[kinds == kind]].sum()) for kind in (LOAD, STORE))
        computes = np.count_nonzero(kinds == COMPUTE)
        cost = rules.load_cost * loads + rules.store_cost * stores + rules.compute_cost * computes
        return _Attempt(cost, Game.from_arrays(*moves), order, name, eviction)

    return play


def _shifted(graph: Graph, order: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """The order with one node elsewhere, between its parents and its children."""
    place = np.full(graph.n, -1)
    place[order] = np.arange(order.size)
    at = int(draw.integers(order.size))
    v = int(order[at])
    first = int(place[graph.parents_of(v)].max(initial=-1)) + 1
    last = int(place[graph.children_of(v)].min(initial=order.size)) - 1
    to = int(draw.integers(first, last + 1))
    return np.insert(np.delete(order, at), to, v)
