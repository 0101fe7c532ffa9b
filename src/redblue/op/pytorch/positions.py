"""Positions of calls on tensors: packed into one tensor on the device of q, for PyTorch's ops."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from redblue.base.dtypes import dtype_name
from redblue.base.errors import RedblueError
from redblue.kernels.options import Options
from redblue.kernels.positions import check_length, check_places, numbers_of
from redblue.op.pytorch import layouts, ops

_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def packed(q: Tensor, k: Tensor, v: Tensor, options: Options) -> Tensor:
    """The call's positions as redblue.kernels.positions packs them.

    Raises RedblueError for positions that do not fit the call. Positions outside the whole problem are refused here if
    they are in CPU memory and a GPU computes; the op for the CPU refuses them itself.
    """
    positions = options.positions
    q, k, v = (x.unsqueeze(0) if x.dim() == 2 else x for x in (q, k, v))
    sizes = layouts.expanded_shapes(q.shape, k.shape, v.shape).sizes
    numbers, parts = numbers_of(positions, sizes.heads, options.dropout), []
    for name, value, length in (("queries", positions.queries, sizes.n_q), ("keys", positions.keys, sizes.n_k)):
        part = _tensor(name, value)
        if part.dim() != 1 or part.dtype not in _WHOLE:
            description = f"shape {tuple(part.shape)} of {dtype_name(part.dtype)}"
            raise RedblueError(
                f"positions.{name} must be whole numbers, one for each of the {length} {name}, got {description}"
            )
        check_length(name, part.shape[0], length)
        parts.append(part.to(torch.int64))
    on_cpu = all(x.device.type == "cpu" for x in parts)
    device = torch.device("cpu") if on_cpu else q.device
    # Fill the tensors on the device: a copy would wait for the device. The numbers may be symbolic.
    whole = [torch.full((1,), x, dtype=torch.int64, device=device) for x in numbers]
    result = torch.cat([*whole, *(x.to(device) for x in parts)])
    elsewhere = q.device.type != "cpu" or ops.substitute() is not None
    if on_cpu and elsewhere and not torch.compiler.is_compiling() and type(result) is Tensor:
        check_places(result.numpy(), sizes)
    return result.to(q.device)


def _tensor(name: str, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    try:
        return torch.as_tensor(value, dtype=torch.int64) if np.shape(value) == (0,) else torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RedblueError(f"positions.{name} must be whole numbers in an array or a tensor: {error}") from None
