"""The command line. Every command has --json and an example in its --help; bad input exits with code 2."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from redblue.base.errors import RedblueError
from redblue.base.version import VERSION
from redblue.bounds import lower_bounds
from redblue.catalogue import memories as machines
from redblue.catalogue import models as catalogue
from redblue.catalogue.memories import Memory
from redblue.cli import tables
from redblue.cli.experiment import EPILOG as EXPERIMENT_EPILOG
from redblue.cli.experiment import experiment
from redblue.cli.info import EPILOG as INFO_EPILOG
from redblue.cli.info import info
from redblue.cli.mask import EPILOG as MASK_EPILOG
from redblue.cli.mask import mask
from redblue.cli.measure import EPILOG as MEASURE_EPILOG
from redblue.cli.measure import measure
from redblue.cli.options import (
    DV,
    NK,
    NQ,
    Batch,
    D,
    Direction,
    Dtype,
    Json,
    KvHeads,
    Memories,
    ModelN,
    N,
    Words,
    make_problem,
    parse_tiles,
    with_problem,
)
from redblue.cli.pebble import app as pebble
from redblue.cli.sparse import EPILOG as SPARSE_EPILOG
from redblue.cli.sparse import sparse
from redblue.cli.sweep import EPILOG, sweep
from redblue.lab import counts, planner
from redblue.lab.plans import describe
from redblue.lab.recount import recount
from redblue.lab.text import STANDARD_REMARK
from redblue.machine import CapacityError
from redblue.problem import Problem
from redblue.schedules import NotCovered, TooFewWords, list_schedules

REPORT_MODELS = ("gpt2", "llama-3-8b", "gemma-4-31b", "deepseek-v3", "sd-vae")
REPORT_MEMORIES = ("this-machine", "h100-sxm", "rtx-4090", "t4")

app = typer.Typer(
    help="How few words attention must move, which schedule and tiles get there, and what that costs on a machine.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
console, errors = Console(emoji=False), Console(stderr=True, emoji=False)


def _version(wanted: bool) -> None:
    if wanted:
        console.print(f"redblue {VERSION}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


def machines_named(names: Sequence[str]) -> list[Memory]:
    """Machines by name; this machine's CUDA devices come along with it."""
    return [each for name in names for machine in [machines.memory(name)] for each in (machine, *machine.devices)]


def show(data: Any, table: Any, as_json: bool) -> None:
    """One result, for a program or for a person."""
    if as_json:
        print(json.dumps(data, indent=2))
    else:
        console.print(table)


@app.command(epilog="Example: redblue report llama-3-8b path/to/config.json --memory h100-sxm -o llama.html")
def report(
    models: Annotated[list[str] | None, typer.Argument(help="Catalogue names or config.json files.")] = None,
    memory: Memories = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML page to write.")] = Path("report.html"),
    n: ModelN = None,
    batch: Batch = 1,
    dtype: Dtype = None,
    direction: Direction = "forward",
    measure: Annotated[
        bool, typer.Option("--measure/--no-measure", help="Run the kernels here, if this-machine is asked for.")
    ] = True,
    results: Annotated[
        Path, typer.Option(help="A folder of experiments' results, which the page shows if it is there.")
    ] = Path("docs", "results"),
    as_json: Json = False,
) -> None:
    """Models on machines: regimes, schedules, words, bounds and times, as one HTML page and a summary."""
    from redblue.studies.experiments import read_all
    from redblue.studies.report import check_output, collect, summary, write

    check_output(output)
    chosen = [
        catalogue.model(name, n=n, batch=batch, dtype=dtype, direction=direction) for name in models or REPORT_MODELS
    ]
    machines = machines_named(memory or REPORT_MEMORIES)
    found = read_all(results)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task("planning", total=None)
        made = collect(
            chosen,
            machines,
            command=shlex.join(["redblue", *sys.argv[1:]]),
            measure=measure,
            results=found,
            progress=lambda done, total, what: progress.update(task, completed=done, total=total, description=what),
        )
    write(made, output)
    show(made.to_dict(), summary(made), as_json)
    errors.print(f"written: {output}")


@app.command(epilog="Example: redblue plan llama-3-8b --memory h100-sxm. Or: redblue plan --n 4096 --d 512 -m rtx-4090")
def plan(
    model: Annotated[str | None, typer.Argument(help="Catalogue name or config.json; or give --n and --d.")] = None,
    memory: Memories = None,
    n: N = None,
    n_q: NQ = None,
    n_k: NK = None,
    d: D = None,
    d_v: DV = None,
    batch: Batch = 1,
    heads: Annotated[int | None, typer.Option(help="Query heads; 1 if left out.")] = None,
    kv_heads: KvHeads = None,
    dtype: Dtype = None,
    mask: Annotated[str | None, typer.Option(help="As in count; full if left out.")] = None,
    direction: Direction = "forward",
    as_json: Json = False,
) -> None:
    """At each boundary of a machine's memory: regime, best schedule and tiles, words, bound, time."""
    if model is None:
        heads, mask = 1 if heads is None else heads, "full" if mask is None else mask
        problems = [make_problem(n, n_q, n_k, d, d_v, batch, heads, kv_heads, dtype, mask, direction)]
    else:
        own = {"--n-q": n_q, "--n-k": n_k, "--d": d, "--d-v": d_v, "--heads": heads, "--kv-heads": kv_heads}
        given = [name for name, value in (own | {"--mask": mask}).items() if value is not None]
        if given:
            raise RedblueError(f"{', '.join(given)} cannot be given with a model, which brings its own: leave one out")
        found = catalogue.model(model, n=n, batch=batch, dtype=dtype, direction=direction)
        problems = [layers.problem for layers in found]
    plans = [
        planner.plan(problem, machine) for machine in machines_named(memory or ["this-machine"]) for problem in problems
    ]
    if as_json:
        print(json.dumps([each.to_dict() for each in plans], indent=2))
    else:
        for each in plans:
            console.print(each, "")


