"""Search: the best schedule of a family at leading order, beside the table of schedules, and exact optima of games."""

from __future__ import annotations

import math
from contextlib import suppress

import altair as alt

from redblue import pebble, schedules
from redblue.base.style import LOOKS
from redblue.bounds import lower_bound
from redblue.lab.counts import count
from redblue.lab.sweep_family import TABLE, fewest
from redblue.problem import DIRECTIONS, Problem
from redblue.studies.experiments.experiment import Experiment, Point, Row, Table

FAMILY, GAME = "family", "game"
QUARTERS = range(-16, 12)  # x = 2^(q / 4): from 1/16 to 6.7
MIDDLE = range(10, 51)  # x = k / 20: more points where the schedules meet
GAMES = {  # (direction, n, d) -> words of the cache for which the solver proves the optimum within seconds
    ("forward", 2, 1): range(4, 9),
    ("forward", 2, 2): range(5, 9),
    ("forward", 3, 1): range(9, 12),
    ("backward", 2, 1): range(12, 13),
}
SOLVER_SECONDS = 120
TITLES = {"forward": "forward", "backward": "backward, P not given", "gradient_x": "gradient by X"}


def points(quick: bool) -> list[Point]:
    xs = sorted({2 ** (q / 4) for q in QUARTERS} | {k / 20 for k in MIDDLE} | {math.sqrt(2), math.sqrt(1.5)})
    games = [
        {"kind": GAME, "direction": direction, "n": n, "d": d, "red": red}
        for (direction, n, d), reds in GAMES.items()
        for red in reds
    ]
    some = [{"kind": FAMILY, "direction": direction, "x": x} for direction in DIRECTIONS for x in xs]
    return [*some[::12], *games[:5]] if quick else [*some, *games]


def measure(point: Point) -> list[Row]:
    """Search the family at one x, or solve one game."""
    return [point | (_best_of_family(point) if point["kind"] == FAMILY else _optimum(point))]


def _best_of_family(point: Point) -> Row:
    direction, x = point["direction"], point["x"]
    words, path = fewest(direction, x)
    table = {name: form(x) for name, form in TABLE[direction].items()}
    best = min(table, key=table.__getitem__)
    return {"words": words, "sweeps": "; ".join(map(str, path)), "schedule": best, "table": table[best]}


def _optimum(point: Point) -> Row:
    direction, n, d, red = (point[key] for key in ("direction", "n", "d", "red"))
    graph = {"forward": pebble.attention_graph, "backward": pebble.attention_backward_graph}[direction](n, d)
    solution = pebble.solve(graph, red, time_limit=SOLVER_SECONDS)
    problem, counted = Problem(n, n, d, direction=direction), {}
    for name in schedules.BUILT_IN:
        if schedules.get(name).drop_in and direction in schedules.get(name).passes:
            with suppress(schedules.TooFewWords):
                counted[name] = count(name, problem, words=red).words
    best = min(counted, key=counted.__getitem__, default=None)
    return {
        "words": solution.cost,
        "proved": solution.optimal,
        "schedule": best,
        "counted": counted[best] if best else None,
        "bound": lower_bound(problem, red).words,
    }


def of_family(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["kind"] == FAMILY]


def games(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["kind"] == GAME]


def figure(rows: list[Row]) -> alt.FacetChart:
    """Words per pair over x: the forms of the table as lines, the best of the family as points."""
    family = of_family(rows)
    values = [
        {"x": row["x"], "words": form(row["x"]), "schedule": name, "direction": TITLES[row["direction"]]}
        for row in family
        for name, form in TABLE[row["direction"]].items()
    ]
    dots = [{"x": row["x"], "best": row["words"], "direction": TITLES[row["direction"]]} for row in family]
    names = list(dict.fromkeys(row["schedule"] for row in values))
    x = alt.X(
        "x:Q",
        title="x = d / √M",
        scale=alt.Scale(type="log", domain=[0.05, 8], nice=False),
        axis=alt.Axis(values=[0.1, 0.2, 0.5, 1, 2, 5]),
    )
    scale = alt.Scale(type="log", domain=[0.01, 200], nice=False)
    y = {"scale": scale, "axis": alt.Axis(values=[0.1, 1, 10, 100])}
    colour = alt.Color(
        "schedule:N",
        scale=alt.Scale(domain=names, range=[LOOKS[name].light for name in names]),
        legend=alt.Legend(title="known schedules", columns=5),
    )
    base = alt.Chart()
    lines = base.mark_line(strokeWidth=1.5, clip=True).encode(
        x=x, y=alt.Y("words:Q", title="words per pair", **y), color=colour
    )
    marks = base.mark_point(style="ink", size=22, clip=True).encode(x=x, y=alt.Y("best:Q", **y))
    return (
        alt.LayerChart(layer=[lines, marks], data=alt.Data(values=values + dots))
        .properties(width=230, height=280)
        .facet(column=alt.Column("direction:N", sort=list(TITLES.values())))
    )


