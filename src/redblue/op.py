"""The operator: signatures, checks, and dispatch to a kernel. NumPy arrays here; PyTorch tensors in torch_op.

Every argument is checked here, for both; a message says what was given and what is allowed.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from redblue.bands import Window
from redblue.errors import RedblueError
from redblue.kernels import cpu
from redblue.kernels.cpu import MOST_D, MOST_LEAD, NUMBERS, Sizes
from redblue.masks import Mask

DTYPES = ("float64", "float32", "bfloat16", "float16")


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    mask: Mask | None = None,
    scale: float | None = None,
    bias: Any = None,
    softcap: float | None = None,
    sinks: Any = None,
    dropout: float = 0.0,
    seed: int | None = None,
    return_lse: bool = False,
    schedule: str = "auto",
) -> Any:
    """Exact attention: softmax(softcap(scale Q K^T) + bias, masked) V, without anything of size n_q n_k in memory.

    q (..., H, n_q, d), k (..., H_kv, n_k, d), v (..., H_kv, n_k, d_v): PyTorch CPU tensors (with autograd), or NumPy
    arrays and whatever else speaks DLPack (gives NumPy). All of one type: float64, float32, bfloat16 or float16; sums
    are in float32 or better. Two-dimensional ones are one head. H is a multiple of H_kv (grouped-query attention,
    nothing is expanded), the other leading dimensions broadcast. Any strides are read in place.

    mask: which keys a query attends; Mask.full() if None. A row that attends nothing gives 0.
    scale: 1 / sqrt(d) if None. softcap: scores x become softcap tanh(x / softcap).
    bias: added to the scores, after softcap; any shape that broadcasts to (..., H, n_q, n_k); True means attend.
    sinks: (H,), one more score for each head that takes a share of the softmax and has no value.
    dropout: the share of probabilities that become 0. Which ones: a function of the seed (drawn from PyTorch's
    generator if None; required for NumPy arrays), the same for all tiles, threads and both passes.
    return_lse: also give the log-sum-exp of each row's scores (..., H, n_q), sinks included; differentiable.
    schedule: which algorithm; "auto" takes the plan's.

    Returns out (..., H, n_q, d_v), or (out, lse). Raises RedblueError, naming the argument, for what it cannot take.
    """
    options = Options(mask, scale, bias, softcap, sinks, dropout, seed, schedule)
    if is_torch(q) or is_torch(k) or is_torch(v):
        from redblue import torch_op

        return torch_op.attention(q, k, v, options, return_lse)
    q, k, v = (as_numpy(name, array) for name, array in (("q", q), ("k", k), ("v", v)))
    call = NumpyCall(q, k, v, options)
    out, lse = call.forward()
    return (out, lse) if return_lse else out


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """The twin of torch.nn.functional.scaled_dot_product_attention, on the same tensors with the same meaning.

    attn_mask: boolean (True means attend) or floating (added to the scores), broadcastable to (..., n_q, n_k), with
    gradient if it needs one; not together with is_causal, which is aligned top left. Unlike `attention`, heads are
    grouped only if enable_gqa says so. NumPy arrays work too, without dropout.
    """
    if attn_mask is not None and is_causal:
        raise RedblueError("attn_mask and is_causal=True were both given: give one of them")
    shapes = [tuple(x.shape) for x in (query, key, value)]
    for name, shape in zip(("query", "key", "value"), shapes, strict=True):
        if len(shape) < 2:
            raise RedblueError(f"{name} must have at least 2 dimensions (..., n, d), got shape {shape}")
    if not enable_gqa and all(len(shape) > 2 for shape in shapes):
        heads = {shape[-3] for shape in shapes} - {1}
        if len(heads) > 1:
            raise RedblueError(
                f"query has {shapes[0][-3]} heads, key {shapes[1][-3]} and value {shapes[2][-3]}: they must be equal, "
                "or give enable_gqa=True"
            )
    mask = Mask.causal() if is_causal else None
    return attention(query, key, value, mask=mask, bias=attn_mask, dropout=dropout_p, scale=scale)


def attention_backward(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    *,
    mask: Mask | None = None,
    scale: float | None = None,
    bias: Any = None,
    softcap: float | None = None,
    sinks: Any = None,
    dropout: float = 0.0,
    seed: int | None = None,
    dlse: Any = None,
    schedule: str = "auto",
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gradients (dq, dk, dv) of sum(dout * out) + sum(dlse * lse), for NumPy arrays; PyTorch users have autograd.

    out and lse: what `attention(..., return_lse=True)` gave for the same arguments, the seed included.
    """
    given = {"dout": dout, "q": q, "k": k, "v": v, "out": out, "lse": lse}
    for name, array in given.items():
        if is_torch(array):
            raise RedblueError(f"{name} is a PyTorch tensor: call attention and use autograd, or give NumPy arrays")
    dout, q, k, v, out, lse = (as_numpy(name, array) for name, array in given.items())
    options = Options(mask, scale, bias, softcap, sinks, dropout, seed, schedule)
    return NumpyCall(q, k, v, options).backward(dout, out, lse, None if dlse is None else as_numpy("dlse", dlse))


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


