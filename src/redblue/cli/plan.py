"""`redblue plan`: the best schedule and tiles at each boundary of a machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer
from rich.console import Group

from redblue.base.errors import RedblueError
from redblue.base.progress import working
from redblue.catalogue import models as catalogue
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
    N,
    Page,
    Prefix,
    VInK,
    find_machines,
    in_pages,
    make_problem,
    model_names,
    size,
)
from redblue.cli.output import show
from redblue.lab.planner import plan

EPILOG = (
    "Example: redblue plan llama-3-8b --memory h100-sxm. Or: redblue plan --n 4096 --d 512 -m rtx-4090. On a cluster: "
    'redblue plan llama-3-8b --n 128Ki -m "8x h100-sxm over infiniband-ndr"'
)


def command(
    model: Annotated[
        str | None,
        typer.Argument(
            help="Catalogue name or config.json; without one, give --n and --d.", autocompletion=model_names
        ),
    ] = None,
    memory: Memories = None,
    n: N = None,
    n_q: NQ = None,
    n_k: NK = None,
    d: D = None,
    d_v: DV = None,
    batch: Batch = 1,
    heads: Annotated[int | None, size("--heads", help="Query heads; 1 if left out.")] = None,
    kv_heads: KvHeads = None,
    dtype: Dtype = None,
    mask: Annotated[
        str | None, typer.Option(help="A mask, as redblue count --help describes; full if left out.")
    ] = None,
    direction: Direction = "forward",
    page: Page = None,
    prefix: Prefix = None,
    v_in_k: VInK = False,
    as_json: Json = False,
) -> None:
    """Find the best schedule and tiles at each boundary of a machine or a cluster, with regime, words, bound, time."""
    if model is None:
        heads, mask = 1 if heads is None else heads, "full" if mask is None else mask
        problem = make_problem(n, n_q, n_k, d, d_v, batch, heads, kv_heads, dtype, mask, direction)
        problems = [in_pages(problem, page, prefix, v_in_k)]
    else:
        fixed = {"--n-q": n_q, "--n-k": n_k, "--d": d, "--d-v": d_v, "--heads": heads, "--kv-heads": kv_heads}
        _refuse(fixed | {"--mask": mask, "--page": page, "--prefix": prefix, "--v-in-k": v_in_k or None})
        layers = catalogue.model(model, n=n, batch=batch, dtype=dtype, direction=direction)
        problems = [layer.problem for layer in layers]
    with working("planning"):
        machines = find_machines(memory or ["this-machine"])
        plans = [plan(problem, machine) for machine in machines for problem in problems]
    show([x.to_dict() for x in plans], Group(*(part for x in plans for part in (x, ""))), as_json)


def _refuse(options: Mapping[str, object]) -> None:
    """Raise RedblueError if an option was given that the model itself determines."""
    conflicting = [name for name, value in options.items() if value is not None]
    if conflicting:
        names = ", ".join(conflicting)
        raise RedblueError(
            f"{names} cannot be given with a model, which determines the problem: leave out the model, or {names}"
        )
