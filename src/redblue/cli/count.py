"""`redblue count`: the words that schedules move through a cache."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from redblue.base.progress import working
from redblue.cli.options import Json, Words, known_schedule, parse_tiles, schedule_names, size, with_any_problem
from redblue.cli.output import show
from redblue.cli.tables import counts_table
from redblue.lab import counts
from redblue.lab.plans import describe
from redblue.lab.text import STANDARD_REMARK
from redblue.machine import CapacityError
from redblue.paged_problem import AnyProblem
from redblue.schedules import NotCovered, TooFewWords, list_schedules

EPILOG = "Example: redblue count flash --n 4096 --d 128 --words 12288. With tiles: --tiles rows=64,cols=16"


@with_any_problem
def command(
    problem: AnyProblem,
    schedule: Annotated[
        str | None,
        typer.Argument(
            help="The name of a schedule (redblue schedules lists them); all that fit, if left out.",
            callback=known_schedule,
            autocompletion=schedule_names,
        ),
    ] = None,
    words: Words = None,
    tiles: Annotated[str | None, typer.Option(help="Tile edges, such as rows=64,cols=16.")] = None,
    at_once: Annotated[
        int, size("--at-once", help="Streams (batch x key/value heads) that run side by side and share the cache.")
    ] = 1,
    index: Annotated[
        str,
        typer.Option(
            help="Format of the stored mask: bits, blocks, tiles[:EDGE], csr, coo or N:M; rule for a mask not stored."
        ),
    ] = "rule",
    run: Annotated[
        bool, typer.Option("--run", help="Count by running the schedule, not from its closed form.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Count the words that a schedule moves through a cache, with its best tiles or with yours."""
    counter, edges = (counts.run if run else counts.count), parse_tiles(tiles)
    results: list[counts.Count] = []
    reasons: list[str] = []

    def attempt(name: str) -> None:
        try:
            results.append(counter(name, problem, words=words, tiles=edges, at_once=at_once, index=index))
        except (TooFewWords, CapacityError, NotCovered) as error:
            reasons.append(str(error))

    with working("counting") as say:
        for name in list_schedules(problem.direction) if schedule is None else [schedule]:
            say(name)
            attempt(name)
    if not results:
        raise TooFewWords("; ".join(reasons))
    starts_from_p = problem.direction == "backward" and any(result.schedule == "standard" for result in results)
    remarks = reasons + ([STANDARD_REMARK] if starts_from_p else [])
    rows = [asdict(result) | {"words": result.words, "problem": describe(problem)} for result in results]
    show(rows if schedule is None else rows[0], counts_table(results, remarks), as_json)
