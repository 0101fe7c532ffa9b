"""Compile every planned kernel for every NVIDIA architecture of the catalogue, and check that it fits the card.

This needs no GPU. One card with its shared memory represents each architecture. kernels/gpu/planning/fit.py stores the
results, so a stopped run continues where it ended. The exit code is 1 if a kernel cannot be planned, does not fit its
card, needs more shared memory than the plan's model predicts, spills more than SPILLED_BYTES, or has serialized
products.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import altair as alt
import typer
from rich.console import Console
from rich.table import Table

from redblue import Mask, list_memories, memory
from redblue.base import charts
from redblue.base.errors import RedblueError
from redblue.base.progress import progress_bar
from redblue.base.style import LOOKS
from redblue.base.terminal import message

HEAD_DIMENSIONS = (16, 40, 64, 80, 96, 128, 192, 256, 320, 512, 576, 1024, 2048)
DTYPES = ("float16", "bfloat16", "float32")
DIRECTIONS = ("forward", "backward")
# Enough blocks to occupy every card, and an n that is no multiple of a tile
BATCH, HEADS, N, CAUSAL = 2, 16, 4095, {"end": 1}
SPILLED_BYTES = 1024  # limit per thread; with more, the products of every step wait for local memory
WIDE = 180  # columns of the table if the output is not a terminal
# Options, in float16, that change a block's code: alone and together
OPTIONS = ("bias", "dropout", "documents", "bias dropout softcap sinks")
HEAD_DIMENSIONS_WITH_OPTIONS = (64, 128, 256, 512)
# attention_paged in 16 bits: d and d_v, query heads per key head, and stacked rows of a class of nodes
PAGED = {
    **{f"decode {d}": (d, d, 4, 16) for d in (64, 80, 96, 128, 192, 256, 576)},
    **{f"chunk {d}": (d, d, 4, 128) for d in (64, 128, 192, 256)},
    "latent decode": (576, 512, 16, 16),  # V is a slice of K
    "latent chunk": (576, 512, 128, 128),
    "decode tree softcap": (128, 128, 4, 16),
}
PAGE = 16  # keys
# The cases that tests compile; they cover every kind of architecture and every regime
SPREAD = (
    ("sm_75", 64, "float16", ""),
    ("sm_80", 128, "bfloat16", ""),
    ("sm_80", 192, "float16", ""),
    ("sm_89", 576, "bfloat16", ""),
    ("sm_90", 512, "bfloat16", ""),
    ("sm_100", 1024, "float16", ""),
    ("sm_120", 40, "float32", ""),
    ("sm_80", 256, "float16", "bias dropout softcap sinks"),
    ("sm_86", 128, "float16", "dropout"),
    ("sm_90", 512, "float16", "documents"),
    ("sm_100", 256, "float16", "bias"),
    ("sm_75", 128, "float16", "decode 128"),
    ("sm_80", 576, "bfloat16", "latent chunk"),
    ("sm_90", 128, "bfloat16", "decode tree softcap"),
    ("sm_90", 576, "bfloat16", "latent decode"),
    ("sm_120", 128, "bfloat16", "chunk 128"),
)

Row = dict[str, Any]


class Case(NamedTuple):
    card: str  # its name in the catalogue
    arch: int
    d: int
    dtype: str
    direction: str
    options: str = ""

    def __str__(self) -> str:
        return ", ".join(filter(None, (f"sm_{self.arch}", f"d {self.d}", self.dtype, self.direction, self.options)))


def cards() -> dict[int, str]:
    """The first card of each architecture that Triton compiles for, and PyTorch runs on."""
    by_arch: dict[int, str] = {}
    for name in list_memories():
        arch = round(memory(name).facts.get("compute_capability", 0))
        if arch >= 75:
            by_arch.setdefault(arch, name)
    return dict(sorted(by_arch.items()))


def cases(spread: bool) -> Iterator[Case]:
    """All cases, those that compile fast first; spread: only the few that tests compile."""
    plain, some = (
        [("", d) for d in HEAD_DIMENSIONS],
        [(option, d) for option in OPTIONS for d in HEAD_DIMENSIONS_WITH_OPTIONS],
    )
    for dtype, calls in (("float16", plain), ("float16", some), ("bfloat16", plain), ("float32", plain)):
        for options, d in calls:
            for arch, card in cards().items():
                if (spread and (f"sm_{arch}", d, dtype, options) not in SPREAD) or (arch, dtype) == (75, "bfloat16"):
                    continue
                yield from (Case(card, arch, d, dtype, direction, options) for direction in DIRECTIONS)
    for name, (d, *_) in PAGED.items():
        for arch, card in cards().items():
            if arch == 75 and d > 512:  # no tiles fit, so keys and values are gathered
                continue
            dtype = "float16" if arch == 75 else "bfloat16"
            if not spread or (f"sm_{arch}", d, dtype, name) in SPREAD:
                yield Case(card, arch, d, dtype, "paged", name)


def compiled(case: Case) -> Row:
    """Plan and compile a case, in a worker process in which Triton compiles instead of interpreting."""
    from triton import __version__ as triton_version

    from redblue.kernels.gpu.planning import fit, plan
    from redblue.kernels.gpu.planning.card import planning_for

    card = plan.card_named(case.card)
    row: Row = {**case._asdict(), "triton": triton_version, "shared_bytes_of_card": card.shared_bytes}
    try:
        launch, launched = (_paged if case.direction == "paged" else _dense)(case, card)
    except RedblueError as why:
        return row | {"wrong": [f"not planned: {why}"]}
    row |= {"kernel": launch.kernel, "tiles": launch.tiles._asdict(), "chunk": launch.chunk}
    row |= {
        "warps": launch.warps,
        "stages": launch.stages,
        "parts": launch.parts,
        "planned_shared_bytes": launch.shared_bytes,
    }
    try:
        with planning_for(card):
            fits = fit.fits_of(launched(), card.arch)
    except Exception as why:  # compilers raise exceptions of any kind
        return row | {"kernels": [], "wrong": [f"not compiled: {type(why).__name__}: {str(why)[:500]}"]}
    wrong = []
    for each in fits:
        if not each.on(card):
            wrong.append(
                f"{each.kernel} does not fit: {each.shared_bytes:,} bytes, {each.tensor_memory_columns} columns"
            )
        elif each.shared_bytes > launch.shared_bytes and each.kernel != "bias_gradient":  # it has its own tiles
            wrong.append(f"{each.kernel} needs {each.shared_bytes:,} bytes, the model predicts {launch.shared_bytes:,}")
        if each.spilled_bytes > SPILLED_BYTES:
            wrong.append(f"{each.kernel} spills {each.spilled_bytes:,} bytes")
        if each.serialized:
            wrong.append(f"{each.kernel} has products that wait for one another")
    most: dict[str, Any] = {}  # the maximum over all variants of a kernel, such as that of the last chunk of rows
    for each in fits:
        known = most.get(each.kernel, each)
        most[each.kernel] = fit.Fit(each.kernel, *map(max, known[1:], each[1:]))
    return row | {"kernels": [each._asdict() for each in most.values()], "wrong": wrong}


def _dense(case: Case, card: Any) -> tuple[Any, Any]:
    """The launch planned for the case, and a function that returns its runs."""
    from redblue.kernels.gpu.launch import PlanOptions
    from redblue.kernels.gpu.planning import fit, plan
    from redblue.kernels.sizes import Sizes

    sizes = Sizes((BATCH,), HEADS, 1, N, N, case.d, case.d)
    names = (name in case.options.split() for name in ("bias", "dropout", "softcap", "documents"))
    options = PlanOptions(*names, by_tma=not case.options)
    launch = plan.plan(case.direction, sizes, case.dtype, card, options)
    return launch, lambda: fit.runs(case.direction, sizes, case.dtype, launch, **_options_of(case))


def _paged(case: Case, card: Any) -> tuple[Any, Any]:
    """As _dense, for attention_paged."""
    from redblue.kernels.gpu.launch import PlanOptions
    from redblue.kernels.gpu.planning import fit, plan
    from redblue.kernels.sizes import Sizes

    d, d_v, group, rows = PAGED[case.options]
    words = case.options.split()
    aliased, tree = "latent" in words, "tree" in words
    options = PlanOptions(bias=tree, softcap="softcap" in words, aliased=aliased)
    launch = plan.plan("paged", plan.node_sizes(rows, d, d_v), case.dtype, card, options, "flash")
    sizes = Sizes((BATCH,), 1 if aliased else 8, group, 0, N, d, d_v)
    softcap = {"softcap": 30.0} if "softcap" in words else {}
    return launch, lambda: fit.paged_runs(sizes, case.dtype, launch, PAGE, aliased, tree, **softcap)


def _options_of(case: Case) -> dict[str, Any]:
    """The options of a case as arguments of a task."""
    import torch

    names = case.options.split()
    pairs = torch.empty((BATCH, HEADS, N, N), dtype=getattr(torch, case.dtype), device="meta")
    if "documents" in names:
        return {"mask": Mask.documents([N // 4, N - N // 4], within=Mask.causal())}
    arguments: dict[str, Any] = dict(CAUSAL)
    if "bias" in names:
        arguments["bias"] = pairs
        if case.direction == "backward":
            arguments["dbias"] = pairs.float()
    if "dropout" in names:
        arguments |= {"dropout": 0.1, "seed": torch.empty((), dtype=torch.int64, device="meta")}
    if "softcap" in names:
        arguments["softcap"] = 30.0
    if "sinks" in names and case.direction == "forward":
        arguments["sinks"] = torch.empty(HEADS, device="meta")
    return arguments


def _worker() -> None:
    """Set up a worker: no reaction to Ctrl-C (the parent handles it), and an end with the parent."""
    os.environ.pop("TRITON_INTERPRET", None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent_process(),), daemon=True).start()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def run(selected: list[Case], jobs: int) -> list[Row]:
    """The row of every case, in order."""
    rows: dict[Case, Row] = {}
    with ProcessPoolExecutor(jobs, get_context("spawn"), _worker) as pool:
        waiting = {pool.submit(compiled, case): case for case in selected}
        try:
            with progress_bar("compiling", "plans", len(waiting), kept="and the next run continues from there") as move:
                for done, future in enumerate(as_completed(waiting), 1):
                    case = waiting[future]
                    rows[case] = future.result()
                    for wrong in rows[case]["wrong"]:
                        message(f"{case}: {wrong}")
                    move(done, len(waiting))
        except BaseException:  # including Ctrl-C: end now, without the compilations still waiting
            for worker in active_children():
                worker.terminate()
            raise
    return [rows[case] for case in selected]


def table(rows: list[Row]) -> Table:
    """A table by architecture: the kernel of each d, the shared memory used and the most bytes spilled."""
    made = Table("type", "options", "direction", "card", "kernels, by d", "shared bytes used", "of", "spilled bytes")
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if "kernel" in row:
            names = row["dtype"], row["options"], row["direction"], f"sm_{row['arch']} {row['card']}"
            groups.setdefault(names, []).append(row)
    for names, group in groups.items():
        kernels = {row["kernel"]: [] for row in group}
        for row in group:
            kernels[row["kernel"]].append(row["d"])
        where = "; ".join(f"{name} {', '.join(map(str, sizes))}" for name, sizes in kernels.items())
        parts = [part for row in group for part in row["kernels"]]
        shared, spilled = ([part[key] for part in parts] for key in ("shared_bytes", "spilled_bytes"))
        card = group[0]["shared_bytes_of_card"]
        made.add_row(*names, where, f"{min(shared):,} to {max(shared):,}", f"{card:,}", f"up to {max(spilled):,}")
    return made


def draw(rows: list[Row], path: Path) -> None:
    """Draw the planned kernel for each architecture and head dimension."""
    points = [
        {
            "d": row["d"],
            "card": f"sm_{row['arch']}",
            "kernel": row["kernel"],
            "panel": f"{row['direction']}, {row['dtype']}",
        }
        for row in rows
        if "kernel" in row and row["dtype"] != "bfloat16" and not row["options"]  # bfloat16: planned as float16
    ]
    names = [name for name in LOOKS if any(point["kernel"] == name for point in points)]
    colour = alt.Color(
        "kernel:N", title=None, scale=alt.Scale(domain=names, range=[LOOKS[name].light for name in names])
    )
    order = [f"sm_{arch}" for arch in cards()]
    chart = (
        alt.Chart(alt.Data(values=points))
        .mark_rect(stroke="white")
        .encode(
            x=alt.X("d:O", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("card:N", sort=order, title=None),
            color=colour,
            facet=alt.Facet("panel:N", columns=2, title=None),
        )
        .properties(width=400, height=150)
    )
    charts.write(chart.to_dict(), path, force=True)


def main(
    spread: Annotated[bool, typer.Option(help="Only the few cases that the tests compile.")] = False,
    jobs: Annotated[int, typer.Option(help="Number of processes.")] = 2,
    json_file: Annotated[Path | None, typer.Option("--json", help="File for all results.")] = None,
    figure: Annotated[Path | None, typer.Option(help="File for a picture of the planned kernels.")] = None,
) -> None:
    """Compile every planned kernel for every architecture."""
    rows = run(list(cases(spread)), jobs)
    if json_file:
        json_file.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    if figure:
        draw(rows, figure)
    Console(width=None if sys.stdout.isatty() else WIDE).print(table(rows))
    wrong = sum(bool(row["wrong"]) for row in rows)
    versions = " and ".join(sorted({row["triton"] for row in rows}))
    print(f"{len(rows)} plans compiled with Triton {versions}, {wrong} of them wrong")
    sys.exit(1 if wrong or not rows else 0)


if __name__ == "__main__":
    typer.run(main)
