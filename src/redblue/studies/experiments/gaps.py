"""Gaps: the words of plans over the lower bound, for all models of the catalogue on all of its machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate

import altair as alt

from redblue.base.style import COLOURS
from redblue.catalogue.memories import Memory, list_memories, memory
from redblue.catalogue.models import list_models, model
from redblue.lab.planner import plan
from redblue.lab.text import mask_text
from redblue.problem import DIRECTIONS, Problem
from redblue.studies.experiments.experiment import Experiment, Point, Row, Table

HUES = {  # direction -> colour
    "forward": COLOURS["light"]["large-cache"],
    "backward": COLOURS["light"]["small-cache"],
    "gradient_x": COLOURS["light"]["between"],
}
PLANS, SEARCHES = "plans", "best tiles of one boundary alone"
QUICK_MODELS, QUICK_MACHINES = ("gpt2", "bert-large"), ("t4", "zen5-server")
LISTED = 8  # worst problems in the table
AIMS = {"forward": (1.08, 1.35, 1.7), "backward": (1.35, 1.8, 2.4)}  # of the median, the 90th percentile, the worst


def points(quick: bool) -> list[Point]:
    """One point for each distinct problem of the models, and each direction that it has."""
    keys = sorted({_key(problem) for problem in _problems(quick)}, key=lambda key: (list(HUES).index(key[1]), key[0]))
    return [{"problem": text, "direction": direction, "quick": quick} for text, direction in keys]


def _problems(quick: bool) -> Iterator[Problem]:
    """Yield the problem of each layer in each direction, but gradient_x only if every query head has its own keys."""
    for name in QUICK_MODELS if quick else list_models():
        for layer in model(name).layers:
            for direction in DIRECTIONS:
                if direction != "gradient_x" or layer.problem.group == 1:
                    yield replace(layer.problem, direction=direction)


def _key(problem: Problem) -> tuple[str, str]:
    """The stream of a problem as text, and its direction: words over the bound are the same for equal streams."""
    stream = problem.one_stream()
    sizes = f"{stream.n_q:,} x {stream.n_k:,}, d {_either(stream.d, stream.d_v)}"
    return f"{sizes}, {mask_text(problem.mask)}", problem.direction


def _name(direction: str) -> str:
    return "gradient by X" if direction == "gradient_x" else direction


def _either(d: int, d_v: int) -> str:
    return str(d) if d == d_v else f"{d} / {d_v}"


def _machines(quick: bool) -> list[tuple[Memory, int]]:
    """Return machines whose boundaries differ, each with the number of machines that have the same boundaries."""
    machines = [memory(name) for name in (QUICK_MACHINES if quick else list_memories())]
    kinds = [
        (machine.tile_multiple, *((b.capacity_bytes, b.fast.usable_share) for b in machine.boundaries))
        for machine in machines
    ]
    return [(machines[kinds.index(kind)], count) for kind, count in Counter(kinds).items()]


def measure(point: Point) -> list[Row]:
    """Plan one problem on all machines. Plans with the same schedule and the same two gaps share a row.

    gap, free_gap: words over the bound for the plan, and for the best tiles of its boundary alone, to two decimals.
    plans: the number of plans that share the row, over models, layers and machines. M, where: the words of fast memory
    and the boundary of one of these plans; only the row with the largest gap keeps them.
    """
    alike = [
        candidate
        for candidate in _problems(point["quick"])
        if _key(candidate) == (point["problem"], point["direction"])
    ]
    problem, uses = alike[0], len(alike)
    rows: dict[tuple[object, ...], Row] = {}
    for machine, copies in _machines(point["quick"]):
        for level in plan(problem, machine).levels:
            gap, free = level.gap, (level.free_words or 0) / level.bound.words
            key = (level.schedule, round(gap or 0, 2), round(free, 2))
            first = {"schedule": key[0], "gap": key[1], "free_gap": key[2], "plans": 0, "M": level.capacity_words}
            named = {name: point[name] for name in ("problem", "direction")}
            row = rows.setdefault(key, named | first | {"where": f"{machine.name}, {level.boundary}"})
            row["plans"] += uses * copies
    for row in sorted(rows.values(), key=lambda row: row["gap"])[:-1]:
        del row["M"], row["where"]
    return list(rows.values())


def fitting(rows: list[Row], direction: str | None = None, key: str = "gap") -> list[Row]:
    """The rows (of a direction) for which a schedule fits, in ascending order of the gap."""
    chosen = [row for row in rows if row["schedule"] and direction in (None, row["direction"])]
    return sorted(chosen, key=lambda row: row[key])


def quantile(rows: list[Row], share: float, key: str = "gap") -> float:
    """The smallest gap that at least `share` of the plans do not exceed."""
    ordered = fitting(rows, key=key)
    total = sum(row["plans"] for row in ordered)
    return next(
        row[key]
        for row, done in zip(ordered, accumulate(row["plans"] for row in ordered), strict=True)
        if done >= share * total
    )


def figure(rows: list[Row]) -> alt.LayerChart:
    """The cumulative share of plans over words / bound; one line for each direction."""
    values = [
        {"gap": gap, "share": share, "direction": _name(direction), "of": of}
        for direction in HUES
        for of, key in ((PLANS, "gap"), (SEARCHES, "free_gap"))
        for gap, share in _shares(fitting(rows, direction, key), key)
    ]
    most = max(row["gap"] for row in values)
    x = alt.X(
        "gap:Q",
        title="words / lower bound",
        scale=alt.Scale(type="log", domain=[1, most], nice=False),
        axis=alt.Axis(values=[1, 1.1, 1.2, 1.35, 1.5, 1.75, 2, 2.5, 3, 4, 5, 6, 8], format=".4~g"),
    )
    y = alt.Y("share:Q", title="share of plans with at most this ratio", axis=alt.Axis(format="%"))
    colour = alt.Color(
        "direction:N",
        scale=alt.Scale(domain=[*map(_name, HUES)], range=list(HUES.values())),
        legend=alt.Legend(title=None),
    )
    dash = alt.StrokeDash("of:N", scale=alt.Scale(domain=[PLANS, SEARCHES], range=[[1, 0], [4, 3]]), title=None)
    guides = alt.Chart(alt.Data(values=[{"share": 0.5}, {"share": 0.9}]))
    lines = alt.Chart(alt.Data(values=values)).mark_line(strokeWidth=2, interpolate="step-after")
    return alt.LayerChart(
        layer=[
            guides.mark_rule(style="faint", strokeDash=[2, 4]).encode(y=y),
            lines.encode(x=x, y=y, color=colour, strokeDash=dash, order="share:Q"),
        ]
    ).properties(width=600, height=340)


def _shares(ordered: list[Row], key: str) -> list[tuple[float, float]]:
    """The gaps in ascending order, each with the share of plans that do not exceed it."""
    total = sum(row["plans"] for row in ordered)
    done = accumulate(row["plans"] for row in ordered)
    return list({row[key]: count / total for row, count in zip(ordered, done, strict=True)}.items())


def tables(rows: list[Row]) -> list[Table]:
    columns = ("direction", "plans", "median", "90th percentile", "worst")
    columns += ("median, one boundary alone", "90th percentile, one boundary alone", "worst, one boundary alone")
    summary = []
    for direction in HUES:
        own = fitting(rows, direction)
        figures = [f"{quantile(own, share, key):.2f}" for key in ("gap", "free_gap") for share in (0.5, 0.9, 1)]
        summary.append((_name(direction), f"{sum(row['plans'] for row in own):,}", *figures))
    return [
        Table("Words over the lower bound", columns, summary),
        Table("The goals", ("direction", "statistic", "reached", "goal", "met"), list(_beside_aims(rows)), 2),
        Table(
            "The problems",
            ("problem", "direction", "plans", "median", "90th percentile", "worst"),
            _problem_lines(rows),
            2,
        ),
        Table(
            f"The {LISTED} worst problems of each direction, each at its worst boundary",
            ("problem", "direction", "machine, boundary", "M, words", "schedule", "ratio", "ratio, one boundary alone"),
            [line for direction in HUES for line in _worst(rows, direction)],
            3,
        ),
    ]


def _beside_aims(rows: list[Row]) -> Iterator[tuple[str, ...]]:
    """Yield lines of the table of aims, which were set before the schedules for few blocks were written."""
    for direction, aims in AIMS.items():
        own = fitting(rows, direction)
        for name, share, aim in zip(("median", "90th percentile", "worst"), (0.5, 0.9, 1), aims, strict=True):
            reached = quantile(own, share)
            yield direction, name, f"{reached:.2f}", f"{aim:.2f}", "yes" if reached <= aim else "no"


def _problem_lines(rows: list[Row]) -> list[tuple[str, ...]]:
    """Lines of the table of problems."""
    lines = []
    for problem, direction in dict.fromkeys((row["problem"], row["direction"]) for row in rows):
        own = [row for row in fitting(rows, direction) if row["problem"] == problem]
        shares = (f"{quantile(own, share):.2f}" for share in (0.5, 0.9, 1))
        lines.append((problem, _name(direction), f"{sum(row['plans'] for row in own):,}", *shares))
    return lines


def _worst(rows: list[Row], direction: str) -> list[tuple[str, ...]]:
    """Lines of the table of the worst problems of a direction."""
    worst = {row["problem"]: row for row in fitting(rows, direction)}  # the last one of each problem
    return [
        (
            *(row["problem"], _name(direction), row["where"], f"{row['M']:,}", f"`{row['schedule']}`"),
            *(f"{row['gap']:.2f}", f"{row['free_gap']:.2f}"),
        )
        for row in sorted(worst.values(), key=lambda row: -row["gap"])[:LISTED]
    ]


def findings(rows: list[Row]) -> list[str]:
    lines = []
    for direction in HUES:
        own, name = fitting(rows, direction), _name(direction)
        total, tight = (sum(row["plans"] for row in some) for some in (own, [row for row in own if row["gap"] <= 1.05]))
        worst = own[-1]
        lines.append(
            f"{name[0].upper()}{name[1:]}: half of the plans move at most {quantile(own, 0.5):.2f} times the "
            f"lower bound, and nine of ten at most {quantile(own, 0.9):.2f} times. {tight / total:.0%} of the plans "
            f"exceed the bound by at most 5 %. The worst plan moves {worst['gap']:.2f} times the bound "
            f"(`{worst['schedule']}` for {worst['problem']}, on {worst['where']})."
        )
    nothing = sum(row["plans"] for row in rows if not row["schedule"])
    return [*lines, f"At {nothing:,} more boundaries, no schedule fits."] if nothing else lines


EXPERIMENT = Experiment(
    name="gaps",
    title="How far plans are from the lower bounds",
    question="How far above the lower bound are the words of the plans for real models on real machines?",
    points=points,
    measure=measure,
    figure=figure,
    tables=tables,
    findings=findings,
    method="""
