"""Whether what is planned fits: every kernel compiled ahead of time for every NVIDIA architecture of the catalogue.

No GPU is asked. One card stands for its architecture, by its shared memory. Results are kept
(kernels/gpu/planning/fit.py), so that a run that was stopped goes on where it was. The exit code is 1 if any kernel
does not fit its card, needs more than the plan's model says, spills more than SPILLED_BYTES, has products wait for one
another, or cannot be planned.
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
from rich.progress import track
from rich.table import Table

from redblue import Mask, list_memories, memory
from redblue.base import charts
from redblue.base.errors import RedblueError
from redblue.base.style import LOOKS

HEAD_DIMENSIONS = (16, 40, 64, 80, 96, 128, 192, 256, 320, 512, 576, 1024, 2048)
DTYPES = ("float16", "bfloat16", "float32")
DIRECTIONS = ("forward", "backward")
# A call whose blocks keep every card busy and do not end where the sequence does: causal, 2 x 16 heads, n = 4095
BATCH, HEADS, N, CAUSAL = 2, 16, 4095, {"end": 1}
SPILLED_BYTES = 1024  # of a thread: more than this many, in every step, and products wait for them
TOLD_EVERY, WIDE = 20, 180  # plans, and columns of the table, where no terminal shows a bar
# And with options, in float16: those that change what a block holds, alone and together
OPTIONS = ("bias", "dropout", "documents", "bias dropout softcap sinks")
HEAD_DIMENSIONS_WITH_OPTIONS = (64, 128, 256, 512)
# What tests compile: of every kind of architecture, and of every regime
SPREAD = (
    ("sm_75", 64, "float16", ""),
    ("sm_75", 512, "float16", ""),
    ("sm_80", 128, "bfloat16", ""),
    ("sm_80", 192, "float16", ""),
    ("sm_86", 256, "float16", ""),
    ("sm_89", 576, "bfloat16", ""),
    ("sm_90", 80, "float16", ""),
    ("sm_90", 512, "bfloat16", ""),
    ("sm_100", 1024, "float16", ""),
    ("sm_120", 40, "float32", ""),
    ("sm_80", 256, "float16", "bias dropout softcap sinks"),
    ("sm_86", 128, "float16", "dropout"),
    ("sm_90", 512, "float16", "documents"),
    ("sm_100", 256, "float16", "bias"),
)

Row = dict[str, Any]


class Case(NamedTuple):
    card: str  # of the catalogue
    arch: int
    d: int
    dtype: str
    direction: str
    options: str = ""

    def __str__(self) -> str:
        return ", ".join(filter(None, (f"sm_{self.arch}", f"d {self.d}", self.dtype, self.direction, self.options)))


def cards() -> dict[int, str]:
    """The first card of each architecture that Triton compiles for, and PyTorch runs on."""
    found: dict[int, str] = {}
    for name in list_memories():
        arch = round(memory(name).facts.get("compute_capability", 0))
        if arch >= 75:
            found.setdefault(arch, name)
    return dict(sorted(found.items()))


def cases(spread: bool) -> Iterator[Case]:
    """All, those that compile fast first; or a few of every sort."""
    plain, some = (
        [("", d) for d in HEAD_DIMENSIONS],
        [(each, d) for each in OPTIONS for d in HEAD_DIMENSIONS_WITH_OPTIONS],
    )
    for dtype, calls in (("float16", plain), ("float16", some), ("bfloat16", plain), ("float32", plain)):
        for options, d in calls:
            for arch, card in cards().items():
                if (spread and (f"sm_{arch}", d, dtype, options) not in SPREAD) or (arch, dtype) == (75, "bfloat16"):
                    continue
                yield from (Case(card, arch, d, dtype, direction, options) for direction in DIRECTIONS)


def compiled(case: Case) -> Row:
    """In a process of its own, where Triton does not interpret."""
    from redblue.kernels.cpu.call import Sizes
    from redblue.kernels.gpu.launch import Options
    from redblue.kernels.gpu.planning import fit, plan

    card, sizes = plan.card_named(case.card), Sizes((BATCH,), HEADS, 1, N, N, case.d, case.d)
    row: Row = {**case._asdict(), "shared_bytes_of_card": card.shared_bytes}
    options = Options(*(name in case.options.split() for name in ("bias", "dropout", "softcap", "documents")))
    try:
        launch = plan.plan(case.direction, sizes, case.dtype, card, options)
    except RedblueError as why:
        return row | {"wrong": [f"not planned: {why}"]}
    row |= {"kernel": launch.kernel, "tiles": launch.tiles._asdict(), "chunk": launch.chunk}
    row |= {"warps": launch.warps, "stages": launch.stages, "planned_shared_bytes": launch.shared_bytes}
    try:
        fits = fit.fits(case.direction, sizes, case.dtype, card, launch, **_given(case))
    except Exception as why:  # whatever the compiler raises
        return row | {"kernels": [], "wrong": [f"not compiled: {type(why).__name__}: {str(why)[:500]}"]}
    wrong = []
    for each in fits:
        if not each.on(card):
            wrong.append(
                f"{each.kernel} does not fit: {each.shared_bytes:,} bytes, {each.tensor_memory_columns} columns"
            )
        elif each.shared_bytes > launch.shared_bytes and each.kernel != "bias_gradient":  # whose tiles are its own
            wrong.append(f"{each.kernel} takes {each.shared_bytes:,} bytes, the model said {launch.shared_bytes:,}")
        if each.spilled_bytes > SPILLED_BYTES:
            wrong.append(f"{each.kernel} spills {each.spilled_bytes:,} bytes")
        if each.serialized:
            wrong.append(f"{each.kernel} has its products wait for one another")
    most: dict[str, Any] = {}  # over what each kernel was compiled for, such as the last chunk of rows
    for each in fits:
        known = most.get(each.kernel, each)
        most[each.kernel] = fit.Fit(each.kernel, *map(max, known[1:], each[1:]))
    return row | {"kernels": [each._asdict() for each in most.values()], "wrong": wrong}


def _given(case: Case) -> dict[str, Any]:
    """Of a task: the case's options."""
    import torch

    names = case.options.split()
    pairs = torch.empty((BATCH, HEADS, N, N), dtype=getattr(torch, case.dtype), device="meta")
    if "documents" in names:
        return {"mask": Mask.documents([N // 4, N - N // 4], within=Mask.causal())}
    found: dict[str, Any] = dict(CAUSAL)
    if "bias" in names:
        found["bias"] = pairs
        if case.direction == "backward":
            found["dbias"] = pairs.float()
    if "dropout" in names:
        found |= {"dropout": 0.1, "seed": torch.empty((), dtype=torch.int64, device="meta")}
    if "softcap" in names:
        found["softcap"] = 30.0
    if "sinks" in names and case.direction == "forward":
        found["sinks"] = torch.empty(HEADS, device="meta")
    return found


def _worker() -> None:
    """Calm, deaf to Ctrl-C, which is the parent's, and gone when the parent is, however that ended."""
    os.environ.pop("TRITON_INTERPRET", None)
    os.nice(19)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent_process(),), daemon=True).start()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def run(found: list[Case], jobs: int) -> list[Row]:
    """Every case's row, in order."""
    rows: dict[Case, Row] = {}
    console = Console(stderr=True)
    with ProcessPoolExecutor(jobs, get_context("spawn"), _worker) as pool:
        waiting = {pool.submit(compiled, case): case for case in found}
        try:
            for done in track(as_completed(waiting), "compiling", len(waiting), console=console):
                case = waiting[done]
                rows[case] = done.result()
                for wrong in rows[case]["wrong"]:
                    console.print(f"{case}: {wrong}", style="red")
                if not console.is_terminal and len(rows) % TOLD_EVERY == 0:
                    console.print(f"{len(rows)} of {len(found)} plans")
        except BaseException:  # Ctrl-C, too: not after what is still to be compiled
            for worker in active_children():
                worker.terminate()
            raise
    return [rows[case] for case in found]


def table(rows: list[Row]) -> Table:
    """By architecture: which kernel where, the most shared memory that was taken, the most that was spilled."""
    made = Table("type", "options", "direction", "card", "kernels, by d", "shared bytes taken", "of", "spilled bytes")
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
    """Which kernel is planned where: architectures by head dimensions."""
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
    spread: Annotated[bool, typer.Option(help="Only a few of every sort, as in the tests.")] = False,
    jobs: Annotated[int, typer.Option(help="Processes.")] = 2,
    json_file: Annotated[Path | None, typer.Option("--json", help="Where every result goes.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Where a picture goes: which kernel is planned where.")] = None,
) -> None:
    """Compile every planned kernel for every architecture."""
    try:
        rows = run(list(cases(spread)), jobs)
    except KeyboardInterrupt:
        print("stopped; what was compiled is kept, and the next run goes on from there", file=sys.stderr)
        sys.exit(130)
    if json_file:
        json_file.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    if figure:
        draw(rows, figure)
    Console(width=None if sys.stdout.isatty() else WIDE).print(table(rows))
    wrong = sum(bool(row["wrong"]) for row in rows)
    print(f"{len(rows)} plans compiled, {wrong} of them wrong")
    sys.exit(1 if wrong or not rows else 0)


if __name__ == "__main__":
    typer.run(main)
