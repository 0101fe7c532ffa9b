"""Replace planned launches that fail when they run: the card refuses them, or Triton cannot compile them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from triton import OutOfResources

from redblue.base.errors import RedblueError
from redblue.kernels.gpu.planning.plan import Launch
from redblue.kernels.gpu.planning.refusals import is_refusal
from redblue.kernels.gpu.planning.tune import Kind

CARD = ("multiprocessors", "l2_bytes")  # properties of the card that some launches carry in addition to their tiles
UNITS = {"shared memory": "bytes of shared memory", "tensor memory": "columns of tensor memory"}


def run(
    kind: Kind,
    choose: Callable[[], Launch],
    others: Callable[[], Iterable[Launch]],
    execute: Callable[[Launch], object],
) -> bool:
    """Execute the chosen launch or, if the card refuses it, the first of the others that the card accepts.

    Returns False if the card refused a launch during this call.

    A warning reports the replacement. Later calls of the kind skip the refused launch, unless memory ran out: the next
    call may find more. A launch overwrites everything that a refused launch wrote. Raises RedblueError if the card
    refuses every launch.
    """
    refused, tried = _refused.setdefault(kind, {}), set[Launch]()
    first_reason, out_of_memory = None, None
    for launch in _attempts(kind, choose, others):
        if launch in refused or launch in tried:
            continue
        tried.add(launch)
        try:
            execute(launch)
        except Exception as error:
            if not is_refusal(error):
                raise
            reason = _reason(kind, launch, error)
            first_reason = first_reason or reason
            if isinstance(error, torch.OutOfMemoryError):
                out_of_memory = error.with_traceback(None)
            else:
                refused[launch] = reason
            continue
        if first_reason:
            warnings.warn(f"{first_reason}; {_describe(launch)} runs instead", stacklevel=2)
        return not first_reason
    if out_of_memory is not None:
        raise out_of_memory
    least = min(refused, key=lambda launch: launch.shared_bytes)
    raise RedblueError(f"{refused[least]}; every other planned launch fails, too: move the tensors with .cpu()")


def _attempts(kind: Kind, choose: Callable[[], Launch], others: Callable[[], Iterable[Launch]]) -> Iterator[Launch]:
    """Yield the chosen launch, unless the card refuses every launch among which `choose` chooses; then the others."""
    if kind not in _unchosen:
        try:
            chosen = choose()
        except Exception as error:
            if not is_refusal(error):
                raise
            if not isinstance(error, torch.OutOfMemoryError):
                _unchosen.add(kind)
        else:
            yield chosen
    yield from others()


def forget() -> None:
    """Drop the record of launches that were refused in this process."""
    _refused.clear()
    _unchosen.clear()


_refused: dict[Kind, dict[Launch, str]] = {}  # the reason as text: the error itself would keep tensors alive
_unchosen: set[Kind] = set()  # kinds for which `choose` failed, because it may time launches again at each call


def _reason(kind: Kind, launch: Launch, error: Any) -> str:
    """The error message: the launch's need and the card's limit, or what Triton cannot compile."""
    kernel = f"{_describe(launch)}, {kind.direction}, with d = {kind.d}, d_v = {kind.d_v} in {kind.dtype}"
    if not isinstance(error, OutOfResources):
        refused = "finds too little memory" if isinstance(error, torch.OutOfMemoryError) else "does not compile"
        return f"{kernel} {refused}: {(str(error).strip() or type(error).__name__).splitlines()[-1]}"
    return (
        f"{kernel} does not fit: it needs {error.required:,} {UNITS.get(error.name, error.name)}, and a block on this "
        f"card has {error.limit:,}"
    )


def _describe(launch: Launch) -> str:
    edges = {name: edge for name, edge in launch.tiles._asdict().items() if edge is not None and name not in CARD}
    tiles = ", ".join(
        f"{name} {edge.rows} x {edge.cols}" if hasattr(edge, "rows") else f"{name} {edge}"
        for name, edge in edges.items()
    )
    return f"{launch.kernel} ({tiles}; {launch.shared_bytes:,} bytes of shared memory planned)"
