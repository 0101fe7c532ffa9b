"""How much of a real cache a schedule can use: least recently used, in lines and sets, against the model's M words."""

from __future__ import annotations

import math
from collections import defaultdict
from statistics import geometric_mean
from typing import Any

import altair as alt

from redblue import schedules
from redblue.catalogue.memories import USABLE_SHARE
from redblue.lab.simulation import simulate
from redblue.machine import CacheLevel
from redblue.problem import Problem
from redblue.schedules import TooFewWords
from redblue.studies.experiments.experiment import Experiment, Point, Row, Table

SHARES = 16  # tiles are chosen for 2/16, 3/16 ... of the capacity
LINE_WORDS = 16  # 64 bytes of float32
PITCH_WORDS = 4096  # from one row to the next where the heads of a token lie side by side: 16 KiB
LIMITS = (1.05, 1.25)
FULL = "fully associative"
MOST_SHOWN = 6
SHOWN = ("dense", "padded", "packed")
COLOURS_OF_WAYS = ("#c8ced4", "#9db9cc", "#6ba3c8", "#3f86b5", "#0068a8", "#cf5a00")  # ever more, then all

LAYOUTS = {
    "dense": "rows lie side by side: q is n x d words without a gap",
    "power of two": f"{PITCH_WORDS} words from row to row of q, k, v and out",
    "padded": f"{PITCH_WORDS} + d words from row to row, and {LINE_WORDS} more than n in the spilled P",
    "packed": "power of two, and every tile that is loaded is copied to memory of its own first",
}
L1 = (("flash", 256, 64), ("hybrid", 256, 128), ("small_cache", 256, 256))
L2 = (("flash", 1024, 256), ("hybrid", 1024, 512))
WAYS = (1, 2, 4, 8, 16)  # of the cache of 32 KiB
HARDWARE = {("L1d", 32): 8, ("L1d", 48): 12, ("L2", 1024): 16}  # name, KiB -> ways, as CPUs have them


def points(quick: bool) -> list[Point]:
    if quick:
        return [_point("L1d", 32, ways, "flash", 128, 64, "dense") for ways in (1, 8, None)]
    found = [_point("L1d", 32, ways, *case, layout) for case in L1 for layout in LAYOUTS for ways in WAYS]
    for (name, kib), ways in HARDWARE.items():
        cases = L1 if name == "L1d" else L2
        if kib != 32:
            found += [_point(name, kib, ways, *case, layout) for case in cases for layout in LAYOUTS]
        found += [_point(name, kib, None, *case, "dense") for case in cases]
    return found


def _point(cache: str, kib: int, ways: int | None, schedule: str, n: int, d: int, layout: str) -> Point:
    return {"cache": cache, "kib": kib, "ways": ways, "schedule": schedule, "n": n, "d": d, "layout": layout}


