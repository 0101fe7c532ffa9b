"""The properties of tensors that a checked paged call depends on: shapes, strides and types."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from redblue.op.pytorch import ops

_PLAIN = (Tensor, torch.nn.Parameter)
_STRIDED = torch.strided


def form_of(*tensors: Any) -> tuple[Any, ...] | None:
    """Shapes, strides and types; None unless all are tensors that the CPU's kernels read in place."""
    if ops.substitute() is not None:
        return None
    gradients = torch.is_grad_enabled()
    form = []
    for x in tensors:
        if type(x) not in _PLAIN or not x.is_cpu or x.is_nested or x.layout is not _STRIDED or x.is_neg():
            return None
        if gradients and x.requires_grad:
            return None
        form += (x.shape, x.stride(), x.dtype)
    return tuple(form)
