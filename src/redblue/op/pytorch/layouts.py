"""The sizes, types and memory layouts of a call, derived from its tensors' shapes and types, for all devices."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from redblue.base.dtypes import dtype_name, sum_dtype
from redblue.base.errors import RedblueError
from redblue.kernels.cpu.arrays import dense_strides
from redblue.kernels.options import ARRAYS, ArrayOption, Options, check_array
from redblue.kernels.sizes import Sizes
from redblue.op import checks


class Expanded(NamedTuple):
    """The sizes of a call, and the shapes to which q, k and v must be expanded; None: no expansion is needed."""

    sizes: Sizes
    q: tuple[int, ...] | None
    k: tuple[int, ...] | None
    v: tuple[int, ...] | None


def expanded_shapes(q: Any, k: Any, v: Any) -> Expanded:
    """The sizes and expanded shapes of a call on tensors of these shapes."""
    sizes = checks.check_shapes(q, k, v)
    expanded = []
    for shape, heads in ((q, sizes.heads), (k, sizes.kv_heads), (v, sizes.kv_heads)):
        full = (*sizes.lead, heads, shape[-2], shape[-1])
        expanded.append(None if full == tuple(shape) else full)
    return Expanded(sizes, *expanded)


known_expanded_shapes = lru_cache(maxsize=1024)(expanded_shapes)


Layout = tuple[tuple[int, ...], tuple[int, ...]]  # shape, strides


class Read(NamedTuple):
    """The conversion of an option that is an array to the form that kernels read."""

    name: str
    rules: ArrayOption
    dtype: str  # the user's type
    convert: torch.dtype | None  # the type to convert to; None: not converted
    expand: tuple[int, ...] | None  # the shape to expand to; None: not expanded


class Call(NamedTuple):
    """The facts about a call that follow from its shapes and types.

    q, k, v, out: the two dense layouts that the tensor or its gradient may get. `layout_index` returns the index (0 or
    1) of the layout that a tensor has.
    """

    sizes: Sizes
    dtype: str
    sums: torch.dtype
    arrays: tuple[Read, ...]  # the given options that are arrays
    q: tuple[Layout, Layout]
    k: tuple[Layout, Layout]
    v: tuple[Layout, Layout]
    out: tuple[Layout, Layout]
    lse: Layout


Form = tuple[Any, torch.dtype]  # shape and type of an option that is an array


def forms(options: Options) -> tuple[Form | None, ...]:
    """Shape and type of all options that are arrays, None for an option that is not given; () if none is given."""
    arrays = options.arrays
    for x in arrays:
        if x is not None:
            return tuple([None if x is None else (x.shape, x.dtype) for x in arrays])
    return ()


def call_of(q: Any, k: Any, v: Any, dtypes: tuple[torch.dtype, ...], arrays: tuple[Form | None, ...]) -> Call:
    """The call on q, k and v of these shapes and types. Raises RedblueError if no kernel supports them."""
    expanded = expanded_shapes(q, k, v)
    if expanded[1:] != (None, None, None):
        shapes = ", ".join(f"{name} {tuple(shape)}" for name, shape in (("q", q), ("k", k), ("v", v)))
        raise RedblueError(f"redblue::attention takes equal leading dimensions and expands none, got {shapes}")
    sizes = expanded.sizes
    dtype = checks.check_dtypes({name: dtype_name(x) for name, x in zip("qkv", dtypes, strict=True)})
    sums = getattr(torch, sum_dtype(dtype))
    read = []
    for (name, rules), form in zip(ARRAYS.items(), arrays, strict=False):  # arrays is () if no option array is given
        if form is not None:
            own_dtype, full = dtype_name(form[1]), rules.shape(sizes)
            check_array(name, form[0], own_dtype, sizes, dtype)
            expand = None if tuple(form[0]) == full else full
            read.append(Read(name, rules, own_dtype, sums if rules.is_converted else None, expand))
    rows = (*sizes.lead, sizes.heads, sizes.n_q)
    inputs = _layouts(q), _layouts(k), _layouts(v)
    return Call(sizes, dtype, sums, tuple(read), *inputs, _layouts((*rows, sizes.d_v)), (rows, dense_strides(rows)))


known_call = lru_cache(maxsize=1024)(call_of)


def sums_of(dtype: torch.dtype) -> torch.dtype:
    """The type in which kernels add numbers of a type."""
    return getattr(torch, sum_dtype(dtype_name(dtype)))


def expanded_arrays(options: Options, call: Call, backward: bool = False) -> dict[str, Tensor]:
    """The option arrays that the pass reads, converted and expanded for its kernels."""
    expanded = {}
    for name, rules, _, convert, shape in call.arrays:
        if rules.backward or not backward:
            x = getattr(options, name)
            if convert is not None:
                x = x.to(convert).contiguous()
            elif rules.pairs and _pays_a_copy(x, shape, backward):
                x = x.contiguous()
            expanded[name] = x if shape is None else x.expand(shape)
    return expanded


def _pays_a_copy(x: Tensor, shape: tuple[int, ...] | None, backward: bool) -> bool:
    """Whether a copy with dense rows is faster than strided reads, for example of T5's biases.

    A copy is faster if kernels read the array more than once: backward, or for several batch entries.
    """
    return (
        x.is_cpu
        and x.dim() > 1
        and x.stride(-1) > 1
        and (backward or (shape is not None and x.numel() < math.prod(shape)))
    )


def _layouts(shape: Any) -> tuple[Layout, Layout]:
    inside = (0, 2, 1, 3) if len(shape) == 4 else None
    return (tuple(shape), dense_strides(shape)), (tuple(shape), dense_strides(shape, inside))


def layout_index(x: Tensor) -> int:
    """The index of the tensor's layout in Call: 1 if memory holds all heads of a position together, else 0.

    Outputs and gradients get the layout of the tensor that they belong to, as in PyTorch's kernels. Then joining the
    heads afterwards, or splitting them before, needs no copy.
    """
    strides = x.stride()
    return 1 if len(strides) == 4 and strides[1] < strides[2] else 0


def check_outputs(call: Call, dout: Tensor, dlse: Tensor | None, out: Tensor, lse: Tensor) -> None:
    """Raise RedblueError unless the tensors fit the outputs of `attention`. The kernel does not check them."""
    shape = call.out[0][0]
    for name, x, wanted, dtype in (
        ("dout", dout, shape, call.dtype),
        ("out", out, shape, call.dtype),
        ("lse", lse, shape[:-1], dtype_name(call.sums)),
        ("dlse", dlse, shape[:-1], dtype_name(call.sums)),
    ):
        if x is not None and (tuple(x.shape) != wanted or dtype_name(x.dtype) != dtype):
            raise RedblueError(f"{name} must be {wanted} of {dtype}, got {tuple(x.shape)} of {x.dtype}")
