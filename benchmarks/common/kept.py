"""Which measurements on a GPU stay true from run to run: those of the same card, compilers and kernels.

A time of redblue's depends on what `fingerprint` names; its kernels change more often than its version, so they go by
their sources. A failure is final where another run would only repeat it; one in passing, such as a timeout, is tried
again.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import redblue
from redblue.base.errors import RedblueError

KERNELS = Path(redblue.__file__).parent / "kernels" / "gpu"
# Words of compilers, PyTorch and peers where a card or a library can not; `runs instead` is redblue's own
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
    """The device, PyTorch and Triton by version, redblue's kernels by their sources."""
    import torch  # pyright: ignore[reportMissingImports]
    import triton  # pyright: ignore[reportMissingImports]

    return {"device": device, "torch": torch.__version__, "triton": triton.__version__, "kernels": hashed(KERNELS)}


def hashed(folder: Path) -> str:
    """Of the Python files in it, by name and content."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        text = path.read_bytes()
        found.update(f"{path.relative_to(folder).as_posix()} {len(text)}\n".encode() + text)
    return found.hexdigest()[:16]


def changed(kept: Mapping[str, Any], facts: Mapping[str, Any]) -> list[str]:
    """Names of the facts that are not what they were."""
    return [name for name, value in facts.items() if kept.get(name) != value]


def said_anew(count: int, what: str, names: Iterable[str]) -> str:
    return f"measured anew: {count} {what}, kept of other {', '.join(names)}"


def is_final(failure: BaseException) -> bool:
    """Whether it is a refusal, and would be one again; not so timeouts, a full memory, and whatever else went wrong."""
    text = str(failure).lower()
    return isinstance(failure, (RedblueError, NotImplementedError)) or any(words in text for words in FINAL)


def now() -> str:
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


def days(dates: Iterable[str]) -> str:
    """The first and the last day of these dates, "" for none."""
    found = sorted({date[:10] for date in dates if date})
    return " to ".join(dict.fromkeys([*found[:1], *found[-1:]]))
