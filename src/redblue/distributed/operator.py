"""`redblue.distributed.attention`: its arguments, its choice of a schedule, and its run in one process."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from redblue.base.errors import RedblueError
from redblue.distributed.agreement import Shard, agree, digest_of_array, digest_of_mask, digest_of_placement
from redblue.distributed.dtensors import from_local, is_distributed, local_parts
from redblue.distributed.failures import Failures
from redblue.distributed.groups import group_of
from redblue.distributed.operations import Operations
from redblue.distributed.process import Process
from redblue.kernels.cpu.mask_form import check_lead
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
from redblue.op import api, checks
from redblue.op.pytorch import dispatch
from redblue.op.signatures import documented, options_of
from redblue.problem import Problem
from redblue.schedules import network
from redblue.schedules.network import Layout, Part, Placement, placement_of
from redblue.schedules.network.layout import WHOLE
from redblue.schedules.network.placement import LAYOUTS_KEPT

if TYPE_CHECKING:
    from typing_extensions import Unpack


@documented(DistributedArguments)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | None = None,
    group: Any = None,
    placement: str | Placement = "contiguous",
    schedule: str = "auto",
    return_lse: bool = False,
    **options: Unpack[DistributedArguments],
) -> Any:
    """Exact attention on sequences whose tokens are distributed over processes; with autograd.

    q (..., H, own queries, d), k (..., H_kv, own keys, d), v (..., H_kv, own keys, d_v): this process's part of the
    tokens, as `shard` makes it; PyTorch tensors of the CPU (with gloo) or of a GPU (with NCCL), or DTensors that are
    sharded along their tokens on a mesh of one dimension. Leading dimensions are equal in q, k and v.

    mask: the mask of the whole sequences; None: Mask.full(). Only attended keys are sent.
    group: a process group or a DeviceMesh of one dimension; the default group if None.
    placement: the tokens that each process holds: "contiguous", "zigzag", "striped", or the result of `best_placement`.
    schedule: "ring", "all_gather", "head_parallel", "ring_heads", "mesh", or "auto": the schedule whose busiest process
    moves the fewest words.
    return_lse: also return the log-sum-exp (..., H, own queries); differentiable.
    Further options are options of `redblue.attention` and mean the same for the whole sequences. Rank 0 draws a missing
    seed. A bias is (..., H, own queries, all keys), and needs the schedule "ring" or "all_gather", because queries must
    stay. Dropout drops the same probabilities as one process would. The gradients of sinks, and of a broadcast bias,
    cover only a process's own queries: add them up over the processes.

    Every process of the group must call this function, with equal options. Returns this process's part of the output,
    or (out, lse). Raises RedblueError in every process if an argument of any process is wrong or differs between
    processes. Raises ProcessFailed, with the rank, if a process died or does not answer within the group's timeout.
    """
    processes = group_of(_mesh_of(q) if group is None and is_distributed(q) else group)
    failures = Failures(processes)
    call: Any = None
    try:
        call = _checked(q, k, v, mask, placement, schedule, return_lse, options, processes)
        own: Any = call.shard
    except RedblueError as error:
        own = error
    except Exception as error:  # report it to the other processes, too
        own = RedblueError(f"{type(error).__name__}: {error}")
        own.__cause__ = error
    device = q.device if isinstance(q, Tensor) and not is_distributed(q) else torch.device("cpu")
    shards = agree(own, processes, device, failures)
    layout = _layout(call, shards, dist.get_world_size(processes))
    q, k, v = call.tensors
    if layout is None:
        out, lse = api.attention(q, k, v, return_lse=True, sinks=call.options.sinks)  # there are no pairs to compute
    else:
        own_options = call.options._replace(bias=None, sinks=None, seed=shards[0].seed, **call.by_head)
        arrays = *call.flat, call.flat_bias, call.options.sinks
        out, lse = _Attention.apply(*arrays, layout, own_options, processes, failures)
        out, lse = out.reshape(*q.shape[:-1], v.shape[-1]), lse.reshape(q.shape[:-1])
    if call.mesh is not None:
        n = sum(shard.queries for shard in shards)
        out, lse = from_local(out, call.mesh, -2, n), from_local(lse, call.mesh, -1, n)
    return (out, lse) if return_lse else out


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
        mask, lead = _mask(self.options), self.tensors[0].shape[:-3]
        if len(lead) < 2 or len(mask.lead) < 2:
            return mask if mask.lead else None
        rules, plane = planes(mask.rule)
        own = np.broadcast_to(plane, (*lead, plane.shape[-1])).reshape(-1, plane.shape[-1])
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
        given = {
            "batch": list(q.shape[:-3]),
            "heads": q.shape[-3],
            "key heads": k.shape[-3],
            "d": q.shape[-1],
            "d_v": v.shape[-1],
            "dtype": str(q.dtype).removeprefix("torch."),
            "device": q.device.type,
            **_facts(own),
            "mask": digest_of_mask(_mask(own)),
            "placement": self.placement if isinstance(self.placement, str) else digest_of_placement(self.placement),
            "schedule": self.schedule,
            "whether gradients are required": torch.is_grad_enabled() and any(x.requires_grad for x in self.arrays),
        }
        seed = None
        if own.dropout:
            seed = int(torch.randint(2**62, ())) if own.seed is None else own.seed
            given["seed"] = own.seed
        return Shard(q.shape[-2], k.shape[-2], seed, given)


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


def _mask(options: Options) -> Mask:
    return Mask.full() if options.mask is None else options.mask


def _checked(
    q: Any, k: Any, v: Any, mask: Any, placement: Any, schedule: Any, return_lse: Any, options: Any, group: Any
) -> Call:
    """The arguments of this process. Raises RedblueError, naming the argument."""
    checks.check_flag("return_lse", return_lse)
    record = checked(options_of("attention", options, DistributedArguments)._replace(mask=mask))
    if schedule != "auto":
        network.get(schedule)
    if not isinstance(placement, Placement):
        placement_of(placement, 0, 1)
    given = {"q": q, "k": k, "v": v, **{name: x for name, _, x in record.present_arrays()}}
    for name, x in given.items():
        if not isinstance(x, Tensor):
            raise RedblueError(f"{name} must be a PyTorch tensor, got {type(x).__name__}")
    mesh = _mesh_of(q)
    if mesh is not None or is_distributed(k) or is_distributed(v):
        q, k, v, placement = local_parts(q, k, v, placement)
    for name, x in {**given, "q": q, "k": k, "v": v}.items():
        if name not in "qkv" and is_distributed(x):
            raise RedblueError(f"{name} must be a plain tensor, this process's part, got a DTensor")
    dispatch.check_tensors({**given, "q": q, "k": k, "v": v})
    q, k, v = (_as_autocast(x) for x in (q, k, v))
    sizes = checks.check_shapes(q.shape, k.shape, v.shape)
    if q.is_cpu:
        checks.check_widths_on_cpu(sizes)
    check_lead(_mask(record), sizes._replace(kv_heads=sizes.kv_heads * sizes.group, group=1))
    for name, x in (("k", k), ("v", v)):
        if x.shape[:-3] != q.shape[:-3]:
            raise RedblueError(f"{name} must have q's leading dimensions {tuple(q.shape[:-3])}, got {tuple(x.shape)}")
    if k.shape[-3] != v.shape[-3] or q.shape[-3] != sizes.kv_heads * sizes.group:
        raise RedblueError("heads of q, k and v are not broadcast over processes: expand them")
    dtypes = {name: str(x.dtype).removeprefix("torch.") for name, x in (("q", q), ("k", k), ("v", v))}
    dtype = checks.check_dtypes(dtypes)
    bias = record.bias
    if bias is not None:
        if schedule not in ("auto", *STATIONARY):
            raise RedblueError(f"schedule must be {' or '.join(STATIONARY)}, or auto, with a bias, got {schedule!r}")
        # n_k of the whole, which is checked when it is known
        sizes = sizes._replace(n_k=bias.shape[-1] if bias.dim() else 1)
    for name, _, x in record.present_arrays():
        check_array(name, x.shape, str(x.dtype).removeprefix("torch."), sizes, dtype)
    check_gradients(record)
    return Call((q, k, v), record, placement, schedule, mesh)


def _as_autocast(x: Tensor) -> Tensor:
    """The tensor in the type of autocast, where autocast is on; float64 is not converted."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind) or x.dtype == torch.float64 or not x.is_floating_point():
        return x
    return x.to(torch.get_autocast_dtype(kind))


