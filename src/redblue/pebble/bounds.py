"""Lower bounds on what every game on a graph costs, each with the rules it holds for.

In a game of several levels of memory, the levels up to a boundary together are the red pebbles of a game of two: the
bounds of all boundaries add up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from redblue.pebble.cuts import spectral, wavefront
from redblue.pebble.graph import Graph
from redblue.pebble.milp import relaxation
from redblue.pebble.partition import largest_phase, moved
from redblue.pebble.rules import Rules, check_red, rules_of
from redblue.pebble.search import MOST_NODES, least_cost

PARTITION_NODES = 150  # an integer program of that size takes a few seconds
ANY = ("red-blue", "one-shot", "partial")
RELAXED_VARIABLES = 1500  # a linear program of that size takes about a second


@dataclass(frozen=True)
class GraphBound:
    """words: what every game costs at least, in the rules' costs.

    method: "compulsory", "partition", "wavefront", "spectral", "search" (what the exact solver proves in a little
    memory) or "relaxation" (of the integer program). certificate: the Phase of a partition (redblue.pebble.partition
    verifies it), the node of a wavefront, the number of phases of a spectral bound; None of the others. Where there are
    several levels of memory, one per boundary, nearest first.
    """

    words: float
    method: str
    certificate: Any = None


class Moved(NamedTuple):
    """Words that every game moves. either: beyond loads and stores, of one kind or the other."""

    loads: float = 0
    stores: float = 0
    either: float = 0
    certificate: Any = None


class Method(NamedTuple):
    """A kind of bound: the rules it holds for, and the words moved in a game with `red` red pebbles."""

    rules: tuple[str, ...]
    moved: Callable[[Graph, int, Rules], Moved]
    applies: Callable[[Graph, Rules], bool] = lambda graph, rules: True


def _compulsory(graph: Graph, red: int, rules: Rules) -> Moved:
    """Every input that anything needs is loaded, every output stored."""
    words, blue, sink = rules.words_of(graph), rules.starts_blue(graph), graph.out_degree == 0
    return Moved(int(words[blue & ~sink].sum()), int(words[~blue & sink].sum()) if rules.sinks_end_blue else 0)


def _partition(graph: Graph, red: int, rules: Rules) -> Moved:
    """Phases of as many words as are red, of twice and of half as many: the best."""
    phases = [largest_phase(graph, red, words, rules) for words in sorted({max(1, red // 2), red, 2 * red})]
    best = max(phases, key=lambda phase: moved(graph, phase))
    return Moved(either=moved(graph, best), certificate=best)


def _wavefront(graph: Graph, red: int, rules: Rules) -> Moved:
    least = _compulsory(graph, red, rules)
    again, at = wavefront(graph, red, rules)
    return Moved(least.loads + again, least.stores + again, certificate=at)


def _spectral(graph: Graph, red: int, rules: Rules) -> Moved:
    least = _compulsory(graph, red, rules)
    beyond, phases = spectral(graph, red, rules)
    return Moved(least.loads, least.stores, beyond, certificate=phases)


def _plain(graph: Graph, rules: Rules) -> bool:
    """Words of 1; every source an input."""
    return rules.weights is None and rules.inputs_start_blue and not rules.constants and rules.sinks_end_blue


METHODS = {
    "compulsory": Method(ANY, _compulsory),
    "partition": Method(("red-blue", "one-shot"), _partition, lambda graph, rules: graph.n <= PARTITION_NODES),
    "wavefront": Method(("one-shot",), _wavefront, _plain),
    "spectral": Method(("one-shot",), _spectral, _plain),
}


def lower_bounds(graph: Graph, red: int, rules: str | Rules = "red-blue") -> list[GraphBound]:
    """Every bound that holds for these rules, the largest first.

    Raises RedblueError for `red` below the least that works, and without SciPy.
    """
    rules = rules_of(rules)
    check_red(graph, red, rules)
    found = [
        _summed(name, method, graph, red, rules)
        for name, method in METHODS.items()
        if rules.name in method.rules and method.applies(graph, rules)
    ]
    small = graph.n <= MOST_NODES and (not rules.partial or len(graph.parents) <= 2 * MOST_NODES)
    if rules.levels == 2 and small:
        found.append(GraphBound(least_cost(graph, red, rules), "search"))
    if (
        rules.levels == 2
        and rules.name != "red-blue"
        and not rules.sliding
        and _variables(graph, rules) <= RELAXED_VARIABLES
    ):
        found.append(GraphBound(_rounded(relaxation(graph, red, rules), rules), "relaxation"))
    return sorted(found, key=lambda bound: -bound.words)


def lower_bound(graph: Graph, red: int, rules: str | Rules = "red-blue") -> GraphBound:
    """The largest bound known on what a game on `graph` costs with `red` words of red pebbles; see lower_bounds."""
    return lower_bounds(graph, red, rules)[0]


def _summed(name: str, method: Method, graph: Graph, red: int, rules: Rules) -> GraphBound:
    """The bound over all boundaries, and what every game computes."""
    # what holds the whole graph is as good as anything larger
    most = int(rules.words_of(graph).sum())
    capacities = np.minimum(np.cumsum([red, *(level.words for level in rules.further)]), most).tolist()
    moved = [method.moved(graph, capacity, rules) for capacity in capacities]
    costs = zip(moved, rules.load_costs, rules.store_costs, strict=True)
    words = sum(m.loads * load + m.stores * store + m.either * min(load, store) for m, load, store in costs)
    certificates = [m.certificate for m in moved]
    return GraphBound(words + _computing(graph, rules), name, certificates[0] if rules.levels == 2 else certificates)


def _computing(graph: Graph, rules: Rules) -> float:
    """Every node is computed, with partial computation every edge marked."""
    free = (graph.in_degree == 0) & ~rules.starts_blue(graph)
    inner = len(graph.parents) if rules.partial else np.count_nonzero(graph.in_degree)
    return rules.compute_cost * (int(inner) + int(np.count_nonzero(free)))


def _variables(graph: Graph, rules: Rules) -> int:
    """Of the integer program, in blocks; with partial computation it has more rows for each."""
    return graph.n * (4 * len(graph.parents) if rules.partial else int(np.count_nonzero(graph.in_degree)))


def _rounded(words: float, rules: Rules) -> float:
    """Up to a whole number where costs are, safely."""
    whole = all(float(c).is_integer() for c in (rules.load_cost, rules.store_cost, rules.compute_cost))
    return int(np.ceil(words - 1e-6)) if whole else words * (1 - 1e-9)
