"""Attention over a network: the words of each schedule over the bound, counted, over P, n, d, M and heads."""

from __future__ import annotations

from itertools import cycle
from typing import Any, NamedTuple

import altair as alt

from redblue.base.errors import RedblueError
from redblue.base.style import LOOKS, USERS
from redblue.bounds import network_bound, network_bounds
from redblue.masks import Mask
from redblue.problem import Problem
from redblue.schedules import network
from redblue.studies.experiments.experiment import Experiment, Point, Row, Table

PROCESSES = (2, 4, 8, 16, 32, 64)
# The panels of the figure: heads, key heads, direction, and mask with the placement that balances it.
PANELS: dict[str, dict[str, Any]] = {
    "one head": {"heads": 1, "kv_heads": 1},
    "one head, backward": {"heads": 1, "kv_heads": 1, "direction": "backward"},
    "32 heads on 8 key heads": {"heads": 32, "kv_heads": 8},
    "one head, causal, zigzag": {"heads": 1, "kv_heads": 1, "mask": "causal", "placement": "zigzag", "n": 16_384},
}
COMMON = {"direction": "forward", "mask": "full", "placement": "contiguous", "n": 65_536, "d": 64}
SIZES = [(n, d, p) for p in (16, 64) for n, d in ((4096, 64), (65_536, 64), (65_536, 256), (1 << 20, 64))]


class Line(NamedTuple):
    """The look of a schedule's line: its colour, its dashes, and the shape of its marks."""

    colour: str
    dashes: tuple[int, int]
    shape: str


SOLID = (1, 0)
LINES = {  # `all_gather` and `ring_heads` often coincide with `ring`, so they are dashed
    "ring": Line(LOOKS["flash"].light, SOLID, "circle"),
    "all_gather": Line(LOOKS["saha_ye"].light, (6, 4), "triangle-down"),
    "head_parallel": Line(LOOKS["small_cache"].light, SOLID, "square"),
    "ring_heads": Line(LOOKS["hybrid"].light, (3, 3), "diamond"),
    "mesh": Line(LOOKS["flash1"].light, SOLID, "triangle-up"),
}


def points(quick: bool) -> list[Point]:
    counted = [
        COMMON | panel | {"panel": name, "processes": processes}
        for name, panel in PANELS.items()
        for processes in PROCESSES
        if not quick or processes <= 8
    ]
    sizes = SIZES[:1] if quick else SIZES
    return counted + [
        COMMON | PANELS["one head"] | {"panel": "sizes", "processes": p, "n": n, "d": d} for n, d, p in sizes
    ]


def measure(point: Point) -> list[Row]:
    """Count every schedule on its best grid, and bound the words for balanced work and for any work."""
    mask = Mask.causal() if point["mask"] == "causal" else Mask.full()
    shape = {key: point[key] for key in ("d", "heads", "kv_heads", "direction")}
    problem, processes = Problem(point["n"], point["n"], mask=mask, **shape), point["processes"]
    balanced, unbalanced = (network_bound(problem, processes, work=work) for work in ("balanced", "any"))
    rows: list[Row] = []
    for name in network.SCHEDULES:
        try:
            layouts = network.layouts(name, problem, processes, point["placement"])
            c = network.fewest_words(layouts)
            moved = network.traffic(c)
        except RedblueError:
            continue  # this schedule cannot divide the heads among the processes
        memory = int(network.count(c).traffic.peak.max()) if point["panel"] == "sizes" else None
        phases = _phases(problem, processes, memory) if memory else None
        rows.append(
            point
            | {
                "schedule": name,
                "grid": f"{c.grid.rows} x {c.grid.cols} x {c.grid.head_parts}",
                "words": moved.words,
                "most_words": moved.most_words,
                "bound_words": balanced.words,
                "bound_most_words": balanced.most_words,
                "any_work_most_words": unbalanced.most_words,
                "M": memory,
                "phases_most_words": phases,
            }
        )
    return rows


def _phases(problem: Problem, processes: int, memory: int) -> int:
    """The bound by phases over a memory of `memory` words."""
    bounds = network_bounds(problem, processes, memory)
    return next(bound.most_words for bound in bounds if bound.name == "phases")


def gap(row: Row) -> float:
    """Words of the busiest process in one direction, over the bound for balanced work."""
    return row["most_words"] / row["bound_most_words"]


def figure(rows: list[Row]) -> alt.ConcatChart:
    """The gap over the number of processes, a panel for each kind of problem."""
    names = list(network.SCHEDULES)
    colours, dashes, shapes = (
        alt.Scale(domain=names, range=list(values)) for values in zip(*_lines(names), strict=True)
    )
    colour = alt.Color("schedule:N", scale=colours, legend=alt.Legend(title=None, columns=5))
    panels = [name for name in PANELS if any(row["panel"] == name for row in rows)]
    charts = []
    for panel in panels:
        values = [
            {"P": row["processes"], "gap": gap(row), "schedule": row["schedule"]}
            for row in rows
            if row["panel"] == panel
        ]
        x = alt.X(
            "P:Q",
            title="P: processes",
            scale=alt.Scale(type="log", base=2, padding=10, nice=False),
            axis=alt.Axis(values=list(PROCESSES), format="d", grid=False),
        )
        y = alt.Y(
            "gap:Q",
            title="words over the bound" if panel in panels[::2] else None,
            scale=alt.Scale(type="log", base=2, domain=[0.9, 8], nice=False),
            axis=alt.Axis(values=[1, 2, 4, 8], format="d", domain=False, ticks=False),
        )
        base = alt.Chart(alt.Data(values=values)).encode(
            x=x, y=y, color=colour, strokeDash=alt.StrokeDash("schedule:N", scale=dashes, legend=None)
        )
        marks = base.mark_point(filled=True, size=40, opacity=1).encode(
            shape=alt.Shape("schedule:N", scale=shapes, legend=None)
        )
        title = alt.TitleParams(panel, fontWeight="normal", fontSize=12)
        charts.append(alt.layer(base.mark_line(strokeWidth=2), marks).properties(width=280, height=220, title=title))
    return alt.concat(*charts, columns=2)


