"""The command `redblue sweep`: beside its package, so that no other command has to load that."""

from __future__ import annotations

import functools
import inspect
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from redblue.cli.options import Json, taking

INTERRUPTED = 130  # what a shell reports of a command that Ctrl-C stopped
EPILOG = (
    "Example: redblue sweep --n 1024:65536:x2 --d 64,128,256 --words 12288 -o sweep.csv --picture sweep.svg. "
    "More: docs/sweeps.md"
)


AXES = {
    "n": "Sequence length (n_q = n_k).",
    "n_q": "Queries, where not --n.",
    "n_k": "Keys, where not --n.",
    "d": "Head dimension of queries and keys.",
    "d_v": "Head dimension of values; --d if left out.",
    "words": "M: capacities of the cache, in words. Or --memory.",
    "memory": "Machines, each counted at every boundary. Or --words.",
    "heads": "Query heads; 1 if left out.",
    "kv_heads": "Key/value heads; --heads if left out.",
    "batch": "Batch size; 1 if left out.",
    "mask": "As in count, such as full,causal,window:1024,0; full if left out.",
    "window": "Sliding windows: keys before the query's own. Or --mask.",
    "dtype": "As in count; float16 if left out.",
    "direction": "As in count; forward if left out.",
    "schedule": "Schedules; all that apply, if left out.",
}


def _with_axes(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each axis beside its own; it is called with all axes as its first argument."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = []
    for name, text in AXES.items():
        flags = [f"--{name.replace('_', '-')}", *(["-m"] if name == "memory" else [])]
        option = typer.Option(*flags, metavar="VALUES", help=text, rich_help_panel="Axes")
        annotation = Annotated[str | None, option]
        parameters.append(inspect.Parameter(name, keyword, default=None, annotation=annotation))
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    parameters += own

    @functools.wraps(command)
    def run(**given: Any) -> None:
        command({name: given.pop(name) for name in AXES}, **given)

    return taking(run, parameters)


@_with_axes
def sweep(
    axes: dict[str, str | None],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="All rows as .csv, .parquet or .jsonl; makes the sweep resumable."),
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Lines over one axis, as .svg, .png or .html.")] = None,
    x: Annotated[str | None, typer.Option("--x", help="The picture's x axis; the longest one if left out.")] = None,
    y: Annotated[
        str, typer.Option("--y", help="The picture's height: words_per_pair, gap, words, bytes or seconds.")
    ] = "words_per_pair",
    jobs: Annotated[int | None, typer.Option(help="Processes; all cores if left out.", min=1)] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Discard the points that an earlier run kept.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the output and the picture if they exist.")] = False,
    as_json: Json = False,
) -> None:
    """Words, bounds and times over the product of any axes; on all cores, and resumable.

    VALUES of an axis: one value, a list A,B,C, or a range FIRST:LAST:xFACTOR or FIRST:LAST:+STEP, such as 64,128,256
    or 1024:65536:x2 or 128:512:+64. Every schedule that applies is counted at every point.
    """
    from redblue.base.files import check_target
    from redblue.base.journal import journal_path
    from redblue.studies.sweep import picture as pictures
    from redblue.studies.sweep.grid import make_sweep
    from redblue.studies.sweep.runner import run
    from redblue.studies.sweep.store import FORMATS
    from redblue.studies.sweep.terminal import summary

    # No emoji: they would take the place of a range's ":100:".
    console, errors = Console(emoji=False), Console(stderr=True, emoji=False)
    made = make_sweep(axes)
    if output is not None:
        check_target(output, tuple(FORMATS), force)
    if picture is not None:
        check_target(picture, pictures.SUFFIXES, force)
        pictures.choose(made, x, y)

    done = 0
    columns = (TextColumn("sweeping"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
            task = bar.add_task("", total=made.size)

            def progress(count: int, total: int) -> None:
                nonlocal done
                done = count
                bar.update(task, completed=count)

            rows = run(made, output=output, jobs=jobs, restart=restart, force=force, progress=progress)
    except KeyboardInterrupt:
        kept = f"kept in {journal_path(output)}" if output else "not kept: give -o FILE to make a sweep resumable"
        errors.print(f"stopped: {done:,} of {made.size:,} points are done, {escape(kept)}", soft_wrap=True)
        if output:
            again = shlex.join(["redblue", *(word for word in sys.argv[1:] if word != "--restart")])
            errors.print(f"to go on: {escape(again)}", highlight=False, soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        console.print(summary(made, rows, str(output) if output else None))
    if output is not None:  # said first: it stays, even if nothing can be drawn
        errors.print(f"written: {escape(str(output))}", soft_wrap=True)
    if picture is not None:
        pictures.draw(made, rows, picture, x=x, y=y, force=force)
        errors.print(f"written: {escape(str(picture))}", soft_wrap=True)
        if unknown := pictures.left_out(made, y):
            said = f"not in the picture, as their bandwidth is not known: {', '.join(unknown)}"
            errors.print(escape(said), highlight=False, soft_wrap=True)
