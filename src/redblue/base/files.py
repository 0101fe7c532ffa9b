"""Write files by one rule: no file of the user is lost, and a file is written completely or not at all.

- A new file is written. An existing file is replaced only if the caller says so (--force, force=True), or if it begins
  with the mark that redblue writes at the start of its own files of that kind.
- A regular file is replaced atomically: a draft in the same folder is written, flushed to the disk and renamed. The new
  file has the permissions of the old one, a link to it stays a link, and a failure leaves the old file intact.
- "-", /dev/stdout, other open files (/dev/fd/3), character devices and FIFOs are written to, never replaced. Block
  devices and sockets are refused.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from redblue.base.errors import RedblueError

OPEN_FILES = re.compile(r"(/proc/\d+)(/task/\d+)?/fd|/dev/fd")  # folders of a process's open files
STANDARD_OUTPUT = 1
DRAFTS = ".redblue-"  # how the name of a folder of drafts begins


@dataclass(frozen=True)
class Target:
    """A checked place to write to.

    path: a file's place, with links followed. suffix: the type of the file, by the path that the user gave, because a
    link may lead to a file of another name. stream: the number of an open file, or the path of a device or FIFO; None
    for a regular file. force, mark: as for `check_target`.
    """

    path: Path
    suffix: str
    stream: int | Path | None
    force: bool
    mark: bytes | None

    @property
    def is_stdout(self) -> bool:
        """Whether the file goes to standard output, where nothing else should then be printed."""
        return self.stream == STANDARD_OUTPUT

    def write(self, save: Callable[[Path], object]) -> Path:
        """Let `save` write a draft, put the draft in its place, and return the place.

        Raises RedblueError if the draft cannot be written, or if another program made the file in the meantime.
        Raises BrokenPipeError if the reader of a stream closes early.
        """
        if self.stream is None:
            _refuse_foreign(self.path, self.force, self.mark)
            replace_whole(self.path, save)
            return self.path
        with _plain_errors(self.path, OSError), tempfile.TemporaryDirectory(prefix="redblue-") as folder:
            save(draft := Path(folder, f"draft{self.suffix}"))
            with draft.open("rb") as source, _opened(self.stream) as stream:
                shutil.copyfileobj(source, stream)
        return self.path


def check_target(
    path: str | os.PathLike[str], suffixes: Sequence[str], force: bool, mark: bytes | None = None
) -> Target:
    """Check, before the work, that a file can be written at `path`. Raises RedblueError, which says why not.

    suffixes: the file types that the caller can write, such as ".csv"; "" allows any. A stream gets the first of them.
    force: an existing file may be replaced. mark: the first bytes of redblue's own files of this kind, which may always
    be replaced.
    """
    named = as_path(path)
    with _plain_errors(path, OSError, ValueError, RuntimeError):  # RuntimeError: a loop of links, before Python 3.13
        number = _open_file(named)
        status = None if number is not None else _status(named)
        if number is not None or (status and (stat.S_ISCHR(status.st_mode) or stat.S_ISFIFO(status.st_mode))):
            return Target(named, suffixes[0], named if number is None else number, force, mark)
        if status and not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            raise RedblueError(f"cannot write {path}: it is a block device or a socket; name a file")
        target = named.resolve() if named.is_symlink() else named
        suffix = named.suffix.lower()
        if suffix not in suffixes and "" not in suffixes:
            raise RedblueError(f"cannot write {path}: its name must end in {', '.join(suffixes)}")
        if target.is_dir() or not target.parent.is_dir():
            reason = "it is a folder" if target.is_dir() else f"there is no folder {target.parent}"
            raise RedblueError(f"cannot write {path}: {reason}; name a file in a folder that exists")
        _refuse_foreign(target, force, mark)
        if status and not os.access(target, os.W_OK):
            raise RedblueError(f"cannot write {path}: you may not write this file; name another")
        if not os.access(target.parent, os.W_OK):
            raise RedblueError(f"cannot write {path}: you may not write in {target.parent}; name another folder")
    check_installed(named)
    return Target(target, suffix, None, force, mark)


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
    """Replace the regular file `target` atomically: `save` writes a draft beside it, which is then renamed to `target`.

    Raises RedblueError if the draft cannot be written; `target` is then unchanged.
    """
    with _plain_errors(target, OSError), tempfile.TemporaryDirectory(prefix=DRAFTS, dir=target.parent) as folder:
        save(draft := Path(folder, target.name))
        if old := _status(target):
            with contextlib.suppress(AttributeError, PermissionError):  # no chown on Windows; no right to it
                os.chown(draft, old.st_uid, old.st_gid)
            os.chmod(draft, stat.S_IMODE(old.st_mode))
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(draft, target)


def _refuse_foreign(target: Path, force: bool, mark: bytes | None) -> None:
    """Raise RedblueError if `target` exists and must not be replaced."""
    if force or not target.exists():
        return
    if mark is not None:
        with target.open("rb") as file:
            if file.read(len(mark)) == mark:
                return
    foreign = "" if mark is None else " and is not a file of this kind that redblue wrote"
    raise RedblueError(f"{target} exists{foreign}: name another file, or replace it with --force (force=True)")


def _status(path: Path) -> os.stat_result | None:
    """Return the status of a file, with links followed; None if there is no file."""
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _open_file(path: Path) -> int | None:
    """Return the file descriptor of this process that `path` names, such as 1 for "-"; None if it names none."""
    if str(path) == "-":
        return STANDARD_OUTPUT
    for _ in range(40):  # links in a row, as many as Linux follows
        if path.name.isdecimal() and _is_own(OPEN_FILES.fullmatch(str(path.parent.resolve()))):
            return int(path.name)
        if not path.is_symlink():
            return None
        path = path.parent / os.readlink(path)
    return None


def _is_own(folder: re.Match[str] | None) -> bool:
    """Whether a folder of open files, matched by OPEN_FILES, is this process's own; None: no such folder."""
    return folder is not None and folder[1] in (None, os.path.realpath("/proc/self"))


def _opened(stream: int | Path) -> BinaryIO:
    """Open a stream to write to it. A FIFO that nobody reads raises OSError instead of waiting for a reader."""
    if isinstance(stream, int):
        sys.stdout.flush()
        return os.fdopen(os.dup(stream), "wb")
    descriptor = os.open(stream, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0))
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "wb")


@contextlib.contextmanager
def _plain_errors(path: object, *kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of these kinds into RedblueError, except for a reader of a stream that closes early, such as head."""
    try:
        yield
    except (RedblueError, BrokenPipeError):
        raise
    except kinds as error:
        raise RedblueError(
            f"cannot write {path}: {getattr(error, 'strerror', None) or error}; name another file"
        ) from error
