"""Process groups: conversion of a user's `group` argument, and the devices of a group's messages."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

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


def device_of(group: dist.ProcessGroup, x: Any) -> torch.device:
    """The device of the messages before a call: the CPU if the group serves it, else that of the argument x.

    All processes of a group choose the same type, also those whose x is no tensor.
    """
    kinds = [device.type for device in group._device_types]
    if "cpu" in kinds:
        return torch.device("cpu")
    if isinstance(x, Tensor) and x.device.type in kinds:
        return x.device
    return group.bound_device_id or torch.device(kinds[0])


def waits_on_host(group: dist.ProcessGroup, device: torch.device) -> bool:
    """Whether a wait for a message blocks this thread. Waits of other backends order streams, and return at once."""
    return device.type == "cpu" or group._get_backend(device).name() == "gloo"
