"""solve: the exact search, with the heuristic as fallback when the search ends early."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from numbers import Real

from redblue.base.arguments import checked_arguments
from redblue.base.errors import RedblueError
from redblue.pebble.graph import Graph
from redblue.pebble.heuristics import heuristic
from redblue.pebble.rules import Rules, rules_of
from redblue.pebble.search import BEAM, Progress, Solution, search

A_CENTURY = 3.2e9  # seconds


@checked_arguments
def solve(
    graph: Graph,
    red: int,
    rules: str | Rules = "red-blue",
    time_limit: float | None = None,
    progress: Callable[[Progress], None] | None = None,
    memory_bytes: int = 8 << 30,
) -> Solution:
    """Find the cheapest game on `graph` with `red` words of red pebbles.

    time_limit: seconds; None for no limit. progress: called several times per second. memory_bytes: for stored states.
    The search ends early at the time limit, at Ctrl-C, and when its states no longer fit `memory_bytes`. Then the
    cheaper of its best game and the heuristic's game is returned, which takes a moment longer; `optimal` is True only
    if that game costs no more than the lower bound proved so far.
    Method: A* with partial expansion (Yoshizumi, Miura & Ishida, AAAI 2000) and a minimum cut as lower bound.
    Raises RedblueError for more than 128 nodes, more than two levels of memory, costs without a common unit, and `red`
    below the least that works.
    """
    if time_limit is not None and (not isinstance(time_limit, Real) or not time_limit > 0):
        raise RedblueError(f"time_limit must be more than 0 seconds, got {time_limit!r}; leave it out for no limit")
    seconds = min(time_limit or 0, A_CENTURY)  # a larger integer may not fit a float
    solution = search(graph, red, rules_of(rules), seconds, progress, memory_bytes, BEAM)
    if solution.optimal:
        return solution
    try:
        alternative = heuristic(graph, red, rules)
    except KeyboardInterrupt:
        return solution
    if alternative.cost >= solution.cost:
        return solution
    return replace(
        solution, cost=alternative.cost, moves=alternative.moves, optimal=alternative.cost <= solution.lower_bound
    )