@app.command(epilog="Example: redblue count flash --n 4096 --d 128 --words 12288. With tiles: --tiles rows=64,cols=16")
@with_problem
def count(
    problem: Problem,
    schedule: Annotated[str | None, typer.Argument(help="A schedule; all that fit, if left out.")] = None,
    words: Words = None,
    tiles: Annotated[str | None, typer.Option(help="Tile edges, such as rows=64,cols=16.")] = None,
    at_once: Annotated[
        int, typer.Option(help="Streams (batch x key/value heads) that run side by side and share the cache.")
    ] = 1,
    index: Annotated[
        str, typer.Option(help="How the mask is stored: rule (it is not), bits, blocks, tiles[:EDGE], csr, coo or N:M.")
    ] = "rule",
    run: Annotated[bool, typer.Option("--run", help="Count by running it, not from its closed form.")] = False,
    as_json: Json = False,
) -> None:
    """Words that a schedule moves through a cache: with its best tiles, or with yours."""
    counter, edges = (counts.run if run else counts.count), parse_tiles(tiles)
    found, reasons = [], []

    def attempt(name: str) -> None:
        try:
            found.append(counter(name, problem, words=words, tiles=edges, at_once=at_once, index=index))
        except (TooFewWords, CapacityError, NotCovered) as error:
            reasons.append(str(error))

    for name in list_schedules(problem.direction) if schedule is None else [schedule]:
        attempt(name)
    if not found:
        raise TooFewWords("; ".join(reasons))
    kept = problem.direction == "backward" and any(c.schedule == "standard" for c in found)
    remarks = [STANDARD_REMARK] if kept else []
    rows = [asdict(c) | {"words": c.words, "problem": describe(problem)} for c in found]
    show(rows if schedule is None else rows[0], tables.counts_table(found, reasons + remarks), as_json)


@app.command(epilog="Example: redblue bound --n 4096 --d 128 --words 12288")
@with_problem
def bound(
    problem: Problem,
    words: Words = None,
    as_json: Json = False,
) -> None:
    """Lower bounds on the words that any schedule moves: formula, conditions, source; proved or order-only."""
    if words is None:
        raise RedblueError("a bound needs the cache's capacity: give --words (example: --words 12288)")
    found = lower_bounds(problem, words)
    show([asdict(each) for each in found], tables.bounds_table(found), as_json)


app.command(epilog=EPILOG)(sweep)
app.command(epilog=EXPERIMENT_EPILOG)(experiment)
app.command(epilog=MASK_EPILOG)(mask)
app.command(epilog=SPARSE_EPILOG)(sparse)
app.add_typer(pebble, name="pebble")
app.command(epilog=INFO_EPILOG)(info)
app.command("measure", epilog=MEASURE_EPILOG)(with_problem(measure, dtype="float32"))


@app.command("recount", epilog="Example: redblue recount")
def recount_paper(as_json: Json = False) -> None:
    """What the FlashAttention paper prints, counted again: its algorithms line by line, and its Figure 2."""
    found = recount()
    show([asdict(each) | {"ratio": each.ratio} for each in found], tables.recount_table(found), as_json)


@app.command(epilog="Example: redblue memories. One machine, with its sources: redblue memories h100-sxm")
def memories(
    name: Annotated[str | None, typer.Argument(help="One machine: catalogue name, this-machine or TOML file.")] = None,
    remeasure: Annotated[bool, typer.Option("--remeasure", help="Measure this machine again (about 2 s).")] = False,
    as_json: Json = False,
) -> None:
    """The machines of the catalogue, and this one."""
    if remeasure:
        machines.this_machine(remeasure=True)
    found = [
        machines.memory(each) for each in ([*machines.list_memories(), "this-machine"] if name is None else [name])
    ]
    stars = [
        [*(planner.largest_head_dimension(level, bytes_per_word=2) for level in each.levels[:-1]), None]
        for each in found
    ]
    data = [asdict(machine) for machine in found]
    table = tables.memory_details(found[0], stars[0]) if name else tables.memories_table(found, stars)
    show(data[0] if name else data, table, as_json)


@app.command(epilog="Example: redblue models. One model: redblue models deepseek-v3, or path/to/config.json")
def models(
    name: Annotated[str | None, typer.Argument(help="Catalogue name or config.json.")] = None,
    n: ModelN = None,
    as_json: Json = False,
) -> None:
    """The models of the catalogue and their attention shapes, or those of any config.json."""
    found = [catalogue.model(each, n=n) for each in (catalogue.list_models() if name is None else [name])]
    data = [
        {"name": each.name, "title": each.title, "source": each.source, "notes": list(each.notes)}
        | {"layers": [asdict(x) | {"problem": describe(x.problem)} for x in each]}
        for each in found
    ]
    show(data[0] if name else data, tables.model_details(found[0]) if name else tables.models_table(found), as_json)


def main() -> None:
    """The entry point: bad input is an error on stderr and exit code 2, never a traceback."""
    try:
        app()
    except RedblueError as error:
        errors.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
