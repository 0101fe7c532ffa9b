"""Check output files before the work begins, and write them whole or not at all."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from redblue.base.errors import RedblueError


def check_target(path: str | os.PathLike[str], suffixes: Sequence[str], force: bool) -> Path:
    """Return `path` as a Path if a file can be written there. Raises RedblueError, which says why not.

    suffixes: the file types that the caller can write, such as ".csv". force: an existing file may be replaced.
    """
    target = as_path(path)
    if target.suffix.lower() not in suffixes:
        raise RedblueError(f"cannot tell what to write to {path}: its name must end in {', '.join(suffixes)}")
    try:
        target.lstat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # the checks below name the missing folder
    except (OSError, ValueError) as error:  # an impossible name, or a folder without permission
        raise RedblueError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}; name another") from None
    if target.is_dir() or not target.parent.is_dir():
        reason = "it is a folder" if target.is_dir() else f"there is no folder {target.parent}"
        raise RedblueError(f"cannot write {path}: {reason}; name a file in a folder that exists")
    if target.exists() and not force:
        raise RedblueError(f"{path} exists: name another file, or replace it with --force (force=True)")
    if not os.access(target.parent, os.W_OK):
        raise RedblueError(f"cannot write {path}: you may not write in {target.parent}; name another folder")
    check_installed(target)
    return target


def as_path(path: str | os.PathLike[str]) -> Path:
    """Return a file's name as a Path. Raises RedblueError for anything but a name."""
    if not isinstance(path, (str, os.PathLike)):
        raise RedblueError(f"a file must be given by its name, got {path!r}")
    return Path(path)


def check_installed(target: Path) -> None:
    """Raise RedblueError if the library that the file's type needs is not installed."""
    if target.suffix.lower() == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise RedblueError("Parquet needs pyarrow: pip install 'redblue[parquet]', or name a .csv or .jsonl file")


def replace_whole(target: Path, save: Callable[[Path], object]) -> None:
    """Replace `target` atomically: `save` writes a draft beside it, which is then renamed to `target`.

    Raises RedblueError if the draft cannot be written; `target` is then unchanged.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=".redblue-", dir=target.parent) as folder:
            draft = Path(folder, target.name)
            save(draft)
            with draft.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(draft, target)
    except OSError as error:
        raise RedblueError(f"cannot write {target}: {error.strerror or error}; name another file") from error