def _lines(names: list[str]) -> list[Line]:
    """The look of each schedule's line. Schedules without an entry in LINES take the looks of USERS in turn."""
    others = cycle(Line(look.light, SOLID, look.shape) for look in USERS)
    return [LINES[name] if name in LINES else next(others) for name in names]


def tables(rows: list[Row]) -> list[Table]:
    lines = [
        (
            row["panel"],
            str(row["processes"]),
            f"`{row['schedule']}`",
            row["grid"],
            f"{row['most_words']:,}",
            f"{row['bound_most_words']:,}",
            f"{gap(row):.2f}",
            f"{row['most_words'] / row['any_work_most_words']:.2f}",
        )
        for row in rows
        if row["panel"] != "sizes"
    ]
    columns = ("problem", "P", "schedule", "grid", "words", "bound for balanced work")
    columns += ("words / bound for balanced work", "words / bound for any work")
    sized = [
        (
            f"{row['n']:,}",
            str(row["d"]),
            str(row["processes"]),
            f"`{row['schedule']}`",
            f"{row['most_words']:,}",
            f"{gap(row):.2f}",
            f"{row['M']:,}",
            f"{row['most_words'] / max(row['phases_most_words'], 1):.2f}" if row["phases_most_words"] else "-",
        )
        for row in rows
        if row["panel"] == "sizes"
    ]
    numbers = sorted({row["processes"] for row in rows if row["panel"] != "sizes"})
    ratios = Table(
        "Words, divided by the bound for balanced work",
        ("problem", "schedules", *(f"P = {number}" for number in numbers)),
        _ratio_lines(rows, numbers),
        2,
    )
    words_moved = [ratios, Table("Words that the busiest process sends or receives", columns, lines, 4)]
    columns = ("n", "d", "P", "schedule", "words", "words / bound for balanced work")
    columns += ("M: most words held", "words / bound by phases")
    return [*words_moved, Table("Sizes and memory: one head, full mask", columns, sized, 0)] if sized else words_moved


def _ratio_lines(rows: list[Row], numbers: list[int]) -> list[tuple[str, ...]]:
    """Lines of the table of ratios. Schedules with equal ratios share a line."""
    lines = []
    for panel in PANELS:
        names_by_cells: dict[tuple[str, ...], list[str]] = {}
        for name in network.SCHEDULES:
            own = [row for row in rows if (row["panel"], row["schedule"]) == (panel, name)]
            by_number = {row["processes"]: f"{gap(row):.2f}" for row in own}
            if own:
                cells = tuple(by_number.get(number, "-") for number in numbers)
                names_by_cells.setdefault(cells, []).append(f"`{name}`")
        lines += [(panel, ", ".join(names), *cells) for cells, names in names_by_cells.items()]
    return lines


def findings(rows: list[Row]) -> list[str]:
    sentences = []
    for panel in PANELS:
        mine = [row for row in rows if row["panel"] == panel]
        if not mine:
            continue
        most = max(row["processes"] for row in mine)
        by_ratio: dict[str, list[str]] = {}
        for row in sorted((row for row in mine if row["processes"] == most), key=gap):
            by_ratio.setdefault(f"{gap(row):.2f}", []).append(f"`{row['schedule']}`")
        texts = [
            f"{_listed(names)} move{'s' * (len(names) == 1)} {ratio} times the words of the bound"
            for ratio, names in by_ratio.items()
        ]
        sentences.append(f"{panel[0].upper()}{panel[1:]}, P = {most}: {'. '.join(texts)}.")
    return sentences


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


EXPERIMENT = Experiment(
    name="network",
    title="Attention over a network",
    question="How far above the lower bound are the words of the schedules over several processes?",
    points=points,
    measure=measure,
    figure=figure,
    tables=tables,
    findings=findings,
    method=f"""
Counted, not measured, with n = {COMMON["n"]:,} (causal {PANELS["one head, causal, zigzag"]["n"]:,}), d = {COMMON["d"]}.

- *Words*: the words that the busiest process sends, or the words that it receives, whichever are more. They include row
  statistics, a word or two per row, which the bound does not count.
- *Schedules*: [attention over a network](../lab/network.md) describes them.
- *Grid*: parts of the rows x parts of the keys x parts of the heads. Each schedule runs on the grid with the fewest
  words.
- *Zigzag*: of 2 P equal parts of the tokens, process p holds part p and part 2 P − 1 − p. With a causal mask, all
  processes then have the same work.
- *Bound*: the largest of [the bounds over a network](../lab/network.md). It assumes that each process holds the same
  share of the tokens of all heads. The bound for balanced work also assumes that all processes compute equally many
  pairs; the bound for any work does not.
- *M*: the most words that a process holds.
- *Bound by phases*: the bound for processes that hold at most M words. In the last table, a dash means that this bound
  is 0. In the first table, a dash means that the schedule cannot use P processes.

In the forward pass, a square mesh meets the bound for one head. In the backward pass, a grid meets the
bound if it has 3 parts of the rows for every 4 parts of the keys. No grid of the tables has this ratio, so `mesh` moves
slightly more words than the bound.

With a causal mask, no pair above the diagonal is computed. The bound uses this fact only for pairs among the tokens
that a process holds at the start. For all other rows and keys of a process, the bound assumes that every row attends
every key. No known schedule distributes the attended pairs so that this assumption is true for all processes. So every
schedule moves more words than the bound.
""",
)
