"""`redblue bound`: lower bounds on the words that any schedule moves."""

from __future__ import annotations

from dataclasses import asdict

from redblue.base.errors import RedblueError
from redblue.bounds import lower_bounds
from redblue.cli.options import Json, Words, with_any_problem
from redblue.cli.output import show
from redblue.cli.tables import bounds_table
from redblue.paged_problem import AnyProblem

EPILOG = "Example: redblue bound --n 4096 --d 128 --words 12288"


@with_any_problem
def command(problem: AnyProblem, words: Words = None, as_json: Json = False) -> None:
    """Print lower bounds on the words that any schedule moves, with formula, conditions and source.

    "order only" marks a paper's form whose constant is not known, which is no proved bound.
    """
    if words is None:
        raise RedblueError("a bound needs the cache's capacity: give --words (example: --words 12288)")
    bounds = lower_bounds(problem, words)
    show([asdict(bound) for bound in bounds], bounds_table(bounds), as_json)
