"""Nesting: two boundaries of one run measured together. Each boundary is in a regime of its own."""

from __future__ import annotations

import altair as alt

from redblue.base.dtypes import BYTES_PER_WORD
from redblue.base.style import LOOKS
from redblue.bounds import lower_bound
from redblue.catalogue.memories import USABLE_SHARE
from redblue.kernels.table import tiled_kernels
from redblue.lab.counts import count
from redblue.lab.planner import regime
from redblue.machine import CacheLevel
from redblue.meter import measure as measured
from redblue.problem import Problem
from redblue.schedules import TooFewWords
from redblue.studies.experiments import metered
from redblue.studies.experiments.experiment import Experiment, Point, Row, Table

SCHEDULES = tiled_kernels("cpu", "forward")
CACHES = {"L1": CacheLevel("L1", 32 << 10, 64, 8), "L2": CacheLevel("L2", 512 << 10, 64, 8)}  # a Zen 3 core's
BOUNDARIES = {"L1": "L1/L2", "L2": "L2/memory"}
SIZES = {128: 384, 512: 384}  # d -> n
DTYPE = "float32"
WORD_BYTES = BYTES_PER_WORD[DTYPE]


def points(quick: bool) -> list[Point]:
    sizes = {32: 128} if quick else SIZES
    return [
        {"d": d, "n": n, "schedule": name, "planned_for": level}
        for d, n in sizes.items()
        for name in SCHEDULES
        for level in CACHES
    ]


def capacity_words(level: str) -> int:
    """M of a level."""
    return CACHES[level].capacity_bytes // WORD_BYTES


def measure(point: Point) -> list[Row]:
    """Measure one kernel; return a row for each boundary.

    At L1/L2 the row holds the words that were read; at L2/memory it holds those read and written.
    """
    problem = Problem(point["n"], point["n"], point["d"], dtype=DTYPE)
    cache, nearer = CACHES["L2"], CACHES["L1"]
    try:
        result = measured(
            problem,
            words=capacity_words("L2"),
            using="cachegrind",
            schedule=point["schedule"],
            plan_words=int(USABLE_SHARE * capacity_words(point["planned_for"])),
            line_bytes=cache.line_bytes,
            ways=cache.ways,
            inner=nearer,
        )
    except TooFewWords as error:
        return [point | {"boundary": None, "why": str(error)}]
    words_of_line = nearer.line_bytes // WORD_BYTES
    words = {"L1": result.parts["inner_miss_lines"] * words_of_line, "L2": result.measured_words}
    counted = count(point["schedule"], problem, tiles=result.tiles)
    expected = {"L1": counted.reads, "L2": counted.words}
    return [
        point
        | {
            "boundary": level,
            "M": capacity_words(level),
            "regime": regime(point["d"], capacity_words(level)),
            "tiles": dict(result.tiles),
            "measured_words": words[level],
            "counted_words": expected[level] if level == point["planned_for"] else None,
            "bound_words": lower_bound(problem, capacity_words(level)).words,
        }
        for level in CACHES
    ]


def measured_rows(rows: list[Row]) -> list[Row]:
    """The rows whose kernel fitted and was measured."""
    return [row for row in rows if row["boundary"]]


def best(rows: list[Row]) -> dict[tuple[int, str], Row]:
    """For each d and boundary, the row of the kernel that moves the fewest words."""
    fewest: dict[tuple[int, str], Row] = {}
    for row in measured_rows(rows):
        key = row["d"], row["boundary"]
        if key not in fewest or row["measured_words"] < fewest[key]["measured_words"]:
            fewest[key] = row
    return fewest


