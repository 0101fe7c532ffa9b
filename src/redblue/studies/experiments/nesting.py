"""Nesting: one run, two boundaries measured together, each in a regime of its own."""

from __future__ import annotations

import altair as alt

from redblue.base.style import LOOKS
from redblue.bounds import lower_bound
from redblue.catalogue.memories import USABLE_SHARE
from redblue.lab.counts import count
from redblue.lab.planner import regime
from redblue.machine import CacheLevel
from redblue.meter import measure as measured
from redblue.problem import Problem
from redblue.schedules import TooFewWords
from redblue.studies.experiments import metered
from redblue.studies.experiments.experiment import Experiment, Point, Row, Table

SCHEDULES = ("flash", "hybrid", "small_cache")
CACHES = {"L1": CacheLevel("L1", 32 << 10, 64, 8), "L2": CacheLevel("L2", 512 << 10, 64, 8)}  # as of a Zen 3 core
BOUNDARIES = {"L1": "L1/L2", "L2": "L2/memory"}
SIZES = {128: 384, 512: 384}  # d -> n
DTYPE, WORD_BYTES = "float32", 4


def points(quick: bool) -> list[Point]:
    sizes = {32: 128} if quick else SIZES
    return [
        {"d": d, "n": n, "schedule": name, "planned_for": level}
        for d, n in sizes.items()
        for name in SCHEDULES
        for level in CACHES
    ]


def capacity_words(level: str) -> int:
    return CACHES[level].capacity_bytes // WORD_BYTES


def measure(point: Point) -> list[Row]:
    """A row for each boundary. Words into the nearer cache, words both ways at the farther one."""
    problem = Problem(point["n"], point["n"], point["d"], dtype=DTYPE)
    cache, nearer = CACHES["L2"], CACHES["L1"]
    try:
        found = measured(
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
    moved = {"L1": found.parts["inner_miss_lines"] * words_of_line, "L2": found.measured_words}
    counted = count(point["schedule"], problem, tiles=found.tiles)
    expected = {"L1": counted.reads, "L2": counted.words}
    return [
        point
        | {
            "boundary": level,
            "M": capacity_words(level),
            "regime": regime(point["d"], capacity_words(level)),
            "tiles": dict(found.tiles),
            "measured_words": moved[level],
            "counted_words": expected[level] if level == point["planned_for"] else None,
            "bound_words": lower_bound(problem, capacity_words(level)).words,
        }
        for level in CACHES
    ]


def held(rows: list[Row]) -> list[Row]:
    """What was measured."""
    return [row for row in rows if row["boundary"]]


def best(rows: list[Row]) -> dict[tuple[int, str], Row]:
    """The kernel that moves the fewest words, by d and boundary."""
    found: dict[tuple[int, str], Row] = {}
    for row in held(rows):
        at = row["d"], row["boundary"]
        if at not in found or row["measured_words"] < found[at]["measured_words"]:
            found[at] = row
    return found


def figure(rows: list[Row]) -> alt.FacetChart:
    """Bars of what each boundary moved, by kernel and the cache that its tiles are for; the count, and the bound."""
    drawn = [
        {
            "facet": _facet(row),
            "kernel": f"{row['schedule']}, for {row['planned_for']}",
            "schedule": row["schedule"],
            "y": _per_pair(row, "measured_words"),
            "counted": row["counted_words"] and _per_pair(row, "counted_words"),
            "floor": _per_pair(row, "bound_words"),
        }
        for row in held(rows)
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
    chart = alt.LayerChart(layer=layers, data=alt.Data(values=drawn)).properties(width=290, height=alt.Step(26))
    faceted = chart.facet(facet=alt.Facet("facet:N", sort=facets, title=None), columns=2)
    return faceted.resolve_scale(x="independent")


def _facet(row: Row) -> str:
    return f"d = {row['d']}, {BOUNDARIES[row['boundary']]}: {row['regime']}"


def _per_pair(row: Row, name: str) -> float:
    return row[name] / row["n"] ** 2


def tables(rows: list[Row]) -> list[Table]:
    columns = ("kernel", "tiles for", "boundary", "regime", "d", "n", "M", "measured", "/ counted", "/ bound")
    made = [
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
        for row in sorted(held(rows), key=lambda row: (row["d"], row["boundary"]))
    ]
    return [Table("Every boundary of every run", columns, made, 4)]


def findings(rows: list[Row]) -> list[str]:
    return [
        f"d = {d}, {BOUNDARIES[level]} (M = {row['M']:,}, {row['regime']}): fewest words with `{row['schedule']}` in "
        f"tiles for {row['planned_for']}, {_per_pair(row, 'measured_words'):.2f} per pair, "
        f"{row['measured_words'] / row['bound_words']:.2f} times the bound."
        for (d, level), row in sorted(best(rows).items())
    ]


EXPERIMENT = Experiment(
    name="nesting",
    title="Two boundaries of one run",
    question="Is each boundary of a hierarchy in a regime of its own, when L1 and L2 are measured together?",
    points=points,
    measure=measure,
    figure=figure,
    tables=tables,
    findings=findings,
    method=f"""
The compiled CPU kernels (AVX2), one head, full mask, float32, each run once under valgrind's callgrind, which plays
every access through L1 ({CACHES["L1"].capacity_bytes >> 10} KiB, 8 ways) and what misses there through L2
({CACHES["L2"].capacity_bytes >> 10} KiB, 8 ways), lines of 64 bytes, least recently used: a Zen 3 core's. Each kernel
runs twice: with tiles for L1, and with tiles for L2 (three quarters of it: [real-caches](real-caches.md)). Bars:
measured; ticks: the schedule's count for these tiles, at the boundary that they are for; dashed: the lower bound of
that boundary.

A kernel that fits no L1 has no bar there. `small_cache` lies far above its count where rows of K, which it reads in
place, are a power of two apart and meet in few sets: [crossing](crossing.md) says more.

At L1/L2 only what is read is measured, as callgrind's L1 writes through; the count there is of reads, too, and the
bound of both ways, of which reads are nearly all. The kernels have tiles for one boundary: at the other they move
what falls out of these tiles. Plans of two boundaries (`redblue plan`) nest; a kernel that follows both would need
both sets of loops.
""",
    missing=metered.missing,
    tools=metered.tools,
)
