"""`redblue report`: models on machines, as one HTML page and a summary on the terminal."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from redblue.base.progress import progress_bar
from redblue.catalogue import models as catalogue
from redblue.cli.options import Batch, Direction, Dtype, Json, Memories, ModelN, find_machines, model_names
from redblue.cli.output import show, written

EPILOG = "Example: redblue report llama-3-8b path/to/config.json --memory h100-sxm -o llama.html"
MODELS = ("gpt2", "llama-3-8b", "gemma-4-31b", "deepseek-v3", "sd-vae")  # if none are named
MEMORIES = ("this-machine", "h100-sxm", "rtx-4090", "t4")  # if none are named


def command(
    models: Annotated[
        list[str] | None,
        typer.Argument(help="Catalogue names or config.json files; a few if left out.", autocompletion=model_names),
    ] = None,
    memory: Memories = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML page to write.")] = Path("report.html"),
    n: ModelN = None,
    batch: Batch = 1,
    dtype: Dtype = None,
    direction: Direction = "forward",
    measure: Annotated[
        bool,
        typer.Option("--measure/--no-measure", help="Run and time the kernels, if this-machine is among the memories."),
    ] = True,
    results: Annotated[
        Path, typer.Option(help="A folder of experiment results that the page shows, if the folder exists.")
    ] = Path("docs", "results"),
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is not a report of redblue.")] = False,
    as_json: Json = False,
) -> None:
    """Write an HTML page, and print a summary, of models on machines: schedules, words, bounds and times."""
    from redblue.studies.experiments import read_all
    from redblue.studies.report import check_output, collect, summary, write

    target = check_output(output, force)
    chosen = [catalogue.model(name, n=n, batch=batch, dtype=dtype, direction=direction) for name in models or MODELS]
    machines = find_machines(memory or MEMORIES)
    experiments = read_all(results)
    with progress_bar("planning", unit="steps") as move:
        report = collect(
            chosen,
            machines,
            command=shlex.join(["redblue", *sys.argv[1:]]),
            measure=measure,
            results=experiments,
            progress=move,
        )
    write(report, output, force)
    if not target.is_stdout:
        show(report.to_dict(), summary(report), as_json)
    written(output)