STATIONARY = ("ring", "all_gather")  # schedules by which each process computes with its own queries


def _mesh_of(x: Any) -> Any:
    return x.device_mesh if is_distributed(x) else None


def _layout(call: Call, shards: list[Shard], processes: int) -> Layout | None:
    """The layout that all processes run. Raises RedblueError in all of them; None: there is nothing to compute."""
    q, k, v = call.tensors
    n_q, n_k = sum(shard.queries for shard in shards), sum(shard.keys for shard in shards)
    mask = _mask(call.options)
    for rule in planes(mask.rule)[0]:
        rule.pattern(n_q, n_k)  # raises RedblueError if the mask does not fit
    if not n_q or not n_k or not q.shape[:-3].numel() or not q.shape[-3]:
        return None
    columns = shards[0].call["keys of the bias"]  # equal in all shards
    if columns not in (None, 1, n_k):
        raise RedblueError(f"bias must have a column for each of the {n_k:,} keys of all ranks, got {columns:,}")
    for name, n, held in (
        ("q", n_q, [shard.queries for shard in shards]),
        ("k", n_k, [shard.keys for shard in shards]),
    ):
        placed = placement_of(call.placement, n, processes)
        if list(placed.lengths) != held:
            raise RedblueError(
                f"the ranks hold {held} tokens of {name}, but the placement {placed.name} of {n:,} tokens gives them "
                f"{list(placed.lengths)}: make the parts with redblue.distributed.shard"
            )
    problem = Problem(
        n_q=n_q,
        n_k=n_k,
        d=q.shape[-1],
        d_v=v.shape[-1],
        batch=q.shape[:-3].numel(),
        heads=q.shape[-3],
        kv_heads=k.shape[-3],
        dtype=str(q.dtype).removeprefix("torch."),
        mask=Mask.full() if mask.lead else mask,
    )
    names = [call.schedule] if call.schedule != "auto" else STATIONARY if columns else network.SCHEDULES
    return chosen(tuple(names), problem, processes, call.placement, call.planes)


