"""Lower bound by partition into phases (Hong & Kung, STOC 1981), with the largest phase computed exactly.

Cut a game without useless computations into phases that each move T words: l loaded and s stored. Let V be the set of
nodes that one phase computes for the first time.

- The dominator of V: the nodes that are red when the phase begins or are loaded in it, at most red + l words. Every
  path from an input to V meets the dominator.
- The minimum set of V: the nodes of V without children in V. Each of these nodes is red when the phase ends or is
  stored in it, so they have at most red + s words.

Both statements hold with recomputation, too. If no set with such a dominator and such a minimum set has more than U
nodes, then every game has at least ceil(nodes / U) phases, and all but the last move T words.

U is the optimum of an integer program, solved by HiGHS. If HiGHS reaches its limit of search nodes, U is the upper
bound proved up to that point.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from redblue.base.errors import RedblueError
from redblue.pebble.graph import Graph
from redblue.pebble.integer_program import Program
from redblue.pebble.rules import Rules, rules_of

MAX_SEARCH_NODES = 200  # of HiGHS' branch and bound


@dataclass(frozen=True)
class Phase:
    """The largest phase that HiGHS found, and the proved maximum over all phases.

    words: words that a phase moves. max_nodes: no phase computes more nodes for the first time.
    nodes, dominator, minimum: the phase found, its dominator and its minimum set. If it has `max_nodes` nodes, the
    bound is the best that this method can give.
    """

    words: int
    max_nodes: int
    nodes: tuple[int, ...]
    dominator: tuple[int, ...]
    minimum: tuple[int, ...]


def largest_phase(graph: Graph, red: int, words: int, rules: str | Rules = "red-blue") -> Phase:
    """Find the phase that moves `words` words and computes the most nodes. Raises RedblueError without SciPy."""
    rules = rules_of(rules)
    size, blue = rules.words_of(graph).astype(float), rules.starts_blue(graph)
    inner = graph.in_degree > 0
    program = Program()
    reached = program.block("reached", graph.n, cost=np.where(inner, -1.0, 0.0))  # in the phase or in its dominator
    dominates = program.block("dominates", graph.n)
    minimal = program.block("minimal", graph.n)
    for v in range(graph.n):
        parents = graph.parents_of(v)
        if blue[v]:
            program.at_most(0, (1, reached[v]), (-1, dominates[v]))
        for p in parents:
            program.at_most(0, (1, reached[v]), (-1, [dominates[v], reached[p]]))
        if len(parents):
            program.at_most(0, (1, reached[v]), (-1, [minimal[v], *reached[graph.children_of(v)]]))
    # Binary digits of the words stored, because one variable per word would be too many for nodes of many words.
    powers = 2.0 ** np.arange(words.bit_length())
    digits = program.block("stored", len(powers))
    program.at_most(words, *_words(powers, digits))
    program.at_most(red + words, *_words(size, dominates), *_words(powers, digits))
    program.at_most(red, *_words(size, minimal), *_words(-powers, digits))
    result = program.solve(node_limit=MAX_SEARCH_NODES)
    values = np.zeros(program.size) if result.x is None else np.round(result.x)
    bound = result.mip_dual_bound
    max_nodes = int(np.count_nonzero(inner)) if bound is None else int(np.floor(-bound + 1e-6))
    nodes = np.flatnonzero((values[reached] > 0) & inner)
    return Phase(
        words,
        max_nodes,
        tuple(nodes.tolist()),
        tuple(np.flatnonzero(values[dominates]).tolist()),
        minimum_set(graph, nodes),
    )


def words_moved(graph: Graph, phase: Phase) -> int:
    """Return the fewest words that a game can move if no phase computes more than phase.max_nodes nodes."""
    phases = -(-int(np.count_nonzero(graph.in_degree)) // max(1, phase.max_nodes))
    return phase.words * max(0, phases - 1) + (phases > 1)


def verify(graph: Graph, red: int, phase: Phase, rules: str | Rules = "red-blue") -> None:
    """Check, by following edges, that the phase is valid. Raises RedblueError, naming the first fault.

    Not checked: that no phase has more than `max_nodes` nodes. This maximum rests on the dual bound of HiGHS.
    """
    rules = rules_of(rules)
    size = rules.words_of(graph)
    end = undominated(graph, phase.nodes, phase.dominator, rules)
    if end is not None:
        raise RedblueError(f"the dominator misses a path to {graph.labels[end]!r}")
    if phase.minimum != minimum_set(graph, phase.nodes):
        raise RedblueError("the minimum set is not the phase's nodes without children in the phase")
    loads = max(0, int(size[list(phase.dominator)].sum()) - red)
    stores = max(0, int(size[list(phase.minimum)].sum()) - red)
    if loads + stores > phase.words:
        raise RedblueError(f"the phase must move {loads} + {stores} words at least, not {phase.words}")
    if len(phase.nodes) > phase.max_nodes:
        raise RedblueError(f"the phase computes {len(phase.nodes)} nodes, more than the maximum of {phase.max_nodes}")


def undominated(graph: Graph, nodes: Iterable[int], dominator: Iterable[int], rules: Rules) -> int | None:
    """Return a node that some path from an input reaches without meeting the dominator, or None."""
    reached, blue = np.zeros(graph.n, bool), rules.starts_blue(graph)
    dominating = set(dominator)
    for v in range(graph.n):
        reached[v] = v not in dominating and (blue[v] or reached[graph.parents_of(v)].any())
    return next((v for v in nodes if reached[v]), None)


def minimum_set(graph: Graph, nodes: Iterable[int]) -> tuple[int, ...]:
    """Return the nodes of a set that have no children in the set."""
    inside = np.zeros(graph.n, bool)
    inside[list(nodes)] = True
    return tuple(v for v in np.flatnonzero(inside).tolist() if not inside[graph.children_of(v)].any())


def _words(size: np.ndarray, block: np.ndarray) -> list[tuple[float, int]]:
    """Terms that sum up the words of the variables in `block` that are 1. size: words of each variable."""
    return list(zip(size.tolist(), block.tolist(), strict=True))
