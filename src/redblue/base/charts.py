"""Writing figures to files, in the style of base/style.py."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import vl_convert

from redblue.base.files import check_target
from redblue.base.style import standalone_config

SUFFIXES = (".svg", ".png", ".html")
TAG = re.compile(r"<[^>]*>")
# Attributes that Vega writes and that do not change the picture
NEEDLESS = re.compile(r' (?:aria-[\w-]+|role|class|pointer-events)="[^"]*"| (?:fill-|stroke-)?opacity="1"')
STROKE_WIDTH = re.compile(r' stroke-width="[^"]*"')  # changes nothing in an element without a stroke
COORDINATES = re.compile(r' (?:d|transform)="[^"]*"')
DECIMALS = re.compile(r"\d+\.\d{2,}")
# The mark of a bound at one x, where a line would be invisible
STROKE: dict[str, Any] = {
    "style": "ink",
    "shape": "stroke",
    "filled": False,
    "opacity": 1,
    "strokeWidth": 2.2,
    "size": 1600,
}


def write(spec: dict[str, Any], path: str | os.PathLike[str], force: bool) -> Path:
    """Write a Vega-Lite figure as .svg, .png or .html, by the path's suffix. Return the path.

    An .html file holds all scripts and needs no network. force: replace an existing file.
    Raises RedblueError for another suffix, or if the file exists or cannot be written.
    """
    target = check_target(path, SUFFIXES, force)
    styled = spec | {"config": standalone_config()}

    def save(draft: Path) -> None:
        if target.suffix == ".png":
            draft.write_bytes(vl_convert.vegalite_to_png(styled, scale=2))
        else:
            text = small_svg(styled) if target.suffix == ".svg" else vl_convert.vegalite_to_html(styled, bundle=True)
            draft.write_text(text, encoding="utf-8")

    return target.write(save)


def small_svg(spec: dict[str, Any]) -> str:
    """Return the figure as SVG without needless attributes, with coordinates rounded to a tenth of a pixel."""
    return TAG.sub(lambda tag: _shortened(tag[0]), vl_convert.vegalite_to_svg(spec))


def _shortened(tag: str) -> str:
    """Shorten the tag of an SVG element without a visible change of the picture."""
    tag = NEEDLESS.sub("", tag)
    if " stroke=" not in tag:
        tag = STROKE_WIDTH.sub("", tag)
    return COORDINATES.sub(
        lambda match: DECIMALS.sub(lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), match[0]), tag
    )
