"""A schedule as a game of pebbles: what it computes, and every move of one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from redblue import schedules
from redblue.base.errors import RedblueError
from redblue.lab import counts
from redblue.machine.tracing import SPARE, Tracing
from redblue.pebble import Game, Graph, Rules, Verdict, check, least_red
from redblue.problem import Problem

MOST_MULTIPLY_ADDS = 2_000_000  # some 20 seconds and a gigabyte


@dataclass(frozen=True)
class Traced:
    """One stream of a schedule, played: the referee accepts `moves` on `graph` with `red` red pebbles by `rules`.

    count: what the machine counted, of that stream. red: at most 3 above its peak, or the least that the graph needs.
    """

    count: counts.Count
    graph: Graph
    moves: Game
    red: int
    rules: Rules
    verdict: Verdict


def trace(
    schedule: str, problem: Problem, *, words: int | None = None, tiles: Mapping[str, int] | None = None
) -> Traced:
    """Run one stream of the schedule, and have the referee check what it did.

    words, tiles: as for `count`. The graph is that of *this* algorithm, with its row maxima and rescalings.
    Raises what `count` does, and RedblueError for more than MOST_MULTIPLY_ADDS multiply-adds.
    """
    stream = problem.one_stream()
    counted = counts.count(schedule, stream, words=words, tiles=tiles)
    if counted.flops > 2 * MOST_MULTIPLY_ADDS:
        raise RedblueError(
            f"tracing {schedule} would write down {counted.flops // 2:,} multiply-adds, and at most "
            f"{MOST_MULTIPLY_ADDS:,} are: take a smaller problem"
        )
    found = schedules.get(schedule)
    machine = Tracing(words)
    counts.execute(found, stream, found.make_tiles(stream, counted.tiles), machine)
    graph, moves, constants = machine.recording()
    rules = Rules(constants=constants)
    red = max(least_red(graph, rules), machine.peak + SPARE)
    verdict = check(graph, moves, red, rules)
    return Traced(counted, graph, moves, max(least_red(graph, rules), verdict.peak), rules, verdict)
