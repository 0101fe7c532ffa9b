"""The result of an experiment, which is stored as JSON with the command, the machine and the date."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from redblue.base.errors import RedblueError
from redblue.studies.experiments.catalogue import NAMES, get
from redblue.studies.experiments.experiment import Experiment, Row

KEYS = ("experiment", "command", "date", "version", "machine", "tools", "quick", "rows")


@dataclass(frozen=True)
class Result:
    """The result of an experiment.

    experiment: its name. command: the command that repeats it. date: ISO 8601. version: redblue's. machine: a
    description. tools: the versions of the measuring programs, by name. quick: whether it has only the few points of
    --quick. rows: of all points, in the order of the points.
    """

    experiment: str
    command: str
    date: str
    version: str
    machine: str
    tools: dict[str, str]
    quick: bool
    rows: list[Row]

    @property
    def about(self) -> Experiment:
        """The definition of the experiment."""
        return get(self.experiment)

    @property
    def provenance(self) -> str:
        """The machine, the date and the versions, in a line."""
        tools = "".join(f", {name} {version}" for name, version in self.tools.items())
        quick = "; the few points of --quick" if self.quick else ""
        return f"{self.machine}, {self.date}, redblue {self.version}{tools}{quick}"

    @property
    def findings(self) -> list[str]:
        """The findings as sentences, with names between backticks."""
        return self.about.findings(self.rows)

    def to_dict(self) -> dict[str, Any]:
        """The result and its findings as plain data."""
        return asdict(self) | {"findings": self.findings}


def as_json(result: Result) -> str:
    """The result as the text of a JSON file, with one line for each row.

    "columns" lists the sets of keys that rows have. A row is the number of its set, then its values in that order.
    """
    facts = result.to_dict()
    rows = facts.pop("rows")
    sets = list(dict.fromkeys(tuple(row) for row in rows))
    lines = (json.dumps([sets.index(tuple(row)), *map(_short, row.values())], separators=(",", ":")) for row in rows)
    text = json.dumps(facts | {"columns": sets}, indent=1)[:-2]
    return text + ',\n "rows": [\n' + ",\n".join(lines) + "\n]}\n"


def _short(value: Any) -> Any:
    """A float without a fraction as an integer, which has fewer characters and is equal."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _decoded(data: dict[str, Any]) -> list[Row]:
    """The rows of a JSON file that `as_json` wrote."""
    return [dict(zip(data["columns"][number], values, strict=True)) for number, *values in data["rows"]]


def json_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def read(folder: str | os.PathLike[str], name: str) -> Result:
    """Read the result that a run of the experiment left in `folder`. Raises RedblueError if there is none."""
    path = json_path(Path(folder), get(name).name)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RedblueError(f"there is no {path}: run `redblue experiment {name}` first") from None
    except (OSError, ValueError, RecursionError) as error:
        raise RedblueError(f"cannot read {path}: {error}") from None
    try:
        if data["experiment"] != name:
            raise ValueError
        fields: dict[str, Any] = {key: data[key] for key in KEYS}
        fields["rows"] = _decoded(data)
        return Result(**fields)
    except (TypeError, KeyError, IndexError, ValueError):
        wrong = f"{path} is no result of the experiment {name}: move it away, or name another folder"
        raise RedblueError(wrong) from None


def read_all(folder: str | os.PathLike[str]) -> list[Result]:
    """Read all results in `folder`, in the order of the catalogue."""
    return [read(folder, name) for name in NAMES if os.path.exists(json_path(Path(folder), name))]