def is_torch(array: Any) -> bool:
    """Whether this is a PyTorch tensor; never imports PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def check_scalars(options: Options, d: int) -> tuple[float, float, float]:
    """(scale, softcap, dropout), checked; softcap 0: none."""
    scale = d**-0.5 if options.scale is None else _number("scale", options.scale)
    softcap = 0.0 if options.softcap is None else _number("softcap", options.softcap)
    if options.softcap is not None and not softcap > 0:
        raise RedblueError(f"softcap must be above 0, or None, got {options.softcap!r}")
    dropout = _number("dropout", options.dropout)
    if not 0 <= dropout < 1:
        raise RedblueError(f"dropout must be at least 0 and below 1, got {options.dropout!r}")
    if options.schedule != "auto" and options.schedule not in SCHEDULES:
        raise RedblueError(
            f"schedule must be one of auto, {', '.join(SCHEDULES)} (those with a kernel), got {options.schedule!r}"
        )
    return scale, softcap, dropout


SCHEDULES = ("flash",)


def _number(name: str, value: Any) -> float:
    if isinstance(value, (bool, str)) or not hasattr(value, "__float__"):
        raise RedblueError(f"{name} must be a number, got {value!r}")
    value = float(value)
    if not math.isfinite(value):
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
        if len(shape) > MOST_LEAD + 3:
            raise RedblueError(f"{name} may have at most {MOST_LEAD + 3} dimensions, got shape {shape}")
    if q[-1] != k[-1]:
        raise RedblueError(f"head dimension of k ({k[-1]}) must equal that of q ({q[-1]})")
    if k[-2] != v[-2]:
        raise RedblueError(f"v must have as many keys as k ({k[-2]}), got {v[-2]}")
    for name, size in (("d, the last dimension of q and k,", q[-1]), ("d_v, the last dimension of v,", v[-1])):
        if not 1 <= size <= MOST_D:
            raise RedblueError(f"{name} must be 1 to {MOST_D}, got {size}")
    kv_heads = k[-3] if v[-3] == 1 else v[-3]
    if k[-3] not in (1, kv_heads):
        raise RedblueError(f"v must have as many heads as k ({k[-3]}), got {v[-3]}")
    heads = q[-3]
    if heads == 1 and kv_heads > 1:
        heads = kv_heads  # one query head, broadcast
    if kv_heads == 0 or heads % kv_heads:
        if heads or kv_heads:
            raise RedblueError(f"heads of q ({heads}) must be a multiple of those of k and v ({kv_heads})")
    try:
        lead = np.broadcast_shapes(q[:-3], k[:-3], v[:-3])
    except ValueError:
        shapes = ", ".join(f"{name} {shape}" for name, shape in (("q", q), ("k", k), ("v", v)))
        raise RedblueError(f"leading dimensions must broadcast, got {shapes}") from None
    return Sizes(lead, kv_heads, heads // kv_heads if kv_heads else 1, q[-2], k[-2], q[-1], v[-1])


def check_bias_shape(shape: Sequence[int], sizes: Sizes) -> None:
    """Raise RedblueError unless a bias of this shape broadcasts to (lead..., heads, n_q, n_k)."""
    full = (*sizes.lead, sizes.kv_heads * sizes.group, sizes.n_q, sizes.n_k)
    padded = (1,) * (len(full) - len(shape)) + tuple(shape)
    if len(padded) != len(full) or any(a not in (1, b) for a, b in zip(padded, full, strict=True)):
        raise RedblueError(f"bias must broadcast to (..., heads, n_q, n_k) = {full}, got shape {tuple(shape)}")


def band_of(mask: Mask | None, n_q: int, n_k: int) -> tuple[int, int]:
    """(first, end): query i attends keys i + first .. i + end - 1. Raises RedblueError for masks that are no band."""
    if mask is None:
        return -n_q, n_k + 1
    if not isinstance(mask, Mask):
        raise RedblueError(f"mask must be a redblue.Mask, such as Mask.causal(), got {type(mask).__name__}")
    if not isinstance(mask.rule, Window):
        raise RedblueError(f"the kernels take full, causal and sliding-window masks, got {mask!r}: give it as bias")
    band = mask.rule.on(n_q, n_k, 1)
    return band.first, band.end


def default_threads() -> int:
    """As many as PyTorch uses, if it is loaded; else one per core that this process may run on."""
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_num_threads"):
        return torch.get_num_threads()
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def as_numpy(name: str, array: Any) -> np.ndarray:
    """A view of any array on the CPU. Raises RedblueError for others."""
    if isinstance(array, np.ndarray):
        if not array.dtype.isnative:
            raise RedblueError(f"{name} must be in this machine's byte order, got {array.dtype.str}: use .astype")
        return array
    if hasattr(array, "__dlpack__"):
        try:
            return np.from_dlpack(array)
        except (BufferError, RuntimeError, TypeError) as error:
            raise RedblueError(f"{name} cannot be read as an array on the CPU: {error}") from error
    raise RedblueError(f"{name} must be an array (PyTorch, NumPy or DLPack), got {type(array).__name__}")


def check_dtypes(names: dict[str, str]) -> str:
    """The one type of all arrays, by argument name."""
    for name, dtype in names.items():
        if dtype not in DTYPES:
            raise RedblueError(f"{name} must be of type {', '.join(DTYPES)}, got {dtype}")
    first = next(iter(names.values()))
    for name, dtype in names.items():
        if dtype != first:
            raise RedblueError(f"{', '.join(names)} must be of one type, got {first} and, for {name}, {dtype}")
    return first


class NumpyCall:
    """A call on NumPy arrays, checked."""

    def __init__(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, options: Options) -> None:
        self.flat = all(x.ndim == 2 for x in (q, k, v))  # one head
        self.shapes = q.shape, k.shape, v.shape
        q, k, v = (x[None] if x.ndim == 2 else x for x in (q, k, v))
        self.sizes = check_shapes(q.shape, k.shape, v.shape)
        self.dtype = check_dtypes({"q": q.dtype.name, "k": k.dtype.name, "v": v.dtype.name})
        self.scale, self.softcap, self.dropout = check_scalars(options, self.sizes.d)
        self.band = band_of(options.mask, self.sizes.n_q, self.sizes.n_k)
        self.sum_dtype = np.float64 if self.dtype == "float64" else np.float32
        if self.dropout and options.seed is None:
            raise RedblueError("dropout on NumPy arrays needs a seed, which attention_backward takes again")
        self.seed = (options.seed or 0) % 2**64
        sizes, heads = self.sizes, self.sizes.kv_heads * self.sizes.group
        self.q, self.k, self.v = (
            np.broadcast_to(x, (*sizes.lead, h, *x.shape[-2:])) for x, h in ((q, heads), (k, sizes.kv_heads), (v, sizes.kv_heads))
        )
        self.bias = None
        if options.bias is not None:
            bias = as_numpy("bias", options.bias)
            check_bias_shape(bias.shape, sizes)
            if bias.dtype.name not in NUMBERS:
                raise RedblueError(f"bias must be of type bool, {', '.join(DTYPES)}, got {bias.dtype.name}")
            if bias.dtype.name == "float64" and self.dtype != "float64":
                raise RedblueError(f"bias of type float64 needs float64 arrays, got {self.dtype}")
            self.bias = np.broadcast_to(bias, (*sizes.lead, heads, sizes.n_q, sizes.n_k))
        self.sinks = None
        if options.sinks is not None:
            sinks = as_numpy("sinks", options.sinks)
            if sinks.shape != (heads,):
                raise RedblueError(f"sinks must have shape ({heads},), one per head of q, got {sinks.shape}")
            self.sinks = np.ascontiguousarray(sinks, self.sum_dtype)

    @property
    def common(self) -> dict[str, Any]:
        return {
            "band": self.band,
            "scale": self.scale,
            "softcap": self.softcap,
            "bias": None if self.bias is None else _described(self.bias),
            "bias_dtype": "float32" if self.bias is None else self.bias.dtype.name,
            "dropout": self.dropout,
            "seed": self.seed,
            "threads": default_threads(),
        }

    def sums(self) -> np.ndarray:
        return np.empty(self.q.shape[:-1], self.sum_dtype)

    def forward(self) -> tuple[np.ndarray, np.ndarray]:
        out, lse = np.empty((*self.q.shape[:-1], self.sizes.d_v), self.q.dtype), self.sums()
        sinks = None if self.sinks is None else (self.sinks.ctypes.data, *[0] * (lse.ndim - 1), 1, 0)
        arrays = (_described(x) for x in (self.q, self.k, self.v, out))
        cpu.forward(self.sizes, self.dtype, *arrays, _described(lse[..., None]), sinks=sinks, **self.common)
        return (out[0], lse[0]) if self.flat else (out, lse)

    def backward(
        self, dout: np.ndarray, out: np.ndarray, lse: np.ndarray, dlse: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if self.flat:
            dout, out, lse, dlse = (x if x is None else x[None] for x in (dout, out, lse, dlse))
        shape = (*self.q.shape[:-1], self.sizes.d_v)
        for name, array in (("dout", dout), ("out", out)):
            if array.shape != shape or array.dtype != self.q.dtype:
                raise RedblueError(f"{name} must be {shape} of {self.dtype}, got {array.shape} of {array.dtype.name}")
        if lse.shape != shape[:-1]:
            raise RedblueError(f"lse must have shape {shape[:-1]}, got {lse.shape}")
        lse = np.ascontiguousarray(lse, self.sum_dtype)
        more = {}
        if dlse is not None:
            if dlse.shape != lse.shape:
                raise RedblueError(f"dlse must have the shape of lse, {lse.shape}, got {dlse.shape}")
            dlse = np.ascontiguousarray(dlse, self.sum_dtype)
            more["dlse"] = _described(dlse[..., None])
        delta = self.sums()
        gradients = [np.empty(x.shape, x.dtype) for x in (self.q, self.k, self.v)]
        arrays = (_described(x) for x in (self.q, self.k, self.v, out, lse[..., None], dout, *gradients))
        cpu.backward(self.sizes, self.dtype, *arrays, _described(delta[..., None]), **self.common, **more)
        dq, dk, dv = (_summed_to(x, shape) for x, shape in zip(gradients, self.shapes, strict=True))
        return dq, dk, dv


def _summed_to(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The gradient of what was broadcast from `shape`."""
    missing = tuple(range(max(0, array.ndim - len(shape))))
    if missing:
        array = array.sum(axis=missing)
    spread = tuple(i for i, size in enumerate(shape) if size == 1 and array.shape[i] != 1)
    return array.sum(axis=spread, keepdims=True) if spread else array


def _described(array: np.ndarray) -> cpu.Array:
    if any(stride % array.itemsize for stride in array.strides):
        raise RedblueError(f"an array's strides must be whole elements, got {array.strides} bytes: give a copy")
    return (array.ctypes.data, *(stride // array.itemsize for stride in array.strides))
