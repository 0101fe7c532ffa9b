"""Sequences over several processes: `shard` cuts them into parts, `gather` joins the parts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from redblue.base.dtypes import dtype_name
from redblue.base.errors import RedblueError
from redblue.base.integers import whole_number
from redblue.distributed.agreement import TAG, Shard, agree, digest_of_placement
from redblue.distributed.derivatives import first_derivatives_only
from redblue.distributed.failures import Failures
from redblue.distributed.groups import device_of, group_of
from redblue.distributed.messages import swap
from redblue.masks import Mask
from redblue.schedules.network import Placement, placement_of


def shard(x: Tensor, *, dim: int = -2, placement: Any = "contiguous", group: Any = None) -> Tensor:
    """This process's part of a tensor that every process holds completely.

    x: a tensor of any shape. dim: its dimension of tokens; in (..., H, tokens, d), the default, the last but one.
    placement: the tokens that each process holds: "contiguous", "zigzag", "striped", or the result of `best_placement`.
    group: a process group or a DeviceMesh of one dimension; the default group if None.

    Returns a copy of x that holds only this process's tokens along `dim`. Differentiable: each process gets the
    gradient of its own part. Raises RedblueError, naming the argument, for an unsupported value, and if there is no
    process group.
    """
    own = group_of(group)
    dim = _checked_dim("x", x, dim)
    positions = placement_of(placement, x.shape[dim], dist.get_world_size(own)).positions[dist.get_rank(own)]
    return x.index_select(dim, torch.from_numpy(positions).to(x.device))


def gather(x: Tensor, *, dim: int = -2, placement: Any = "contiguous", group: Any = None) -> Tensor:
    """The whole tensor, in every process, from the parts that `shard` makes.

    x: this process's part. The other arguments are as for `shard`. Every process of the group must call this function.

    Returns a tensor that holds the tokens of all processes along `dim`, in the order of the sequence. Differentiable: a
    part's gradient is the sum of its gradients in all processes. Raises RedblueError in every process if an argument of
    any process is wrong or differs between processes, or if the parts do not have the lengths of the placement. Raises
    ProcessFailed, with the rank, if a process died or does not answer within the group's timeout.
    """
    own = group_of(group)
    call: Any = None
    try:
        dim = _checked_dim("x", x, dim)
        call = Shard(x.shape[dim], 0, None, _shared(x, dim, placement))
    except RedblueError as error:
        call = error
    failures = Failures(own)
    shards = agree(call, own, device_of(own, x), failures)
    lengths = [shard.queries for shard in shards]
    placed = placement_of(placement, sum(lengths), len(lengths))
    if lengths != list(placed.lengths):
        raise RedblueError(
            f"the ranks hold {lengths} tokens, but {placed.name} gives them {list(placed.lengths)}: "
            "make the parts with shard"
        )
    return _Gather.apply(x, dim, placed, own, failures)  # pyright: ignore


def _shared(x: Tensor, dim: int, placement: Any) -> dict[str, Any]:
    """The values that must be the same in all processes that gather."""
    if not isinstance(placement, Placement):
        placement_of(placement, 0, 1)  # raises RedblueError for an unknown name
    others = list(x.shape)
    others.pop(dim)
    return {
        "dim": dim % x.dim(),
        "other dimensions": others,
        "dtype": dtype_name(x.dtype),
        "device": x.device.type,
        "placement": placement if isinstance(placement, str) else digest_of_placement(placement),
        "whether a gradient is required": torch.is_grad_enabled() and x.requires_grad,
    }


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, placed: Placement, group: Any, failures: Failures) -> Tensor:
        ctx.call = dim, placed, group, failures
        rows = x.movedim(dim, 0).contiguous()
        parts = [rows.new_empty((length, *rows.shape[1:])) for length in placed.lengths]
        parts[failures.rank] = rows
        others = [rank for rank in range(failures.size) if rank != failures.rank]
        _swap_parts(dict.fromkeys(others, rows), {rank: parts[rank] for rank in others}, group, failures)
        order = np.argsort(np.concatenate(placed.positions))
        return torch.cat(parts).index_select(0, torch.from_numpy(order).to(x.device)).movedim(0, dim).contiguous()

    @staticmethod
    @first_derivatives_only
    def backward(ctx: Any, gradient: Tensor) -> Any:  # pyright: ignore
        dim, placed, group, failures = ctx.call
        of_ranks = [
            gradient.index_select(dim, torch.from_numpy(positions).to(gradient.device)).contiguous()
            for positions in placed.positions
        ]
        own = of_ranks.pop(failures.rank)
        others = [rank for rank in range(failures.size) if rank != failures.rank]
        parts = {rank: torch.empty_like(own) for rank in others}
        _swap_parts(dict(zip(others, of_ranks, strict=True)), parts, group, failures)
        parts[failures.rank] = own
        total = torch.stack([parts[rank] for rank in range(failures.size)]).sum(0)
        return total, None, None, None, None


def _swap_parts(sent: dict[int, Tensor], received: dict[int, Tensor], group: Any, failures: Failures) -> None:
    """Exchange parts of a sequence; empty parts are not sent."""
    sent, received = ({rank: x for rank, x in parts.items() if x.numel()} for parts in (sent, received))
    swap(sent, received, group, failures, TAG)


def _checked_dim(name: str, x: Any, dim: Any) -> int:
    """The dimension as an int. Raises RedblueError if x is no tensor or lacks the dimension."""
    if not isinstance(x, Tensor):
        raise RedblueError(f"{name} must be a PyTorch tensor, got {type(x).__name__}")
    number = whole_number("dim", dim, -math.inf, math.inf)
    if not -x.dim() <= number < x.dim():
        raise RedblueError(f"dim must be a dimension of {name}, {-x.dim()} to {x.dim() - 1}, got {number}")
    return number


def best_placement(mask: Mask, n: int, world_size: int) -> Placement:
    """A placement of n tokens with which each process has about as many attended pairs, and few words have to move.

    mask: the mask of n queries and n keys. world_size: the number of processes, at most n.

    Returns a Placement, which `attention`, `shard` and `gather` take as `placement`. Raises RedblueError if the mask
    does not fit n queries and keys, or if n is less than world_size.
    """
    from redblue.schedules.network.balance import best_placement

    return best_placement(mask, n, world_size)
