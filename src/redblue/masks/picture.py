"""Pictures of masks: charts and text that show which tiles are empty, full or partly attended."""

from __future__ import annotations

import math
from typing import Any, Protocol

import altair as alt
import numpy as np

from redblue.base.errors import RedblueError
from redblue.base.integers import ceil_div
from redblue.base.style import COLOURS, standalone_config
from redblue.base.text import amount
from redblue.masks.numbers import pair
from redblue.masks.patterns.bit_words import WORD_BITS
from redblue.masks.patterns.census import Census, census
from redblue.masks.rules.rule import Rule

DEFAULT_TILES = 64  # along the longer axis
MAX_TILES = 1 << 16  # tiles in one chart
MAX_PLANES = 12
SIDE = 320  # pixels of the longer axis
SHADES = " ░▒▓█"  # from no pair to every pair of a tile


class Drawable(Protocol):
    """The part of Mask that pictures need. (Mask.plot imports this module, so this module cannot import Mask.)"""

    @property
    def rule(self) -> Rule: ...
    @property
    def lead(self) -> tuple[int, ...]: ...
    def plane(self, i: int) -> Drawable: ...


def even_edge(edge: int) -> int:
    """Round the edge of large tiles up to a multiple of a power of two, at least 64; the edge grows by at most 1/8.

    Such tiles do not cut blocks whose edge is this power of two or a smaller one. Blocks that a tile cuts are tested
    pair by pair, which takes minutes and gigabytes for a mask on ten million queries.
    """
    step = 1 << max(0, edge.bit_length() - 4)
    return edge if step < WORD_BITS else ceil_div(edge, step) * step


def edges_of(n_q: int, n_k: int, tile: int | tuple[int, int] | None) -> tuple[int, int]:
    """Return the edges of a chart's tiles: `tile`, or by default squares, DEFAULT_TILES along the longer axis."""
    edge = even_edge(max(1, ceil_div(max(n_q, n_k), DEFAULT_TILES)))
    return (edge, edge) if tile is None else pair("tile", tile)