def tables(rows: list[Row]) -> list[Table]:
    regimes: dict[tuple[str, str, str], list[float]] = {}
    for row in of_family(rows):
        regimes.setdefault((row["direction"], row["schedule"], row["sweeps"]), []).append(row["x"])
    lines = [
        (TITLES[direction], f"{min(xs):.2f} to {max(xs):.2f}", sweeps, f"`{schedule}`")
        for (direction, schedule, sweeps), xs in regimes.items()
    ]
    solved = [
        (
            *(row["direction"], str(row["n"]), str(row["d"]), str(row["red"]), str(row["bound"])),
            f"{row['words']}" if row["proved"] else f"at most {row['words']}",
            f"{row['counted']} (`{row['schedule']}`)" if row["schedule"] else "none fits",
        )
        for row in games(rows)
    ]
    return [
        Table("The best sequences of sweeps", ("problem", "x = d / √M", "sweeps", "known schedule"), lines, 4),
        Table(
            "Exact optima, in words",
            ("direction", "n", "d", "M", "lower bound", "optimum", "fewest words of a schedule"),
            solved,
        ),
    ]


def findings(rows: list[Row]) -> list[str]:
    family, solved = of_family(rows), games(rows)
    below = [row for row in family if row["words"] < row["table"] * (1 - 1e-9)]
    ratio = max(row["table"] / row["words"] for row in family)
    proved = [row for row in solved if row["proved"]]
    tight = sum(row["words"] == row["bound"] for row in proved)
    under = sum(row["words"] < row["bound"] for row in proved)
    return [
        f"At {len(below)} of {len(family)} points, the search found fewer words than the best known schedule moves. "
        f"The best known schedule moves at most {ratio:.4f} times the words that the search found.",
        f"The solver proves the optimum of {len(proved)} of the {len(solved)} smallest games. {tight} of these optima "
        f"equal the lower bound, and {under} lie below the lower bound.",
    ]


EXPERIMENT = Experiment(
    name="search",
    title="Is there a better schedule?",
    question="Does a search over a family of schedules, or over all pebble games of the smallest sizes, find fewer "
    "words?",
    points=points,
    measure=measure,
    figure=figure,
    tables=tables,
    findings=findings,
    method="""
**Family of schedules.** A schedule of the family is a sequence of sweeps over all pairs. A sweep computes, recomputes
or reads arrays of pairs (P, dP, dS), writes some of these arrays, and adds to outputs ("sum"). The outputs are `o` in
the forward pass, `dq`, `dk` and `dv` in the backward pass, and `o` and `g` = dS A2 for the gradient by X (the gradient
with respect to X, where the scores are A1 X A2ᵀ). P is not an input of the backward pass, so it is computed again. In
each sweep, rows, keys, tiles of pairs or tiles of an output stay in the cache, whichever moves the fewest words. All
other data are streamed.

A search for a shortest path (`redblue.lab.sweep_family`) tries all sets of arrays and all orders of sweeps. The fewest
words of the search are compared with the words of the schedules of the
[theory](../lab/theory.md#the-regimes-derived), as functions of x = d / √M. All words are at leading order, for d = d_v
and large n and M. In the figure, lines are the known schedules, and circles are the fewest words of the search. If two
orders of the same sweeps move equally many words, the search may return either, so rows of the table can overlap.
Schedules outside the family are not searched, so no lower bound follows from the search.

**Smallest games.** The pebble solver searches all games ([pebble](../lab/pebble.md)), so its optima are proved. A
schedule moves more words than the optimum for two reasons:

- A schedule also stores the log-sum-exp.
- The row statistics and the tiles of scores occupy a part of the cache. At these sizes, they take as many words as the
  data.

The lower bound is that of `lower_bound`.
""",
)
