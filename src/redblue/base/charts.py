"""Writes a figure into a file, in the house style."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import vl_convert

from redblue.base.files import check_target, replace_whole
from redblue.base.style import printed

SUFFIXES = (".svg", ".png", ".html")


def write(spec: dict[str, Any], path: str | os.PathLike[str], force: bool) -> Path:
    """A Vega-Lite figure as .svg, .png or .html (which needs no network). Raises RedblueError where it cannot be.

    force: a file that is there already is replaced.
    """
    target = check_target(path, SUFFIXES, force)
    styled = spec | {"config": printed()}

    def save(draft: Path) -> None:
        if draft.suffix.lower() == ".png":
            draft.write_bytes(vl_convert.vegalite_to_png(styled, scale=2))
        else:
            svg = draft.suffix.lower() == ".svg"
            text = vl_convert.vegalite_to_svg(styled) if svg else vl_convert.vegalite_to_html(styled, bundle=True)
            draft.write_text(text, encoding="utf-8")

    replace_whole(target, save)
    return target
