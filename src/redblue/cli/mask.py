"""`redblue mask`: the attended pairs of a mask, as numbers and as a picture."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from redblue.base.errors import RedblueError
from redblue.base.integers import ceil_div, parse_size, whole_number
from redblue.base.terminal import table, terminal_width
from redblue.base.text import amount, quoted
from redblue.cli.options import NK, NQ, Json, N, parse_mask
from redblue.cli.output import show, written
from redblue.masks import Mask
from redblue.masks.names import FORMS
from redblue.masks.patterns.census import census

EPILOG = (
    'Example: redblue mask "causal & documents:512,1536,2048" --picture mask.svg. '
    "At another size: redblue mask bigbird:64 --n 8192. More: docs/guide/masks.md"
)
UNMATCHED = ("queries_without_keys", "keys_without_queries")
PICTURE_WIDTH = 48  # terminal columns; a narrower terminal gets a narrower picture
MAX_TILES = 256  # along the longer axis, if no tiles are given; their edges are powers of two, at least 64


def command(
    name: Annotated[str, typer.Argument(metavar="MASK", help=f"{', '.join(FORMS)}; several with & | ~ and ( ).")],
    n: N = None,
    n_q: NQ = None,
    n_k: NK = None,
    tile: Annotated[
        str | None,
        typer.Option("--tile", help="Edges of a tile, QUERIES[,KEYS]; if left out, powers of two, at least 64."),
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw the tiles into this file: .svg, .png or .html.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the picture if it exists.")] = False,
    as_json: Json = False,
) -> None:
    """Count the pairs that attend under a mask, and its empty, full and partly attended tiles; draw it."""
    from redblue.base.charts import SUFFIXES, write
    from redblue.base.files import check_target
    from redblue.masks.picture import plot, shaded

    target = None if picture is None else check_target(picture, SUFFIXES, force)
    mask, edges = parse_mask(name), _parse_edges(tile)
    sizes = mask.sizes(n if n_q is None else n_q, n if n_k is None else n_k)
    for label, length in zip(("n_q", "n_k"), sizes, strict=True):
        whole_number(label, length)
    data = describe(mask, *sizes, edges)
    if target is None or not target.is_stdout:
        show(
            data,
            "" if as_json else _summary(data, shaded(mask.plane(0), *sizes, cols=min(PICTURE_WIDTH, terminal_width()))),
            as_json,
        )
    if picture is not None:
        write(plot(mask, *sizes, edges).to_dict(), picture, force)
        written(picture)


def describe(mask: Mask, n_q: int, n_k: int, tile: tuple[int, int] | None = None) -> dict[str, Any]:
    """Count the pairs and the tiles of each plane of a mask; the result is plain data.

    tile: a tile's edges in queries and keys; None for edges that suit the sizes. Raises RedblueError if the mask does
    not fit the sizes.
    """
    rows, cols = tile or (_default_edge(n_q), _default_edge(n_k))
    planes = [_describe_plane(mask.plane(i), n_q, n_k, rows, cols) for i in range(math.prod(mask.lead))]
    return {"mask": repr(mask), "n_q": n_q, "n_k": n_k, "lead": list(mask.lead), "tile": [rows, cols], "planes": planes}


def _describe_plane(plane: Mask, n_q: int, n_k: int, rows: int, cols: int) -> dict[str, Any]:
    tiles, pairs = census(plane.rule.pattern(n_q, n_k), rows, cols), plane.on(n_q, n_k)
    nnz = pairs.nnz
    return {
        "mask": repr(plane),
        "nnz": nnz,
        "density": nnz / (n_q * n_k),
        "queries_without_keys": n_q - sum(map(len, pairs.rows_of(range(n_k)))),
        "keys_without_queries": n_k - sum(map(len, pairs.cols_of(range(n_q)))),
        "tiles": {
            "all": tiles.tiles,
            "empty": tiles.empty,
            "full": tiles.full,
            "partial": tiles.partial,
            "share_of_live_area": nnz / max(1, int(tiles.area.sum())),
        },
    }


def _default_edge(length: int) -> int:
    return max(64, 1 << (ceil_div(length, MAX_TILES) - 1).bit_length())


def _parse_edges(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > 2 or not all(parts):
        raise RedblueError(f"tile must be QUERIES[,KEYS], such as 64 or 64,128; got {quoted(text)}")
    edges = [whole_number("tile", parse_size("tile", part)) for part in parts]
    return edges[0], edges[-1]


def _summary(data: dict[str, Any], picture: str) -> Group:
    """The description as a table and remarks, above a picture of the first plane."""
    (rows, cols), several = data["tile"], len(data["planes"]) > 1
    summary = table(
        ("plane", "mask") if several else (),
        ("pairs", "density", "empty", "full", "partial", "kept of live"),
        title=None if several else data["mask"],
        caption=f"n_q {data['n_q']:,}, n_k {data['n_k']:,}; tiles of {rows:,} x {cols:,}; kept of live: attended pairs "
        "over all pairs of the tiles that are not empty",
    )
    for i, plane in enumerate(data["planes"]):
        tiles = plane["tiles"]
        summary.add_row(
            *([str(i), plane["mask"]] if several else []),
            amount(plane["nnz"]),
            f"{plane['density']:.3g}",
            *(f"{tiles[kind]:,}" for kind in ("empty", "full", "partial")),
            f"{tiles['share_of_live_area']:.1%}",
        )
    first = data["planes"][0]
    unmatched = [f"{first[kind]:,} {kind.replace('_', ' ')}" for kind in UNMATCHED if first[kind]]
    return Group(summary, *([Text(", ".join(unmatched), style="dim")] if unmatched else []), Text(picture))
