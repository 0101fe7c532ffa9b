"""Write the rows of a sweep atomically as CSV, JSON lines or Parquet; read them back with their types."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from redblue.base.errors import RedblueError
from redblue.base.files import as_path, check_installed, check_target
from redblue.studies.sweep.points import COLUMNS, Row

REMEDY = "give a file that redblue sweep -o (or sweep.write) wrote"


class TooLarge(RedblueError):
    """A number does not fit the format of the file; other formats hold it."""


def write(rows: Sequence[Row], path: str | os.PathLike[str], force: bool = False) -> Path:
    """Write the rows in the format of the file's suffix: .csv, .jsonl or .parquet.

    force: replace an existing file. Raises RedblueError if the file exists or cannot be written, and TooLarge if a
    number exceeds the 64 bits of Parquet.
    """
    target = check_target(path, tuple(FORMATS), force)
    save = FORMATS[target.suffix][0]
    return target.write(lambda draft: save(rows, draft))


def read(path: str | os.PathLike[str]) -> list[Row]:
    """Read the rows of a file that `write` wrote. Raises RedblueError for any other file."""
    target = as_path(path)
    if target.suffix.lower() not in FORMATS:
        raise RedblueError(f"cannot tell how to read {path}: its name must end in {', '.join(FORMATS)}")
    check_installed(target)
    try:
        return FORMATS[target.suffix.lower()][1](target)
    except OSError as error:
        raise RedblueError(f"cannot read {path}: {error.strerror or error}; {REMEDY}") from error
    except (ValueError, RecursionError, csv.Error) as error:
        raise RedblueError(f"{path} does not hold the rows of a sweep: {error}; {REMEDY}") from error


def _write_csv(rows: Sequence[Row], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(COLUMNS), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def _read_csv(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8-sig") as file:  # spreadsheets write a byte-order mark
        table = csv.reader(file, strict=True)
        names = next(table, [])
        _check_columns(names)
        return [_from_texts(names, texts, table.line_num) for texts in table if texts]


def _from_texts(names: Sequence[str], texts: Sequence[str], line: int) -> Row:
    """Make a row from a line of CSV. Raises ValueError, which names the line."""
    if len(texts) != len(names):
        raise ValueError(f"line {line} has {len(texts)} values, not {len(names)}")
    by_name = dict(zip(names, texts, strict=True))
    try:
        return {name: kind(by_name[name]) if by_name[name] else None for name, kind in COLUMNS.items()}
    except ValueError as error:
        raise ValueError(f"line {line}: {error}") from None


def _check_columns(names: Sequence[str]) -> None:
    """Raise ValueError unless the names are the columns of a sweep, each once, in any order."""
    lacking = [name for name in COLUMNS if name not in names]
    foreign = [str(name)[:40] for i, name in enumerate(names) if name not in COLUMNS or name in names[:i]]
    if lacking or foreign:
        parts = ("lacks the columns", lacking), ("should not have the columns", foreign)
        faults = (f"it {verb} {', '.join(some[:5])}{', ...' * (len(some) > 5)}" for verb, some in parts if some)
        raise ValueError(" and ".join(faults))


def _checked(row: Any) -> Row:
    """Return the row with its columns in order. Raises ValueError for other columns, or values of other types."""
    if not isinstance(row, dict):
        raise ValueError("an object with the columns of a sweep is expected")
    _check_columns(list(row))
    for name, kind in COLUMNS.items():
        if row[name] is not None and type(row[name]) not in ((int, float) if kind is float else (kind,)):
            raise ValueError(f"{name} must be {KINDS[kind]}, got {row[name]!r:.40}")
    return {name: row[name] for name in COLUMNS}


KINDS = {int: "a whole number", float: "a number", str: "a text"}


def _write_jsonl(rows: Sequence[Row], path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def _read_jsonl(path: Path) -> list[Row]:
    return [_from_json(line, i) for i, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)]


def _from_json(line: str, number: int) -> Row:
    """Make a row from a line of JSON. Raises ValueError, which names the line."""
    try:
        return _checked(json.loads(line))
    except ValueError as error:
        raise ValueError(f"line {number}: {error}") from None


def _write_parquet(rows: Sequence[Row], path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    kinds = {int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string()}
    schema = pyarrow.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()])
    try:
        table = pyarrow.Table.from_pylist(list(rows), schema=schema)
    except OverflowError:
        raise TooLarge(f"{path.name}: a number exceeds Parquet's 64 bits; write .csv or .jsonl instead") from None
    pyarrow.parquet.write_table(table, path, compression="zstd")


def _read_parquet(path: Path) -> list[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        with path.open("rb") as file:
            table = pyarrow.parquet.read_table(file)
        _check_columns(table.column_names)
        return [_checked(row) for row in table.to_pylist()]
    except pyarrow.ArrowException as error:  # not every ArrowException is a ValueError
        raise ValueError(str(error)) from error


# Suffix -> (write, read)
FORMATS: dict[str, tuple[Callable[[Sequence[Row], Path], None], Callable[[Path], list[dict[str, Any]]]]] = {
    ".csv": (_write_csv, _read_csv),
    ".parquet": (_write_parquet, _read_parquet),
    ".jsonl": (_write_jsonl, _read_jsonl),
}