@lru_cache(LAYOUTS_KEPT)
def chosen(
    schedules: tuple[str, ...],
    problem: Problem,
    processes: int,
    placement: str | Placement,
    per_head: Mask | None = None,
) -> Layout:
    """The layout of these schedules whose busiest process moves the fewest words."""
    required = len(schedules) == 1
    every = [c for name in schedules for c in _layouts(name, problem, processes, placement, per_head, required)]
    return network.fewest_words(every)


def _layouts(
    name: str, problem: Problem, processes: int, placement: str | Placement, per_head: Mask | None, required: bool
) -> list[Layout]:
    """The layouts of a schedule. Raises RedblueError if it has none and is required."""
    try:
        return network.layouts(name, problem, processes, placement, per_head)
    except RedblueError:  # the heads cannot be divided
        if required:
            raise
        return []


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        sinks: Tensor | None,
        layout: Layout,
        options: Options,
        group: dist.ProcessGroup,
        failures: Failures,
    ) -> Any:
        own = options._replace(bias=None if bias is None else bias.detach())
        out, lse = run(layout, Operations(layout, own, q.dtype, q.device), group, failures, {"q": q, "k": k, "v": v})
        if sinks is not None:
            out, lse = _with_sinks(out, lse, sinks)
        ctx.save_for_backward(q, k, v, out, lse, bias, sinks)
        ctx.call = layout, options, group, failures
        ctx.set_materialize_grads(False)
        return out, lse[..., 0]

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> Any:  # pyright: ignore
        q, k, v, out, lse, bias, sinks = ctx.saved_tensors
        layout, options, group, failures = ctx.call
        dout = torch.zeros_like(out) if dout is None else dout
        delta = (dout.to(lse.dtype) * out).sum(-1, keepdim=True)
        if dlse is not None:
            delta -= dlse[..., None]
        inputs = {"q": q, "k": k, "v": v, "dout": dout, "lse": lse, "delta": delta}
        layout, own = backward_of(layout), options._replace(bias=bias)
        operations = Operations(layout, own, q.dtype, q.device, bias_gradient=ctx.needs_input_grad[3])
        dq, dk, dv = run(layout, operations, group, failures, inputs)
        dbias = None if operations.dbias is None else operations.dbias.to(bias.dtype)
        dsinks = None
        if sinks is not None and ctx.needs_input_grad[4]:
            share = torch.where(lse == float("-inf"), 0.0, (sinks.to(lse.dtype)[:, None, None] - lse).exp())
            dsinks = -(share * delta).sum((0, 2, 3)).to(sinks.dtype)
        return dq, dk, dv, dbias, dsinks, *[None] * 4


@lru_cache(LAYOUTS_KEPT)
def backward_of(layout: Layout) -> Layout:
    """The same layout for the backward pass."""
    problem = layout.problem
    fields = {name: getattr(problem, name) for name in problem.__dataclass_fields__}
    same = {name: value for name, value in layout.__dict__.items() if name.startswith("_")}  # the rows that it needs
    other = Layout(
        Problem(**{**fields, "direction": "backward"}),
        layout.grid,
        layout.queries,
        layout.keys,
        layout.travel,
        layout.per_head,
    )
    other.__dict__.update(same)
    return other


def run(
    layout: Layout,
    operations: Operations,
    group: dist.ProcessGroup,
    failures: Failures,
    arrays: dict[str, Tensor],
) -> tuple[Tensor, ...]:
    """Run a layout's program in this process. arrays: (batch, heads, own rows, columns), by name."""
    process = Process(group, operations.table, operations.empty, failures)
    rank = process.rank
    with torch.no_grad(), torch.autocast(operations.device.type, enabled=False):
        for name, shape in network.inputs(layout, rank).items():
            parts = arrays[name.array].detach().chunk(arrays[name.array].shape[-3] // _heads(layout, name, shape), -3)
            process.put(name, shape, parts[name.part])
        network.run(process, layout)
        process.finish()
    return tuple(process.read(Part(array, rank, WHOLE)) for array in network.OUTPUTS[layout.problem.direction])


def _heads(layout: Layout, name: Part, shape: Any) -> int:
    """Heads of a block."""
    columns = layout.width(name.array, 1) // layout.problem.batch
    heads = layout.problem.kv_heads if name.array in ("k", "v") else layout.problem.heads
    return heads * shape.width // layout.problem.batch // columns


def _with_sinks(out: Tensor, lse: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs with one more score per head, which has no value."""
    total = torch.logaddexp(lse, sinks.to(lse.dtype)[:, None, None])
    share = torch.where(lse == float("-inf"), 0.0, (lse - total).exp())
    return (out * share).to(out.dtype), total
