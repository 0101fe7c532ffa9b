"""How much of a real cache a schedule can use: an LRU cache with lines and sets, against the model's M words."""

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
from redblue.studies.experiments.metered import FULL

SHARES = 16  # tiles are chosen for 2/16, 3/16 ... of the capacity
LINE_WORDS = 16  # 64 bytes of float32
PITCH_WORDS = 4096  # from one row to the next if the heads of a token lie side by side: 16 KiB
LIMITS = (1.05, 1.25)  # words moved over words counted, up to which a part of the cache is usable
MAX_SHOWN = 6  # the largest ratio that the figure shows
SHOWN = ("dense", "padded", "packed")  # the layouts in the figure
COLOURS_OF_WAYS = ("#c8ced4", "#9db9cc", "#6ba3c8", "#3f86b5", "#0068a8", "#cf5a00")  # from 1 way to 16, then all

LAYOUTS = {
    "dense": "rows lie side by side: q is n x d words without a gap",
    "power of two": f"{PITCH_WORDS} words from row to row of q, k, v and out",
    "padded": f"{PITCH_WORDS} + d words from row to row of q, k, v and out, and n + {LINE_WORDS} in the spilled P",
    "packed": 'like "power of two", but every tile is first copied to a buffer of its own',
}
L1 = (("flash", 256, 64), ("hybrid", 256, 128), ("small_cache", 256, 256))
L2 = (("flash", 1024, 256), ("hybrid", 1024, 512))
WAYS = (1, 2, 4, 8, 16)  # the ways tried for the cache of 32 KiB
HARDWARE = {("L1d", 32): 8, ("L1d", 48): 12, ("L2", 1024): 16}  # (name, KiB) -> the ways of real CPUs


def points(quick: bool) -> list[Point]:
    if quick:
        return [_point("L1d", 32, ways, "flash", 128, 64, "dense") for ways in (1, 8, None)]
    points = [_point("L1d", 32, ways, *case, layout) for case in L1 for layout in LAYOUTS for ways in WAYS]
    for (name, kib), ways in HARDWARE.items():
        cases = L1 if name == "L1d" else L2
        if kib != 32:
            points += [_point(name, kib, ways, *case, layout) for case in cases for layout in LAYOUTS]
        points += [_point(name, kib, None, *case, "dense") for case in cases]
    return points


def _point(cache: str, kib: int, ways: int | None, schedule: str, n: int, d: int, layout: str) -> Point:
    return {"cache": cache, "kib": kib, "ways": ways, "schedule": schedule, "n": n, "d": d, "layout": layout}


def measure(point: Point) -> list[Row]:
    """Simulate one schedule in one cache and one layout, with tiles for 2/16 to 16/16 of the capacity."""
    problem = Problem(point["n"], point["n"], point["d"], dtype="float32")
    schedule = schedules.get(point["schedule"])
    cache = CacheLevel(point["cache"], point["kib"] << 10, 4 * LINE_WORDS, point["ways"])
    words, layout = cache.capacity_bytes // problem.bytes_per_word, point["layout"]
    multiple = dict.fromkeys(schedule.direction(problem).edges, LINE_WORDS)
    if not schedule.spills:
        multiple["rows"] = 1  # whole rows are whole lines already
    leading: dict[str, int] = {}
    if layout != "dense":
        pitch = PITCH_WORDS + (point["d"] if layout == "padded" else 0)
        leading |= dict.fromkeys(("q", "k", "v", "out"), pitch)
        if layout == "padded" and schedule.spills:
            leading["p"] = point["n"] + LINE_WORDS
    rows: list[Row] = []
    results: dict[Any, Row] = {}
    for share in range(2, SHARES + 1):
        try:
            tiles = schedule.tiles(problem, words * share // SHARES, multiple)
        except TooFewWords:
            continue
        if tiles not in results:
            packed, edges = layout == "packed", tiles._asdict()
            run = simulate(point["schedule"], problem, [cache], tiles=edges, packed=packed, leading=leading)
            results[tiles] = {
                "held": run.count.peak / words,
                "counted_words": run.count.words,
                "moved_words": run.levels[0].words,
            }
        rows.append(point | {"share": share / SHARES} | results[tiles])
    return rows


def cases(rows: list[Row]) -> dict[tuple[Any, ...], list[Row]]:
    """Group the rows by cache, ways, schedule, sizes and layout; the rows of a case differ in the share."""
    groups = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in ("cache", "kib", "ways", "schedule", "n", "d", "layout"))].append(row)
    return dict(groups)


def usable(case: list[Row], limit: float) -> float | None:
    """The largest part of the capacity that tiles hold while the cache moves at most `limit` times their count."""
    return max((row["held"] for row in case if row["moved_words"] <= limit * row["counted_words"]), default=None)


