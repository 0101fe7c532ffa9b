"""DTensors that are sharded along their tokens: their local parts, and outputs with the same sharding."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

import numpy as np

from redblue.base.errors import RedblueError
from redblue.schedules.network import Placement


def is_distributed(x: Any) -> bool:
    """Whether this is a DTensor."""
    module: Any = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(x, module.DTensor)


def local_parts(q: Any, k: Any, v: Any, placement: Any) -> tuple[Any, Any, Any, Placement | str]:
    """The local parts of q, k and v, and the placement of their tokens. Raises RedblueError for other shardings."""
    from torch.distributed.tensor import Shard

    for name, x in (("q", q), ("k", k), ("v", v)):
        if not is_distributed(x):
            raise RedblueError(
                f"{name} must be a DTensor, because q, k and v must all be DTensors or none, got {type(x).__name__}"
            )
        if x.device_mesh != q.device_mesh or x.device_mesh.ndim != 1:
            raise RedblueError(f"{name} must be on q's mesh, which must have one dimension, got {x.device_mesh}")
        if list(x.placements) != [Shard(x.ndim - 2)]:
            raise RedblueError(
                f"{name} must be sharded along its tokens, Shard({x.ndim - 2}), got {list(x.placements)}: redblue."
                "attention takes DTensors that are sharded along other dimensions"
            )
    if placement != "contiguous":
        raise RedblueError(f"placement must be contiguous for DTensors, got {placement!r}")
    if q.shape[-2] != k.shape[-2] or k.shape[-2] != v.shape[-2]:
        placement = "contiguous"
    elif q.shape[-2] % q.device_mesh.size():
        placement = _chunks(q.shape[-2], q.device_mesh.size())
    return q.to_local(), k.to_local(), v.to_local(), placement


def from_local(x: Any, mesh: Any, dim: int, n: int) -> Any:
    """A DTensor of the processes' outputs, sharded along dimension `dim` of n tokens."""
    import torch
    from torch.distributed.tensor import DTensor, Shard

    shape = torch.Size(n if i == x.ndim + dim else size for i, size in enumerate(x.shape))
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(x.contiguous(), mesh, [Shard(x.ndim + dim)], shape=shape, stride=stride)


def _chunks(n: int, count: int) -> Placement:
    """The placement of torch.chunk, which DTensor uses: parts of ceil(n / count) tokens until none are left."""
    edges = np.minimum(np.arange(count + 1) * -(-n // count), n)
    parts = (np.arange(a, b) for a, b in pairwise(edges))
    return Placement("chunks of a DTensor", tuple(parts))
