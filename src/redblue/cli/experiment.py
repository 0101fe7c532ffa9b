"""`redblue experiment`: run an experiment, and write the figure and the page that docs/results shows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from redblue.base.errors import RedblueError
from redblue.base.progress import progress_bar
from redblue.cli.options import Json
from redblue.cli.output import show, written

EPILOG = "Example: redblue experiment crossing. All experiments: redblue experiment --list"


def command(
    name: Annotated[str | None, typer.Argument(help="The experiment's name; --list shows all names.")] = None,
    list_all: Annotated[bool, typer.Option("--list", help="List the experiments and their questions.")] = False,
    out: Annotated[Path, typer.Option(help="The folder for JSON, figures and page.")] = Path("docs", "results"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Measure a few small points: seconds, or minutes for training.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Measure all points (the default): hours for training.")] = False,
    only: Annotated[str | None, typer.Option(help="Run one part of an experiment that has parts.")] = None,
    jobs: Annotated[int | None, typer.Option(help="Number of processes; one per core if left out.", min=1)] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Discard the points that an earlier run kept.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace files that no run wrote, and full results by quick ones.")
    ] = False,
    only_draw: Annotated[bool, typer.Option("--redraw", help="Draw the figures of the JSON file again.")] = False,
    as_json: Json = False,
) -> None:
    """Run an experiment, and write its figure and its page. The same command continues an interrupted run."""
    from redblue.studies import experiments
    from redblue.studies.experiments.terminal import result_text

    if list_all:
        _list(as_json)
        return
    if name is None:
        names = ", ".join(experiments.NAMES)
        raise RedblueError(f"no experiment was named: give one of {names}; --list shows the question of each")
    if quick and full:
        raise RedblueError("--quick and --full contradict each other: give one of them")
    journal_text = f"kept in {experiments.journal_of(out, name, only)}"
    if only_draw:
        result = experiments.redraw(name, out=out)
    else:
        with progress_bar("measuring", kept=journal_text, resumable=True) as move:
            result = experiments.run(
                name, out=out, quick=quick, jobs=jobs, restart=restart, force=force, only=only, progress=move
            )
    show(result.to_dict(), result_text(result), as_json)
    written(f"{out / name}.json, .svg and .md")


def _list(as_json: bool) -> None:
    """Print the name and the question of every experiment, and the requirements that this machine lacks."""
    from redblue.studies import experiments
    from redblue.studies.experiments.terminal import experiments_table

    definitions = [experiments.get(name) for name in experiments.NAMES]
    data = [
        {"name": definition.name, "question": definition.question, "missing": definition.missing()}
        for definition in definitions
    ]
    show(data, experiments_table(definitions), as_json)
