"""Decide which earlier measurements on a GPU are still valid: those with the same card, compilers and kernels.

A time of redblue depends on the facts that `fingerprint` names. The kernels change more often than the version of
redblue, so a hash of their sources identifies them. A failure is final if another run would only repeat it; a temporary
failure, such as a timeout, is tried again.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import redblue
from benchmarks.common.failures import Refused
from redblue.base.errors import RedblueError

KERNELS = Path(redblue.__file__).parent / "kernels" / "gpu"
# Parts of error texts for calls that a card or library cannot handle, from compilers, PyTorch, peers and redblue (last)
FINAL = (
    "out of resource",
    "shared memory",
    "no available kernel",
    "no execution plan",
    "not support",
    "unsupported",
    "not implemented",
    "notimplemented",
    "runs instead",
)


def fingerprint(device: str) -> dict[str, str]:
    """The device, the versions of PyTorch and Triton, and a hash of the sources of redblue's kernels."""
    import torch  # pyright: ignore[reportMissingImports]
    import triton  # pyright: ignore[reportMissingImports]

    return {"device": device, "torch": torch.__version__, "triton": triton.__version__, "kernels": hashed(KERNELS)}


def hashed(folder: Path) -> str:
    """A hash of the names and contents of the Python files in the folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        text = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()} {len(text)}\n".encode() + text)
    return digest.hexdigest()[:16]


def changed(kept: Mapping[str, Any], facts: Mapping[str, Any]) -> list[str]:
    """The names of the facts that differ from those of the kept measurements."""
    return [name for name, value in facts.items() if kept.get(name) != value]


def repeat_notice(count: int, items: str, names: Iterable[str]) -> str:
    """The message that earlier results are measured again because these facts have changed."""
    return f"measured again: {count} {items}, because {', '.join(names)} changed"


def is_final(failure: BaseException) -> bool:
    """Whether the failure is a refusal that would recur, unlike a timeout, a full memory or any other error."""
    text = str(failure).lower()
    return isinstance(failure, (Refused, RedblueError, NotImplementedError)) or any(words in text for words in FINAL)


def now() -> str:
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


def days(dates: Iterable[str]) -> str:
    """The first and the last day of the dates; "" if there are no dates."""
    unique = sorted({date[:10] for date in dates if date})
    return " to ".join(dict.fromkeys([*unique[:1], *unique[-1:]]))
