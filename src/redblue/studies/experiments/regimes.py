"""Regimes: the theorem that applies at each boundary of each machine, for each head dimension."""

from __future__ import annotations

from collections import Counter

import altair as alt

from redblue.base.style import COLOURS, REGIMES
from redblue.bounds import lower_bounds
from redblue.catalogue.memories import memory
from redblue.lab.planner import plan
from redblue.problem import Problem
from redblue.studies.experiments.experiment import Experiment, Point, Row, Table

MACHINES = (
    *("t4", "v100-sxm2", "rtx-4090", "a100-sxm", "h100-sxm", "b200", "mi300x", "tpu-v6e", "apple-m1-max-gpu"),
    *("zen5-server", "sapphire-rapids-server", "raspberry-pi-5"),
)
HEAD_DIMENSIONS = (64, 96, 128, 192, 256, 512, 576)
N, DTYPES = 8192, {"cpu": "float32", "microcontroller": "float32"}  # float16 on all other kinds of machine
ONCE = "each word once"
STATEMENTS = {  # regime -> (forward, backward)
    "large-cache": (
        "Θ(n²d²/M): Saha & Ye, Theorem 3.2 (FlashAttention; Dao et al., Theorem 2) and Lemmas 3.3, 3.4",
        "arXiv 2410.09397, Theorems 4.1 and 4.2",
    ),
    "between": (
        "Θ(n²d/√M): Saha & Ye, Theorems 3.5 and 3.7. `hybrid` has the best constant here, and is in no paper",
        "arXiv 2410.09397, Theorems 4.3 and 4.4",
    ),
    "small-cache": (
        "Θ(n²d/√M): Saha & Ye, Theorems 3.5 (Algorithm 1) and 3.7",
        "arXiv 2410.09397, Theorems 4.3 (Algorithm 6) and 4.4",
    ),
    ONCE: (
        "none: M is so large that every input is read once and every output is written once",
        "as forward",
    ),
}
SHADES = {name: COLOURS["light"][name] for name in REGIMES} | {ONCE: "#7d8791"}
SHORT = {"large-cache": "large", "between": "between", "small-cache": "small", ONCE: "once"}


def points(quick: bool) -> list[Point]:
    return [{"machine": name, "d": d} for name in (MACHINES[:1] if quick else MACHINES) for d in HEAD_DIMENSIONS]


def measure(point: Point) -> list[Row]:
    """Plan one head dimension on a machine; return a row for each boundary."""
    machine, d = memory(point["machine"]), point["d"]
    problem = Problem(N, N, d, dtype=DTYPES.get(machine.kind, "float16"))
    rows = []
    for level in plan(problem, machine).levels:
        compulsory = next(x.words for x in lower_bounds(problem, level.capacity_words) if x.name == "compulsory")
        once = level.words is not None and level.words <= 1.05 * compulsory
        rows.append(
            point
            | {
                "title": machine.title,
                "dtype": problem.dtype,
                "boundary": level.boundary,
                "M": level.capacity_words,
                "regime": level.regime,
                "applies": ONCE if once else level.regime,
                "schedule": level.schedule,
                "words": level.words,
                "bound_words": level.bound.words,
            }
        )
    return rows


def place(row: Row) -> str:
    """The machine and the boundary of a row, as text."""
    return f"{row['machine']}, {row['boundary']}"


def figure(rows: list[Row]) -> alt.LayerChart:
    """A grid of cells in the colours of their regimes: one row per boundary, one column per head dimension."""
    order = [f"{place(row)}" for row in rows]
    values = [
        {
            "place": place(row),
            "d": str(row["d"]),
            "applies": row["applies"],
            "schedule": row["schedule"] or "none fits",
            "M": f"{row['M']:,}",
        }
        for row in rows
    ]
    x = alt.X(
        "d:N",
        sort=[str(d) for d in HEAD_DIMENSIONS],
        title="head dimension",
        axis=alt.Axis(orient="top", labelAngle=0, domain=False, ticks=False),
    )
    y = alt.Y(
        "place:N",
        sort=list(dict.fromkeys(order)),
        title=None,
        axis=alt.Axis(domain=False, ticks=False, labelLimit=300, labelPadding=6),
    )
    scale = alt.Scale(domain=list(SHADES), range=list(SHADES.values()))
    colour = alt.Color("applies:N", scale=scale, legend=alt.Legend(title=None, columns=4, symbolType="square"))
    shown = [alt.Tooltip(f"{name}:N") for name in ("place", "M", "d", "applies", "schedule")]
    base = alt.Chart(alt.Data(values=values)).encode(x=x, y=y)
    cells = base.mark_rect(stroke=COLOURS["light"]["paper"], strokeWidth=2, opacity=0.85)
    texts = base.mark_text(color="white", fontSize=10).encode(text="schedule:N")
    return alt.LayerChart(layer=[cells.encode(color=colour, tooltip=shown), texts]).properties(
        width=alt.Step(78), height=alt.Step(21)
    )


