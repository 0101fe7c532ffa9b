"""The folder in which benchmarks keep their results."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"


def can_draw(path: Path) -> bool:
    """Whether the drawing libraries are installed. If not, prints how to draw the file elsewhere."""
    missing = [name for name in ("altair", "vl_convert") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"no {' or '.join(missing)}, so no {path.name}: --show draws it from the JSON file", file=sys.stderr)
    return not missing
