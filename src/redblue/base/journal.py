"""The finished points of a sweep or an experiment, in a file beside its output; a crash or Ctrl-C loses none of them.

The file holds JSON lines. The first line is a header: the kind of work, redblue's version, and everything that decides
the rows. Each other line is a finished point. A line ends with its checksum, so a damaged line is named and never
becomes wrong rows. A line is written by a single call, so only the last line can be half-written, and its point is then
computed again. A file with another beginning belongs to somebody else, whatever its name: it is neither written nor
discarded.

The journal itself is locked while it is open. No lock file exists, and a crash leaves no lock behind.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import filelock

from redblue.base.errors import RedblueError
from redblue.base.version import __version__

Row = dict[str, Any]

FORMAT = 2  # 1 had no checksums
REMEDY = "--restart (restart=True) discards it and starts anew"


def journal_path(output: Path) -> Path:
    """Return the path of the journal that belongs to an output file."""
    return output.with_name(output.name + ".partial.jsonl")


class Journal:
    """The finished points of one sweep or experiment, by index. Close it, or use it in a `with` statement.

    kind: "sweep" or "experiment". identity: everything that decides the rows, as plain data. size: the number of
    points. restart: discard the points of an earlier run; a file that is no journal is never discarded. columns: the
    keys that all rows have, which the header then stores once; None stores each row with its keys.

    Raises RedblueError, and leaves the file unchanged, in these cases:
    - the file is no journal, or another process is writing it;
    - unless `restart`: the journal belongs to other work or another version, or is damaged before its last line.
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
        header = {f"redblue_{kind}": FORMAT, "version": __version__, **identity}
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
        """Lock the open file until it is closed. Raises RedblueError if another process holds the lock."""
        if not filelock.lock_descriptor(self._file.fileno(), blocking=False):
            raise RedblueError(f"another process is writing {self.path}: wait for it, or name another output")

    def _read(self, header: dict[str, Any], restart: bool) -> None:
        """Load the finished points; write the header if the file is new or `restart` discards its points."""
        self._file.seek(0)
        first, *lines = self._file.read().splitlines(keepends=True) or [b""]
        half_written = not first.endswith(b"\n")
        is_new = half_written and _to_line(header).startswith(first)  # an empty file, or the start of this header
        entry = {} if half_written else _parse_object(first)
        name = f"redblue_{self.kind}"
        if not (is_new or name in entry or (half_written and first.startswith(f'{{"{name}":'.encode()))):
            raise RedblueError(
                f"{self.path} is no {self.kind}'s journal, so redblue neither continues nor discards it: move it away, "
                f"or name another output"
            )
        if not is_new and not restart:
            self._check_header(first, entry, header)
        if is_new or restart:
            self._file.truncate(0)
            self._write(header)
            return
        intact_bytes = len(first)
        for number, line in enumerate(lines, start=2):
            if self._load_point(line):
                intact_bytes += len(line)
            elif number == len(lines) + 1 and not line.endswith(b"\n"):
                self._file.truncate(intact_bytes)
            else:
                raise self._damaged(number)

    def _damaged(self, line: int) -> RedblueError:
        return RedblueError(
            f"{self.path} is damaged in line {line}, whose checksum does not match: restore the file, or {REMEDY}"
        )

    def _check_header(self, first: bytes, entry: dict[str, Any], header: dict[str, Any]) -> None:
        """Raise RedblueError unless the file's first line, which holds `entry`, is the header of this work."""
        if not entry:  # half-written
            raise RedblueError(f"{self.path} was begun by another {self.kind} or version of redblue: {REMEDY}")
        if entry[f"redblue_{self.kind}"] == 1:
            raise RedblueError(f"{self.path} was written by an older redblue, without checksums: {REMEDY}")
        entry = _parse(first) or {}
        if not entry:
            raise self._damaged(1)
        if (entry[f"redblue_{self.kind}"], entry.get("version")) != (FORMAT, header["version"]):
            raise RedblueError(
                f"{self.path} was written by redblue {entry.get('version')}, this is {header['version']}: {REMEDY}"
            )
        if entry != header:
            raise RedblueError(
                f"{self.path} holds another {self.kind}, which differs in {', '.join(_differences(entry, header))}: "
                f"give the arguments of that {self.kind} to continue it, or name another output; {REMEDY}"
            )

    def _load_point(self, line: bytes) -> bool:
        """Add the finished point of a line to `done`; return False if the line is not intact."""
        entry = _parse(line) or {}
        index, rows = entry.get("point"), entry.get("rows")
        if type(index) is not int or not 0 <= index < self.size or not isinstance(rows, list):
            return False
        try:
            self.done[index] = rows if self.columns is None else [_to_row(self.columns, values) for values in rows]
        except (ValueError, TypeError):
            return False
        return True

    def _write(self, entry: dict[str, Any]) -> None:
        """Append one line by a single call. Raises RedblueError if it cannot be written whole."""
        line = _to_line(entry)
        try:
            written = self._file.write(line)
        except OSError as error:
            raise self._unwritable(error.strerror or str(error)) from error
        if written != len(line):
            raise self._unwritable("the disk is full")

    def _unwritable(self, reason: str) -> RedblueError:
        return RedblueError(
            f"cannot write {self.path}: {reason}. The file keeps the points finished so far: make room, and start the "
            f"{self.kind} again, which continues from these points"
        )

    def add(self, index: int, rows: Sequence[Row]) -> None:
        """Write a finished point to the file, and add it to `done`. Raises RedblueError if the disk is full."""
        stored = rows if self.columns is None else [[row[name] for name in self.columns] for row in rows]
        self._write({"point": index, "rows": stored})
        self.done[index] = list(rows)

    def close(self) -> None:
        """Flush the file to the disk and close it, which releases the lock. Closing it again does nothing."""
        if self._file.closed:
            return
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._unwritable(error.strerror or str(error)) from error
        finally:
            self._file.close()

    def remove(self) -> None:
        """Close and delete the file. Call this once the output is written: no point is lost then."""
        self.close()  # Windows deletes no open file
        self.path.unlink(missing_ok=True)


def _to_line(entry: dict[str, Any]) -> bytes:
    """Format an entry as a line: a JSON object whose last field is the CRC-32 of the object without that field."""
    text = json.dumps(entry, separators=(",", ":")).encode()
    return text[:-1] + b',"crc32":%d}\n' % zlib.crc32(text)


def _parse(line: bytes) -> dict[str, Any] | None:
    """Parse a line that `_to_line` wrote; return None if even a single bit differs."""
    entry = _parse_object(line)
    entry.pop("crc32", None)
    return entry if entry and _to_line(entry) == line else None


def _parse_object(line: bytes) -> dict[str, Any]:
    """Parse a line as a JSON object; return an empty dict if the line is not a JSON object."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return entry if isinstance(entry, dict) else {}


def _to_row(columns: Sequence[str], values: Sequence[Any]) -> Row:
    return dict(zip(columns, values, strict=True))


def _differences(entry: dict[str, Any], header: dict[str, Any]) -> list[str]:
    """Name the axes in which two headers differ, or else the fields of the headers."""
    old_axes, new_axes = entry.get("axes"), header.get("axes")
    old_axes, new_axes = (axes if isinstance(axes, dict) else {} for axes in (old_axes, new_axes))
    axes = [name for name in (old_axes | new_axes) if old_axes.get(name) != new_axes.get(name)]
    return axes or [name for name in (entry | header) if entry.get(name) != header.get(name)]
