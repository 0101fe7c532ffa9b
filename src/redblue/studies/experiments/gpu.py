"""A GPU: bytes between its memories, over the shared memory that a block is given. Needs one, and Nsight Compute."""

from __future__ import annotations

import altair as alt

from redblue.base.errors import RedblueError
from redblue.base.style import LOOKS
from redblue.catalogue.detect import detect_cuda
from redblue.meter import measure as measured
from redblue.meter import ncu
from redblue.problem import Problem
from redblue.schedules import TooFewWords
from redblue.studies.experiments.experiment import Experiment, Point, Row, Table
from redblue.studies.experiments.figures import steps

SCHEDULES = ("flash", "hybrid", "small_cache")
BOUNDARIES = ("shared memory and L1/L2", "L2/DRAM")
SHARED_KIB = (32, 48, 64, 96, 128, 160, 227)  # of a block: what cards from a T4 to an H100 offer
DIMENSIONS, N, HEADS, DTYPE, WORD_BYTES = (64, 128, 256, 512), 4096, 16, "float16", 2


def points(quick: bool) -> list[Point]:
    sizes, budgets, n = ((64,), (48,), 512) if quick else (DIMENSIONS, SHARED_KIB, N)
    return [
        {"d": d, "n": n, "kib": kib, "schedule": name, "boundary": boundary}
        for d in sizes
        for kib in budgets
        for name in SCHEDULES
        for boundary in BOUNDARIES
    ]


def measure(point: Point) -> list[Row]:
    """The kernel in tiles for so much shared memory; nothing where it does not fit."""
    problem = Problem(point["n"], point["n"], point["d"], heads=HEADS, dtype=DTYPE)
    words = point["kib"] * 2**10 // WORD_BYTES
    try:
        found = measured(problem, using="ncu", plan_words=words, schedule=point["schedule"], boundary=point["boundary"])
    except TooFewWords as error:
        return [point | {"bytes": None, "why": str(error)}]
    moved = found.bytes_read + found.bytes_written
    return [
        point
        | {
            "bytes": moved,
            "tiles": dict(found.tiles),
            "counted_bytes": (found.counted_words or 0) * WORD_BYTES,
            "kernel": found.kernel,
        }
    ]


def held(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["bytes"]]


def figure(rows: list[Row]) -> alt.FacetChart:
    """Bytes over the budget, a facet for each d and boundary; dashed, what the schedule counts at the nearer one."""
    drawn = []
    for row in held(rows):
        facet = f"d = {row['d']}, {row['boundary']}"
        common = {"facet": facet, "kib": row["kib"], "schedule": row["schedule"]}
        drawn.append(common | {"y": row["bytes"], "kind": "measured"})
        if row["boundary"] == BOUNDARIES[0]:
            drawn.append(common | {"y": row["counted_bytes"], "kind": "counted"})
    low, high = min(row["y"] for row in drawn) / 1.2, max(row["y"] for row in drawn) * 1.2
    facets = list(dict.fromkeys(f"d = {row['d']}, {each}" for row in held(rows) for each in BOUNDARIES))
    ticks = alt.Axis(values=list(SHARED_KIB), format="d", grid=False)
    x = alt.X("kib:Q", title="KiB of shared memory for a block", scale=alt.Scale(type="log", padding=10), axis=ticks)
    heights = alt.Axis(values=steps(low, high), format="~s", domain=False, ticks=False)
    y = alt.Y("y:Q", title="bytes", scale=alt.Scale(type="log", domain=[low, high], nice=False), axis=heights)
    hues = alt.Scale(domain=list(SCHEDULES), range=[LOOKS[name].light for name in SCHEDULES])
    marks = alt.Scale(domain=list(SCHEDULES), range=[LOOKS[name].shape for name in SCHEDULES])
    legend = alt.Legend(title="marks: measured; dashed: counted", columns=3)
    colour = alt.Color("schedule:N", scale=hues, legend=legend)
    shape = alt.Shape("schedule:N", scale=marks, legend=legend)
    base = alt.Chart()
    seen, said = (base.transform_filter(alt.datum.kind == kind) for kind in ("measured", "counted"))
    layers = [
        said.mark_line(strokeDash=[4, 3], strokeWidth=1.4).encode(x=x, y=y, color=colour),
        seen.mark_line(strokeWidth=2).encode(x=x, y=y, color=colour),
        seen.mark_point(filled=True, size=55, opacity=1).encode(x=x, y=y, color=colour, shape=shape),
    ]
    chart = alt.LayerChart(layer=layers, data=alt.Data(values=drawn)).properties(width=330, height=220)
    return chart.facet(facet=alt.Facet("facet:N", sort=facets, title=None), columns=2)


def tables(rows: list[Row]) -> list[Table]:
    columns = ("schedule", "boundary", "d", "KiB", "tiles", "bytes", "/ counted")
    made = [
        (
            f"`{row['schedule']}`",
            row["boundary"],
            str(row["d"]),
            str(row["kib"]),
            ", ".join(f"{edge} {length}" for edge, length in row["tiles"].items()),
            f"{row['bytes']:,}",
            f"{row['bytes'] / row['counted_bytes']:.2f}" if row["counted_bytes"] else "-",
        )
        for row in held(rows)
    ]
    return [Table("Every measurement", columns, made, 2)]


def findings(rows: list[Row]) -> list[str]:
    said = []
    for d in dict.fromkeys(row["d"] for row in held(rows)):
        for boundary in BOUNDARIES:
            found = [row for row in held(rows) if (row["d"], row["boundary"]) == (d, boundary)]
            if found:
                least = min(found, key=lambda row: row["bytes"])
                said.append(
                    f"d = {d}, {boundary}: fewest bytes with `{least['schedule']}` at {least['kib']} KiB, "
                    f"{least['bytes']:,}."
                )
    return said


def missing() -> str:
    if not detect_cuda():
        return "it needs an NVIDIA GPU, and this machine shows none"
    try:
        ncu.find()
    except RedblueError as error:
        return str(error)
    return ""


def tools() -> dict[str, str]:
    return {"": ncu.version(ncu.find())} | {"on a": next(device.name for device in detect_cuda())}


EXPERIMENT = Experiment(
    name="gpu",
    title="A GPU's boundaries over its shared memory",
    question="What crosses L1 and shared memory to L2, and L2 to DRAM, as a block is given more shared memory?",
    points=points,
    measure=measure,
    figure=figure,
    tables=tables,
    findings=findings,
    method=f"""
The Triton kernels forward, {HEADS} heads, n = {N:,}, full mask, {DTYPE}, planned for so much shared memory of a
block, under Nsight Compute (ncu), which empties the caches before each kernel. Time on real cards of a small shared
memory: the benchmark `benchmarks/small_cache/crossing.py`.
""",
    missing=missing,
    tools=tools,
)
