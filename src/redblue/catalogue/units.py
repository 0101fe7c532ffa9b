"""Read figures of data files, such as { kib = 227, source = "...", date = "..." }, and convert them to base units."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from redblue.base.errors import RedblueError
from redblue.base.integers import LARGEST

CAPACITY: dict[str, float] = {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 1e3, "mb": 1e6, "gb": 1e9}

MAX_PER_SECOND = 1e24  # limit of rates, a million times today's machines; LARGEST limits the other figures
# For each kind of figure: its allowed units, and the factor to its base unit (bytes, bytes per second, operations per
# second, hertz, nanoseconds, or a number of pieces).
UNITS: dict[str, dict[str, float]] = {
    **dict.fromkeys(("capacity", "shared_memory", "unified_l1", "registers", "tensor_memory"), CAPACITY),
    "bandwidth": {"bytes_per_second": 1, "mb_per_second": 1e6, "gb_per_second": 1e9, "tb_per_second": 1e12},
    "peak": {"flop_per_second": 1, "mflop_per_second": 1e6, "gflop_per_second": 1e9, "tflop_per_second": 1e12},
    "count": {"instances": 1},
    "line": {"bytes": 1},
    "ways": {"ways": 1},
    "shaders": {"lanes": 1},
    "lanes": {"lanes": 1},
    "compute_capability": {"sm": 1},
    "clock": {"hz": 1, "mhz": 1e6, "ghz": 1e9},
    "latency": {"nanoseconds": 1, "microseconds": 1e3, "milliseconds": 1e6},
}


@dataclass(frozen=True)
class Figure:
    """A number in base units, and its source with the date ("" if the file gives none)."""

    value: float
    source: str


@dataclass(frozen=True)
class Place:
    """A table of a data file. It reads the table's figures and names table and file in every error."""

    file: str
    table: str

    def error(self, message: str) -> RedblueError:
        """Return an error whose message ends with the table and the file."""
        return RedblueError(f"{message} (table '{self.table}' of {self.file})")

    def check_keys(self, table: Any, where: str, known: Iterable[str]) -> None:
        """Raise RedblueError if `table` is no table or has a key that is not in `known`. where: its name in errors."""
        if not isinstance(table, dict):
            raise self.error(f"{where} must be a table, got {table!r}")
        for key in table:
            if key not in known:
                raise self.error(f"unknown key '{key}' in {where}; known: {', '.join(known)}")

    def figures(self, table: Any, where: str, known: Iterable[str]) -> dict[str, Figure]:
        """Read all figures of `table`, by key. A key of UNITS determines the units; under "peak", keys are dtypes.

        Raises RedblueError for an unknown key, a missing or unknown unit, and a number that is not positive.
        """
        self.check_keys(table, where, known)
        return {key: self._figure(figure, key, where) for key, figure in table.items()}

    def _figure(self, figure: Any, key: str, where: str) -> Figure:
        units: Mapping[str, float] = UNITS["peak" if where == "peak" else key]
        name, example = f"{key} of {where}", list(units)[min(1, len(units) - 1)]
        choices = f"write {key} = {{ {example} = ... }}; units: {', '.join(units)}"
        if not isinstance(figure, dict):
            raise self.error(f"{name} is {figure!r} and needs a unit: {choices}")
        written = [unit for unit in figure if unit not in ("source", "date")]
        if len(written) != 1 or written[0] not in units:
            raise self.error(f"{name} needs exactly one unit, got {', '.join(written) or 'none'}: {choices}")
        unit = written[0]
        number = figure[unit]
        if type(number) not in (int, float) or not 0 < number < math.inf:
            raise self.error(f"{name} must be a number above 0, got {number!r}")
        most = MAX_PER_SECOND if where == "peak" or key in ("bandwidth", "clock") else LARGEST
        if number > most / units[unit]:
            raise self.error(f"{name} must be at most {most / units[unit]:.3g} {unit}, got {number!r:.60}")
        value = number * units[unit]
        if value < 1:
            raise self.error(f"{name} must be at least {1 / units[unit]:.3g} {unit}, got {number!r}")
        return Figure(value, ", ".join(str(figure[key]) for key in ("source", "date") if key in figure))
