"""Checkpoints of a training run: a file that is replaced atomically, from which the run continues bit for bit."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch

from redblue.base.errors import RedblueError
from redblue.base.files import replace_whole
from redblue.base.version import __version__


def path_for(folder: Path, point: dict[str, Any], text: str = "") -> Path:
    """The checkpoint of one measurement. Its name depends on all that decides the weights. text: the text's digest."""
    facts = {
        "point": point,
        "text": text,
        "redblue": __version__,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }
    return folder / f"{hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]}.pt"


def save(path: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint. Raises RedblueError, and keeps the earlier checkpoint, if the disk is full."""

    def write(draft: Path) -> None:
        try:
            torch.save(state, draft)
        except RuntimeError as error:  # PyTorch's own writer raises it if the disk is full
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error

    try:
        path.parent.mkdir(exist_ok=True)
        replace_whole(path, write)
    except (OSError, RedblueError) as error:
        reason = getattr(error.__cause__ or error, "strerror", None) or error
        raise RedblueError(
            f"cannot write the checkpoint {path}: {reason}. The previous checkpoint is intact: make room, and repeat "
            f"the command to go on from there"
        ) from error


def load(path: Path) -> dict[str, Any] | None:
    """Read a checkpoint; None if there is none. Raises RedblueError if it cannot be read."""
    if not path.exists():
        return None
    try:
        return torch.load(path, weights_only=True)
    except Exception as error:  # unpickling damaged data raises errors of nearly any type
        raise RedblueError(f"cannot read the checkpoint {path}: --restart (restart=True) discards it") from error