def regrets(rows: list[Row]) -> dict[float, list[float]]:
    """The price of each share of the capacity for which tiles are chosen, in every case of real CPUs.

    The price is the words moved with these tiles, over the words moved with the best share's tiles. A share at which
    some case has no tiles is left out.
    """
    ratios = defaultdict(list)
    for (cache, kib, ways, *_, layout), case in cases(rows).items():
        if ways != HARDWARE.get((cache, kib)) or layout == "power of two":
            continue
        best = min(row["moved_words"] for row in case)
        for row in case:
            ratios[row["share"]].append(row["moved_words"] / best)
    complete = max(map(len, ratios.values()), default=0)
    return {share: values for share, values in sorted(ratios.items()) if len(values) == complete}


def figure(rows: list[Row]) -> alt.FacetChart:
    """Words that the 32 KiB cache moves over those counted for tiles that fill it, by share and by ways."""
    values = []
    for (cache, kib, ways, schedule, _, d, layout), case in cases(rows).items():
        if (cache, kib) != ("L1d", 32) or layout not in SHOWN:
            continue
        counted = case[-1]["counted_words"]
        for name in SHOWN if ways is None else [layout]:
            common = {"ways": _ways(ways), "facet": f"{schedule}, d {d}, {name}"}
            values += [common | {"share": row["share"], "price": row["moved_words"] / counted} for row in case]
    facets = sorted(dict.fromkeys(row["facet"] for row in values), key=lambda name: SHOWN.index(name.split(", ")[-1]))
    names = [name for name in map(_ways, (*WAYS, None)) if any(row["ways"] == name for row in values)]
    x = alt.X(
        "share:Q",
        title="share of M that tiles are chosen for",
        scale=alt.Scale(domain=[0.1, 1]),
        axis=alt.Axis(format="%", values=[0.25, 0.5, 0.75, 1], grid=False),
    )
    y = alt.Y(
        "price:Q",
        title="words moved / counted for M",
        scale=alt.Scale(type="log", domain=[1, MAX_SHOWN], nice=False, clamp=True),
        axis=alt.Axis(values=[1, 1.5, 2, 3, 5], domain=False, ticks=False),
    )
    colours = alt.Scale(domain=names, range=list(COLOURS_OF_WAYS[-len(names) :]))
    colour = alt.Color("ways:N", scale=colours, legend=alt.Legend(title="ways (lines of a set)", columns=6))
    # Aggregated, so that each panel has one rule, not one for each of its rows
    once = alt.Chart().transform_aggregate(rows="count()")
    assumed = once.mark_rule(style="faint", strokeDash=[4, 3]).encode(x=alt.datum(USABLE_SHARE))
    lines = alt.Chart().mark_line(strokeWidth=2, clip=True).encode(x=x, y=y, color=colour)
    chart = alt.LayerChart(layer=[assumed, lines], data=alt.Data(values=values)).properties(width=230, height=150)
    return chart.facet(facet=alt.Facet("facet:N", sort=facets, title=None), columns=3, spacing=18)


def _ways(ways: int | None) -> str:
    return "all" if ways is None else str(ways)


def tables(rows: list[Row]) -> list[Table]:
    by_case = cases(rows)
    names = list(dict.fromkeys(case[:6] for case in by_case if case[2] is not None))
    columns = ("cache", "schedule", "n", "d", *(name for name in (FULL, *LAYOUTS)))

    def line(name: tuple[Any, ...], cell: Any) -> list[str]:
        cache, kib, ways, schedule, n, d = name
        title = f"{cache}, {kib // 1024} MiB" if kib >= 1024 else f"{cache}, {kib} KiB"
        full = by_case.get((cache, kib, None, schedule, n, d, "dense"))
        columns = [full, *(by_case.get((*name, layout)) for layout in LAYOUTS)]
        heading = f"{title}, {ways} way{'s' * (ways > 1)}"
        return [heading, f"`{schedule}`", str(n), str(d), *(cell(case) if case else "-" for case in columns)]

    by_share = regrets(rows)
    return [
        Table("Usable share, for at most 5 % / 25 % more words", columns, [line(name, _shares) for name in names], 2),
        Table("Best share, and its cost", columns, [line(name, _best) for name in names], 2),
        Table(
            "Which share to plan for",
            ("tiles are chosen for", "words / words of the best share, mean", "the same ratio, worst case", "cases"),
            [
                (f"{share:.0%}", f"{geometric_mean(ratios):.3f}", f"{max(ratios):.2f}", str(len(ratios)))
                for share, ratios in by_share.items()
            ],
        ),
    ]


def _shares(case: list[Row]) -> str:
    """The usable share at each of LIMITS."""
    shares = [usable(case, limit) for limit in LIMITS]
    return " / ".join("none" if share is None else f"{share:.0%}" for share in shares)


def _best(case: list[Row]) -> str:
    """The share that moves the fewest words, and these words over those counted for tiles that fill the cache."""
    best = min(case, key=lambda row: row["moved_words"])
    return f"{best['held']:.0%}: {best['moved_words'] / case[-1]['counted_words']:.2f}"


def best_share(rows: list[Row]) -> float:
    """The share with the smallest mean of `regrets`."""
    by_share = regrets(rows)
    return min(by_share, key=lambda share: geometric_mean(by_share[share])) if by_share else math.nan


