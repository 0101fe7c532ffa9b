"""What a sweep has done so far, in a file beside its output, so that no crash and no Ctrl-C loses it.

JSON lines. The first is a header: redblue's version, and what decides the rows. Each other one is a finished point,
written by a single call: only the last line can be half-written, and then that point is done again.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import redblue as rb
from redblue.errors import RedblueError
from redblue.sweep.grid import Sweep
from redblue.sweep.points import COLUMNS, Row

FORMAT = 1
WHAT_TO_DO = "--restart (restart=True) discards it and starts anew"


def journal_path(output: Path) -> Path:
    return output.with_name(output.name + ".partial.jsonl")


class Journal:
    """The finished points of one sweep, by index. Close it, or use it in a `with` statement.

    Raises RedblueError for a journal of another sweep or version, one that is damaged other than at its end, and one
    that another process is writing; none of them is touched.
    """

    def __init__(self, path: Path, sweep: Sweep, restart: bool = False) -> None:
        self.path, self.done = path, dict[int, list[Row]]()
        header = {"redblue_sweep": FORMAT, "version": rb.__version__, **sweep.identity, "columns": list(COLUMNS)}
        try:
            self._file = open(path, "a+b", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise RedblueError(f"cannot write {path}: {error.strerror}; name a file where you may write") from error
        try:
            self._lock()
            if restart:
                self._file.truncate(0)
            self._read(json.loads(json.dumps(header)), sweep.size)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RedblueError(f"another process is writing {self.path}: wait for it, or name another output") from None

    def _read(self, header: dict[str, Any], size: int) -> None:
        """Take over the finished points; write the header where there is none."""
        self._file.seek(0)
        lines = self._file.read().splitlines(keepends=True)
        good = 0  # bytes
        for number, line in enumerate(lines, start=1):
            if self._take(line, number, header, size):
                good += len(line)
            elif number == len(lines):
                self._file.truncate(good)
            else:
                raise RedblueError(f"{self.path} is damaged in line {number}: {WHAT_TO_DO}")
        if not good:
            self._write(header)

    def _take(self, line: bytes, number: int, header: dict[str, Any], size: int) -> bool:
        """Take over one line; False if it is not whole."""
        try:
            entry = json.loads(line)
            if number > 1 and line.endswith(b"\n") and 0 <= entry["point"] < size:
                self.done[entry["point"]] = [dict(zip(COLUMNS, row, strict=True)) for row in entry["rows"]]
                return True
            if number > 1 or not line.endswith(b"\n") or "redblue_sweep" not in entry:
                return False
        except (ValueError, KeyError, TypeError):
            return False
        _check_header(entry, header, self.path)
        return True

    def _write(self, entry: dict[str, Any]) -> None:
        """One line in one call."""
        line = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
        if self._file.write(line) != len(line):
            raise OSError(f"{self.path}: the disk is full")

    def add(self, index: int, rows: Sequence[Row]) -> None:
        """Keep a finished point."""
        self._write({"point": index, "rows": [[row[name] for name in COLUMNS] for row in rows]})
        self.done[index] = list(rows)

    def close(self) -> None:
        os.fsync(self._file.fileno())
        self._file.close()

    def remove(self) -> None:
        """The output is written: nothing is lost."""
        self.path.unlink(missing_ok=True)


def _check_header(entry: dict[str, Any], header: dict[str, Any], path: Path) -> None:
    if (entry["redblue_sweep"], entry.get("version")) != (FORMAT, header["version"]):
        raise RedblueError(
            f"{path} was written by redblue {entry.get('version')}, this is {header['version']}: {WHAT_TO_DO}"
        )
    if entry != header:
        raise RedblueError(
            f"{path} holds another sweep, which differs in {', '.join(_differences(entry, header))}: repeat that one, "
            f"or name another output; {WHAT_TO_DO}"
        )


def _differences(entry: dict[str, Any], header: dict[str, Any]) -> list[str]:
    """Names of the axes, or of what else, that two headers do not share."""
    one, other = entry.get("axes", {}), header["axes"]
    axes = [name for name in (one | other) if one.get(name) != other.get(name)]
    return axes or [name for name in (entry | header) if entry.get(name) != header.get(name)]
