"""The cheapest game: the exact search, and the heuristic where the search ends early."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from numbers import Real

from redblue.base.errors import RedblueError
from redblue.pebble.graph import Graph
from redblue.pebble.heuristics import heuristic
from redblue.pebble.rules import Rules, rules_of
from redblue.pebble.search import BEAM, Progress, Solution, search


def solve(
    graph: Graph,
    red: int,
    rules: str | Rules = "red-blue",
    time_limit: float | None = None,
    progress: Callable[[Progress], None] | None = None,
    memory_bytes: int = 8 << 30,
) -> Solution:
    """The cheapest game on `graph` with `red` words of red pebbles.

    time_limit: seconds. progress: called some times per second. At the time limit, at Ctrl-C, and when the states no
    longer fit memory_bytes, the better of the best game so far and the heuristic's is returned (which takes a moment
    more), with `optimal` False unless it costs no more than the bound that is proved by then.
    Raises RedblueError for more than 128 nodes, more than two levels of memory, costs that are no multiples of one
    unit, and red below the least that works.
    """
    if time_limit is not None and (not isinstance(time_limit, Real) or not time_limit > 0):
        raise RedblueError(f"time_limit must be more than 0 seconds, got {time_limit!r}; leave it out for no limit")
    found = search(graph, red, rules_of(rules), time_limit or 0, progress, memory_bytes, BEAM)
    if found.optimal:
        return found
    try:
        good = heuristic(graph, red, rules)
    except KeyboardInterrupt:
        return found
    if good.cost >= found.cost:
        return found
    return replace(found, cost=good.cost, moves=good.moves, optimal=good.cost <= found.lower_bound)
