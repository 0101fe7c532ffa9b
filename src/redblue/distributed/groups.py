"""Conversion of a user's `group` argument to a process group."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from redblue.base.errors import RedblueError


def group_of(group: Any) -> dist.ProcessGroup:
    """The process group of a group or of a DeviceMesh of one dimension; the default group for None."""
    if not dist.is_available() or not dist.is_initialized():
        raise RedblueError("no process group: call torch.distributed.init_process_group first, in every process")
    if group is None:
        return dist.group.WORLD  # pyright: ignore
    if isinstance(group, dist.ProcessGroup):
        return group
    if hasattr(group, "get_group") and hasattr(group, "ndim"):
        if group.ndim != 1:
            raise RedblueError(f"group must be a mesh of one dimension, got {group.ndim}: take one with mesh['name']")
        return group.get_group()
    raise RedblueError(f"group must be a process group or a DeviceMesh, got {type(group).__name__}")
