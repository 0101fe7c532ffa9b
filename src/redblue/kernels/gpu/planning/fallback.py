"""What runs where a card refuses a planned launch after all, as Triton finds out when it has compiled it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

from triton import OutOfResources

from redblue.base.errors import RedblueError
from redblue.kernels.gpu.planning.plan import Launch
from redblue.kernels.gpu.planning.tune import Kind

UNITS = {"shared memory": "bytes of shared memory", "tensor memory": "columns of tensor memory"}


def run(
    kind: Kind,
    choose: Callable[[], Launch],
    others: Callable[[], Iterable[Launch]],
    execute: Callable[[Launch], object],
) -> None:
    """Execute what is chosen or, where the card refuses it, the first of the others that it does not refuse.

    That is said once, and later calls of the kind begin with what ran. A launch overwrites what a refused one wrote.
    Raises RedblueError if every launch is refused.
    """
    refused = _refused.get(kind)
    if refused is None:
        try:
            execute(choose())
            return
        except OutOfResources:
            refused = _refused.setdefault(kind, {})
    why = None
    for launch in others():
        if launch in refused:
            continue
        try:
            execute(launch)
        except OutOfResources as error:
            refused[launch] = _told(kind, launch, error)
            why = why or refused[launch]
            continue
        if why:
            warnings.warn(f"{why}; {_named(launch)} runs instead", stacklevel=2)
        return
    least = min(refused, key=lambda launch: launch.shared_bytes)
    raise RedblueError(f"{refused[least]}; nor does any larger launch that is planned")


def forget() -> None:
    """Which launches were refused in this process."""
    _refused.clear()


_refused: dict[Kind, dict[Launch, str]] = {}  # and why; the errors themselves would keep their tensors alive


def _told(kind: Kind, launch: Launch, error: Any) -> str:
    """What it needs, and what there is."""
    return (
        f"{_named(launch)}, {kind.direction}, with d = {kind.d}, d_v = {kind.d_v} in {kind.dtype} does not fit: it "
        f"needs {error.required:,} {UNITS.get(error.name, error.name)}, and a block on this card has {error.limit:,}"
    )


def _named(launch: Launch) -> str:
    tiles = ", ".join(f"{name} {edge}" for name, edge in launch.tiles._asdict().items())
    return f"{launch.kernel} ({tiles}; {launch.shared_bytes:,} bytes of shared memory planned)"
