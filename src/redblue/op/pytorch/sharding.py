"""Sharding rules of redblue's ops for DTensors, PyTorch's tensors that are distributed over a mesh of processes.

Attention is independent for each leading dimension and for each head. So processes may hold parts of these dimensions,
and each computes its part without communication. If the placement is different, or a mask or a bias differs between
parts, DTensor gathers the tensors before the call.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache
from typing import Any

import torch

from redblue.base.errors import RedblueError
from redblue.kernels.options import ARRAYS, Options
from redblue.op.pytorch.masks import mask_named

Placements = tuple[list[Any], list[Any]]  # placements of the outputs, and of the arguments


def prepare(tensors: list[Any], options: Options) -> None:
    """Register the rules if a tensor is a DTensor. Raises RedblueError for options that DTensors cannot have."""
    if "torch.distributed.tensor" not in sys.modules:
        return
    if torch.compiler.is_dynamo_compiling():
        _register_while_tracing()
    elif has_distributed(tensors):
        _register()
        if options.dropout and options.seed is None:
            raise RedblueError("dropout of DTensors needs a seed, which all processes share: give one")
        if options.positions is not None:
            raise RedblueError(
                "positions describe a process's own block: give q, k and v as local tensors, not DTensors"
            )


def has_distributed(tensors: Iterable[Any]) -> bool:
    """Whether a tensor is a DTensor."""
    module: Any = sys.modules.get("torch.distributed.tensor")
    return module is not None and any(isinstance(x, module.DTensor) for x in tensors)


@cache
def _register() -> None:
    from torch.distributed.tensor.experimental import register_sharding

    from redblue.op.pytorch.ops import backward_op, forward_op

    register_sharding(forward_op)(forward_placements)
    register_sharding(backward_op)(backward_placements)


def _registered_for_graph() -> None:
    _register()


# Called while torch.compile traces, not by the compiled graph (see masks.traced_name_of)
_register_while_tracing: Any = _registered_for_graph
_register_while_tracing._dynamo_marked_constant = True


def forward_placements(q: Any, k: Any, v: Any, *flat: Any) -> list[Placements]:
    """The placements that redblue::attention supports on each mesh dimension. The arguments have shapes but no data."""
    options = Options.unflatten(flat)
    return [
        ([placement(dim)] * 2, [placement(dim)] * 3 + _options(options, dim, q.ndim))
        for dim in (None, *_shardable(q, k, options))
    ]


def backward_placements(
    dout: Any, dlse: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *flat: Any
) -> list[Placements]:
    """The placements that redblue::attention_backward supports. The gradient of a broadcast bias is a partial sum."""
    from torch.distributed.tensor import Partial, Replicate

    options, bias_grad = Options.unflatten(flat[:-1]), flat[-1]
    rows = []
    for dim in (None, *_shardable(q, k, options)):
        own, of_options = placement(dim), _options(options, dim, q.ndim)
        dbias = of_options[_BIAS] if bias_grad and options.bias is not None else Replicate()
        if bias_grad and dim is not None and dbias == Replicate():
            dbias = Partial()
        rows.append(([own, own, own, dbias, own], [own, None if dlse is None else own, *[own] * 5, *of_options, None]))
    return rows


def placement(dim: int | None) -> Any:
    """Sharded along a dimension; None: replicated."""
    from torch.distributed.tensor import Replicate, Shard

    return Replicate() if dim is None else Shard(dim)


def _shardable(q: Any, k: Any, options: Options) -> list[int]:
    """The dimensions of q and k along which processes may hold parts."""
    mask = mask_named(options.mask.name)
    if options.dropout or (mask is not None and mask.lead):
        return []  # the dropped probabilities and the mask depend on the position of a head in the whole array
    heads = q.ndim - 3
    grouped = q.shape[heads] != k.shape[heads]
    if grouped and k.shape[heads] % q.mesh.size():
        return list(range(heads))  # a part of the query heads might lack the key head that it shares
    return list(range(heads + 1))


def _options(options: Options, dim: int | None, rank: int) -> list[Any]:
    """The placements of the op's options if q, of this rank, is sharded along a dimension."""
    placed: list[Any] = [None] * len(options.flat)
    first = len(placed) - len(options.tensors)
    for i, (name, x) in enumerate(zip(("seed", *ARRAYS), options.tensors, strict=True)):
        if x is not None:
            placed[first + i] = placement(None if dim is None or name == "seed" else _own(name, x, dim, rank))
    return placed


def _own(name: str, x: Any, dim: int, rank: int) -> int | None:
    """The dimension of an option that belongs to a dimension of q; None if the option broadcasts along it."""
    rules = ARRAYS[name]
    if rules.places:
        return None
    if not rules.lead:  # (heads,)
        return 0 if dim == rank - 3 else None
    own = dim - (rank - rules.missing - x.ndim)
    return own if own >= 0 and x.shape[own] != 1 else None


_BIAS = len(Options().flat) - len(ARRAYS) + list(ARRAYS).index("bias")
