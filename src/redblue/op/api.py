"""The operator: signatures, and the way to a kernel for NumPy arrays; for PyTorch tensors see op/pytorch."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

from redblue.base.errors import RedblueError
from redblue.kernels.cpu import call as cpu
from redblue.kernels.cpu.mask_form import attended, per_head
from redblue.masks import Mask
from redblue.op.checks import (
    Options,
    check_bias_shape,
    check_dtypes,
    check_mask,
    check_scalars,
    check_shapes,
    check_sinks_dtype,
    check_sinks_shape,
    check_widths_on_cpu,
    heads_of,
)


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

    q (..., H, n_q, d), k (..., H_kv, n_k, d), v (..., H_kv, n_k, d_v): PyTorch tensors of the CPU or of a GPU (with
    autograd; docs/gpu.md), or NumPy arrays and whatever else speaks DLPack (gives NumPy). All of one type: float64,
    float32, bfloat16 or float16; sums are in float32 or better. Two-dimensional ones are one head. H is a multiple of
    H_kv (grouped-query attention, nothing is expanded), the other leading dimensions broadcast. Any strides are read in
    place.

    mask: which keys a query attends; Mask.full() if None. A row that attends nothing gives 0.
    scale: 1 / sqrt(d) if None. softcap: scores x become softcap tanh(x / softcap).
    bias: added to the scores, after softcap; any shape that broadcasts to (..., H, n_q, n_k); True means attend.
    sinks: (H,), one more score for each head that takes a share of the softmax and has no value.
    dropout: the share of probabilities that become 0. Which ones: a function of the seed (drawn from PyTorch's
    generator if None; required for NumPy arrays), the same for all tiles, threads and both passes.
    return_lse: also give the log-sum-exp of each row's scores (..., H, n_q), sinks included; differentiable.
    schedule: "flash" (tiles); "hybrid" or "small_cache", which move fewer words through caches below d^2 words and keep
    some rows of P at a time in memory; "gather" (pair by pair, for graphs), for which a GPU takes tiles; or "auto": on
    the CPU flash or gather, on a GPU any of the others, whichever costs less.

    Returns out (..., H, n_q, d_v), or (out, lse). Raises RedblueError, naming the argument, for what it cannot take.
    """
    options = Options(mask, scale, bias, softcap, sinks, dropout, seed, schedule)
    if is_torch(q) or is_torch(k) or is_torch(v):
        from redblue.op.pytorch import dispatch

        return dispatch.attention(q, k, v, options, return_lse)
    q, k, v = (as_numpy(name, array) for name, array in (("q", q), ("k", k), ("v", v)))
    call = NumpyCall(q, k, v, options)
    out, lse = call.forward()
    return (out, lse) if return_lse else out


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


