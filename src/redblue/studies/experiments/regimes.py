"""Regimes: at which boundary of which hardware, at which head dimension, which statement of the papers applies."""

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
N, DTYPES = 8192, {"cpu": "float32", "microcontroller": "float32"}  # all others: 16 bits
ONCE = "each word once"
STATEMENTS = {  # forward; backward
    "large-cache": (
        "Θ(n²d²/M): Saha & Ye, Theorem 3.2 (FlashAttention; Dao et al., Theorem 2) and Lemmas 3.3, 3.4",
        "arXiv 2410.09397, Theorems 4.1 and 4.2",
    ),
    "between": (
        "Θ(n²d/√M): Saha & Ye, Theorems 3.5 and 3.7; the constant is another schedule's, which no paper has",
        "arXiv 2410.09397, Theorems 4.3 and 4.4",
    ),
    "small-cache": (
        "Θ(n²d/√M): Saha & Ye, Theorems 3.5 (Algorithm 1) and 3.7",
        "arXiv 2410.09397, Theorems 4.3 (Algorithm 6) and 4.4",
    ),
    ONCE: (
        "none: M holds so much that reading every input and writing every output once is what remains",
        "as forward",
    ),
}
SHADES = {name: COLOURS["light"][name] for name in REGIMES} | {ONCE: "#7d8791"}
SHORT = {"large-cache": "large", "between": "between", "small-cache": "small", ONCE: "once"}


def points(quick: bool) -> list[Point]:
    return [{"machine": name, "d": d} for name in (MACHINES[:1] if quick else MACHINES) for d in HEAD_DIMENSIONS]


def measure(point: Point) -> list[Row]:
    """A row for each boundary of a machine."""
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
    return f"{row['machine']}, {row['boundary']}"


def figure(rows: list[Row]) -> alt.LayerChart:
    """Boundaries down, head dimensions across; each cell in the colour of its regime."""
    order = [f"{place(row)}" for row in rows]
    drawn = [
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
    base = alt.Chart(alt.Data(values=drawn)).encode(x=x, y=y)
    cells = base.mark_rect(stroke=COLOURS["light"]["paper"], strokeWidth=2, opacity=0.85)
    texts = base.mark_text(color="white", fontSize=10).encode(text="schedule:N")
    return alt.LayerChart(layer=[cells.encode(color=colour, tooltip=shown), texts]).properties(
        width=alt.Step(78), height=alt.Step(21)
    )


def tables(rows: list[Row]) -> list[Table]:
    dimensions = list(dict.fromkeys(row["d"] for row in rows))
    cells = {(place(row), row["d"]): SHORT[row["applies"]] for row in rows}
    each = {place(row): row for row in rows}
    made = [
        (row["title"], row["boundary"], f"{row['M']:,}", *(cells[name, d] for d in dimensions))
        for name, row in each.items()
    ]
    columns = ("hardware", "boundary", "M, words", *(f"d {d}" for d in dimensions))
    found = Counter(row["applies"] for row in rows)
    said = [(name, str(found[name]), *texts) for name, texts in STATEMENTS.items()]
    return [
        Table("Hardware, head dimension, regime", columns, made, 2),
        Table("What applies", ("regime", "cells", "forward", "backward (gradient by X)"), said, 4),
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
        f"The boundaries of one machine are in different regimes at {len(mixed)} of {len(pairs)} pairs of machine and "
        f"head dimension: the question is not whether a machine's cache is large, but at which boundary.",
        f"With d of 512 or more, M < d² at the nearest memory of the catalogue in {len(small)} of {len(wide)} pairs: "
        f"there Saha & Ye's other theorem applies, and FlashAttention is not the best.",
    ]


EXPERIMENT = Experiment(
    name="regimes",
    title="Which statement applies where",
    question="At each boundary of hardware and each head dimension: which regime, which theorem?",
    points=points,
    measure=measure,
    figure=figure,
    tables=tables,
    findings=findings,
    method=f"""
Computed by the planner from the catalogue of machines (`redblue memories`), not measured. Forward, one head at a
time, full mask, n = {N:,}; words of 16 bits, of 32 on CPUs. M is what one instance of the nearer memory holds: one
multiprocessor's shared memory, one core's L1d. Each boundary is a two-level model of its own, so the papers' theorems
apply at each with its own M. The text in a cell is the schedule of the plan, which is chosen by exact words; near a
limit it can be the neighbour's.

*Each word once*: the plan moves at most 5 % more than reading every input and writing every output once. The
theorems' formulas then fall below that traffic (that of FlashAttention holds for d ≤ M ≤ n d), so none of them says
anything.

*Many heads*: [heads](heads.md).
""",
)
