"""Replaces planned launches that the card refuses, or that Triton cannot compile, which shows only when they run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

from triton import OutOfResources
from triton.compiler.errors import CompilationError
from triton.runtime.errors import PTXASError

from redblue.base.errors import RedblueError
from redblue.kernels.gpu.planning.plan import Launch
from redblue.kernels.gpu.planning.tune import Kind

REFUSALS = (OutOfResources, CompilationError, PTXASError)
UNITS = {"shared memory": "bytes of shared memory", "tensor memory": "columns of tensor memory"}


def run(
    kind: Kind,
    choose: Callable[[], Launch],
    others: Callable[[], Iterable[Launch]],
    execute: Callable[[Launch], object],
) -> None:
    """Execute the chosen launch or, if the card refuses it, the first of the others that the card accepts.

    A warning reports the replacement once, and later calls of the kind begin with the accepted launch. A launch
    overwrites everything that a refused launch wrote. Raises RedblueError if the card refuses every launch.
    """
    refused = _refused.get(kind)
    if refused is None:
        try:
            execute(choose())
            return
        except REFUSALS:
            refused = _refused.setdefault(kind, {})
    first_reason = None
    for launch in others():
        if launch in refused:
            continue
        try:
            execute(launch)
        except REFUSALS as error:
            refused[launch] = _reason(kind, launch, error)
            first_reason = first_reason or refused[launch]
            continue
        if first_reason:
            warnings.warn(f"{first_reason}; {_describe(launch)} runs instead", stacklevel=2)
        return
    least = min(refused, key=lambda launch: launch.shared_bytes)
    raise RedblueError(f"{refused[least]}; nor does any larger planned launch")


def forget() -> None:
    """Drop the record of launches that were refused in this process."""
    _refused.clear()


_refused: dict[Kind, dict[Launch, str]] = {}  # the reason as text: the error itself would keep tensors alive


def _reason(kind: Kind, launch: Launch, error: Any) -> str:
    """The error message: the launch's need and the card's limit, or what Triton cannot compile."""
    what = f"{_describe(launch)}, {kind.direction}, with d = {kind.d}, d_v = {kind.d_v} in {kind.dtype}"
    if not isinstance(error, OutOfResources):
        return f"{what} does not compile: {str(error).strip().splitlines()[-1]}"
    return (
        f"{what} does not fit: it needs {error.required:,} {UNITS.get(error.name, error.name)}, and a block on this "
        f"card has {error.limit:,}"
    )


def _describe(launch: Launch) -> str:
    tiles = ", ".join(f"{name} {edge}" for name, edge in launch.tiles._asdict().items())
    return f"{launch.kernel} ({tiles}; {launch.shared_bytes:,} bytes of shared memory planned)"
