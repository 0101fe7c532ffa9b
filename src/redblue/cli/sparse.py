"""The command `redblue sparse`: one mask, words of every schedule and format, beside both bounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.markup import escape
from rich.progress import Progress
from rich.text import Text

from redblue.base.terminal import table
from redblue.base.text import amount
from redblue.cli.options import DV, NK, NQ, Batch, Dtype, Heads, Json, KvHeads, N, parse_mask
from redblue.lab.text import shape_text
from redblue.problem import Problem

EPILOG = "Example: redblue sparse window:256,255 --n 8192 --d 64 --words 4096:65536:x4 --picture sparse.svg"
CAPACITIES = "1024:262144:x4"


def sparse(
    mask: Annotated[str, typer.Argument(help="As --mask of count takes it, or a graph: FILE.mtx or FILE.npz.")],
    d: Annotated[int, typer.Option("--d", help="Head dimension of queries and keys.")] = 64,
    n: N = None,
    n_q: NQ = None,
    n_k: NK = None,
    d_v: DV = None,
    batch: Batch = 1,
    heads: Heads = 1,
    kv_heads: KvHeads = None,
    dtype: Dtype = None,
    direction: Annotated[str, typer.Option(help="forward or backward.")] = "forward",
    words: Annotated[
        str, typer.Option(metavar="VALUES", help="Capacities M in words: A,B,C or FIRST:LAST:xFACTOR.")
    ] = CAPACITIES,
    schedule: Annotated[str | None, typer.Option(help="Schedules, A,B,C; all that apply, if left out.")] = None,
    index: Annotated[
        str | None,
        typer.Option(help="Formats: rule, bits, blocks, tiles[:EDGE], csr, coo, N:M; all that fit, if left out."),
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Words per pair over M, as .svg, .png or .html.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the picture if it exists.")] = False,
    as_json: Json = False,
) -> None:
    """What attention on one mask moves: every schedule, every format of the mask, and both lower bounds, over M."""
    from redblue import schedules
    from redblue.base.charts import SUFFIXES, write
    from redblue.studies.sparse.picture import figure
    from redblue.studies.sparse.study import compare, read_graph
    from redblue.studies.sweep.axes import make_axis
    from redblue.studies.sweep.store import check_target

    if picture is not None:
        check_target(picture, SUFFIXES, force)
    given = read_graph(mask) if mask.lower().endswith((".mtx", ".npz")) and not mask.startswith("csr:") else None
    made = parse_mask(mask) if given is None else given
    sizes = made.sizes(n if n_q is None else n_q, n if n_k is None else n_k)
    d_v, kv_heads = (d if d_v is None else d_v), (heads if kv_heads is None else kv_heads)
    problem = Problem(*sizes, d, d_v, batch, heads, kv_heads, dtype or "float16", made, direction)
    names = None if schedule is None else [schedules.get(name.strip()).name for name in schedule.split(",")]
    formats = None if index is None else [name.strip() for name in index.split(",")]
    console, errors = Console(emoji=False), Console(stderr=True, emoji=False)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("counting", total=None)
        found = compare(
            problem,
            make_axis("words", words).values,
            formats,
            names,
            lambda done, total: bar.update(task, completed=done, total=total),
        )
    if as_json:
        print(json.dumps(as_data(found), indent=2))
    else:
        console.print(shown(found))
    if picture is not None:
        write(figure(found).to_dict(), picture, force)
        errors.print(f"written: {escape(str(picture))}", soft_wrap=True)


def as_data(found: Any) -> dict[str, Any]:
    """Plain data."""
    from redblue.lab.plans import describe

    points = []
    for point in found.points:
        counts = [
            {
                "schedule": schedule,
                "index": name,
                "words": each.words,
                "index_words": each.index_words,
                "peak": each.peak,
                "tiles": each.tiles,
            }
            for (schedule, name), each in point.counts.items()
        ]
        missing = [{"schedule": s, "index": name, "why": why} for (s, name), why in point.reasons.items()]
        points.append(
            {
                "words": point.words,
                "bound": {"name": point.bound.name, "words": point.bound.words},
                "one_mask_bound_words": point.one_mask,
                "family_form_words": point.family,
                "counts": counts,
                "missing": missing,
            }
        )
    family = found.family
    return {
        "problem": describe(found.problem),
        "density": family.z_qk / (found.problem.one_stream().n_q * found.problem.n_k),
        "family": {"z_input": family.z_input, "z_qk": family.z_qk, "dividing_words": round(family.dividing_words)}
        if family.z_qk
        else None,
        "index_words": found.formats,
        "left_out": found.left_out,
        "points": points,
    }


def shown(found: Any) -> Group:
    """A table for each capacity would be long: one for all, capacities one below the other."""
    formats = list(found.formats)
    made = table(("M", "schedule"), formats, title=shape_text(found.problem))
    made.columns[0].no_wrap = made.columns[1].no_wrap = True
    for point in found.points:
        best = point.best
        heading = f"{point.words:,}"
        for schedule in dict.fromkeys(name for name, _ in (*point.counts, *point.reasons)):
            cells = [point.counts.get((schedule, name)) for name in formats]
            style = ["bold" if each is not None and each is best else "" for each in cells]
            texts = [Text(amount(each.words) if each else "-", style=s) for each, s in zip(cells, style, strict=True)]
            made.add_row(heading, schedule, *texts)
            heading = ""
        made.add_row("", Text(f"proved: {point.bound.name}", style="dim"), amount(point.bound.words))
        made.add_row("", Text("family's form", style="dim"), amount(point.family), end_section=True)
    family, lines = found.family, []
    takes = ", ".join(f"{name} {amount(size)}" for name, size in found.formats.items() if size)
    lines += [f"Words that the index takes: {takes}."] if takes else []
    if family.z_qk:
        lines.append(
            f"Z_input {amount(family.z_input)}, Z_QK {amount(family.z_qk)}: the family's two terms are equal at M = "
            f"Z_input^2 / Z_QK = {amount(family.dividing_words)}. Its form has no known constant and is of a family of "
            "inputs: one mask may lie below it. What is proved is of this mask."
        )
    lines += [f"Left out: {why}" for why in found.left_out.values()]
    return Group(made, Text("\n".join(lines), style="dim"))
