"""What the operator's arguments may be, for NumPy arrays and PyTorch tensors alike.

A message names the argument, what was given and what is allowed.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

from redblue.base.errors import RedblueError
from redblue.kernels.cpu.call import MAX_D, MAX_LEAD, Sizes
from redblue.masks import Mask

DTYPES = ("float64", "float32", "bfloat16", "float16")
SCHEDULES = ("flash", "hybrid", "small_cache", "gather")


class Options(NamedTuple):
    """The arguments of `attention` other than q, k, v, as given."""

    mask: Mask | None = None
    scale: float | None = None
    bias: Any = None
    softcap: float | None = None
    sinks: Any = None
    dropout: float = 0.0
    seed: int | None = None
    schedule: str = "auto"


class Scalars(NamedTuple):
    scale: float | None  # None: 1 / sqrt(d)
    softcap: float  # 0: none
    dropout: float
    seed: int | None  # as a signed 64-bit integer; None: not given


def check_scalars(options: Options) -> Scalars:
    """The numbers among the options. Raises RedblueError for others than are allowed."""
    scale, softcap, dropout, seed = options.scale, options.softcap, options.dropout, options.seed
    scale = None if scale is None else _number("scale", scale)
    if softcap is None:
        softcap = 0.0
    else:
        softcap = _number("softcap", softcap)
        if not softcap > 0:
            raise RedblueError(f"softcap must be above 0, or None, got {softcap!r}")
    dropout = _number("dropout", dropout)
    if not 0 <= dropout < 1:
        raise RedblueError(f"dropout must be at least 0 and below 1, got {dropout!r}")
    if seed is not None:
        try:
            seed = (operator.index(seed) + 2**63) % 2**64 - 2**63
        except (TypeError, ValueError, RuntimeError):
            raise RedblueError(f"seed must be a whole number, got {seed!r}") from None
    if options.schedule != "auto" and options.schedule not in SCHEDULES:
        known = ", ".join(SCHEDULES)
        raise RedblueError(f"schedule must be one of auto, {known} (those with a kernel), got {options.schedule!r}")
    return Scalars(scale, softcap, dropout, seed)


def _number(name: str, value: Any) -> float:
    if type(value) is not float:
        if isinstance(value, (bool, str)) or not hasattr(value, "__float__"):
            raise RedblueError(f"{name} must be a number, got {value!r}")
        if getattr(value, "requires_grad", False):
            raise RedblueError(f"{name} has no gradient: give a number, or multiply q by a tensor, got {value!r}")
        try:
            value = float(value)
        except (TypeError, ValueError, OverflowError):
            raise RedblueError(f"{name} must be a number, got {value!r}") from None
    if not -math.inf < value < math.inf:
        raise RedblueError(f"{name} must be finite, got {value!r}")
    return value


def check_shapes(q: Sequence[int], k: Sequence[int], v: Sequence[int]) -> Sizes:
    """The sizes of a call on arrays of these shapes, all of at least three dimensions.

    Raises RedblueError for shapes that do not belong together.
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
        raise RedblueError(f"heads of q ({heads}) must be a multiple of those of k and v ({kv_heads})")
    lead = _broadcast(q[:-3], k[:-3], v[:-3])
    if lead is None:
        shapes = ", ".join(f"{name} {shape}" for name, shape in (("q", q), ("k", k), ("v", v)))
        raise RedblueError(f"leading dimensions must broadcast, got {shapes}")
    return Sizes(lead, kv_heads, heads // kv_heads if kv_heads else 1, q[-2], k[-2], q[-1], v[-1])


_WIDTHS = "d, the last dimension of q and k,", "d_v, the last dimension of v,"


def check_widths_on_cpu(sizes: Sizes) -> None:
    """Raise RedblueError for head dimensions that the kernels for the CPU do not take. Those for GPUs take any."""
    if sizes.d <= MAX_D and sizes.d_v <= MAX_D:
        return
    name, size = (_WIDTHS[0], sizes.d) if sizes.d > MAX_D else (_WIDTHS[1], sizes.d_v)
    raise RedblueError(f"{name} must be 1 to {MAX_D} on the CPU, got {size}: tensors on a GPU may have more")


def _broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape that all broadcast to; None if there is none. NumPy's refuses the symbolic sizes of torch.compile."""
    rank = max(map(len, shapes))
    found = [1] * rank
    for shape in shapes:
        for i, size in enumerate(shape, rank - len(shape)):
            if size != 1:
                if found[i] not in (1, size):
                    return None
                found[i] = size
    return tuple(found)


def heads_of(sizes: Sizes) -> int:
    """Query heads."""
    return sizes.kv_heads * sizes.group


def check_bias_shape(shape: Sequence[int], sizes: Sizes) -> None:
    """Raise RedblueError unless a bias of this shape broadcasts to (lead..., heads, n_q, n_k)."""
    full = (*sizes.lead, heads_of(sizes), sizes.n_q, sizes.n_k)
    padded = (1,) * (len(full) - len(shape)) + tuple(shape)
    if len(padded) != len(full) or any(a not in (1, b) for a, b in zip(padded, full, strict=True)):
        raise RedblueError(f"bias must broadcast to (..., heads, n_q, n_k) = {full}, got shape {tuple(shape)}")


def check_sinks_shape(shape: Sequence[int], sizes: Sizes) -> None:
    """Raise RedblueError unless there is one sink for each query head."""
    heads = heads_of(sizes)
    if tuple(shape) != (heads,):
        raise RedblueError(f"sinks must have shape ({heads},), one per head of q, got {tuple(shape)}")


def check_sinks_dtype(dtype: str) -> None:
    if dtype not in DTYPES:
        raise RedblueError(f"sinks must be of type {', '.join(DTYPES)}, got {dtype}")


def check_dtypes(names: dict[str, str], bias: str | None = None) -> str:
    """The one type of all arrays, by argument name; `bias`, if there is one, may have another."""
    for name, dtype in names.items():
        if dtype not in DTYPES:
            raise RedblueError(f"{name} must be of type {', '.join(DTYPES)}, got {dtype}")
    first = next(iter(names.values()))
    for name, dtype in names.items():
        if dtype != first:
            raise RedblueError(f"{', '.join(names)} must be of one type, got {first} and, for {name}, {dtype}")
    if bias is not None and bias not in ("bool", *DTYPES):
        raise RedblueError(f"bias must be of type bool, {', '.join(DTYPES)}, got {bias}")
    if bias == "float64" and first != "float64":
        raise RedblueError(f"bias of type float64 needs float64 arrays, got {first}")
    return first


def check_mask(mask: Any) -> None:
    """Raise RedblueError unless this is a mask as users make it, or None."""
    if mask is None:
        return
    if not isinstance(mask, Mask):
        raise RedblueError(f"mask must be a redblue.Mask, such as Mask.causal(), got {type(mask).__name__}")
    if mask.group != 1:
        raise RedblueError(f"mask must have one row per query, got one of {mask.group}: give the mask before for_group")


def check_one_kind_of_mask(attn_mask: Any, is_causal: bool) -> None:
    if attn_mask is not None and is_causal:
        raise RedblueError("attn_mask and is_causal=True were both given: give one of them")


def check_grouping(query: Any, key: Any, value: Any, enable_gqa: bool) -> None:
    """Raise RedblueError if heads are fewer for key and value than for query and nobody asked for that."""
    for name, array in (("query", query), ("key", key), ("value", value)):
        if not hasattr(array, "shape"):
            raise RedblueError(f"{name} must be an array (PyTorch, NumPy or DLPack), got {type(array).__name__}")
    shapes = query.shape, key.shape, value.shape
    for name, shape in zip(("query", "key", "value"), shapes, strict=True):
        if len(shape) < 2:
            raise RedblueError(f"{name} must have at least 2 dimensions (..., n, d), got shape {tuple(shape)}")
    if not enable_gqa and min(map(len, shapes)) > 2:
        heads = [shape[-3] for shape in shapes]
        several = [number for number in heads if number != 1]
        if several and several.count(several[0]) < len(several):
            raise RedblueError(
                f"query has {heads[0]} heads, key {heads[1]} and value {heads[2]}: they must be equal, "
                "or give enable_gqa=True"
            )
