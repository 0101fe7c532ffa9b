"""The rows of one run, in a file that is written after every row, so that an interrupted run can be continued."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.kept import changed, repeat_notice
from benchmarks.common.results import Row, read, write
from redblue.compiled import _core


def core() -> str:
    """A hash of the compiled core, which identifies the code that is timed."""
    return hashlib.sha256(Path(_core.__file__).read_bytes()).hexdigest()[:16]


def title(row: Row) -> str:
    return f"{row.measure}, {row.case}"


class Journal:
    """The rows of a run by title.

    path: None keeps no file. facts: about the run; "complete" is added. order: the titles of the whole run. resume:
    keep the rows of the file if its facts named `same` are those of this run.
    """

    def __init__(
        self, path: Path | None, facts: dict[str, Any], order: Sequence[str], same: Sequence[str], resume: bool
    ) -> None:
        self.path, self.facts, self.order = path, facts, order
        self.kept: dict[str, Row] = {}
        if resume and path and path.exists():
            of_file, rows = read(path)
            differ = changed(of_file, {name: facts[name] for name in same})
            if differ:
                print(repeat_notice(len(rows), "rows", differ), file=sys.stderr)
            else:
                self.kept = {title(row): row for row in rows}
        self._note_completeness()

    @property
    def rows(self) -> list[Row]:
        return [self.kept[name] for name in self.order if name in self.kept]

    def keep(self, row: Row) -> None:
        self.kept[title(row)] = row
        self._note_completeness()
        if self.path:
            write(self.path, self.facts, self.rows)

    def _note_completeness(self) -> None:
        self.facts["complete"] = len(self.rows) == len(self.order)
