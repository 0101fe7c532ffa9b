"""Bytes between a GPU's memories, over the shared memory of a block. Needs a GPU and Nsight Compute."""

from __future__ import annotations

import altair as alt

from redblue.base.dtypes import BYTES_PER_WORD
from redblue.base.errors import RedblueError
from redblue.base.style import LOOKS
from redblue.catalogue.detect import detect_cuda
from redblue.kernels.table import tiled_kernels
from redblue.meter import measure as measured
from redblue.meter import ncu
from redblue.problem import Problem
from redblue.schedules import TooFewWords
from redblue.studies.experiments.experiment import Experiment, Point, Row, Table
from redblue.studies.ticks import log_ticks

SCHEDULES = tiled_kernels("gpu", "forward")
BOUNDARIES = ("shared memory and L1/L2", "L2/DRAM")
SHARED_KIB = (32, 48, 64, 96, 128, 160, 227)  # per block, as cards from a T4 to an H100 offer
DIMENSIONS, N, HEADS, DTYPE = (64, 128, 256, 512), 4096, 16, "float16"
WORD_BYTES = BYTES_PER_WORD[DTYPE]


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
    """Measure the kernel with tiles for `kib` KiB of shared memory. The row has bytes None if no tiles fit."""
    problem = Problem(point["n"], point["n"], point["d"], heads=HEADS, dtype=DTYPE)
    words = point["kib"] * 2**10 // WORD_BYTES
    try:
        result = measured(
            problem, using="ncu", plan_words=words, schedule=point["schedule"], boundary=point["boundary"]
        )
    except TooFewWords as error:
        return [point | {"bytes": None, "why": str(error)}]
    moved = result.bytes_read + result.bytes_written
    return [
        point
        | {
            "bytes": moved,
            "tiles": dict(result.tiles),
            "counted_bytes": (result.counted_words or 0) * WORD_BYTES,
            "kernel": result.kernel,
        }
    ]


def measured_rows(rows: list[Row]) -> list[Row]:
    """The rows whose kernel fitted and was measured."""
    return [row for row in rows if row["bytes"]]


def figure(rows: list[Row]) -> alt.FacetChart:
    """Bytes over the shared memory of a block, a facet for each d and boundary.

    A dashed line shows the schedule's count, at the boundary nearer to the multiprocessor.
    """
    values = []
    for row in measured_rows(rows):
        facet = f"d = {row['d']}, {row['boundary']}"
        common = {"facet": facet, "kib": row["kib"], "schedule": row["schedule"]}
        values.append(common | {"y": row["bytes"], "kind": "measured"})
        if row["boundary"] == BOUNDARIES[0]:
            values.append(common | {"y": row["counted_bytes"], "kind": "counted"})
    low, high = min(row["y"] for row in values) / 1.2, max(row["y"] for row in values) * 1.2
    facets = list(
        dict.fromkeys(f"d = {row['d']}, {boundary}" for row in measured_rows(rows) for boundary in BOUNDARIES)
    )
    ticks = alt.Axis(values=list(SHARED_KIB), format="d", grid=False)
    x = alt.X("kib:Q", title="KiB of shared memory for a block", scale=alt.Scale(type="log", padding=10), axis=ticks)
    heights = alt.Axis(values=log_ticks(low, high), format="~s", domain=False, ticks=False)
    y = alt.Y("y:Q", title="bytes", scale=alt.Scale(type="log", domain=[low, high], nice=False), axis=heights)
    hues = alt.Scale(domain=list(SCHEDULES), range=[LOOKS[name].light for name in SCHEDULES])
    marks = alt.Scale(domain=list(SCHEDULES), range=[LOOKS[name].shape for name in SCHEDULES])
    legend = alt.Legend(title="marks: measured; dashed: counted", columns=3)
    colour = alt.Color("schedule:N", scale=hues, legend=legend)
    shape = alt.Shape("schedule:N", scale=marks, legend=legend)
    base = alt.Chart()
    measurements, counts = (base.transform_filter(alt.datum.kind == kind) for kind in ("measured", "counted"))
    layers = [
        counts.mark_line(strokeDash=[4, 3], strokeWidth=1.4).encode(x=x, y=y, color=colour),
        measurements.mark_line(strokeWidth=2).encode(x=x, y=y, color=colour),
        measurements.mark_point(filled=True, size=55, opacity=1).encode(x=x, y=y, color=colour, shape=shape),
    ]
    chart = alt.LayerChart(layer=layers, data=alt.Data(values=values)).properties(width=330, height=220)
    return chart.facet(facet=alt.Facet("facet:N", sort=facets, title=None), columns=2)


def tables(rows: list[Row]) -> list[Table]:
    columns = ("schedule", "boundary", "d", "KiB", "tiles", "bytes", "bytes / counted")
    lines = [
        (
            f"`{row['schedule']}`",
            row["boundary"],
            str(row["d"]),
            str(row["kib"]),
            ", ".join(f"{edge} {length}" for edge, length in row["tiles"].items()),
            f"{row['bytes']:,}",
            f"{row['bytes'] / row['counted_bytes']:.2f}" if row["counted_bytes"] else "-",
        )
        for row in measured_rows(rows)
    ]
    return [Table("Every measurement", columns, lines, 2)]


def findings(rows: list[Row]) -> list[str]:
    sentences = []
    for d in dict.fromkeys(row["d"] for row in measured_rows(rows)):
        for boundary in BOUNDARIES:
            crossing = [row for row in measured_rows(rows) if (row["d"], row["boundary"]) == (d, boundary)]
            if crossing:
                least = min(crossing, key=lambda row: row["bytes"])
                sentences.append(
                    f"d = {d}, {boundary}: fewest bytes with `{least['schedule']}` at {least['kib']} KiB, "
                    f"{least['bytes']:,}."
                )
    return sentences


def missing() -> str:
    """What this machine lacks; "" if nothing."""
    if not detect_cuda():
        return "it needs an NVIDIA GPU, and this machine shows none"
    try:
        ncu.find()
    except RedblueError as error:
        return str(error)
    return ""


def tools() -> dict[str, str]:
    """The version of ncu, and the GPU's name."""
    return {"": ncu.version(ncu.find())} | {"on a": next(device.name for device in detect_cuda())}


EXPERIMENT = Experiment(
    name="gpu",
    title="A GPU's boundaries over its shared memory",
    question="How many bytes move to and from L2 and DRAM if a block has more shared memory?",
    points=points,
    measure=measure,
    figure=figure,
    tables=tables,
    findings=findings,
    method=f"""
The Triton kernels run forward with {HEADS} heads, n = {N:,}, a full mask and {DTYPE}. Their tiles are planned for the
given shared memory of a block. Nsight Compute (ncu) counts the bytes, and empties the caches before each kernel. The
benchmark `benchmarks/small_cache/crossing.py` measures times on cards with little shared memory.
""",
    missing=missing,
    tools=tools,
)