def findings(rows: list[Row]) -> list[str]:
    by_share = regrets(rows)
    full = [usable(case, LIMITS[0]) for (*_, ways, _, _, _, _), case in cases(rows).items() if ways is None]
    shares = [share for share in full if share]
    sentences = [
        f"Even in a fully associative cache, a schedule that may move at most 5 % more words than counted can use only "
        f"{min(shares):.0%} to {max(shares):.0%} of the capacity, because LRU keeps dead tiles."
    ] * bool(shares)
    if by_share:
        best = best_share(rows)
        sentences.append(
            f"The best single rule is to choose tiles for {best:.0%} of a CPU's cache. On average, these tiles move "
            f"{_mean(by_share[best])} times the words of the share that is best for each case. Tiles for the whole "
            f"cache move {_mean(by_share[max(by_share)])} times the words of the best share."
        )
        sentences.append(
            f"The planner and the CPU kernels choose tiles for {USABLE_SHARE:.0%} of a cache that hardware manages, "
            f"and for all of a memory that software manages."
        )
    return sentences


def _mean(values: list[float]) -> str:
    return f"{geometric_mean(values):.2f}"


EXPERIMENT = Experiment(
    name="real-caches",
    title="How much of a cache a schedule can use",
    question="How much of M can a schedule use in a set-associative LRU cache, depending on the number of ways?",
    points=points,
    measure=measure,
    figure=figure,
    tables=tables,
    findings=findings,
    method=f"""
In the model, the schedule decides what the cache holds. A CPU's cache holds the lines that were touched last, each in
one set only. So tiles that fill all M words in the model do not stay in a real cache of M words. Tiles should be chosen
for a part of M, and this experiment determines the part. It simulates caches (`redblue.machine.Cached`); nothing is
measured.

The runs are forward passes with a full mask, one head and float32, in one level of write-back LRU cache with lines of
64 bytes. A store that overwrites a whole line does not read the line first. Tile edges are multiples of {LINE_WORDS}
words, except the rows of `flash`. All traffic between the cache and the next level is counted, including dead tiles
that are written back. The last five columns of the first two tables are a fully associative cache, and four layouts
of the arrays in a cache with sets:

- **{FULL}**: a cache with the same capacity and line size, but with one set; rows lie side by side
{chr(10).join(f"- **{name}**: {text}" for name, text in LAYOUTS.items())}

Tiles are chosen for 2/{SHARES}, 3/{SHARES} ... of the capacity. The *share* is the part of the capacity that these
tiles hold in the model. The tables:

- *Usable share*: the largest share at which the cache moves at most 1.05 / 1.25 times the words counted for its tiles.
- *Best share*: the share whose tiles move the fewest words. After the colon is the cost: the words moved with this
  share, divided by the words that the model counts for tiles that fill the whole cache.
- *Which share to plan for*: the words moved, divided by the words of the best share of the same case. The cases are the
  caches of real hardware (8, 12 and 16 ways) with all layouts except "power of two".

The figure shows the cache of 32 KiB, with ratios up to {MAX_SHOWN}. The dashed line is the share that the planner
assumes.

**Least recently used.** LRU evicts the line whose last use is longest ago. So a tile stays in the cache only if all
other words that are touched between two of its uses fit in the cache beside the tile. Between two uses of a tile, a
`flash` forward pass touches all tiles that it keeps. Slices of K and V that are no longer needed stay in the cache,
too, because LRU cannot know that they are dead. With r rows and c columns, the pass needs

    r (d + d_v + 2) + r c + r + c (d + d_v) words

while it computes, and r (2 d_v + 3) words while it stores O. The larger number counts. In the model, the largest of
c d, c d_v and r replaces the sum r + c (d + d_v) in the formula. If tiles fill whole lines and the cache has one set, a
cache of this capacity moves exactly the counted words, plus the dead tiles that LRU writes back
(`tests/machine/test_cached_costs.py`). With one line less, LRU evicts each line just before its next use, so the
traffic jumps instead of growing slowly. For this reason, tiles for a full cache can move several times the counted
words, while tiles for a part of the cache move only the counted words.

With dense rows and at most 5 % more words, `hybrid` has the smallest usable share in every cache of the first table. In
two of these caches, another schedule has the same share. `hybrid` keeps rows of Q and uses one slice of their features
at a time. So a whole score tile, its spilled P and c rows of K pass through the cache between two uses of a row.
`hybrid` also stores its row maxima as columns, which take a line for each word. In other columns, other schedules can
have a smaller share: in a fully associative cache, with at most 5 % more words, `small_cache` has the smallest share at
48 KiB, and `flash` in L2.

**Sets.** Rows that lie a power of two apart fall into few sets. With {PITCH_WORDS} words between rows, all rows of q
begin in the same set of an L1d, and a tile with more rows than the cache has ways cannot stay. Padding each row, or
copying tiles to buffers of their own, spreads the rows over the sets. But the copy passes through the cache as well,
and its source still lies in few sets. Rows without gaps also lie a power of two apart if d is a power of two (for P, if
n is), as in this experiment. Padding helps in these cases, as the last rows of the tables show. The CPU kernels copy
the panels that stay in the cache to buffers of their own.
""",
)
