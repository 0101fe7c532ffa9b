"""The figure of the experiment `training`: curves, speed-ups with Amdahl's limit, sparse steps, context."""

from __future__ import annotations

import statistics
from typing import Any

import altair as alt

from redblue.base.style import LOOKS
from redblue.studies.experiments.experiment import Row
from redblue.studies.experiments.training_tables import TYPES, curve_groups, limit, median_speedup, of
from redblue.studies.training.names import NONE, REDBLUE, SDPA, UNFUSED

COLOURS = {
    SDPA: LOOKS["standard"].light,
    UNFUSED: LOOKS["small_cache"].light,
    f"{SDPA}, one thread": LOOKS["flash1"].light,
    REDBLUE: LOOKS["flash"].light,
}
CONTEXTS = (LOOKS["standard"].light, LOOKS["hybrid"].light, LOOKS["flash"].light)
POINTS = 60  # of a curve
SIZE = {"width": 280, "height": 200}


def figure(rows: list[Row]) -> alt.ConcatChart:
    """Four panels; a panel without rows is left out."""
    makers = (_curves, _steps, _sparse, _context)
    panels = [panel for make in makers for panel in make(rows)]
    empty = alt.Chart(alt.Data(values=[])).mark_point().properties(title="nothing measured", **SIZE)
    return alt.concat(*(panels or [empty]), columns=2).resolve_scale(color="independent", strokeDash="independent")


def _titled(text: str) -> alt.TitleParams:
    return alt.TitleParams(text, fontWeight="normal", fontSize=12)


def _curves(rows: list[Row]) -> list[Any]:
    """The losses of each type at the n with the most contenders; of several such n, the n with the most steps.

    The longest sequences are trained for few steps, and curves of few steps show little. The table has every n. The
    lines coincide, so later lines are dashed.
    """
    charts = []
    for dtype, short in TYPES.items():
        groups = [group for group in curve_groups(rows) if group[SDPA]["dtype"] == dtype]
        if not groups:
            continue
        group = max(groups, key=lambda candidate: (len(candidate), candidate[SDPA]["steps"], candidate[SDPA]["n"]))
        names = [name for name in COLOURS if name in group]
        values = []
        for name in names:
            losses = group[name]["losses"]
            stride = max(1, len(losses) // POINTS)
            values += [{"step": i + 1, "loss": losses[i], "attention": name} for i in range(0, len(losses), stride)]
        dashes = [[1, 0], [7, 5], [2, 4], [4, 8]][: len(names)]
        colours = alt.Scale(domain=names, range=[COLOURS[name] for name in names])
        charts.append(
            alt.Chart(alt.Data(values=values))
            .mark_line(strokeWidth=2.5)
            .encode(
                x=alt.X("step:Q", axis=alt.Axis(grid=False)),
                y=alt.Y("loss:Q", title="loss", scale=alt.Scale(zero=False)),
                color=alt.Color("attention:N", scale=colours, legend=alt.Legend(title=None, columns=2)),
                strokeDash=alt.StrokeDash("attention:N", scale=alt.Scale(domain=names, range=dashes), legend=None),
            )
            .properties(title=_titled(f"Language model, {short}, n {group[SDPA]['n']:,}: losses"), **SIZE)
        )
    return charts


def _steps(rows: list[Row]) -> list[Any]:
    """The speed-up of a step over PyTorch's SDPA, and the limit if attention took no time."""
    values = []
    for row in of(rows, "steps"):
        common = {"n": row["n"], "type": TYPES[row["dtype"]]}
        values.append(common | {"speed": median_speedup(row["seconds"], REDBLUE, SDPA), "what": REDBLUE})
        values.append(common | {"speed": limit(row), "what": "no attention (Amdahl's limit)"})
    if not values:
        return []
    kinds = [REDBLUE, "no attention (Amdahl's limit)"]
    chart = alt.Chart(alt.Data(values=values)).encode(
        x=alt.X("n:Q", scale=alt.Scale(type="log", base=2), axis=alt.Axis(format="d", grid=False, tickCount=5)),
        y=alt.Y("speed:Q", title=f"speed of a step over {SDPA}", scale=alt.Scale(zero=False)),
        color=alt.Color(
            "type:N",
            scale=alt.Scale(domain=list(TYPES.values()), range=[LOOKS["flash"].light, LOOKS["small_cache"].light]),
            legend=alt.Legend(title=None, columns=2),
        ),
    )
    dashes = alt.StrokeDash(
        "what:N",
        scale=alt.Scale(domain=kinds, range=[[1, 0], [4, 4]]),
        legend=alt.Legend(title=None, columns=1, labelLimit=260, symbolType="stroke"),
    )
    marks = chart.mark_point(filled=True, size=40, opacity=1)
    return [
        alt.layer(chart.mark_line(strokeWidth=2).encode(strokeDash=dashes), marks).properties(
            title=_titled("A training step"), **SIZE
        )
    ]


def _sparse(rows: list[Row]) -> list[Any]:
    """Seconds of a step at the longest n, by attention."""
    steps = [row for row in of(rows, "sparse") if row["kind"] == "step"]
    if not steps:
        return []
    row = max(steps, key=lambda step: step["n"])
    values = [{"attention": name, "seconds": statistics.median(times)} for name, times in row["seconds"].items()]
    names = list(row["seconds"])
    colours = [
        LOOKS["standard"].light if name.startswith(SDPA) or name == NONE else LOOKS["flash"].light for name in names
    ]
    chart = (
        alt.Chart(alt.Data(values=values))
        .mark_bar(size=14)
        .encode(
            x=alt.X("seconds:Q", title="seconds per step", axis=alt.Axis(grid=False)),
            y=alt.Y("attention:N", sort=names, title=None),
            color=alt.Color("attention:N", scale=alt.Scale(domain=names, range=colours), legend=None),
        )
        .properties(title=_titled(f"A training step, n {row['n']:,}"), **SIZE)
    )
    return [chart]


def _context(rows: list[Row]) -> list[Any]:
    """Perplexity over wall time, by context length."""
    values = [
        {"n": f"n {row['n']:,}", "seconds": seconds, "perplexity": perplexity}
        for row in of(rows, "context")
        for seconds, _, perplexity in row["tests_made"]
    ]
    if not values:
        return []
    names = list(dict.fromkeys(value["n"] for value in values))
    colours = alt.Scale(domain=names, range=list(CONTEXTS[: len(names)]))
    chart = alt.Chart(alt.Data(values=values)).encode(
        x=alt.X("seconds:Q", title="seconds of training", axis=alt.Axis(grid=False)),
        y=alt.Y("perplexity:Q", title="perplexity per byte", scale=alt.Scale(type="log", zero=False, nice=False)),
        color=alt.Color("n:N", scale=colours, legend=alt.Legend(title=None, columns=3)),
    )
    marks = chart.mark_point(filled=True, size=40, opacity=1)
    title = _titled("Context length, with redblue: perplexity over wall time")
    return [alt.layer(chart.mark_line(strokeWidth=2), marks).properties(title=title, **SIZE)]
