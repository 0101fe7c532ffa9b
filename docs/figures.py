"""Draw the figures of the documentation: `make docs`."""

from __future__ import annotations

from pathlib import Path

import altair as alt
import numpy as np

import redblue as rb
from redblue import Mask, schedules
from redblue.base import charts
from redblue.base.style import COLOURS, LOOKS, REGIMES
from redblue.masks import picture
from redblue.studies.report.curves import curve
from redblue.studies.report.figures import words_figure

HERE = Path(__file__).parent
GRID = COLOURS["light"]["grid"]
MACHINES = ("t4", "rtx-4090", "h100-sxm")


def words_over_capacity(path: Path) -> None:
    """Draw words per pair over the cache size: forward, d = 256, n = 16384, 16-bit."""
    problem = rb.Problem(n_q=16384, n_k=16384, d=256)
    points = curve(problem, [rb.memory(name) for name in MACHINES])
    _write(words_figure(points, width=760, height=400), path)


def gap_over_x(path: Path) -> None:
    """Draw the ratio of best schedule to best proved bound over x = d / sqrt(M), for n = 2^24 and for n = 16 d."""
    titles = {
        ("forward", False): "forward",
        ("backward", False): "backward",
        ("backward", True): "backward, P given",
        ("gradient_x", False): "gradient by X",
    }
    rows = []
    for (direction, p_given), title in titles.items():
        names = list(drop_in(direction))
        if p_given:
            names += [name for name in rb.list_schedules(direction) if schedules.get(name).takes_p(direction)]
        for label, n, d in (("n = 16 d, d = 64", 1024, 64), ("n = 2^24, d = 1024", 1 << 24, 1024)):
            for x in np.geomspace(0.1, 10, 81):
                problem, words = rb.Problem(n_q=n, n_k=n, d=d, direction=direction), int((d / x) ** 2)
                counts = {name: _words(name, problem, words) for name in names}
                best = min((name for name in counts if counts[name]), key=lambda name: counts[name] or 0, default=None)
                if best:
                    gap = (counts[best] or 0) / rb.lower_bound(problem, words, p_given=p_given).words
                    rows.append({"x": x, "gap": gap, "size": label, "direction": title, "schedule": best})
    x = alt.X(
        "x:Q", title="x = d / √M", scale=alt.Scale(type="log", domain=[0.1, 10]), axis=alt.Axis(grid=False, format="~g")
    )
    y = alt.Y("gap:Q", title="words of the best schedule / best proved bound", scale=alt.Scale(domain=[1, 5]))
    shades = [*(COLOURS["light"][name] for name in REGIMES), LOOKS["spilled_ds"].light]
    colours = alt.Scale(domain=list(titles.values()), range=shades)
    chart = (
        alt.Chart(alt.Data(values=rows))
        .mark_line(strokeWidth=2, clip=True)
        .encode(
            x=x,
            y=y,
            color=alt.Color("direction:N", title=None, scale=colours),
            strokeDash=alt.StrokeDash("size:N", title=None, sort=["n = 2^24, d = 1024"]),
        )
    )
    _write(chart.properties(width=700, height=320), path)


def patterns(path: Path) -> None:
    """Draw masks of every kind on 48 queries and keys, one cell per pair."""
    n, layout = 48, np.random.default_rng(5).random((6, 6)) < 0.4
    masks = {
        "causal()": Mask.causal(),
        "sliding_window(6, 3)": Mask.sliding_window(6, 3),
        "prefix(12) | causal()": Mask.prefix(12) | Mask.causal(),
        "documents(...)": Mask.documents([10, 21, 5, 12]),
        "causal() & documents(...)": Mask.causal() & Mask.documents([10, 21, 5, 12]),
        "dilated(4, step=3)": Mask.dilated(4, step=3),
        "strided(8)": Mask.strided(8),
        "window | global_tokens(...)": Mask.sliding_window(4, 4) | Mask.global_tokens([0, 1, 30]),
        "n_of_m(2, 4)": Mask.n_of_m(2, 4),
        "blocks(layout, 8)": Mask.blocks(layout, 8),
        "butterfly(3)": Mask.butterfly(3),
        "bigbird(block=3, random=2)": Mask.bigbird(block=3, random=2, first=1),
        "random_blocks(0.2, block=4)": Mask.random_blocks(0.2, block=4),
        "~documents(...)": ~Mask.documents([10, 21, 5, 12]),
        "causal() & ~n_of_m(1, 6)": Mask.causal() & ~Mask.n_of_m(1, 6),
    }
    pictures = []
    for title, mask in masks.items():
        chart = picture.chart(mask, n, n, side=144)
        chart.encoding.x.axis = chart.encoding.y.axis = None
        heading, frame = alt.TitleParams(title, fontSize=11, fontWeight="normal"), alt.ViewBackground(stroke=GRID)
        pictures.append(chart.properties(title=heading, view=frame))
    _write(alt.concat(*pictures, columns=5), path)


def drop_in(direction: str) -> list[str]:
    """Return the names of the schedules that a planner may choose on a full mask."""
    candidates = ((name, schedules.get(name)) for name in rb.list_schedules(direction))
    return [name for name, schedule in candidates if schedule.drop_in and not schedule.scattered]


def _words(name: str, problem: rb.Problem, words: int) -> int | None:
    try:
        return rb.count(name, problem, words=words).words
    except rb.TooFewWords:
        return None


def _write(figure: alt.Chart | alt.LayerChart | alt.ConcatChart, path: Path) -> None:
    charts.write(figure.to_dict(), path, force=True)
    print(f"written: {path.relative_to(HERE.parent)}")


if __name__ == "__main__":
    words_over_capacity(HERE / "lab" / "words.svg")
    gap_over_x(HERE / "lab" / "gap.svg")
    patterns(HERE / "guide" / "masks.svg")
