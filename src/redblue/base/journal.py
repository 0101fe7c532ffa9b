"""What a sweep or an experiment has done so far, in a file beside its output: no crash and no Ctrl-C loses it.

JSON lines. The first is a header: the kind of work, redblue's version, and what decides the rows. Each other one is a
finished point, written by a single call: only the last line can be half-written, and then that point is done again. A
file that begins otherwise is somebody's own, whatever its name: it is neither written nor discarded.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from redblue.base.errors import RedblueError
from redblue.base.version import VERSION

Row = dict[str, Any]

FORMAT = 1
WHAT_TO_DO = "--restart (restart=True) discards it and starts anew"


def journal_path(output: Path) -> Path:
    return output.with_name(output.name + ".partial.jsonl")


class Journal:
    """The finished points of one piece of work, by index. Close it, or use it in a `with` statement.

    kind: "sweep" or "experiment". identity: everything that decides the rows, as plain data. size: how many points.
    columns: the keys of each row, which are then not repeated in each; left out, rows are kept as they are.
    Raises RedblueError for a file that is no journal, one of other work or another version, one that is damaged
    other than at its end, and one that another process is writing; none of them is touched. `restart` discards
    journals, and only journals.
    """

    def __init__(
        self,
        path: Path,
        kind: str,
        identity: Mapping[str, Any],
        size: int,
        restart: bool = False,
        columns: Sequence[str] | None = None,
    ) -> None:
        self.path, self.kind, self.size, self.columns = path, kind, size, columns
        self.done = dict[int, list[Row]]()
        header = {f"redblue_{kind}": FORMAT, "version": VERSION, **identity}
        header |= {"columns": list(columns)} if columns is not None else {}
        try:
            self._file = open(path, "a+b", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise RedblueError(f"cannot write {path}: {error.strerror}; name a file where you may write") from error
        try:
            self._lock()
            self._read(json.loads(json.dumps(header)), restart)
        except OSError as error:
            self._file.close()
            raise RedblueError(f"cannot use {path}: {error.strerror or error}; name another output") from error
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

    def _read(self, header: dict[str, Any], restart: bool) -> None:
        """Take over the finished points; write the header where there is none."""
        self._file.seek(0)
        first, *lines = self._file.read().splitlines(keepends=True) or [b""]
        half = not first.endswith(b"\n")
        begun = half and _line(header).startswith(first)  # by this work, or an empty file
        entry = {} if half else _parsed(first)
        name = f"redblue_{self.kind}"
        if not (begun or name in entry or (half and first.startswith(f'{{"{name}":'.encode()))):
            raise RedblueError(
                f"{self.path} is no {self.kind}'s journal, the only file that is continued or discarded there: move it "
                f"away, or name another output"
            )
        if not begun and not restart:
            self._check_header(entry, header)
        if begun or restart:
            self._file.truncate(0)
            self._write(header)
            return
        good = len(first)  # bytes
        for number, line in enumerate(lines, start=2):
            if self._take(line):
                good += len(line)
            elif number == len(lines) + 1 and not line.endswith(b"\n"):
                self._file.truncate(good)
            else:
                raise RedblueError(f"{self.path} is damaged in line {number}: {WHAT_TO_DO}")

    def _check_header(self, entry: dict[str, Any], header: dict[str, Any]) -> None:
        if not entry:  # half-written
            raise RedblueError(f"{self.path} was begun by another {self.kind} or version of redblue: {WHAT_TO_DO}")
        name = f"redblue_{self.kind}"
        if (entry[name], entry.get("version")) != (FORMAT, header["version"]):
            raise RedblueError(
                f"{self.path} was written by redblue {entry.get('version')}, this is {header['version']}: {WHAT_TO_DO}"
            )
        if entry != header:
            raise RedblueError(
                f"{self.path} holds another {self.kind}, which differs in {', '.join(_differences(entry, header))}: "
                f"repeat that one, or name another output; {WHAT_TO_DO}"
            )

    def _take(self, line: bytes) -> bool:
        """Take over a finished point; False if its line is not whole."""
        entry = _parsed(line) if line.endswith(b"\n") else {}
        index, rows = entry.get("point"), entry.get("rows")
        if type(index) is not int or not 0 <= index < self.size or not isinstance(rows, list):
            return False
        try:
            self.done[index] = rows if self.columns is None else [_zipped(self.columns, row) for row in rows]
        except (ValueError, TypeError):
            return False
        return True

    def _write(self, entry: dict[str, Any]) -> None:
        """One line in one call."""
        line = _line(entry)
        try:
            written = self._file.write(line)
        except OSError as error:
            raise self._unwritable(error.strerror or str(error)) from error
        if written != len(line):
            raise self._unwritable("the disk is full")

    def _unwritable(self, why: str) -> RedblueError:
        return RedblueError(
            f"cannot write {self.path}: {why}. The points that it keeps stay there: make room, and repeat the "
            f"{self.kind} to go on from them"
        )

    def add(self, index: int, rows: Sequence[Row]) -> None:
        """Keep a finished point."""
        kept = rows if self.columns is None else [[row[name] for name in self.columns] for row in rows]
        self._write({"point": index, "rows": kept})
        self.done[index] = list(rows)

    def close(self) -> None:
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._unwritable(error.strerror or str(error)) from error
        finally:
            self._file.close()

    def remove(self) -> None:
        """The output is written: nothing is lost."""
        self.path.unlink(missing_ok=True)


def _line(entry: dict[str, Any]) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


def _parsed(line: bytes) -> dict[str, Any]:
    """What a line says; nothing if that is no JSON object."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return entry if isinstance(entry, dict) else {}


def _zipped(columns: Sequence[str], row: Sequence[Any]) -> Row:
    return dict(zip(columns, row, strict=True))


def _differences(entry: dict[str, Any], header: dict[str, Any]) -> list[str]:
    """Names of the axes, or of what else, that two headers do not share."""
    one, other = entry.get("axes"), header.get("axes")
    one, other = (each if isinstance(each, dict) else {} for each in (one, other))
    axes = [name for name in (one | other) if one.get(name) != other.get(name)]
    return axes or [name for name in (entry | header) if entry.get(name) != header.get(name)]