The words are planned (`plan`), not measured. Each layer of the models of the catalogue (`redblue models`) has a plan
for each boundary of the machines of the catalogue (`redblue memories`). A ratio is the words of a plan, divided by the
lower bound. The words of a plan are the closed form of its schedule, which equals the count of a run. The bound is that
of `lower_bound` for the whole capacity M. A word has 16 bits, because the models use float16 or bfloat16.

- *Gradient by X*: the gradient with respect to X, where the scores are A1 X A2ᵀ (arXiv 2410.09397). It is planned for
  layers in which each query head has a key head of its own.
- *One boundary alone*: the fewest words at one boundary if the tiles need not nest with the tiles of its neighbours.
- *Problem*: rows x keys of one stream. The query heads that share keys are rows of the same stream. "d 192 / 128" means
  the head dimension 192 for queries and keys, and 128 for values. "Window 127 back" means that each query attends its
  own key and the 127 keys before it.
- *Goals*: this project set them before it had schedules for problems with only [a few blocks of rows or
  keys](../lab/theory.md#few-blocks-derived).

Besides the schedule, three effects raise a ratio:

- In a hardware-managed cache, a plan fills only the usable share of M ([real-caches](real-caches.md)), but the bound
  assumes all of M. For large caches, this alone is a factor of up to 1.33.
- The bound is the larger of the compulsory traffic and the traffic of the phases ([theory](../lab/theory.md)). If both
  are about equal, known schedules move about their sum. It is [open](../lab/theory.md#few-blocks-open) whether there is
  a bound near the sum.
- The tiles of a plan nest: the tiles of one boundary divide those of the next, larger memory.
""",
)
