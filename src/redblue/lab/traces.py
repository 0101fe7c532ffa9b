"""Turn a run of a schedule into a pebble game: the computation graph, and every move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from redblue import schedules
from redblue.base.arguments import checked_arguments
from redblue.base.errors import RedblueError
from redblue.base.estimates import check_fits
from redblue.lab import counts
from redblue.machine.tracing import SPARE, Tracing
from redblue.paged_problem import AnyProblem
from redblue.pebble import Game, Graph, Rules, Verdict, check, least_red

MAX_MULTIPLY_ADDS = 2_000_000
BYTES, SECONDS = 500, 1e-5  # per multiply-add: one gigabyte and 20 seconds at the limit


@dataclass(frozen=True)
class Traced:
    """One stream of a schedule as a pebble game: the referee accepts `moves` on `graph` with `red` red pebbles.

    count: the machine's count of that stream. red: at most the machine's peak plus 3, or the graph's minimum if that is
    larger. verdict: the referee's verdict under `rules`.
    """

    count: counts.Count
    graph: Graph
    moves: Game
    red: int
    rules: Rules
    verdict: Verdict


@checked_arguments
def trace(
    schedule: str, problem: AnyProblem, *, words: int | None = None, tiles: Mapping[str, int] | None = None
) -> Traced:
    """Run one stream of the schedule, record it as a pebble game, and let the referee check the game.

    words, tiles: as for `count`. The graph represents this particular algorithm, including row maxima and rescaling.
    Raises the errors of `count`, and RedblueError for more than MAX_MULTIPLY_ADDS multiply-adds.
    """
    stream = problem.one_stream()
    counted = counts.count(schedule, stream, words=words, tiles=tiles)
    if counted.flops > 2 * MAX_MULTIPLY_ADDS:
        raise RedblueError(
            f"tracing {schedule} would record {counted.flops // 2:,} multiply-adds, more than the limit of "
            f"{MAX_MULTIPLY_ADDS:,}: take a smaller problem"
        )
    adds = counted.flops // 2
    check_fits(f"tracing {schedule}, {adds:,} multiply-adds,", BYTES * adds, SECONDS * adds)
    algorithm = schedules.get(schedule)
    machine = Tracing(words)
    counts.execute(algorithm, stream, algorithm.make_tiles(stream, counted.tiles), machine)
    graph, moves, constants = machine.recording()
    rules = Rules(constants=constants)
    red = max(least_red(graph, rules), machine.peak + SPARE)
    verdict = check(graph, moves, red, rules)
    return Traced(counted, graph, moves, max(least_red(graph, rules), verdict.peak), rules, verdict)
