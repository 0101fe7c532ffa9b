"""Rows as files: CSV, JSON lines, Parquet. Written whole or not at all, and read back as they were."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from redblue.errors import RedblueError
from redblue.sweep.points import COLUMNS, Row


def check_target(path: str | os.PathLike[str], suffixes: Sequence[str], force: bool) -> Path:
    """The file that `path` means, if it can be written there; RedblueError says why not.

    force: a file that is there already may be replaced.
    """
    target = Path(path)
    if target.suffix.lower() not in suffixes:
        raise RedblueError(f"cannot tell what to write to {path}: its name must end in {', '.join(suffixes)}")
    if target.is_dir() or not target.parent.is_dir():
        wrong = "it is a folder" if target.is_dir() else f"there is no folder {target.parent}"
        raise RedblueError(f"cannot write {path}: {wrong}; name a file in a folder that exists")
    if target.exists() and not force:
        raise RedblueError(f"{path} exists: name another file, or replace it with --force (force=True)")
    if not os.access(target.parent, os.W_OK):
        raise RedblueError(f"cannot write {path}: you may not write in {target.parent}; name another folder")
    if target.suffix.lower() == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise RedblueError("Parquet needs pyarrow: pip install 'redblue[parquet]', or name a .csv or .jsonl file")
    return target


def write(rows: Sequence[Row], path: str | os.PathLike[str]) -> Path:
    """Write the rows in the form that the file's name ends in: .csv, .jsonl or .parquet."""
    target = check_target(path, tuple(FORMATS), force=True)
    save = FORMATS[target.suffix.lower()][0]
    replace_whole(target, lambda draft: save(rows, draft))
    return target


def read(path: str | os.PathLike[str]) -> list[Row]:
    """The rows of a file that `write` wrote."""
    target = Path(path)
    if target.suffix.lower() not in FORMATS:
        raise RedblueError(f"cannot tell how to read {path}: its name must end in {', '.join(FORMATS)}")
    return FORMATS[target.suffix.lower()][1](target)


def replace_whole(target: Path, save: Callable[[Path], object]) -> None:
    """Have `save` write a draft, which then takes the target's place at once."""
    try:
        with tempfile.TemporaryDirectory(prefix=".redblue-", dir=target.parent) as folder:
            draft = Path(folder, target.name)
            save(draft)
            with draft.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(draft, target)
    except OSError as error:
        raise RedblueError(f"cannot write {target}: {error.strerror or error}; name another file") from error


def _write_csv(rows: Sequence[Row], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(COLUMNS), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def _read_csv(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        return [
            {name: COLUMNS[name](text) if text else None for name, text in row.items()} for row in csv.DictReader(file)
        ]


def _write_jsonl(rows: Sequence[Row], path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def _read_jsonl(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _write_parquet(rows: Sequence[Row], path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    kinds = {int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string()}
    schema = pyarrow.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()])
    try:
        table = pyarrow.Table.from_pylist(list(rows), schema=schema)
    except OverflowError:
        raise RedblueError(f"{path.name}: a number exceeds Parquet's 64 bits; write .csv or .jsonl instead") from None
    pyarrow.parquet.write_table(table, path, compression="zstd")


def _read_parquet(path: Path) -> list[Row]:
    import pyarrow.parquet

    return pyarrow.parquet.read_table(path).to_pylist()


FORMATS: dict[str, tuple[Callable[[Sequence[Row], Path], None], Callable[[Path], list[dict[str, Any]]]]] = {
    ".csv": (_write_csv, _read_csv),
    ".parquet": (_write_parquet, _read_parquet),
    ".jsonl": (_write_jsonl, _read_jsonl),
}
