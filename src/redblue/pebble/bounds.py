"""Lower bounds on the cost of every game on a graph, each with the rules for which it holds.

In a game of several levels, all levels above a boundary together act as the red pebbles of a game of two levels. So the
bound of a game of two levels holds at each boundary, and the bounds of all boundaries add up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from redblue.base.arguments import checked_arguments
from redblue.base.errors import RedblueError
from redblue.pebble.cuts import spectral, wavefront
from redblue.pebble.graph import Graph
from redblue.pebble.milp import relaxation
from redblue.pebble.partition import largest_phase, words_moved
from redblue.pebble.rules import Rules, check_red, rules_of
from redblue.pebble.search import accepts, cost_unit, least_cost

MAX_PARTITION_NODES = 150  # an integer program of this size takes a few seconds
MAX_PARTITION_WORDS = 100_000  # of all nodes: HiGHS' tolerance of 1e-6 per variable must stay far below one word
ALL_RULES = ("red-blue", "one-shot", "partial")
MAX_RELAXED_VARIABLES = 1500  # as _variables counts; a linear program of this size takes about a second


@dataclass(frozen=True)
class GraphBound:
    """A lower bound on the cost of every game.

    words: the bound, in costs of the rules.
    method: "compulsory", "partition", "wavefront", "spectral", "search" (the bound that the exact solver proves within
        2 MiB of states) or "relaxation" (of the integer program).
    certificate: the Phase of a partition, which redblue.pebble.partition.verify checks; the label of a wavefront's
        node; the number of phases of a spectral bound; otherwise None. With more than two levels of memory, a list with
        the certificate of each boundary, nearest first.
    """

    words: float
    method: str
    certificate: Any = None


class MinimumWords(NamedTuple):
    """Words that every game moves across a boundary. either: words beyond `loads` and `stores`, loaded or stored."""

    loads: float = 0
    stores: float = 0
    either: float = 0
    certificate: Any = None


class Method(NamedTuple):
    """A method for bounds.

    rules: names of the rules for which it holds. minimum: computes the words moved in a game with `red` words.
    applies: whether the method can be used on a graph with these rules.
    """

    rules: tuple[str, ...]
    minimum: Callable[[Graph, int, Rules], MinimumWords]
    applies: Callable[[Graph, Rules], bool] = lambda graph, rules: True


def _compulsory(graph: Graph, red: int, rules: Rules) -> MinimumWords:
    """Each input with children is loaded, and each output is stored."""
    words, blue, sink = rules.words_of(graph), rules.starts_blue(graph), graph.out_degree == 0
    return MinimumWords(int(words[blue & ~sink].sum()), int(words[~blue & sink].sum()) if rules.sinks_end_blue else 0)


def _partition(graph: Graph, red: int, rules: Rules) -> MinimumWords:
    """The best of three partitions, into phases that move red / 2, red and 2 red words."""
    phases = [largest_phase(graph, red, words, rules) for words in sorted({max(1, red // 2), red, 2 * red})]
    best = max(phases, key=lambda phase: words_moved(graph, phase))
    return MinimumWords(either=words_moved(graph, best), certificate=best)


def _wavefront(graph: Graph, red: int, rules: Rules) -> MinimumWords:
    """The compulsory words move. The words by which the widest wavefront exceeds `red` are stored and loaded again."""
    compulsory = _compulsory(graph, red, rules)
    again, label = wavefront(graph, red, rules)
    return MinimumWords(compulsory.loads + again, compulsory.stores + again, certificate=label)


def _spectral(graph: Graph, red: int, rules: Rules) -> MinimumWords:
    """Besides the compulsory words, the words that the spectral bound proves."""
    compulsory = _compulsory(graph, red, rules)
    beyond, phases = spectral(graph, red, rules)
    return MinimumWords(compulsory.loads, compulsory.stores, beyond, certificate=phases)


def _plain(graph: Graph, rules: Rules) -> bool:
    """Whether every node has one word, every source is an input, and every sink ends blue."""
    return rules.weights is None and rules.inputs_start_blue and not rules.constants and rules.sinks_end_blue


def _small(graph: Graph, rules: Rules) -> bool:
    """Whether the integer program of a partition can be solved."""
    return graph.n <= MAX_PARTITION_NODES and int(rules.words_of(graph).sum()) <= MAX_PARTITION_WORDS


METHODS = {
    "compulsory": Method(ALL_RULES, _compulsory),
    "partition": Method(("red-blue", "one-shot"), _partition, _small),
    "wavefront": Method(("one-shot",), _wavefront, _plain),
    "spectral": Method(("one-shot",), _spectral, _plain),
}


@checked_arguments
def lower_bounds(graph: Graph, red: int, rules: str | Rules = "red-blue") -> list[GraphBound]:
    """Compute every bound that holds for these rules; return them with the largest first.

    Sources of the methods: "partition" Hong & Kung (STOC 1981); "wavefront" Elango et al. (SPAA 2014); "spectral" Jain
    & Zaharia (SPAA 2020). "search" and "relaxation" are lower bounds of redblue's own solvers.
    Raises RedblueError for `red` below the least that works, and without SciPy.
    """
    rules = rules_of(rules)
    check_red(graph, red, rules)
    bounds = [
        _over_boundaries(name, method, graph, red, rules)
        for name, method in METHODS.items()
        if rules.name in method.rules and method.applies(graph, rules)
    ]
    if accepts(graph, rules):
        bounds.append(GraphBound(least_cost(graph, red, rules), "search"))
    if (
        rules.levels == 2
        and rules.name != "red-blue"
        and not rules.sliding
        and _variables(graph, rules) <= MAX_RELAXED_VARIABLES
    ):
        bounds.append(GraphBound(_rounded(relaxation(graph, red, rules), rules), "relaxation"))
    return sorted(bounds, key=lambda bound: -bound.words)


@checked_arguments
def lower_bound(graph: Graph, red: int, rules: str | Rules = "red-blue") -> GraphBound:
    """Return the largest known lower bound on the cost of a game with `red` words of red pebbles.

    The methods, their sources and the errors are those of `lower_bounds`.
    """
    return lower_bounds(graph, red, rules)[0]


def _over_boundaries(name: str, method: Method, graph: Graph, red: int, rules: Rules) -> GraphBound:
    """Sum the bounds of all boundaries, and add the cost of computing every node."""
    # Capacities above the words of the whole graph improve no bound, but enlarge the partition's integer program.
    whole_graph = int(rules.words_of(graph).sum())
    capacities = np.minimum(np.cumsum([red, *(level.words for level in rules.further)]), whole_graph).tolist()
    minima = [method.minimum(graph, capacity, rules) for capacity in capacities]
    costs = zip(minima, rules.load_costs, rules.store_costs, strict=True)
    words = sum(m.loads * load + m.stores * store + m.either * min(load, store) for m, load, store in costs)
    certificates = [m.certificate for m in minima]
    return GraphBound(words + _computing(graph, rules), name, certificates[0] if rules.levels == 2 else certificates)


def _computing(graph: Graph, rules: Rules) -> float:
    """Return the cost of computing every node once or, with partial computation, of marking every edge once."""
    computed_sources = (graph.in_degree == 0) & ~rules.starts_blue(graph)
    inner = len(graph.parents) if rules.partial else np.count_nonzero(graph.in_degree)
    return rules.compute_cost * (int(inner) + int(np.count_nonzero(computed_sources)))


def _variables(graph: Graph, rules: Rules) -> int:
    """Estimate the size of the integer program; partial computation counts fourfold, as it adds rows."""
    return graph.n * (4 * len(graph.parents) if rules.partial else int(np.count_nonzero(graph.in_degree)))


def _rounded(words: float, rules: Rules) -> float:
    """Round a bound up to a multiple of the cost unit, if there is one; allow for relative rounding errors of 1e-6."""
    try:
        unit = cost_unit(rules)
    except RedblueError:
        return words * (1 - 1e-6)
    multiple = words / float(unit)
    exact = math.ceil(multiple - 1e-6 * max(1, multiple)) * unit
    return int(exact) if exact.denominator == 1 else float(exact)
