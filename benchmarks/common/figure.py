"""Figures of benchmarks: one SVG each, in the house style."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import vl_convert

from redblue.base.style import standalone_config


def write_svg(chart: Any, path: Path) -> None:
    """Write an Altair chart as an SVG file."""
    path.write_text(vl_convert.vegalite_to_svg(chart.to_dict() | {"config": standalone_config()}), encoding="utf-8")
