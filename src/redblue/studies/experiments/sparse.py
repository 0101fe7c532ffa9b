"""Sparse attention: words over density for four patterns, in every format of the mask, beside two lower bounds."""

from __future__ import annotations

import altair as alt

from redblue import schedules
from redblue.base.style import LOOKS
from redblue.masks import Mask
from redblue.problem import Problem
from redblue.studies.experiments.experiment import Experiment, Point, Row, Table
from redblue.studies.sparse import picture
from redblue.studies.sparse.study import compare
from redblue.studies.ticks import log_ticks

N, D, M_WORDS, BLOCK = 512, 32, 1024, 16
# Masks as --mask takes them, from few pairs to many.
PATTERNS = {
    "window": [f"window:{half},{half - 1}" for half in (4, 8, 16, 32, 64, 128)] + [f"window:{N},{N}"],
    "blocks": [f"random:{share},{BLOCK}" for share in (0.02, 0.05, 0.1, 0.2, 0.5, 0.9)],
    "butterfly": [f"butterfly:{block}" for block in (1, 2, 4, 8, 16, 32, 64, 128)],
    "random": [f"random:{share},1" for share in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)],
}
QUICK = {"window": ["window:8,7"], "random": ["random:0.1,1"]}
FORMATS = {  # a format of redblue.masks.storage -> the schedule whose colour and mark it takes
    "rule": "standard",
    "bits": "small_cache",
    "blocks": "flash1",
    "tiles": "flash",
    "csr": "hybrid",
    "coo": "spilled_ds",
}
TITLES = picture.TITLES | {"rule": "known by rule, no index", "tiles": "bit tiles of 64"}


def points(quick: bool) -> list[Point]:
    n, chosen = (128, QUICK) if quick else (N, PATTERNS)
    return [{"pattern": name, "mask": text, "n": n} for name, texts in chosen.items() for text in texts]


def measure(point: Point) -> list[Row]:
    """Count one mask; return a row for each format that can store it, with the best schedule of that format."""
    from redblue.masks.names import parse as parse_mask

    n = point["n"]
    mask: Mask = parse_mask(point["mask"])
    problem = Problem(n, n, D, mask=mask)
    comparison = compare(problem, [M_WORDS], ["rule"] if mask.on(n, n).is_full else None)
    result = comparison.points[0]
    rows = []
    for name in comparison.formats:
        best = min(
            (counts for (_, form), counts in result.counts.items() if form == name), key=lambda counts: counts.words
        )
        rows.append(
            point
            | {
                "density": comparison.family.z_qk / (n * n),
                "format": name.partition(":")[0],
                "schedule": best.schedule,
                "tiles": best.tiles,
                "words": best.words,
                "index_words": best.index_words,
                "bound_words": result.bound.words,
                "bound": result.bound.name,
                "family_form_words": result.family,
            }
        )
    return rows


def figure(rows: list[Row]) -> alt.FacetChart:
    """Words over density, a facet for each pattern."""
    patterns = list(dict.fromkeys(row["pattern"] for row in rows))
    lines = [
        {"pattern": row["pattern"], "density": row["density"], "words": row["words"], "format": TITLES[row["format"]]}
        for row in rows
    ]
    bounds = [
        {"pattern": row["pattern"], "density": row["density"], "words": row[key], "bound": kind}
        for row in rows
        for kind, key in ((picture.PROVED, "bound_words"), (picture.FAMILY, "family_form_words"))
    ]
    bounds = list({tuple(row.items()): row for row in bounds}.values())
    low = min(row["words"] for row in (*lines, *bounds)) / 1.5
    high = max(row["words"] for row in (*lines, *bounds)) * 1.3
    x = alt.X(
        "density:Q",
        title="share of pairs that attend",
        scale=alt.Scale(type="log", domain=[min(row["density"] for row in rows) / 1.1, 1], nice=False),
        axis=alt.Axis(values=[0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1], format="~%", grid=False),
    )
    y = alt.Y(
        "words:Q",
        title="words moved",
        scale=alt.Scale(type="log", domain=[low, high], nice=False),
        axis=alt.Axis(values=log_ticks(low, high), format="~s", domain=False, ticks=False),
    )
    names = [TITLES[name] for name in FORMATS if any(row["format"] == TITLES[name] for row in lines)]
    looks = [LOOKS[FORMATS[name]] for name in FORMATS if TITLES[name] in names]
    legend = alt.Legend(title="index, each with its best schedule and tiles", columns=3)
    colour = alt.Color("format:N", scale=alt.Scale(domain=names, range=[look.light for look in looks]), legend=legend)
    shape = alt.Shape("format:N", scale=alt.Scale(domain=names, range=[look.shape for look in looks]), legend=legend)
    dash = alt.StrokeDash(
        "bound:N",
        scale=alt.Scale(domain=[picture.PROVED, picture.FAMILY], range=[[1, 0], [2, 3]]),
        legend=alt.Legend(title="lower bounds", symbolType="stroke", symbolSize=400, columns=1, labelLimit=300),
    )
    counts = alt.Chart().transform_filter("isValid(datum.format)")
    floors = alt.Chart().transform_filter("isValid(datum.bound)")
    proved = floors.transform_filter(alt.datum.bound == picture.PROVED).transform_calculate(low=str(low))
    shown = [alt.Tooltip("format:N"), alt.Tooltip("density:Q", format=".3~%"), alt.Tooltip("words:Q", format=",")]
    layers = [
        proved.mark_area(style="ink", opacity=0.08, clip=True).encode(x=x, y=y, y2="low:Q"),
        floors.mark_line(style="ink", strokeWidth=1.8, clip=True).encode(x=x, y=y, strokeDash=dash),
        counts.mark_line(strokeWidth=1.6).encode(x=x, y=y, color=colour),
        counts.mark_point(filled=True, size=45, opacity=1).encode(x=x, y=y, color=colour, shape=shape, tooltip=shown),
    ]
    chart = alt.LayerChart(layer=layers, data=alt.Data(values=[*bounds, *lines])).properties(width=330, height=240)
    return chart.facet(facet=alt.Facet("pattern:N", sort=patterns, title=None), columns=2)


