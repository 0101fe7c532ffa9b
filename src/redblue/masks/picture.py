"""Pictures of masks: which tiles are empty, full or partly attended; single pairs where there are few."""

from __future__ import annotations

import math
from typing import Any, Protocol

import altair as alt
import numpy as np

from redblue.base.errors import RedblueError
from redblue.base.integers import ceil_div
from redblue.base.style import COLOURS, printed
from redblue.base.text import amount
from redblue.masks.numbers import pair
from redblue.masks.patterns.census import Census, census
from redblue.masks.rules.rule import Rule

MOST_TILES = 64  # along an axis
MOST_DRAWN = 1 << 16  # tiles
MOST_PLANES = 12
SIDE = 320  # pixels of the longer axis
SHADES = " ░▒▓█"


class Drawable(Protocol):
    """The part of a Mask that pictures need."""

    @property
    def rule(self) -> Rule: ...
    @property
    def lead(self) -> tuple[int, ...]: ...
    def plane(self, i: int) -> Drawable: ...


def edges_of(n_q: int, n_k: int, tile: int | tuple[int, int] | None) -> tuple[int, int]:
    """The edges of a picture's tiles: those given, or squares of which MOST_TILES cover the longer axis."""
    edge = max(1, ceil_div(max(n_q, n_k), MOST_TILES))
    return (edge, edge) if tile is None else pair("tile", tile)


def chart(mask: Drawable, n_q: int, n_k: int, tile: int | tuple[int, int] | None = None, side: int = SIDE) -> alt.Chart:
    """A picture of one plane. tile: edges of its tiles in queries and keys. Raises RedblueError for too many tiles."""
    rows, cols = edges_of(n_q, n_k, tile)
    if ceil_div(n_q, rows) * ceil_div(n_k, cols) > MOST_DRAWN:
        raise RedblueError(
            f"tiles of {rows} x {cols} cut {n_q:,} x {n_k:,} pairs into more than can be drawn ({MOST_DRAWN:,}): give "
            "larger ones"
        )
    found = census(mask.rule.laid(n_q, n_k), rows, cols)
    edge = min(rows, cols)
    pixels = max(1, side * edge // max(n_q, n_k, 1))  # whole ones for each tile, so that no seam shows
    style = COLOURS["light"]
    colour = alt.Scale(domain=["full", "partial"], range=[style["large-cache"], style["small-cache"]])
    single = rows == cols == 1
    values = _values(found, rows, cols, n_q, n_k)
    base = alt.Chart(alt.Data(values=values)).mark_rect(stroke=None)
    return base.encode(
        x=_axis(alt.X, "key", "keys", n_k),
        x2="key_end",
        y=_axis(alt.Y, "query", "queries", n_q),
        y2="query_end",
        color=alt.value(style["large-cache"]) if single else alt.Color("kind:N", title="tiles", scale=colour),
        opacity=alt.Opacity("share:Q", scale=alt.Scale(domain=[0, 1], range=[0.25, 1]), legend=None),
        tooltip=["query:Q", "key:Q", "share:Q"],
    ).properties(
        width=max(40, pixels * n_k // edge), height=max(40, pixels * n_q // edge), title=_title(mask, found, rows, cols)
    )  # fmt: skip


def _axis(channel: Any, name: str, title: str, length: int) -> Any:
    scale = alt.Scale(domain=[0, length], nice=False, reverse=name == "query")
    axis = alt.Axis(grid=False, tickCount=4, format="~s" if length >= 10_000 else ",d")
    return channel(f"{name}:Q", title=title, scale=scale, axis=axis)


def _values(found: Census, rows: int, cols: int, n_q: int, n_k: int) -> list[dict[str, Any]]:
    """The tiles as rectangles: neighbours that have the same share are one."""
    share = found.pairs / np.maximum(1, found.area)
    new = (
        (np.diff(found.row, prepend=-1) != 0) | (np.diff(found.col, prepend=0) != 1) | (np.diff(share, prepend=-1) != 0)
    )
    first = np.flatnonzero(new)
    last = np.append(first[1:], len(new))[: len(first)] - 1
    rectangles: list[dict[str, Any]] = []
    above: dict[tuple[int, int, int, float], dict[str, Any]] = {}  # by the row below, where they may go on
    for i, begin, end, part in zip(
        *(each.tolist() for each in (found.row[first], found.col[first], found.col[last], share[first])), strict=True
    ):
        drawn = above.pop((i, begin, end, part), None)
        if drawn is None:
            drawn = {
                "query": i * rows,
                "key": begin * cols,
                "key_end": min(n_k, (end + 1) * cols),
                "share": round(part, 4),
                "kind": "full" if part == 1 else "partial",
            }
            rectangles.append(drawn)
        drawn["query_end"] = min(n_q, (i + 1) * rows)
        above[i + 1, begin, end, part] = drawn
    return rectangles


def _title(mask: Drawable, found: Census, rows: int, cols: int) -> alt.TitleParams:
    said = repr(mask)
    tiles = (
        "pairs" if rows == cols == 1 else f"tiles of {rows} x {cols}: {found.full:,} full, {found.partial:,} partial"
    )
    text = f"{amount(int(found.pairs.sum()))} pairs" if rows == cols == 1 else tiles
    return alt.TitleParams(
        said if len(said) <= 60 else said[:57] + "...",
        subtitle=f"{text}, {found.empty:,} empty",
        fontSize=11,
        subtitleFontSize=10,
        fontWeight="normal",
        anchor="start",
    )


def plot(mask: Drawable, n_q: int, n_k: int, tile: int | tuple[int, int] | None = None) -> alt.Chart | alt.ConcatChart:
    """A picture of the mask; of several planes, beside each other. Raises RedblueError for more than MOST_PLANES."""
    planes = [mask.plane(i) for i in range(min(math.prod(mask.lead), MOST_PLANES + 1))]
    if len(planes) > MOST_PLANES:
        raise RedblueError(
            f"the mask has {math.prod(mask.lead)} planes, a picture at most {MOST_PLANES}: plot some, mask.plane(i)"
        )
    made = alt.concat(*(chart(each, n_q, n_k, tile, SIDE // 2) for each in planes), columns=4) if mask.lead else None
    found = chart(mask, n_q, n_k, tile) if made is None else made
    style = printed()
    del style["legend"]["layout"]  # which Vega-Lite knows and Altair does not
    found.config = style
    return found


def shaded(mask: Drawable, n_q: int, n_k: int, rows: int = 24, cols: int = 48) -> str:
    """One plane as lines of text: the darker, the more of a tile's pairs attend."""
    rows, cols = min(rows, n_q), min(cols, n_k)
    if not rows or not cols:
        return ""
    edges = ceil_div(n_q, rows), ceil_div(n_k, cols)
    found = census(mask.rule.laid(n_q, n_k), *edges)
    shades = np.zeros((ceil_div(n_q, edges[0]), ceil_div(n_k, edges[1])), np.int64)
    shades[found.row, found.col] = np.ceil(found.pairs / found.area * (len(SHADES) - 1))
    return "\n".join("".join(SHADES[shade] for shade in line) for line in shades)
