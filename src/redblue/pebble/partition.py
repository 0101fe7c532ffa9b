"""How much one phase of a game can compute: the partitions of Hong & Kung (STOC 1981), solved exactly.

Cut a game that computes nothing in vain into phases of T words moved, l loaded and s stored, and call V what is
computed for the first time in a phase. V is dominated by what is red as the phase begins or loaded in it, red + l
words: every path from an input to V meets them. And its minimum set, the nodes without children in V, is red as the
phase ends or stored in it, red + s words. Recomputation changes nothing. So if no set with such a dominator and such
a minimum set has more than U nodes, there are at least ceil(nodes / U) phases, and all but the last move T words.

U is the optimum of an integer program (HiGHS), or what the solver has proved of it after so many nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from redblue.base.errors import RedblueError
from redblue.pebble.graph import Graph
from redblue.pebble.program import Program
from redblue.pebble.rules import Rules, rules_of

MOST_TRIED = 200  # nodes of the integer program's search


@dataclass(frozen=True)
class Phase:
    """A largest phase found, and what is proved of all phases.

    words: moved in a phase. most: nodes that no phase exceeds. nodes: of the phase found, with its dominator and its
    minimum set; if there are `most` of them, the bound is as good as this method gets.
    """

    words: int
    most: int
    nodes: tuple[int, ...]
    dominator: tuple[int, ...]
    minimum: tuple[int, ...]


def largest_phase(graph: Graph, red: int, words: int, rules: str | Rules = "red-blue") -> Phase:
    """The phase of `words` words moved that computes most nodes. Raises RedblueError without SciPy."""
    rules = rules_of(rules)
    size, blue = rules.words_of(graph).astype(float), rules.starts_blue(graph)
    inner = graph.in_degree > 0
    program = Program()
    got = program.block("got", graph.n, cost=np.where(inner, -1.0, 0.0))  # in the phase, or in the dominator
    dominates = program.block("dominates", graph.n)
    minimal = program.block("minimal", graph.n)
    for v in range(graph.n):
        parents = graph.parents_of(v)
        if blue[v]:
            program.at_most(0, (1, got[v]), (-1, dominates[v]))
        for p in parents:
            program.at_most(0, (1, got[v]), (-1, [dominates[v], got[p]]))
        if len(parents):
            program.at_most(0, (1, got[v]), (-1, [minimal[v], *got[graph.children_of(v)]]))
    stored = program.block("stored", words)
    program.at_most(red + words, *_sum(size, dominates), (1, stored))
    program.at_most(red, *_sum(size, minimal), (-1, stored))
    found = program.solve(whole=True, node_limit=MOST_TRIED)
    values = np.zeros(program.size) if found.x is None else np.round(found.x)
    most = int(np.count_nonzero(inner)) if found.mip_dual_bound is None else int(np.floor(-found.mip_dual_bound + 1e-6))
    nodes = np.flatnonzero((values[got] > 0) & inner)
    return Phase(
        words,
        most,
        tuple(nodes.tolist()),
        tuple(np.flatnonzero(values[dominates]).tolist()),
        minimum_set(graph, nodes),
    )


def moved(graph: Graph, phase: Phase) -> int:
    """Words that every game moves if no phase computes more than phase.most nodes."""
    phases = -(-int(np.count_nonzero(graph.in_degree)) // max(1, phase.most))
    return phase.words * max(0, phases - 1) + (phases > 1)


def verify(graph: Graph, red: int, phase: Phase, rules: str | Rules = "red-blue") -> None:
    """Check by following edges alone that a phase can be; raises RedblueError, saying what is wrong with it.

    That no phase has more than `most` nodes is not checked: it rests on the dual bound of HiGHS.
    """
    rules = rules_of(rules)
    size = rules.words_of(graph)
    path = undominated(graph, phase.nodes, phase.dominator, rules)
    if path is not None:
        raise RedblueError(f"the dominator misses a path to {graph.labels[path]!r}")
    if phase.minimum != minimum_set(graph, phase.nodes):
        raise RedblueError("the minimum set is not the phase's nodes without children in the phase")
    loads = max(0, int(size[list(phase.dominator)].sum()) - red)
    stores = max(0, int(size[list(phase.minimum)].sum()) - red)
    if loads + stores > phase.words:
        raise RedblueError(f"the phase moves {loads} + {stores} words at least, not {phase.words}")
    if len(phase.nodes) > phase.most:
        raise RedblueError(
            f"the phase computes {len(phase.nodes)} nodes, more than the {phase.most} said to be the most"
        )


def undominated(graph: Graph, nodes: Iterable[int], dominator: Iterable[int], rules: Rules) -> int | None:
    """A node of `nodes` that some path from an input reaches past the dominator; None if there is none."""
    past, blue = np.zeros(graph.n, bool), rules.starts_blue(graph)
    held = set(dominator)
    for v in range(graph.n):
        past[v] = v not in held and (blue[v] or past[graph.parents_of(v)].any())
    return next((v for v in nodes if past[v]), None)


def minimum_set(graph: Graph, nodes: Iterable[int]) -> tuple[int, ...]:
    """The nodes of a set without children in it."""
    inside = np.zeros(graph.n, bool)
    inside[list(nodes)] = True
    return tuple(v for v in np.flatnonzero(inside).tolist() if not inside[graph.children_of(v)].any())


def _sum(size: np.ndarray, block: np.ndarray) -> list[tuple[float, int]]:
    return list(zip(size.tolist(), block.tolist(), strict=True))
