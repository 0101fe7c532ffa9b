"""Writing figures to files, in the style of base/style.py."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import vl_convert

from redblue.base.files import check_target
from redblue.base.style import standalone_config

SUFFIXES = (".svg", ".png", ".html")


def write(spec: dict[str, Any], path: str | os.PathLike[str], force: bool) -> Path:
    """Write a Vega-Lite figure as .svg, .png or .html, by the path's suffix. Return the path.

    An .html file holds all scripts and needs no network. force: replace an existing file.
    Raises RedblueError for another suffix, or if the file exists or cannot be written.
    """
    target = check_target(path, SUFFIXES, force)
    styled = spec | {"config": standalone_config()}

    def save(draft: Path) -> None:
        if draft.suffix.lower() == ".png":
            draft.write_bytes(vl_convert.vegalite_to_png(styled, scale=2))
        else:
            svg = draft.suffix.lower() == ".svg"
            text = vl_convert.vegalite_to_svg(styled) if svg else vl_convert.vegalite_to_html(styled, bundle=True)
            draft.write_text(text, encoding="utf-8")

    return target.write(save)