def best_rows(rows: list[Row]) -> list[Row]:
    """For each mask, the row of the format with the fewest words."""
    masks = dict.fromkeys((row["pattern"], row["mask"]) for row in rows)
    return [
        min((row for row in rows if (row["pattern"], row["mask"]) == place), key=lambda row: row["words"])
        for place in masks
    ]


def tables(rows: list[Row]) -> list[Table]:
    columns = (
        "mask",
        "best format",
        "schedule",
        "density",
        "words",
        "words of the index",
        "words / bound",
        "words / family's form",
    )
    return [
        Table(
            "The best format of each mask",
            columns,
            [
                (
                    f"`{row['mask']}`",
                    TITLES[row["format"]],
                    f"`{row['schedule']}`",
                    f"{row['density']:.1%}",
                    f"{row['words']:,}",
                    f"{row['index_words']:,}",
                    f"{row['words'] / row['bound_words']:.2f}",
                    f"{row['words'] / row['family_form_words']:.2f}",
                )
                for row in best_rows(rows)
            ],
            3,
        )
    ]


def findings(rows: list[Row]) -> list[str]:
    best = best_rows(rows)
    below = [row for row in best if row["words"] < row["family_form_words"]]
    heavy = max((row for row in rows if row["format"] != "rule"), key=lambda row: row["index_words"] / row["words"])
    worst = max(best, key=_gap)
    sentences = [
        f"The best schedule and format of a mask move {min(map(_gap, best)):.2f} to {_gap(worst):.2f} times the bound "
        f"that is proved for this mask. The ratio is largest for `{worst['mask']}`."
    ]
    if below:
        least = min(below, key=lambda row: row["words"] / row["family_form_words"])
        sentences.append(
            f"The family's form is the formula of a published bound for a family of inputs, without the bound's "
            f"unknown constant. This formula is no bound for a single mask: {len(below)} of {len(best)} masks move "
            f"fewer words than the formula gives. `{least['mask']}` moves "
            f"{least['words'] / least['family_form_words']:.2f} times the words of the family's form."
        )
    sentences.append(
        f"Over all masks and formats, the index takes up to {heavy['index_words'] / heavy['words']:.0%} of the words "
        f"(`{heavy['mask']}`, stored as {TITLES[heavy['format']]})."
    )
    return sentences


def _gap(row: Row) -> float:
    return row["words"] / row["bound_words"]


EXPERIMENT = Experiment(
    name="sparse",
    title="Sparse attention: words over density",
    question="How many words do sparse masks move, including their index, and how close are the lower bounds?",
    points=points,
    measure=measure,
    figure=figure,
    tables=tables,
    findings=findings,
    method=f"""
Counted, not measured: forward, one head, n = {N}, d = {D}, M = {M_WORDS:,} words = d², words of 16 bits. A 32-bit
number of an index takes two words. Every schedule
({", ".join(f"`{name}`" for name in schedules.list_schedules("forward"))})
is counted with its best tiles and with every format that can store the mask. The figure and the table show the
schedule with the fewest words.

- *Masks*: `window:4,3` is a sliding window of 4 keys to the left and 3 to the right. `random:0.1,{BLOCK}` has random
  blocks of {BLOCK} x {BLOCK} pairs with a density of 10 %, and `random:0.1,1` has random pairs. The number after
  `butterfly` is the edge of its blocks. No rule describes random pairs and blocks, so they need an index.
- *Bound*: the best proved bound for this one mask. It is the largest of three bounds: the compulsory words, and two
  bounds by phases. The first of the two uses only the number of attended pairs. The second uses the largest number of
  attended pairs in any r rows and c keys ([theory](../lab/theory.md), Theorem 5).
- *Family's form*: min(Z_in² / M, Z_in √Z_QK / √M), the bound of arXiv 2410.09397, Theorem 4.5, without its constant.
  Z_in is the number of nonzero entries of Q, K and V, and Z_QK the number of nonzero scores. Here, Z_in counts the
  entries of the rows and keys with attended pairs, and Z_QK counts the attended pairs. The theorem is about the worst
  input with the given Z_in and Z_QK, so a structured mask may move fewer words.

`redblue sparse` compares all schedules and formats on one mask.
""",
)
