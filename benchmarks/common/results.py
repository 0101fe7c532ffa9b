"""What was measured, what it is held against, and how both are kept as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common.timing import Spread, spread


class Limit(NamedTuple):
    """What must be reached, and what is aimed at; None where nothing was said."""

    must: float | None = None
    aim: float | None = None


@dataclass
class Figure:
    """One measured number and what it is held against. unit: "x", "%" (a share, 1 is all) or "us"."""

    what: str
    value: Spread
    limit: Limit
    unit: str = "x"
    at_most: bool = False

    def reaches(self, limit: float) -> bool:
        return self.value.median <= limit if self.at_most else self.value.median >= limit

    @property
    def met(self) -> str:
        if self.limit.must is not None and not self.reaches(self.limit.must):
            return "no"
        if self.limit.aim is not None:
            return "aim" if self.reaches(self.limit.aim) else "must" if self.limit.must is not None else "no"
        return "-" if self.limit.must is None else "must"


@dataclass
class Row:
    """One case: figures, and the rates they are from, one per round, in `unit`."""

    measure: str
    case: str
    figures: list[Figure] = field(default_factory=list)
    rates: dict[str, list[float]] = field(default_factory=dict)
    unit: str = "GFLOP/s"
    note: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)


def write(path: Path, about: dict[str, Any], rows: list[Row]) -> None:
    """`about`: when, where and how it was measured."""
    kept = [
        asdict(row) | {"medians": {name: spread(rates).median for name, rates in row.rates.items()}} for row in rows
    ]
    lines = ",\n".join(json.dumps(_rounded(row), separators=(",", ":")) for row in kept)
    path.write_text(f'{json.dumps(about)[:-1]}, "rows": [\n{lines}\n]}}\n', encoding="utf-8")


def read(path: Path) -> tuple[dict[str, Any], list[Row]]:
    """What `write` wrote."""
    about = json.loads(path.read_text(encoding="utf-8"))
    rows = []
    for kept in about.pop("rows"):
        kept.pop("medians")
        figures = [
            Figure(**figure | {"value": Spread(*figure["value"]), "limit": Limit(*figure["limit"])})
            for figure in kept.pop("figures")
        ]
        rows.append(Row(**kept, figures=figures))
    return about, rows


def _rounded(value: Any) -> Any:
    """To five digits: more is noise."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, (list, tuple)) else value
