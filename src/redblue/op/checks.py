"""Checks of the operator's arrays, for NumPy and PyTorch alike; kernels/options.py checks the options.

Every error message names the argument, its value and the values that are allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from redblue.base.dtypes import COMPUTED
from redblue.base.errors import RedblueError
from redblue.kernels.cpu.call import MAX_D, MAX_LEAD
from redblue.kernels.sizes import Sizes


def check_shapes(q: Sequence[int], k: Sequence[int], v: Sequence[int]) -> Sizes:
    """The sizes of a call on arrays of these shapes. Raises RedblueError for shapes that do not fit together.

    Arrays have at least three dimensions: callers add a dimension of heads if there is none.
    """
    q, k, v = tuple(q), tuple(k), tuple(v)
    for name, shape in (("q", q), ("k", k), ("v", v)):
        if len(shape) < 3:
            raise RedblueError(f"{name} must have at least 2 dimensions (..., n, d), got shape {shape}")
        if len(shape) > MAX_LEAD + 3:
            raise RedblueError(f"{name} may have at most {MAX_LEAD + 3} dimensions, got shape {shape}")
    if q[-1] != k[-1]:
        raise RedblueError(f"head dimension of k ({k[-1]}) must equal that of q ({q[-1]})")
    if k[-2] != v[-2]:
        raise RedblueError(f"v must have as many keys as k ({k[-2]}), got {v[-2]}")
    for name, size in zip(_WIDTHS, (q[-1], v[-1]), strict=True):
        if size < 1:
            raise RedblueError(f"{name} must be at least 1, got {size}")
    kv_heads = k[-3] if v[-3] == 1 else v[-3]
    if k[-3] not in (1, kv_heads):
        raise RedblueError(f"v must have as many heads as k ({k[-3]}), got {v[-3]}")
    heads = q[-3]
    if heads == 1 and kv_heads > 1:
        heads = kv_heads  # one query head, broadcast
    if (kv_heads == 0 and heads) or (kv_heads and heads % kv_heads):
        raise RedblueError(f"heads of q ({heads}) must be a multiple of the heads of k and v ({kv_heads})")
    lead = _broadcast(q[:-3], k[:-3], v[:-3])
    if lead is None:
        shapes = ", ".join(f"{name} {shape}" for name, shape in (("q", q), ("k", k), ("v", v)))
        raise RedblueError(f"leading dimensions must broadcast, got {shapes}")
    return Sizes(lead, kv_heads, heads // kv_heads if kv_heads else 1, q[-2], k[-2], q[-1], v[-1])


_WIDTHS = "d, the last dimension of q and k,", "d_v, the last dimension of v,"


def check_widths_on_cpu(sizes: Sizes) -> None:
    """Raise RedblueError for head dimensions above MAX_D. The kernels for GPUs have no such limit."""
    if sizes.d <= MAX_D and sizes.d_v <= MAX_D:
        return
    name, size = (_WIDTHS[0], sizes.d) if sizes.d > MAX_D else (_WIDTHS[1], sizes.d_v)
    raise RedblueError(f"{name} must be 1 to {MAX_D} on the CPU, got {size}: tensors on a GPU may have more")


def _broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape that all broadcast to, or None. np.broadcast_shapes refuses the symbolic sizes of torch.compile."""
    rank = max(map(len, shapes))
    common = [1] * rank
    for shape in shapes:
        for i, size in enumerate(shape, rank - len(shape)):
            if size != 1:
                if common[i] not in (1, size):
                    return None
                common[i] = size
    return tuple(common)


def check_dtypes(dtypes: dict[str, str]) -> str:
    """The common type of the arrays. dtypes: the type of each array, by the array's name.

    Raises RedblueError if types differ or if no kernel computes in one of them.
    """
    for name, dtype in dtypes.items():
        if dtype not in COMPUTED:
            raise RedblueError(f"{name} must be of type {', '.join(COMPUTED)}, got {dtype}")
    first = next(iter(dtypes.values()))
    for name, dtype in dtypes.items():
        if dtype != first:
            raise RedblueError(f"{', '.join(dtypes)} must be of one type, got {first} and, for {name}, {dtype}")
    return first


def check_flag(name: str, value: Any) -> None:
    """Raise RedblueError unless this is True or False."""
    if value is not True and value is not False and not isinstance(value, np.bool_):
        raise RedblueError(f"{name} must be True or False, got {value!r}")


def check_one_kind_of_mask(attn_mask: Any, is_causal: bool) -> None:
    """Raise RedblueError if both attn_mask and is_causal are given."""
    if attn_mask is not None and is_causal:
        raise RedblueError("attn_mask and is_causal=True were both given: give one of them")


def check_grouping(query: Any, key: Any, value: Any, enable_gqa: bool) -> None:
    """Raise RedblueError if key or value has fewer heads than query without enable_gqa."""
    for name, array in (("query", query), ("key", key), ("value", value)):
        if not hasattr(array, "shape"):
            raise RedblueError(f"{name} must be an array (PyTorch, NumPy or DLPack), got {type(array).__name__}")
    shapes = query.shape, key.shape, value.shape
    for name, shape in zip(("query", "key", "value"), shapes, strict=True):
        if len(shape) < 2:
            raise RedblueError(f"{name} must have at least 2 dimensions (..., n, d), got shape {tuple(shape)}")
    if not enable_gqa and min(map(len, shapes)) > 2:
        check_equal_heads(*[shape[-3] for shape in shapes], broadcast=True)


def check_equal_heads(query: int, key: int, value: int, broadcast: bool = False) -> None:
    """Raise RedblueError if the numbers of heads differ. broadcast: whether one head fits any number of heads."""
    compared = [heads for heads in (query, key, value) if not broadcast or heads != 1]
    if compared and compared.count(compared[0]) < len(compared):  # symbolic sizes have no hash for a set
        raise RedblueError(
            f"query has {query} heads, key {key} and value {value}: they must be equal, or give enable_gqa=True"
        )
