"""The command `redblue mask`: what a mask keeps, as numbers and as a picture."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.markup import escape
from rich.text import Text

from redblue.base.errors import RedblueError
from redblue.base.integers import ceil_div
from redblue.base.terminal import table
from redblue.base.text import amount
from redblue.cli.options import NK, NQ, Json, N, parse_mask
from redblue.masks import Mask
from redblue.masks.names import FORMS
from redblue.masks.patterns.census import census

EPILOG = (
    'Example: redblue mask "causal & documents:512,1536,2048" --picture mask.svg. '
    "Of any size: redblue mask bigbird:64 --n 8192. More: docs/masks.md"
)
LOST = ("queries_without_keys", "keys_without_queries")
ACROSS = 256  # tiles along the longer axis at most, if none are given; their edges are powers of two, at least 64


def mask(
    name: Annotated[str, typer.Argument(metavar="MASK", help=f"{', '.join(FORMS)}; several with & | ~ and ( ).")],
    n: N = None,
    n_q: NQ = None,
    n_k: NK = None,
    tile: Annotated[str | None, typer.Option("--tile", help="Tiles of QUERIES[,KEYS]; about 64 if left out.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Its tiles, as .svg, .png or .html.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the picture if it exists.")] = False,
    as_json: Json = False,
) -> None:
    """What a mask keeps: its pairs, and which tiles are empty, full or partly attended."""
    from redblue.base.charts import SUFFIXES, write
    from redblue.base.files import check_target
    from redblue.masks.picture import plot, shaded

    if picture is not None:
        check_target(picture, SUFFIXES, force)
    made, edges = parse_mask(name), _edges(tile)
    sizes = made.sizes(n if n_q is None else n_q, n if n_k is None else n_k)
    for label, length in zip(("n_q", "n_k"), sizes, strict=True):
        if length < 1:
            raise RedblueError(f"{label} must be at least 1, got {length}")
    found = describe(made, *sizes, edges)
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        Console(emoji=False).print(_shown(found, shaded(made.plane(0), *sizes)))
    if picture is not None:
        write(plot(made, *sizes, edges).to_dict(), picture, force)
        Console(stderr=True, emoji=False).print(f"written: {escape(str(picture))}", soft_wrap=True)


def describe(made: Mask, n_q: int, n_k: int, tile: tuple[int, int] | None = None) -> dict[str, Any]:
    """Plain data. tile: edges in queries and keys. Raises RedblueError where the mask does not fit."""
    rows, cols = tile or (_edge(n_q), _edge(n_k))
    planes = []
    for i in range(math.prod(made.lead)):
        plane = made.plane(i)
        tiles, pairs = census(plane.rule.laid(n_q, n_k), rows, cols), plane.on(n_q, n_k)
        nnz = pairs.nnz
        planes.append(
            {
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
        )
    return {"mask": repr(made), "n_q": n_q, "n_k": n_k, "lead": list(made.lead), "tile": [rows, cols], "planes": planes}


def _edge(length: int) -> int:
    return max(64, 1 << (ceil_div(length, ACROSS) - 1).bit_length())


def _edges(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > 2 or not all(part.isdecimal() and 0 < len(part) <= 18 and int(part) for part in parts):
        raise RedblueError(f"tile must be QUERIES[,KEYS], each at least 1, such as 64 or 64,128; got {text[:40]!r}")
    return int(parts[0]), int(parts[-1])


def _shown(found: dict[str, Any], picture: str) -> Group:
    """Table, remarks, and a picture of the first plane."""
    (rows, cols), several = found["tile"], len(found["planes"]) > 1
    made = table(
        ("plane", "mask") if several else (),
        ("pairs", "density", "empty", "full", "partial", "kept of live"),
        title=None if several else escape(found["mask"]),
        caption=f"n_q {found['n_q']:,}, n_k {found['n_k']:,}; tiles of {rows:,} x {cols:,}; kept of live: share of the "
        "pairs of all tiles that are not empty",
    )
    for i, plane in enumerate(found["planes"]):
        tiles = plane["tiles"]
        made.add_row(
            *([str(i), escape(plane["mask"])] if several else []),
            amount(plane["nnz"]),
            f"{plane['density']:.3g}",
            *(f"{tiles[kind]:,}" for kind in ("empty", "full", "partial")),
            f"{tiles['share_of_live_area']:.1%}",
        )
    lost = [f"{found['planes'][0][kind]:,} {kind.replace('_', ' ')}" for kind in LOST if found["planes"][0][kind]]
    return Group(made, *([Text(", ".join(lost), style="dim")] if lost else []), Text(picture))
