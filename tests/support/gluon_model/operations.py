"""The operations of Gluon, by the names that the kernels call."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from support.gluon_model.block import Barrier, Barriers
from support.gluon_model.memory import Int, Shared, Tile


def operations_of(block):
    gl = SimpleNamespace(
        constexpr=lambda x: x,
        int64=torch.int64,
        float32=torch.float32,
        atomic_add=_atomic_add,
        BlockedLayout=lambda *x: None,
        SwizzledSharedLayout=lambda *x: None,
        program_id=lambda axis: Int(block.program[axis]),
        num_programs=lambda axis: Int(block.programs[axis]),
        static_range=range,
        maximum=_either(torch.fmax, max),
        minimum=_either(torch.fmin, min),
        max=lambda x, axis: torch.where(x.isnan(), -torch.inf, x).amax(axis),
        sum=lambda x, axis: x.sum(axis),
        exp2=torch.exp2,
        log=torch.log,
        where=_where,
        cdiv=lambda x, y: Int(-(-x // y)),
        reshape=lambda x, shape: x.reshape(shape),
        permute=lambda x, order: x.permute(order),
        thread_barrier=lambda: None,  # a partition is one thread
        NVMMASharedLayout=SimpleNamespace(get_default_for=lambda *x: None),
        arange=lambda start, end, layout: torch.arange(start, end).as_subclass(Tile),
        zeros=lambda shape, dtype, layout: torch.zeros(shape, dtype=dtype).as_subclass(Tile),
        full=lambda shape, x, dtype, layout: torch.full(shape, x, dtype=dtype).as_subclass(Tile),
        convert_layout=lambda x, layout: x,
        multiple_of=lambda x, count: x,
        inline_asm_elementwise=lambda text, constraints, arguments, **more: arguments[0],
        store=_store,
        allocate_shared_memory=_allocate,
        warp_specialize=lambda partitions, warps, registers: block.run(partitions),
        SliceLayout=lambda *x: None,
        NVMMADistributedLayout=lambda *x: None,
        DotOperandLayout=lambda *x: None,
    )
    return {
        "gl": gl,
        "Any": Any,
        "NamedTuple": NamedTuple,
        "range": lambda *x: map(Int, range(*x)),
        "fence_async_shared": lambda: None,
        "mbarrier": SimpleNamespace(
            MBarrierLayout=lambda: None, init=_init, expect=block.expect, arrive=block.arrive, wait=block.wait
        ),
        "tma": SimpleNamespace(
            async_copy_global_to_shared=block.copy,
            async_copy_shared_to_global=block.copy_back,
            store_wait=lambda pending: None,
        ),
        "warpgroup_mma": block.mma,
        "warpgroup_mma_wait": block.mma_wait,
    }


def _allocate(dtype, shape, layout):
    if dtype == torch.int64:
        return Barrier() if len(shape) == 1 else Barriers(shape[0])
    return Shared(torch.full(shape, torch.nan if dtype.is_floating_point else -1, dtype=dtype))


def _store(pointer, value, mask):
    mask = mask.expand(value.shape)
    places = pointer.offset.expand(value.shape)[mask]
    assert places.numel() == 0 or (int(places.min()) >= 0 and int(places.max()) < pointer.base.numel())
    pointer.base[places] = value[mask].to(pointer.base.dtype)


def _atomic_add(pointer, x, sem=None):
    if isinstance(x, torch.Tensor):
        pointer.base.index_add_(0, pointer.offset, x)
        return None
    before = Int(pointer.base[pointer.offset])
    pointer.base[pointer.offset] += x
    return before


def _where(condition, x, y):
    return torch.where(condition, x, y) if isinstance(condition, torch.Tensor) else (x if condition else y)


def _init(barrier, count):
    barrier.count = barrier.pending = count


def _either(of_tensors, of_numbers):
    def function(x, y):
        if not isinstance(x, torch.Tensor) and not isinstance(y, torch.Tensor):
            return Int(of_numbers(x, y))
        return of_tensors(torch.as_tensor(x), torch.as_tensor(y))

    return function
