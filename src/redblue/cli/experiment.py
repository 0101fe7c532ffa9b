"""The command `redblue experiment`: beside its package, so that no other command has to load that."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from redblue.base.errors import RedblueError
from redblue.cli.options import Json
from redblue.cli.sweep import INTERRUPTED

EPILOG = "Example: redblue experiment crossing. What there is: redblue experiment --list"


def experiment(
    name: Annotated[str | None, typer.Argument(help="Which; --list names them.")] = None,
    list_all: Annotated[bool, typer.Option("--list", help="The experiments, and what each asks.")] = False,
    out: Annotated[Path, typer.Option(help="The folder for JSON, figures and page.")] = Path("docs", "results"),
    quick: Annotated[bool, typer.Option("--quick", help="A few small points, in seconds.")] = False,
    jobs: Annotated[int | None, typer.Option(help="Processes; all cores if left out.", min=1)] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Discard the points that an earlier run kept.")] = False,
    only_draw: Annotated[bool, typer.Option("--redraw", help="Draw the figures of the JSON file again.")] = False,
    as_json: Json = False,
) -> None:
    """Measure, and write the figure that docs/results shows of it; resumable."""
    from redblue.base.journal import journal_path
    from redblue.studies import experiments
    from redblue.studies.experiments.terminal import listed, shown

    console, errors = Console(emoji=False), Console(stderr=True, emoji=False)
    if name is None or list_all:
        if name is None and not list_all:
            raise RedblueError(f"which experiment? One of {', '.join(experiments.NAMES)}; --list says what each asks")
        found = [experiments.get(each) for each in experiments.NAMES]
        if as_json:
            print(
                json.dumps([{"name": e.name, "question": e.question, "missing": e.missing()} for e in found], indent=2)
            )
        else:
            console.print(listed(found))
        return
    done = total = 0
    columns = (TextColumn("measuring"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
            task = bar.add_task("", total=None)

            def progress(count: int, size: int) -> None:
                nonlocal done, total
                done, total = count, size
                bar.update(task, completed=count, total=size)

            if only_draw:
                result = experiments.redraw(name, out=out)
            else:
                result = experiments.run(name, out=out, quick=quick, jobs=jobs, restart=restart, progress=progress)
    except KeyboardInterrupt:
        kept = journal_path(out / f"{name}.json")
        errors.print(f"stopped: {done:,} of {total:,} points are done, kept in {escape(str(kept))}", soft_wrap=True)
        again = shlex.join(["redblue", *(word for word in sys.argv[1:] if word != "--restart")])
        errors.print(f"to go on: {escape(again)}", highlight=False, soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        print(json.dumps(result.to_dict(), indent=2))
    else:
        console.print(shown(result))
    errors.print(f"written: {escape(str(out / name))}.json, .svg, .png and .md", soft_wrap=True)