def chart(mask: Drawable, n_q: int, n_k: int, tile: int | tuple[int, int] | None = None, side: int = SIDE) -> alt.Chart:
    """Draw one plane.

    tile: the edges of a tile in queries and keys. side: pixels of the longer axis. Raises RedblueError for more than
    MAX_TILES tiles.
    """
    rows, cols = edges_of(n_q, n_k, tile)
    if ceil_div(n_q, rows) * ceil_div(n_k, cols) > MAX_TILES:
        raise RedblueError(
            f"tiles of {rows} x {cols} cut {n_q:,} x {n_k:,} pairs into more than can be drawn ({MAX_TILES:,} tiles): "
            "give larger tiles"
        )
    tiles = census(mask.rule.pattern(n_q, n_k), rows, cols)
    edge = min(rows, cols)
    pixels = max(1, side * edge // max(n_q, n_k, 1))  # a whole number per tile, so that no seams show
    style = COLOURS["light"]
    colour = alt.Scale(domain=["full", "partial"], range=[style["large-cache"], style["small-cache"]])
    single = rows == cols == 1
    values = _rectangles(tiles, rows, cols, n_q, n_k)
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
        width=max(40, pixels * n_k // edge), height=max(40, pixels * n_q // edge), title=_title(mask, tiles, rows, cols)
    )  # fmt: skip


def _axis(channel: Any, name: str, title: str, length: int) -> Any:
    scale = alt.Scale(domain=[0, length], nice=False, reverse=name == "query")
    axis = alt.Axis(grid=False, tickCount=4, format="~s" if length >= 10_000 else ",d")
    return channel(f"{name}:Q", title=title, scale=scale, axis=axis)


def _rectangles(tiles: Census, rows: int, cols: int, n_q: int, n_k: int) -> list[dict[str, Any]]:
    """Merge neighbouring tiles with the same share of attending pairs into rectangles, as rows of Vega-Lite data."""
    share = tiles.pairs / np.maximum(1, tiles.area)
    is_first = (
        (np.diff(tiles.row, prepend=-1) != 0) | (np.diff(tiles.col, prepend=0) != 1) | (np.diff(share, prepend=-1) != 0)
    )
    first = np.flatnonzero(is_first)
    last = np.append(first[1:], len(is_first))[: len(first)] - 1
    rectangles: list[dict[str, Any]] = []
    # Rectangles that may still grow downwards. Key: row of tiles below, first and last column of tiles, share.
    growing: dict[tuple[int, int, int, float], dict[str, Any]] = {}
    runs = (tiles.row[first], tiles.col[first], tiles.col[last], share[first])
    for i, begin, end, part in zip(*(array.tolist() for array in runs), strict=True):
        rectangle = growing.pop((i, begin, end, part), None)
        if rectangle is None:
            rectangle = {
                "query": i * rows,
                "key": begin * cols,
                "key_end": min(n_k, (end + 1) * cols),
                "share": round(part, 4),
                "kind": "full" if part == 1 else "partial",
            }
            rectangles.append(rectangle)
        rectangle["query_end"] = min(n_q, (i + 1) * rows)
        growing[i + 1, begin, end, part] = rectangle
    return rectangles


def _title(mask: Drawable, tiles: Census, rows: int, cols: int) -> alt.TitleParams:
    """Return the mask's constructor as title, and counts of tiles (of pairs, if a tile is one pair) as subtitle."""
    title = repr(mask)
    if rows == cols == 1:
        counts = f"{amount(int(tiles.pairs.sum()))} pairs"
    else:
        counts = f"tiles of {rows} x {cols}: {tiles.full:,} full, {tiles.partial:,} partial"
    return alt.TitleParams(
        title if len(title) <= 60 else title[:57] + "...",
        subtitle=f"{counts}, {tiles.empty:,} empty",
        fontSize=11,
        subtitleFontSize=10,
        fontWeight="normal",
        anchor="start",
    )


def plot(mask: Drawable, n_q: int, n_k: int, tile: int | tuple[int, int] | None = None) -> alt.Chart | alt.ConcatChart:
    """Draw a mask, its planes side by side. Raises RedblueError for more than MAX_PLANES planes."""
    planes = [mask.plane(i) for i in range(min(math.prod(mask.lead), MAX_PLANES + 1))]
    if len(planes) > MAX_PLANES:
        raise RedblueError(
            f"the mask has {math.prod(mask.lead)} planes, and a picture shows at most {MAX_PLANES}: plot mask.plane(i)"
        )
    picture: alt.Chart | alt.ConcatChart
    if mask.lead:
        picture = alt.concat(*(chart(plane, n_q, n_k, tile, SIDE // 2) for plane in planes), columns=4)
    else:
        picture = chart(mask, n_q, n_k, tile)
    style = standalone_config()
    del style["legend"]["layout"]  # a property of Vega-Lite that Altair does not know
    picture.config = style
    return picture


def shaded(mask: Drawable, n_q: int, n_k: int, rows: int = 24, cols: int = 48) -> str:
    """Draw one plane as at most `rows` lines of text. Darker characters stand for a larger share of attending pairs."""
    rows, cols = min(rows, n_q), min(cols, n_k)
    if not rows or not cols:
        return ""
    edges = even_edge(ceil_div(n_q, rows)), even_edge(ceil_div(n_k, cols))
    tiles = census(mask.rule.pattern(n_q, n_k), *edges)
    shades = np.zeros((ceil_div(n_q, edges[0]), ceil_div(n_k, edges[1])), np.int64)
    shades[tiles.row, tiles.col] = np.ceil(tiles.pairs / tiles.area * (len(SHADES) - 1))
    return "\n".join("".join(SHADES[shade] for shade in line) for line in shades)