def measure(point: Point) -> list[Row]:
    """The schedule on one cache in one layout, with tiles for ever larger shares of it."""
    problem = Problem(point["n"], point["n"], point["d"], dtype="float32")
    schedule = schedules.get(point["schedule"])
    cache = CacheLevel(point["cache"], point["kib"] << 10, 4 * LINE_WORDS, point["ways"])
    words, layout = cache.capacity_bytes // problem.bytes_per_word, point["layout"]
    multiple = dict.fromkeys(schedule.direction(problem).edges, LINE_WORDS)
    if not schedule.spills:
        multiple["rows"] = 1  # whole rows are whole lines anyway
    leading: dict[str, int] = {}
    if layout != "dense":
        pitch = PITCH_WORDS + (point["d"] if layout == "padded" else 0)
        leading |= dict.fromkeys(("q", "k", "v", "out"), pitch)
        if layout == "padded" and schedule.spills:
            leading["p"] = point["n"] + LINE_WORDS
    rows: list[Row] = []
    known: dict[Any, Row] = {}
    for share in range(2, SHARES + 1):
        try:
            tiles = schedule.tiles(problem, words * share // SHARES, multiple)
        except TooFewWords:
            continue
        if tiles not in known:
            packed, edges = layout == "packed", tiles._asdict()
            run = simulate(point["schedule"], problem, [cache], tiles=edges, packed=packed, leading=leading)
            known[tiles] = {
                "tiles": edges,
                "held": run.count.peak / words,
                "counted_words": run.count.words,
                "moved_words": run.levels[0].words,
            }
        rows.append(point | {"share": share / SHARES} | known[tiles])
    return rows


def cases(rows: list[Row]) -> dict[tuple[Any, ...], list[Row]]:
    """By cache, ways, schedule, sizes and layout."""
    found = defaultdict(list)
    for row in rows:
        found[tuple(row[name] for name in ("cache", "kib", "ways", "schedule", "n", "d", "layout"))].append(row)
    return dict(found)


def usable(tried: list[Row], limit: float) -> float | None:
    """The largest part of the capacity that tiles hold while the cache moves at most `limit` times their count."""
    return max((row["held"] for row in tried if row["moved_words"] <= limit * row["counted_words"]), default=None)


def regrets(rows: list[Row]) -> dict[float, list[float]]:
    """Share that tiles are chosen for -> in each case that hardware has, words moved over those of the best share."""
    found = defaultdict(list)
    for (cache, kib, ways, *_, layout), tried in cases(rows).items():
        if ways != HARDWARE.get((cache, kib)) or layout == "power of two":
            continue
        best = min(row["moved_words"] for row in tried)
        for row in tried:
            found[row["share"]].append(row["moved_words"] / best)
    most = max(map(len, found.values()), default=0)
    return {share: each for share, each in sorted(found.items()) if len(each) == most}


def figure(rows: list[Row]) -> alt.FacetChart:
    """Words that the 32 KiB cache moves, over the model's for tiles that fill it: by the share chosen for, and ways."""
    drawn = []
    for (cache, kib, ways, schedule, _, d, layout), tried in cases(rows).items():
        if (cache, kib) != ("L1d", 32) or layout not in SHOWN:
            continue
        model = tried[-1]["counted_words"]
        for name in SHOWN if ways is None else [layout]:
            common = {"ways": _ways(ways), "facet": f"{schedule}, d {d}, {name}"}
            drawn += [common | {"share": each["share"], "price": each["moved_words"] / model} for each in tried]
    facets = sorted(dict.fromkeys(row["facet"] for row in drawn), key=lambda name: SHOWN.index(name.split(", ")[-1]))
    names = [name for name in map(_ways, (*WAYS, None)) if any(row["ways"] == name for row in drawn)]
    x = alt.X(
        "share:Q",
        title="share of M that tiles are chosen for",
        scale=alt.Scale(domain=[0.1, 1]),
        axis=alt.Axis(format="%", values=[0.25, 0.5, 0.75, 1], grid=False),
    )
    y = alt.Y(
        "price:Q",
        title="words moved / counted for M",
        scale=alt.Scale(type="log", domain=[1, MOST_SHOWN], nice=False, clamp=True),
        axis=alt.Axis(values=[1, 1.5, 2, 3, 5], domain=False, ticks=False),
    )
    colours = alt.Scale(domain=names, range=list(COLOURS_OF_WAYS[-len(names) :]))
    colour = alt.Color("ways:N", scale=colours, legend=alt.Legend(title="lines of a set", columns=6))
    assumed = alt.Chart().mark_rule(style="faint", strokeDash=[4, 3]).encode(x=alt.datum(USABLE_SHARE))
    lines = alt.Chart().mark_line(strokeWidth=2, clip=True).encode(x=x, y=y, color=colour)
    chart = alt.LayerChart(layer=[assumed, lines], data=alt.Data(values=drawn)).properties(width=230, height=150)
    return chart.facet(facet=alt.Facet("facet:N", sort=facets, title=None), columns=3, spacing=18)


def _ways(ways: int | None) -> str:
    return "all" if ways is None else str(ways)


def tables(rows: list[Row]) -> list[Table]:
    found = cases(rows)
    names = list(dict.fromkeys(case[:6] for case in found if case[2] is not None))
    columns = ("cache", "schedule", "n", "d", *(name for name in (FULL, *LAYOUTS)))

    def line(name: tuple[Any, ...], cell: Any) -> list[str]:
        cache, kib, ways, schedule, n, d = name
        title = f"{cache}, {kib // 1024} MiB" if kib >= 1024 else f"{cache}, {kib} KiB"
        full = found.get((cache, kib, None, schedule, n, d, "dense"))
        each = [full, *(found.get((*name, layout)) for layout in LAYOUTS)]
        said = f"{title}, {ways} way{'s' * (ways > 1)}"
        return [said, f"`{schedule}`", str(n), str(d), *(cell(tried) if tried else "-" for tried in each)]

    by_share = regrets(rows)
    return [
        Table("Usable share", columns, [line(name, _shares) for name in names], 2),
        Table("The best choice", columns, [line(name, _best) for name in names], 2),
        Table(
            "Which share to plan for",
            ("tiles are chosen for", "in the mean", "at worst", "cases"),
            [
                (f"{share:.0%}", f"{geometric_mean(each):.3f}", f"{max(each):.2f}", str(len(each)))
                for share, each in by_share.items()
            ],
        ),
    ]


def _shares(tried: list[Row]) -> str:
    found = [usable(tried, limit) for limit in LIMITS]
    return " / ".join("none" if each is None else f"{each:.0%}" for each in found)


def _best(tried: list[Row]) -> str:
    """The share that moves the fewest words, and these over what is counted for tiles that fill the cache."""
    best = min(tried, key=lambda row: row["moved_words"])
    return f"{best['held']:.0%}: {best['moved_words'] / tried[-1]['counted_words']:.2f}"


def best_share(rows: list[Row]) -> float:
    """The share whose tiles are in the mean the nearest to the best."""
    found = regrets(rows)
    return min(found, key=lambda share: geometric_mean(found[share])) if found else math.nan


def findings(rows: list[Row]) -> list[str]:
    found = regrets(rows)
    full = [usable(tried, LIMITS[0]) for (*_, ways, _, _, _, _), tried in cases(rows).items() if ways is None]
    shares = [each for each in full if each]
    said = [
        f"Even one set of all lines gives a schedule {min(shares):.0%} to {max(shares):.0%} of its capacity, if at "
        f"most 5 % more words than counted may move: LRU keeps tiles that are dead."
    ] * bool(shares)
    if found:
        best, here = best_share(rows), min(found, key=lambda share: abs(share - USABLE_SHARE))
        said.append(
            f"Tiles that are chosen for {best:.0%} of a CPU's cache are the best single rule: {_mean(found[best])} "
            f"times the words of the best share of each case, in the mean; for all of it {_mean(found[max(found)])}."
        )
        said.append(
            f"The planner, and the CPU kernels' plan, choose tiles for {USABLE_SHARE:.0%} of a cache that hardware "
            f"fills ({_mean(found[here])} in the mean), and for all of a memory that software fills."
        )
    return said


def _mean(values: list[float]) -> str:
    return f"{geometric_mean(values):.2f}"


EXPERIMENT = Experiment(
    name="real-caches",
    title="How much of a cache a schedule can use",
    question="How much of M is usable where a cache holds what was touched last, in lines and sets, by its ways?",
    points=points,
    measure=measure,
    figure=figure,
    tables=tables,
    findings=findings,
    method=f"""
The model's cache holds what the schedule says. A CPU's holds what was touched last, in lines, and each line in one
set only. So tiles that fill all of *M* in the model do not stay in a real cache of *M* words, and the question is for
how much of it tiles should be chosen. Simulated (`redblue.machine.Cached`), not measured.

Forward, full mask, one head, float32, lines of 64 bytes, one level of LRU that writes back; overwriting a whole line
does not read it first. Tile edges are multiples of {LINE_WORDS} words, except the rows of `flash`. Everything is
counted that moves between the cache and the next level, dead tiles that are written back included.

- **{FULL}**: the same capacity and lines in one set; rows lie side by side
{chr(10).join(f"- **{name}**: {text}" for name, text in LAYOUTS.items())}

The figure: the cache of 32 KiB; above 6 nothing is drawn, and the dashed line is what the planner assumes.

*Usable share*: the largest part of the capacity that tiles hold in the model while the cache moves at most 1.05 /
1.25 times the words counted for these tiles. Tiles are chosen for 2/{SHARES}, 3/{SHARES} ... of the capacity; the
share is what they hold then. *The best choice*: the share whose tiles move the fewest words, and these over what the
model counts for tiles chosen for the whole cache: the price of a real one. *Which share to plan for*: over the caches
that hardware has (8, 12, 16 ways) and all layouts but the power of two, the words moved over those of the best share
of each case.

**Least recently used.** Tiles that stay must be touched again before everything else in the cache has been. From one
use to the next, a `flash` forward pass touches all that it keeps, *and* the slices of K and V that it has finished
with: LRU cannot know that they are dead. With r rows and c columns it needs

    r (d + d_v + 2) + r c + r + c (d + d_v) words (or r (2 d_v + 3), if that is more: O, and where it is stored)

where the model needs the larger of c d, c d_v and r instead of the last two terms. With whole lines and one set this
capacity moves exactly the counted words, and besides the dead tiles that LRU writes back
(`tests/machine/test_cached_costs.py`). One line less makes LRU evict each line just before its next use: a cliff, not a
slope. That is why a full cache can cost a multiple, and a part of it nothing. `hybrid` keeps rows of Q of which it
uses one slice of features at a time, so a whole score tile, its spilled P and c rows of K pass by in between: it
needs the most slack. Its row maxima lie in columns, a line for each word.

**Sets.** Rows that lie a power of two apart fall into few sets: with {PITCH_WORDS} words between rows, all rows of q
begin in the same set of an L1d, and a tile of more rows than ways cannot stay. Padding each row, or copying tiles to
memory of their own, spreads them. A copy passes through the cache as well and finds its source in few sets. Rows that
lie side by side are a power of two apart too where d (for P: n) is one, as here: that is what padding mends in the
last rows. The CPU kernels copy panels of what stays to memory of their own.
""",
)
