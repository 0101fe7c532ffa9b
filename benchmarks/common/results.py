"""Measured figures, the limits they are compared with, and their JSON files."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common.timing import Spread, spread


class Limit(NamedTuple):
    """The requirement (`must`) and the more ambitious aim of a figure; None if it has none."""

    must: float | None = None
    aim: float | None = None


@dataclass
class Figure:
    """One measured number and its limit. unit: "x", "%" (a share; 1 is 100 %) or "us"."""

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
    """One case: its figures, and the rates behind them, in `unit`, one rate per contender and round."""

    measure: str
    case: str
    figures: list[Figure] = field(default_factory=list)
    rates: dict[str, list[float]] = field(default_factory=dict)
    unit: str = "GFLOP/s"
    note: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)


def write(path: Path, about: dict[str, Any], rows: list[Row]) -> None:
    """Write rows as JSON, one per line, without fields that have their defaults.

    about: when, where and how they were measured.
    """
    lines = ",\n".join(json.dumps(_rounded(_kept(row)), separators=(",", ":")) for row in rows)
    path.write_text(f'{json.dumps(about)[:-1]}, "rows": [\n{lines}\n]}}\n', encoding="utf-8")


def merged(path: Path, rows: list[Row]) -> list[Row]:
    """The rows of a file in their order; `rows` replace rows of the same measure and case, others are appended."""
    new = {(row.measure, row.case): row for row in rows}
    old = read(path)[1] if path.exists() else []
    return [new.pop((row.measure, row.case), row) for row in old] + list(new.values())


def read(path: Path) -> tuple[dict[str, Any], list[Row]]:
    """Read a file that `write` wrote: (about, rows). Ends the program with an error if the file holds no results."""
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        return about, [_row(kept) for kept in about.pop("rows")]
    except OSError as error:
        raise SystemExit(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SystemExit(f"{path} holds no results of a benchmark ({type(error).__name__}: {error})") from None


def _row(kept: dict[str, Any]) -> Row:
    kept.pop("medians", None)
    figures = [
        Figure(**figure | {"value": Spread(*figure["value"]), "limit": Limit(*figure["limit"])})
        for figure in kept.pop("figures")
    ]
    return Row(**kept, figures=figures)


def _kept(row: Row) -> dict[str, Any]:
    """The fields of a row, and the medians of contenders that were timed more than once."""
    figures = [_changed(figure) for figure in row.figures]
    medians = {name: spread(rates).median for name, rates in row.rates.items() if len(rates) > 1}
    return _changed(row) | {"figures": figures} | ({"medians": medians} if medians else {})


def _changed(record: Figure | Row) -> dict[str, Any]:
    """The fields of the record that differ from their defaults, which are constants or empty."""
    values = {each.name: (getattr(record, each.name), each.default) for each in fields(record)}
    return {name: value for name, (value, default) in values.items() if value not in (default, [], {})}


def _rounded(value: Any) -> Any:
    """The value with all floats rounded to five digits; further digits are noise."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, (list, tuple)) else value
