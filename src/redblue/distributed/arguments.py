"""The arguments of `redblue.distributed.attention` in one process: their checks, and the forms that a run uses."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from redblue.base.dtypes import dtype_name
from redblue.base.errors import RedblueError
from redblue.distributed.agreement import Shard, digest_of_array, digest_of_mask, digest_of_placement
from redblue.distributed.dtensors import is_distributed, local_parts
from redblue.kernels.mask_planes import check_lead
from redblue.kernels.options import (
    ARRAYS,
    DistributedArguments,
    Options,
    check_array,
    check_gradients,
    checked,
)
from redblue.masks import Mask
from redblue.masks.rules.stack import Stack, planes
from redblue.op import checks
from redblue.op.pytorch import dispatch
from redblue.op.signatures import options_of
from redblue.schedules import network
from redblue.schedules.network import Placement, placement_of


class Call(NamedTuple):
    """The checked arguments of one process. tensors: its parts of q, k and v. mesh: the mesh of DTensors."""

    tensors: tuple[Tensor, Tensor, Tensor]
    options: Options
    placement: str | Placement
    schedule: str
    mesh: Any

    @property
    def flat(self) -> list[Tensor]:
        """q, k and v with one leading dimension."""
        return [x.reshape(x.shape[:-3].numel(), *x.shape[-3:]) for x in self.tensors]  # -1 fails for empty shards

    @property
    def arrays(self) -> list[Tensor]:
        """q, k, v, and the arrays among the options."""
        return [*self.tensors, *(x for _, _, x in self.options.present_arrays())]

    @property
    def planes(self) -> Mask | None:
        """A mask with planes, with one leading dimension like `flat`; None: one mask for all."""
        mask, lead = mask_of(self.options), self.tensors[0].shape[:-3]
        if len(lead) < 2 or len(mask.lead) < 2:
            return mask if mask.lead else None
        rules, index = planes(mask.rule)
        own = np.broadcast_to(index, (*lead, index.shape[-1])).reshape(-1, index.shape[-1])
        return Mask(Stack.of([rules[i] for i in own.ravel()], own.shape))

    @property
    def by_head(self) -> dict[str, Tensor]:
        """The arrays without gradients, such as alibi: (batch, heads), or (heads,) if all batch entries share them."""
        q, arrays = self.tensors[0], self.options.present_arrays()
        return {
            name: x.detach().expand(q.shape[:-2]).reshape(q.shape[:-3].numel(), -1) if rules.lead else x.detach()
            for name, rules, x in arrays
            if not rules.gradient
        }

    @property
    def flat_bias(self) -> Tensor | None:
        """The bias with at least two dimensions, and one leading dimension if it has more."""
        bias, q = self.options.bias, self.tensors[0]
        if bias is None:
            return None
        bias = torch.atleast_2d(bias)
        if q.dim() <= 4:
            return bias
        rows, keys = bias.shape[-2:]
        return bias.expand(*q.shape[:-2], rows, keys).reshape(q.shape[:-3].numel(), q.shape[-3], rows, keys)

    @property
    def shard(self) -> Shard:
        q, k, v = self.tensors
        own = self.options
        options = {
            "batch": list(q.shape[:-3]),
            "heads": q.shape[-3],
            "key heads": k.shape[-3],
            "d": q.shape[-1],
            "d_v": v.shape[-1],
            "dtype": dtype_name(q.dtype),
            "device": q.device.type,
            **_facts(own),
            "mask": digest_of_mask(mask_of(own)),
            "placement": self.placement if isinstance(self.placement, str) else digest_of_placement(self.placement),
            "schedule": self.schedule,
            "whether gradients are required": torch.is_grad_enabled() and any(x.requires_grad for x in self.arrays),
        }
        seed = None
        if own.dropout:
            seed = int(torch.randint(2**62, ())) if own.seed is None else own.seed
            options["seed"] = own.seed
        return Shard(q.shape[-2], k.shape[-2], seed, options)


def _facts(options: Options) -> dict[str, Any]:
    """The facts about the options that must be the same on all ranks."""
    facts: dict[str, Any] = dict(zip(Options._fields, options.others, strict=False))
    for name, rules in ARRAYS.items():
        x = getattr(options, name)
        if rules.pairs:
            facts[f"keys of the {name}"] = None if x is None else (1, *x.shape)[-1]
        elif rules.gradient:
            facts[name] = x is not None
        else:
            facts[name] = None if x is None else digest_of_array(x.detach().cpu().double().numpy())
    return facts


def mask_of(options: Options) -> Mask:
    return Mask.full() if options.mask is None else options.mask


def checked_call(
    q: Any, k: Any, v: Any, mask: Any, placement: Any, schedule: Any, return_lse: Any, options: Any
) -> Call:
    """The arguments of this process. Raises RedblueError, naming the argument."""
    checks.check_flag("return_lse", return_lse)
    record = checked(options_of("attention", options, DistributedArguments)._replace(mask=mask))
    if schedule != "auto":
        network.get(schedule)
    if not isinstance(placement, Placement):
        placement_of(placement, 0, 1)
    tensors = {"q": q, "k": k, "v": v, **{name: x for name, _, x in record.present_arrays()}}
    for name, x in tensors.items():
        if not isinstance(x, Tensor):
            raise RedblueError(f"{name} must be a PyTorch tensor, got {type(x).__name__}")
    mesh = mesh_of(q)
    if mesh is not None or is_distributed(k) or is_distributed(v):
        q, k, v, placement = local_parts(q, k, v, placement)
    for name, x in {**tensors, "q": q, "k": k, "v": v}.items():
        if name not in "qkv" and is_distributed(x):
            raise RedblueError(f"{name} must be a plain tensor, this process's part, got a DTensor")
    dispatch.check_tensors({**tensors, "q": q, "k": k, "v": v})
    q, k, v = (_as_autocast(x) for x in (q, k, v))
    sizes = checks.check_shapes(q.shape, k.shape, v.shape)
    if q.is_cpu:
        checks.check_widths_on_cpu(sizes)
    check_lead(mask_of(record), sizes._replace(kv_heads=sizes.kv_heads * sizes.group, group=1))
    for name, x in (("k", k), ("v", v)):
        if x.shape[:-3] != q.shape[:-3]:
            raise RedblueError(f"{name} must have q's leading dimensions {tuple(q.shape[:-3])}, got {tuple(x.shape)}")
    if k.shape[-3] != v.shape[-3] or q.shape[-3] != sizes.kv_heads * sizes.group:
        heads = f"{q.shape[-3]}, {k.shape[-3]} and {v.shape[-3]}"
        raise RedblueError(f"heads of q, k and v are not broadcast over processes, got {heads} heads: expand them")
    dtypes = {name: dtype_name(x.dtype) for name, x in (("q", q), ("k", k), ("v", v))}
    dtype = checks.check_dtypes(dtypes)
    bias = record.bias
    if bias is not None:
        if schedule not in ("auto", *STATIONARY):
            raise RedblueError(f"schedule must be {' or '.join(STATIONARY)}, or auto, with a bias, got {schedule!r}")
        # Only the exchange tells the number of all keys. `_layout` in operator.py then checks the columns of the bias.
        sizes = sizes._replace(n_k=bias.shape[-1] if bias.dim() else 1)
    for name, _, x in record.present_arrays():
        check_array(name, x.shape, dtype_name(x.dtype), sizes, dtype)
    check_gradients(record)
    return Call((q, k, v), record, placement, schedule, mesh)


def _as_autocast(x: Tensor) -> Tensor:
    """The tensor in the type of autocast, where autocast is on; float64 is not converted."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind) or x.dtype == torch.float64 or not x.is_floating_point():
        return x
    return x.to(torch.get_autocast_dtype(kind))


# The schedules that do not move queries, and therefore no rows of a bias
STATIONARY = tuple(name for name, schedule in network.SCHEDULES.items() if schedule.own_queries)


def mesh_of(x: Any) -> Any:
    return x.device_mesh if is_distributed(x) else None