def is_torch(array: Any) -> bool:
    """Whether this is a PyTorch tensor; never imports PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def default_threads() -> int:
    """As many as PyTorch uses, if it is loaded; else one per core that this process may run on."""
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_num_threads"):
        return torch.get_num_threads()
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def as_numpy(name: str, array: Any) -> np.ndarray:
    """A view of any array on the CPU. Raises RedblueError for others."""
    if isinstance(array, np.ma.MaskedArray):
        raise RedblueError(f"{name} is a masked array: give its .data, and its mask as bias")
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


class NumpyCall:
    """A call on NumPy arrays, checked."""

    def __init__(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, options: Options) -> None:
        check_mask(options.mask)
        self.flat = all(x.ndim == 2 for x in (q, k, v))  # one head
        self.shapes = q.shape, k.shape, v.shape
        q, k, v = (x[None] if x.ndim == 2 else x for x in (q, k, v))
        if per_head(options.mask):  # no two heads see the same keys
            k, v = (_ungrouped(q, x) for x in (k, v))
        self.sizes = sizes = check_shapes(q.shape, k.shape, v.shape)
        check_widths_on_cpu(sizes)
        bias = None if options.bias is None else as_numpy("bias", options.bias)
        names = {"q": q.dtype.name, "k": k.dtype.name, "v": v.dtype.name}
        self.dtype = check_dtypes(names, None if bias is None else bias.dtype.name)
        scale, self.softcap, self.dropout, seed = check_scalars(options)
        self.scale = sizes.d**-0.5 if scale is None else scale
        if self.dropout and seed is None:
            raise RedblueError("dropout on NumPy arrays needs a seed, which attention_backward takes again")
        self.seed = (seed or 0) % 2**64
        self.mask, self.schedule = options.mask, options.schedule
        self.sum_dtype = np.float64 if self.dtype == "float64" else np.float32
        heads = heads_of(sizes)
        self.q, self.k, self.v = (
            np.broadcast_to(x, (*sizes.lead, h, *x.shape[-2:]))
            for x, h in ((q, heads), (k, sizes.kv_heads), (v, sizes.kv_heads))
        )
        self.bias = None
        if bias is not None:
            check_bias_shape(bias.shape, sizes)
            self.bias = np.broadcast_to(bias, (*sizes.lead, heads, sizes.n_q, sizes.n_k))
        self.sinks = None
        if options.sinks is not None:
            sinks = as_numpy("sinks", options.sinks)
            check_sinks_shape(sinks.shape, sizes)
            check_sinks_dtype(sinks.dtype.name)
            self.sinks = np.ascontiguousarray(sinks, self.sum_dtype)

    def common(self, direction: str, lse: np.ndarray | None = None) -> dict[str, Any]:
        return {
            "mask": attended(self.mask, self.sizes, self.dtype, direction, schedule=self.schedule, lse=lse),
            "schedule": self.schedule,
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
        q, k, v = (_described(x) for x in (self.q, self.k, self.v))
        places = _described(out), _described(lse[..., None])
        cpu.forward(self.sizes, self.dtype, q, k, v, *places, sinks=sinks, **self.common("forward"))
        return (out[0], lse[0]) if self.flat else (out, lse)

    def backward(
        self, dout: np.ndarray, out: np.ndarray, lse: np.ndarray, dlse: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if self.flat:
            dout, out, lse = dout[None], out[None], lse[None]
            dlse = None if dlse is None else dlse[None]
        shape = (*self.q.shape[:-1], self.sizes.d_v)
        for name, array in (("dout", dout), ("out", out)):
            if array.shape != shape or array.dtype != self.q.dtype:
                raise RedblueError(f"{name} must be {shape} of {self.dtype}, got {array.shape} of {array.dtype.name}")
        for name, array in (("lse", lse), ("dlse", dlse)):
            if array is not None and (array.shape != shape[:-1] or array.dtype.name not in ("float32", "float64")):
                wanted = f"{shape[:-1]} of float32 or float64"
                raise RedblueError(f"{name} must be {wanted}, got {array.shape} of {array.dtype.name}")
        lse = np.ascontiguousarray(lse, self.sum_dtype)
        more = {}
        if dlse is not None:
            dlse = np.ascontiguousarray(dlse, self.sum_dtype)
            more["dlse"] = _described(dlse[..., None])
        delta = self.sums()
        gradients = [np.empty(x.shape, x.dtype) for x in (self.q, self.k, self.v)]
        q, k, v, dq, dk, dv = (_described(x) for x in (self.q, self.k, self.v, *gradients))
        given = _described(out), _described(lse[..., None]), _described(dout)
        places = dq, dk, dv, _described(delta[..., None])
        cpu.backward(self.sizes, self.dtype, q, k, v, *given, *places, **self.common("backward", lse), **more)
        dq, dk, dv = (_summed_to(x, shape) for x, shape in zip(gradients, self.shapes, strict=True))
        return dq, dk, dv


def _ungrouped(q: np.ndarray, x: np.ndarray) -> np.ndarray:
    """k or v with a head for each of q's."""
    heads = x.shape[-3]
    whole = heads and q.shape[-3] > heads and q.shape[-3] % heads == 0
    return np.repeat(x, q.shape[-3] // heads, axis=-3) if whole else x


def _summed_to(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The gradient of what was broadcast, or whose heads were repeated, from `shape`."""
    dtype = array.dtype
    wide = np.result_type(dtype, np.float32)  # a sum in 16 bits would be far off
    if len(shape) > 2 and array.shape[-3] != shape[-3] > 1:
        *lead, heads, n, columns = array.shape
        array = array.reshape(*lead, shape[-3], heads // shape[-3], n, columns).sum(axis=-3, dtype=wide)
    missing = array.ndim - len(shape)
    padded = (1,) * missing + tuple(shape)
    axes = tuple(i for i, size in enumerate(padded) if i < missing or (size == 1 and array.shape[i] != 1))
    if axes:
        array = array.astype(wide).sum(axis=axes).reshape(shape)
    return array.astype(dtype, copy=False)


def _described(array: np.ndarray) -> cpu.Array:
    if any(stride % array.itemsize for stride in array.strides):
        raise RedblueError(f"an array's strides must be whole elements, got {array.strides} bytes: give a copy")
    return (array.ctypes.data, *(stride // array.itemsize for stride in array.strides))