def tables(rows: list[Row]) -> list[Table]:
    dimensions = list(dict.fromkeys(row["d"] for row in rows))
    cells = {(place(row), row["d"]): SHORT[row["applies"]] for row in rows}
    by_place = {place(row): row for row in rows}
    lines = [
        (row["title"], row["boundary"], f"{row['M']:,}", *(cells[name, d] for d in dimensions))
        for name, row in by_place.items()
    ]
    columns = ("hardware", "boundary", "M, words", *(f"d {d}" for d in dimensions))
    counts = Counter(row["applies"] for row in rows)
    statements = [(name, SHORT[name], str(counts[name]), *texts) for name, texts in STATEMENTS.items()]
    heads = ("regime", "name in the first table", "cells", "forward", "backward (gradient by X)")
    return [
        Table("The regime at each boundary", columns, lines, 2),
        Table("The theorems of each regime", heads, statements, 5),
    ]


def findings(rows: list[Row]) -> list[str]:
    nearest = {row["machine"]: row["boundary"] for row in reversed(rows)}
    first = [row for row in rows if row["boundary"] == nearest[row["machine"]]]
    wide = [row for row in first if row["d"] >= 512]
    small = [row for row in wide if row["applies"] in ("small-cache", "between")]
    mixed = {
        (row["machine"], row["d"])
        for row in rows
        if len({other["applies"] for other in rows if (other["machine"], other["d"]) == (row["machine"], row["d"])}) > 1
    }
    pairs = {(row["machine"], row["d"]) for row in rows}
    return [
        f"For {len(mixed)} of {len(pairs)} pairs of a machine and a head dimension, the boundaries of the machine are "
        f"in different regimes. So a regime belongs to one boundary, not to a machine.",
        f"In {len(small)} of the {len(wide)} pairs with d of 512 or more, the memory nearest to the arithmetic units "
        f"has M < d². There, Saha & Ye's theorem for small caches applies, and FlashAttention is not the best "
        f"schedule.",
    ]


EXPERIMENT = Experiment(
    name="regimes",
    title="Which theorem applies where",
    question="Which regime and which theorem apply at each boundary of real hardware, for each head dimension?",
    points=points,
    measure=measure,
    figure=figure,
    tables=tables,
    findings=findings,
    method=f"""
The planner computes the regimes from the catalogue of machines (`redblue memories`); nothing is measured. The calls are
forward passes of one head at a time, with a full mask and n = {N:,}. Words have 16 bits on accelerators and 32 bits on
CPUs. M is the capacity of one instance of the nearer memory, such as one multiprocessor's shared memory or one core's
L1d. Each boundary is a two-level model of its own, so the papers' theorems apply to each boundary with its own M.

In the figure, the colour of a cell shows the regime, and the text names the schedule that the planner chooses. The
planner compares exact words. So near the capacity that divides two regimes, the planner can choose the schedule of the
neighbouring regime.

*Each word once*: the plan moves at most 5 % more words than are needed to read every input and write every output once.
No theorem applies there, because the formulas of the theorems give fewer words than are needed (FlashAttention's
formula holds for d ≤ M ≤ n d).

*Gradient by X*: the gradient with respect to X, where the scores are A1 X A2ᵀ. The listed theorems of arXiv 2410.09397
are about this gradient.

[heads](heads.md) shows the regimes of several heads that run at once.
""",
)
