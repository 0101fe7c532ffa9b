"""`redblue measure`: the words that a kernel really moves, beside its schedule's count and the lower bound."""

from __future__ import annotations

import os
from typing import Annotated

import typer
from rich.console import Group
from rich.text import Text

from redblue.base.errors import RedblueError
from redblue.base.progress import working
from redblue.cli.options import Json, Words, known_schedule, parse_tiles, schedule_names, size, with_problem
from redblue.cli.output import show
from redblue.cli.tables import measurement_table
from redblue.meter import registry
from redblue.problem import Problem

EPILOG = (
    "Example: redblue measure --n 512 --d 64 --words 8192 --with cachegrind. "
    "This machine's own memories: redblue measure --n 4096 --d 128 --boundary L2/L3"
)


def measure(
    problem: Problem,
    words: Words = None,
    using: Annotated[
        str,
        typer.Option("--with", help="The meter: cachegrind, probe, interpreter, counters, ncu; auto: the best here."),
    ] = "auto",
    schedule: Annotated[
        str | None,
        typer.Option(
            help="The schedule of the kernel; the default kernel if left out.",
            callback=known_schedule,
            autocompletion=schedule_names,
        ),
    ] = None,
    tiles: Annotated[str | None, typer.Option(help="Tile edges, such as rows=64,cols=16.")] = None,
    plan_words: Annotated[
        int | None, size("--plan-words", help="Words for which the tiles are planned; --words if left out.")
    ] = None,
    boundary: Annotated[
        str | None,
        typer.Option(
            help="The boundary to measure: L1d/L2, L2/L3 or L3/DRAM for counters; 'shared memory and L1/L2' or L2/DRAM "
            "for ncu."
        ),
    ] = None,
    line: Annotated[int, size("--line", help="Line size of the simulated cache, in bytes.", unit="bytes")] = 64,
    ways: Annotated[str, typer.Option(help="Lines per set of the simulated cache; full: one set.")] = "full",
    as_json: Json = False,
) -> None:
    """Measure the words that a compiled kernel moves, and show them beside its schedule's count and the lower bound.

    The type is float32 unless --dtype says otherwise.
    """
    if using == "interpreter":
        os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads it when it is imported, later
    with working("measuring"):
        result = registry.measure(
            problem,
            words=words,
            using=using,
            schedule=schedule,
            tiles=parse_tiles(tiles),
            plan_words=plan_words,
            boundary=boundary,
            line_bytes=line,
            ways=_parse_ways(ways),
        )
    others = registry.others(result.meter) if using == "auto" else {}
    remarks = [Text(f"not {name}: {reason}", style="dim") for name, reason in others.items()]
    data = result.to_dict() | ({"others": others} if others else {})
    show(data, Group(measurement_table([result]), *remarks), as_json)


command = with_problem(measure, dtype="float32")


def _parse_ways(text: str) -> int | None:
    if text == "full":
        return None
    if not text.isdecimal():
        raise RedblueError(f"--ways must be a number of lines per set, or full, got {text!r}")
    return int(text)
