"""`redblue sweep`: words, bounds and times over the product of any axes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from redblue.base.dtypes import ANY_DTYPE, DEFAULT_DTYPE
from redblue.base.journal import journal_path
from redblue.base.progress import progress_bar
from redblue.base.terminal import message
from redblue.cli.options import Json, with_parameters
from redblue.cli.output import show, written

EPILOG = (
    "Example: redblue sweep --n 1024:65536:x2 --d 64,128,256 --words 12288 -o sweep.csv --picture sweep.svg. "
    "More: docs/lab/sweeps.md"
)
AXES = {
    "n": "Sequence length (n_q = n_k).",
    "n_q": "Number of queries, if not --n.",
    "n_k": "Number of keys, if not --n.",
    "d": "Head dimension of queries and keys.",
    "d_v": "Head dimension of values; --d if left out.",
    "words": "Capacities M of the cache, in words; or give --memory.",
    "memory": "Machines (catalogue, this-machine, TOML files), each counted at every boundary; or give --words.",
    "heads": "Query heads; 1 if left out.",
    "kv_heads": "Key/value heads; --heads if left out.",
    "batch": "Batch size; 1 if left out.",
    "mask": "Masks (redblue mask --help lists them), such as full,causal,window:1024,0; full if left out.",
    "window": "Numbers of keys before the query's own, for sliding windows; or give --mask.",
    "dtype": f"{ANY_DTYPE}; {DEFAULT_DTYPE} if left out.",
    "direction": "forward, backward or gradient_x; forward if left out.",
    "schedule": "Schedules; all that apply, if left out.",
}


def _with_axes(function: Callable[..., None]) -> Callable[..., None]:
    """Add one option per axis to a command, and call it with a dict of all axes as its first argument."""
    parameters = []
    for name, text in AXES.items():
        flags = [f"--{name.replace('_', '-')}", *(["-m"] if name == "memory" else [])]
        annotation = Annotated[str | None, typer.Option(*flags, metavar="VALUES", help=text, rich_help_panel="Axes")]
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))
    parameters += list(inspect.signature(function, eval_str=True).parameters.values())[1:]

    @functools.wraps(function)
    def run(**arguments: Any) -> None:
        function({name: arguments.pop(name) for name in AXES}, **arguments)

    return with_parameters(run, parameters)


@_with_axes
def command(
    axes: dict[str, str | None],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File for all rows: .csv, .parquet or .jsonl."),
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw lines over one axis: .svg, .png or .html.")] = None,
    x: Annotated[str | None, typer.Option("--x", help="The picture's x axis; the longest one if left out.")] = None,
    y: Annotated[
        str, typer.Option("--y", help="The picture's height: words_per_pair, gap, words, bytes or seconds.")
    ] = "words_per_pair",
    jobs: Annotated[int | None, typer.Option(help="Number of processes; one per core if left out.", min=1)] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Discard the points that an earlier run kept.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the output and the picture if they exist.")] = False,
    as_json: Json = False,
) -> None:
    """Count words, bounds and times at every point of a grid, on all cores. With -o, a sweep can be resumed.

    Each axis of the grid takes VALUES: one value, a list A,B,C, or a range FIRST:LAST:xFACTOR or FIRST:LAST:+STEP, such
    as 64,128,256 or 1024:65536:x2 or 128:512:+64. Every schedule that applies is counted at every point.
    """
    from redblue.base.files import check_target
    from redblue.studies.sweep import picture as pictures
    from redblue.studies.sweep.grid import make_sweep
    from redblue.studies.sweep.runner import run
    from redblue.studies.sweep.store import FORMATS
    from redblue.studies.sweep.terminal import summary

    sweep = make_sweep(axes)
    target = None if output is None else check_target(output, tuple(FORMATS), force)
    drawn = None if picture is None else check_target(picture, pictures.SUFFIXES, force)
    if drawn is not None:
        pictures.choose(sweep, x, y)
    resumable, kept = False, "not kept: give -o FILE to make a sweep resumable"
    if target is not None and target.stream is None:
        resumable, kept = True, f"kept in {journal_path(target.path)}"
    with progress_bar("sweeping", total=sweep.size, kept=kept, resumable=resumable) as move:
        rows = run(sweep, output=output, jobs=jobs, restart=restart, force=force, progress=move)
    if not any(place is not None and place.is_stdout for place in (target, drawn)):
        show(rows, "" if as_json else summary(sweep, rows, str(output) if output else None), as_json)
    if output is not None:
        written(output)  # before the picture, which may fail: the output stays
    if picture is not None:
        pictures.draw(sweep, rows, picture, x=x, y=y, force=force)
        written(picture)
        if unknown := pictures.left_out(sweep, y):
            message(f"not in the picture, as their bandwidth is not known: {', '.join(unknown)}")