def figure(rows: list[Row]) -> alt.FacetChart:
    """Bars of the measured words at each boundary, by kernel and by the cache that its tiles are for.

    A tick marks the count, a dashed line the bound.
    """
    values = [
        {
            "facet": _facet(row),
            "kernel": f"{row['schedule']}, for {row['planned_for']}",
            "schedule": row["schedule"],
            "y": metered.per_pair(row, "measured_words"),
            "counted": row["counted_words"] and metered.per_pair(row, "counted_words"),
            "floor": metered.per_pair(row, "bound_words"),
        }
        for row in measured_rows(rows)
    ]
    facets = [_facet(row) for row in best(rows).values()]
    kernels = [f"{name}, for {level}" for name in SCHEDULES for level in CACHES]
    y = alt.Y("kernel:N", sort=kernels, title=None, axis=alt.Axis(domain=False, ticks=False, labelLimit=220))
    x = alt.X("y:Q", title="words per pair", axis=alt.Axis(domain=False, ticks=False, tickCount=5))
    names = list(SCHEDULES)
    hues = alt.Scale(domain=names, range=[LOOKS[name].light for name in names])
    colour = alt.Color("schedule:N", scale=hues, legend=None)
    base = alt.Chart()
    layers = [
        base.mark_bar(height=14).encode(x=x, y=y, color=colour),
        base.transform_filter("isValid(datum.counted)")
        .mark_tick(style="ink", thickness=2, height=20, opacity=1)
        .encode(x="counted:Q", y=y),
        base.mark_rule(style="ink", strokeDash=[4, 3]).encode(x="max(floor):Q"),
        base.mark_text(style="faint", align="left", dx=5).encode(x=x, y=y, text=alt.Text("y:Q", format=".3~r")),
    ]
    chart = alt.LayerChart(layer=layers, data=alt.Data(values=values)).properties(width=290, height=alt.Step(26))
    faceted = chart.facet(facet=alt.Facet("facet:N", sort=facets, title=None), columns=2)
    return faceted.resolve_scale(x="independent")


def _facet(row: Row) -> str:
    return f"d = {row['d']}, {BOUNDARIES[row['boundary']]}: {row['regime']}"


def tables(rows: list[Row]) -> list[Table]:
    columns = ("kernel", "tiles for", "boundary", "regime", "d", "n", "M", "measured words")
    columns += ("measured / counted", "measured / bound")
    lines = [
        (
            f"`{row['schedule']}`",
            row["planned_for"],
            BOUNDARIES[row["boundary"]],
            row["regime"],
            str(row["d"]),
            str(row["n"]),
            f"{row['M']:,}",
            f"{row['measured_words']:,}",
            f"{row['measured_words'] / row['counted_words']:.2f}" if row["counted_words"] else "-",
            f"{row['measured_words'] / row['bound_words']:.2f}",
        )
        for row in sorted(measured_rows(rows), key=lambda row: (row["d"], row["boundary"]))
    ]
    return [Table("Every boundary of every run", columns, lines, 4)]


def findings(rows: list[Row]) -> list[str]:
    return [
        f"At d = {d} and the boundary {BOUNDARIES[level]} (M = {row['M']:,}, regime `{row['regime']}`), "
        f"`{row['schedule']}` with tiles for {row['planned_for']} moves the fewest words: "
        f"{metered.per_pair(row, 'measured_words'):.2f} words per pair, which is "
        f"{row['measured_words'] / row['bound_words']:.2f} times the bound."
        for (d, level), row in sorted(best(rows).items())
    ]


EXPERIMENT = Experiment(
    name="nesting",
    title="Two boundaries of one run",
    question="Is each boundary of a memory hierarchy in its own regime, if L1 and L2 are measured in one run?",
    points=points,
    measure=measure,
    figure=figure,
    tables=tables,
    findings=findings,
    method=f"""
The compiled CPU kernels (AVX2) run under valgrind's callgrind, with one head, a full mask and float32. Callgrind
simulates the caches of a Zen 3 core: L1 with {CACHES["L1"].capacity_bytes >> 10} KiB and 8 ways, and L2 with
{CACHES["L2"].capacity_bytes >> 10} KiB and 8 ways, which sees the misses of L1. Both have lines of 64 bytes and replace
the least recently used line. Each kernel runs twice: with tiles for L1, and with tiles for L2. The tiles are planned
for three quarters of the cache ([real-caches](real-caches.md)). A kernel whose tiles do not fit in L1 has no run for
L1. The schedule's count holds only for the boundary for which the kernel's tiles are planned. In the other rows, a dash
stands for the missing count.

The figure shows measured words as bars, counts as ticks, and the lower bound of each boundary as a dashed line.

`small_cache` reads rows of K in place. If these rows lie a power of two apart, they share few sets, and the kernel
moves many times its count ([crossing](crossing.md)).

At L1/L2, only reads are measured and counted, because callgrind's L1 writes through. The bound includes writes, but
nearly all of it is reads. A kernel has tiles for one boundary only, and these tiles determine the traffic at the other
boundary. `redblue plan` nests tiles for both boundaries; a kernel that follows such a plan would need loops for both
sets of tiles.
""",
    missing=metered.missing,
    tools=metered.tools,
)
