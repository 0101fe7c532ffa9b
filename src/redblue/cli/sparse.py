"""`redblue sparse`: the words of every schedule and mask format for one mask, beside a proved and a published bound."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from redblue import schedules
from redblue.base.dtypes import DEFAULT_DTYPE
from redblue.base.progress import progress_bar
from redblue.base.terminal import table
from redblue.base.text import amount
from redblue.cli.options import DV, NK, NQ, Batch, Dtype, Heads, Json, KvHeads, N, parse_mask, size
from redblue.cli.output import show, written
from redblue.lab.plans import describe
from redblue.lab.text import STANDARD_REMARK, shape_text
from redblue.problem import Problem

if TYPE_CHECKING:
    from redblue.studies.sparse.study import Comparison

EPILOG = "Example: redblue sparse window:256,255 --n 8192 --d 64 --words 4096:65536:x4 --picture sparse.svg"
CAPACITIES = "1024:262144:x4"


def command(
    mask: Annotated[
        str, typer.Argument(help="A mask (redblue mask --help lists them), or a graph: FILE.mtx, FILE.npz.")
    ],
    d: Annotated[int, size("--d", help="Head dimension of queries and keys.")] = 64,
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
    schedule: Annotated[str | None, typer.Option(help="Schedules A,B,C; all that apply, if left out.")] = None,
    index: Annotated[
        str | None,
        typer.Option(help="Formats: rule, bits, blocks, tiles[:EDGE], csr, coo, N:M; all that fit, if left out."),
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw words per pair over M: .svg, .png or .html.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the picture if it exists.")] = False,
    as_json: Json = False,
) -> None:
    """Count the words that attention moves under one mask, for every schedule, format and capacity.

    The table also has the best proved lower bound for this mask, and the form of the published bound for a family of
    inputs, which a single mask may undercut.
    """
    from redblue.base.charts import SUFFIXES, write
    from redblue.base.files import check_target
    from redblue.studies.sparse.picture import figure
    from redblue.studies.sparse.study import compare, read_graph
    from redblue.studies.sweep.axes import make_axis

    target = None if picture is None else check_target(picture, SUFFIXES, force)
    is_graph = mask.lower().endswith((".mtx", ".npz")) and not mask.startswith("csr:")
    pairs = read_graph(mask) if is_graph else parse_mask(mask)
    sizes = pairs.sizes(n if n_q is None else n_q, n if n_k is None else n_k)
    d_v, kv_heads = (d if d_v is None else d_v), (heads if kv_heads is None else kv_heads)
    problem = Problem(*sizes, d, d_v, batch, heads, kv_heads, dtype or DEFAULT_DTYPE, pairs, direction)
    names = None if schedule is None else [schedules.get(name.strip()).name for name in schedule.split(",")]
    formats = None if index is None else [name.strip() for name in index.split(",")]
    with progress_bar("counting", unit="capacities") as move:
        comparison = compare(problem, make_axis("words", words).values, formats, names, move)
    if target is None or not target.is_stdout:
        show(_plain_data(comparison), _summary(comparison), as_json)
    if picture is not None:
        write(figure(comparison).to_dict(), picture, force)
        written(picture)


def _plain_data(comparison: Comparison) -> dict[str, Any]:
    """The comparison as --json prints it."""
    points = []
    for point in comparison.points:
        counts = [
            {
                "schedule": schedule,
                "index": name,
                "words": count.words,
                "index_words": count.index_words,
                "peak": count.peak,
                "tiles": count.tiles,
            }
            for (schedule, name), count in point.counts.items()
        ]
        missing = [{"schedule": s, "index": name, "why": why} for (s, name), why in point.reasons.items()]
        points.append(
            {
                "words": point.words,
                "bound": {"name": point.bound.name, "words": point.bound.words},
                "bound_if_p_given": point.bound_given
                and {"name": point.bound_given.name, "words": point.bound_given.words},
                "one_mask_bound_words": point.one_mask,
                "family_form_words": point.family,
                "counts": counts,
                "missing": missing,
            }
        )
    family = comparison.family
    return {
        "problem": describe(comparison.problem),
        "density": family.z_qk / (comparison.problem.one_stream().n_q * comparison.problem.n_k),
        "family": {"z_input": family.z_input, "z_qk": family.z_qk, "dividing_words": round(family.dividing_words)}
        if family.z_qk
        else None,
        "index_words": comparison.formats,
        "left_out": comparison.left_out,
        "points": points,
    }


def _summary(comparison: Comparison) -> Group:
    """One table: a block of rows for each capacity, a column for each format; remarks below it."""
    formats = list(comparison.formats)
    rows = table(("M", "schedule"), formats, title=shape_text(comparison.problem))
    rows.columns[0].no_wrap = rows.columns[1].no_wrap = True
    for point in comparison.points:
        best = point.best
        heading = f"{point.words:,}"
        for schedule in dict.fromkeys(name for name, _ in (*point.counts, *point.reasons)):
            cells = [point.counts.get((schedule, name)) for name in formats]
            style = ["bold" if count is not None and count is best else "" for count in cells]
            texts = [Text(amount(count.words) if count else "-", s) for count, s in zip(cells, style, strict=True)]
            rows.add_row(heading, schedule, *texts)
            heading = ""
        for label, bound in (("proved", point.bound), ("proved, P given", point.bound_given)):
            if bound is not None:
                cells = [amount(bound.words)] * len(formats)
                rows.add_row("", Text(f"{label}: {bound.name}", style="dim"), *cells)
        family = [amount(point.family)] * len(formats)
        rows.add_row("", Text("family's form", style="dim"), *family, end_section=True)
    return Group(rows, Text("\n".join(_remarks(comparison)), style="dim"))


def _remarks(comparison: Comparison) -> list[str]:
    """Sentences below the table: the size of each index, the family's terms, and the formats that were left out."""
    family = comparison.family
    index_sizes = ", ".join(f"{name} {amount(size)}" for name, size in comparison.formats.items() if size)
    lines = [f"Words that the index takes: {index_sizes}."] if index_sizes else []
    if family.z_qk:
        lines.append(
            f"Z_input {amount(family.z_input)}, Z_QK {amount(family.z_qk)}: the family's two terms are equal at M = "
            f"Z_input^2 / Z_QK = {amount(family.dividing_words)}. The form has no known constant and holds for a "
            "family of inputs, so a single mask may move fewer words. The proved bound holds for this mask."
        )
    if comparison.reads_p:
        lines.append(
            f"Backward, {STANDARD_REMARK}. For that schedule only the bound for a given P holds. That schedule is in "
            "bold only if no other schedule fits."
        )
    return lines + [f"Left out: {why}" for why in comparison.left_out.values()]
