"""The folder in which benchmarks keep their results."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
