"""`redblue.distributed.attention`: its choice of a schedule, its run in one process, and autograd."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from redblue.base.dtypes import dtype_name
from redblue.base.errors import RedblueError
from redblue.distributed.agreement import Shard, agree
from redblue.distributed.arguments import STATIONARY, Call, checked_call, mask_of, mesh_of
from redblue.distributed.derivatives import first_derivatives_only
from redblue.distributed.dtensors import from_local, is_distributed
from redblue.distributed.failures import Failures
from redblue.distributed.groups import device_of, group_of
from redblue.distributed.operations import Operations
from redblue.distributed.process import Process
from redblue.kernels.options import DistributedArguments, Options
from redblue.masks import Mask
from redblue.masks.rules.stack import planes
from redblue.op import api
from redblue.op.signatures import documented
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
    moves the fewest words. docs/guide/distributed.md describes them; their sources are in redblue.schedules.network.
    return_lse: also return the log-sum-exp (..., H, own queries); differentiable.
    Further options are options of `redblue.attention` and mean the same for the whole sequences. Rank 0 draws a missing
    seed. A bias is (..., H, own queries, all keys), and needs the schedule "ring" or "all_gather", which do not move
    queries. Dropout drops the same probabilities as one process would. The gradients of sinks, and of a broadcast bias,
    cover only a process's own queries: add them up over the processes.

    Every process of the group must call this function, with equal options. Returns this process's part of the output,
    (..., H, own queries, d_v), or (out, lse). Raises RedblueError in every process if an argument of any process is
    wrong or differs between processes. Raises ProcessFailed, with the rank, if a process died or does not answer within
    the group's timeout.
    """
    processes = group_of(mesh_of(q) if group is None and is_distributed(q) else group)
    failures = Failures(processes)
    call: Any = None
    try:
        call = checked_call(q, k, v, mask, placement, schedule, return_lse, options)
        own: Any = call.shard
    except RedblueError as error:
        own = error
    except Exception as error:  # report it to the other processes, too
        own = RedblueError(f"{type(error).__name__}: {error}")
        own.__cause__ = error
    shards = agree(own, processes, device_of(processes, q), failures)
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


def _layout(call: Call, shards: list[Shard], processes: int) -> Layout | None:
    """The layout that all processes run. Raises RedblueError in all of them; None: there is nothing to compute."""
    q, k, v = call.tensors
    n_q, n_k = sum(shard.queries for shard in shards), sum(shard.keys for shard in shards)
    mask = mask_of(call.options)
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
        dtype=dtype_name(q.dtype),
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


class _Saved(NamedTuple):
    """The tensors that the backward pass needs."""

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    sinks: Tensor | None
    out: Tensor
    lse: Tensor


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
        ctx.save_for_backward(*_Saved(q, k, v, bias, sinks, out, lse))
        ctx.call = layout, options, group, failures
        ctx.set_materialize_grads(False)
        return out, lse[..., 0]

    @staticmethod
    @first_derivatives_only
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> Any:  # pyright: ignore
        saved = _Saved(*ctx.saved_tensors)
        _, _, _, bias_grad, sinks_grad, *others = ctx.needs_input_grad
        layout, options, group, failures = ctx.call
        bias, sinks, lse = saved.bias, saved.sinks, saved.lse
        dout = torch.zeros_like(saved.out) if dout is None else dout
        delta = (dout.to(lse.dtype) * saved.out).sum(-1, keepdim=True)
        if dlse is not None:
            delta -= dlse[..., None]
        inputs = {"q": saved.q, "k": saved.k, "v": saved.v, "dout": dout, "lse": lse, "delta": delta}
        layout, own = backward_of(layout), options._replace(bias=bias)
        operations = Operations(layout, own, saved.q.dtype, saved.q.device, bias_gradient=bias_grad)
        dq, dk, dv = run(layout, operations, group, failures, inputs)
        dbias = dsinks = None
        if bias is not None and operations.dbias is not None:
            dbias = operations.dbias.to(bias.dtype)
        if sinks is not None and sinks_grad:
            share = torch.where(lse == float("-inf"), 0.0, (sinks.to(lse.dtype)[:, None, None] - lse).exp())
            dsinks = -(share * delta).sum((0, 2, 3)).to(sinks.dtype)
        return dq, dk, dv, dbias, dsinks, *[None] * len(others)


@lru_cache(LAYOUTS_KEPT)
def backward_of(layout: Layout) -> Layout:
    """The same layout for the backward pass."""
    problem = layout.problem
    fields = {name: getattr(problem, name) for name in problem.__dataclass_fields__}
    same = {name: value for name, value in layout.__dict__.items() if name.startswith("_")}  # cached rows, blocks
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
    """The outputs after one more score per head, a sink, enters the softmax's denominator. It has no value."""
    total = torch.logaddexp(lse, sinks.to(lse.dtype)[:, None, None])
    share = torch.where(lse == float("-inf"), 0.0, (lse - total).exp())
    return (out * share).to(out.dtype), total
