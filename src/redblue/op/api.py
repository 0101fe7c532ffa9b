"""The operator's public functions, and its implementation on NumPy arrays. op/pytorch implements it on tensors."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from redblue.base.cpus import usable_cpus
from redblue.base.dtypes import SUM_DTYPES, sum_dtype
from redblue.base.errors import RedblueError
from redblue.kernels.cpu import call as cpu
from redblue.kernels.cpu.arrays import array_memory, described
from redblue.kernels.cpu.mask_form import attended, bias_gradient_is_apart
from redblue.kernels.mask_planes import per_head
from redblue.kernels.options import Arguments, Options, check_array, check_gradients, checked
from redblue.kernels.positions import check_places, packed
from redblue.op.checks import check_dtypes, check_flag, check_shapes, check_widths_on_cpu
from redblue.op.signatures import documented, options_of

if TYPE_CHECKING:
    from typing_extensions import Unpack


@documented(Arguments)
def attention(q: Any, k: Any, v: Any, *, return_lse: bool = False, **options: Unpack[Arguments]) -> Any:
    """Exact attention: softmax(softcap(scale Q K^T) + bias, masked) V, without allocating an array of n_q n_k elements.

    q (..., H, n_q, d), k (..., H_kv, n_k, d), v (..., H_kv, n_k, d_v): PyTorch tensors of the CPU or of a GPU (with
    autograd; docs/guide/gpu.md), or NumPy arrays and anything that supports DLPack (the result is NumPy). All have one
    type: float64, float32, bfloat16 or float16; sums are in float32 or better. Two-dimensional arrays are one head. H
    is a multiple of H_kv (grouped-query attention, nothing is expanded); the other leading dimensions broadcast. Arrays
    of any strides are read in place.

    return_lse: also return the log-sum-exp of each row's scores (..., H, n_q), sinks included; differentiable.

    Returns out (..., H, n_q, d_v), or (out, lse). Raises RedblueError, naming the argument, for an unsupported value.
    Source: `redblue schedules` names the paper of each schedule that the kernels follow.
    """
    check_flag("return_lse", return_lse)
    record = options_of("attention", options)
    if is_torch(q) or is_torch(k) or is_torch(v):
        from redblue.op.pytorch import dispatch

        return dispatch.attention(q, k, v, record, return_lse)
    q, k, v = (as_numpy(name, array) for name, array in (("q", q), ("k", k), ("v", v)))
    out, lse = NumpyCall(q, k, v, record).forward()
    return (out, lse) if return_lse else out


@documented(Arguments)
def attention_backward(
    dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *, dlse: Any = None, **options: Unpack[Arguments]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gradients (dq, dk, dv) of sum(dout * out) + sum(dlse * lse), for NumPy arrays; PyTorch users have autograd.

    q, k, v: as for `attention`. out, lse: the results of `attention(..., return_lse=True)` for the same arguments, the
    seed included. dout: the gradient of out, of its shape and type. dlse: the gradient of lse, of its shape, float32 or
    float64; None if lse is not used.

    Returns dq, dk and dv, of the shapes and types of q, k and v. Raises RedblueError, naming the argument, for an
    unsupported value and for PyTorch tensors. Source: `redblue schedules` names the paper of flash_onepass.
    """
    record = options_of("attention_backward", options)
    arrays = {"dout": dout, "q": q, "k": k, "v": v, "out": out, "lse": lse}
    for name, array in arrays.items():
        if is_torch(array):
            raise RedblueError(f"{name} is a PyTorch tensor: call attention and use autograd, or give NumPy arrays")
    dout, q, k, v, out, lse = (as_numpy(name, array) for name, array in arrays.items())
    return NumpyCall(q, k, v, record).backward(dout, out, lse, None if dlse is None else as_numpy("dlse", dlse))


def is_torch(array: Any) -> bool:
    """Whether this is a PyTorch tensor; never imports PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def default_threads() -> int:
    """PyTorch's number of threads if PyTorch is loaded; else one per CPU that this process may use."""
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_num_threads"):
        return torch.get_num_threads()
    return usable_cpus()


def as_numpy(name: str, array: Any) -> np.ndarray:
    """A NumPy view of an array on the CPU. Raises RedblueError for anything else."""
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


class GradientArrays(NamedTuple):
    """Memory for the results of a backward pass, of any strides.

    dq, dk, dv: of the shapes and types of NumpyCall's q, k and v. delta: one sum per row, of type NumpyCall.sum_dtype.
    dbias: of type NumpyCall.sum_dtype, with as many dimensions as the scores. Gradients are added up along its
    dimensions of size 1.
    """

    dq: np.ndarray
    dk: np.ndarray
    dv: np.ndarray
    delta: np.ndarray
    dbias: np.ndarray | None = None


@lru_cache(maxsize=64)
def _name_of(dtype: np.dtype) -> str:
    """The name of a type, which NumPy takes 5 us to find."""
    return dtype.name


def _expanded_to(lead: tuple[int, ...], x: np.ndarray) -> np.ndarray:
    """Broadcast all but the last two dimensions of x to `lead`. np.broadcast_to takes 5 us, which tiny calls feel."""
    return x if x.shape[:-2] == lead else np.broadcast_to(x, (*lead, *x.shape[-2:]))


class NumpyCall:
    """A checked call on NumPy arrays."""

    def __init__(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, options: Options) -> None:
        options = checked(options)
        check_gradients(options)
        self.flat = all(x.ndim == 2 for x in (q, k, v))  # one head
        self.shapes = q.shape, k.shape, v.shape
        q, k, v = (x[None] if x.ndim == 2 else x for x in (q, k, v))
        if per_head(options.mask):  # the kernels take one mask per key head, so copy k and v for every query head
            k, v = (_ungrouped(q, x) for x in (k, v))
        self.sizes = sizes = check_shapes(q.shape, k.shape, v.shape)
        check_widths_on_cpu(sizes)
        self.dtype = check_dtypes({name: _name_of(x.dtype) for name, x in (("q", q), ("k", k), ("v", v))})
        self.sum_dtype = np.dtype(sum_dtype(self.dtype))
        if options.dropout and options.seed is None:
            raise RedblueError(
                "dropout on NumPy arrays needs a seed: give one, and give it to attention_backward again"
            )
        self.q = _expanded_to((*sizes.lead, sizes.heads), q)
        self.k, self.v = (_expanded_to((*sizes.lead, sizes.kv_heads), x) for x in (k, v))
        if options.positions is not None:
            options = options._replace(positions=packed(options.positions, sizes, options.dropout))
        self.options = options._replace(**self._expanded(options))

    def _expanded(self, options: Options) -> dict[str, np.ndarray]:
        """Check the options that are arrays, and convert them to the shape and the type that the kernels read."""
        expanded = {}
        for name, rules, x in options.present_arrays():
            array = as_numpy(name, x)
            check_array(name, array.shape, array.dtype.name, self.sizes, self.dtype)
            array = np.ascontiguousarray(array, self.sum_dtype) if rules.is_converted else array
            if rules.places:
                check_places(array, self.sizes)
            expanded[name] = np.broadcast_to(array, rules.shape(self.sizes))
        return expanded

    def arguments(self, direction: str, lse: np.ndarray | None = None, bias_gradient: bool = False) -> dict[str, Any]:
        """The keyword arguments of the core's call."""
        options, sizes = self.options, self.sizes
        forward = direction == "forward"
        arrays = {name: x for name, rules, x in options.present_arrays() if forward or rules.backward}
        arguments = options.core_arguments(sizes, arrays, array_memory)
        arguments["mask"] = attended(options.mask, sizes, self.dtype, direction, bias_gradient, options.schedule, lse)
        arguments["threads"] = default_threads()
        arguments["schedule"] = options.schedule
        return arguments

    def sums(self) -> np.ndarray:
        """Memory for one sum per row."""
        return np.empty(self.q.shape[:-1], self.sum_dtype)

    def forward(self, out: np.ndarray | None = None, lse: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The output and the log-sum-exp of each row. out, lse: memory for them, of any strides."""
        out = np.empty((*self.q.shape[:-1], self.sizes.d_v), self.q.dtype) if out is None else out
        lse = self.sums() if lse is None else lse
        if self.sizes.group:  # without query heads, the core could not divide them among the key heads
            arrays = (described(x) for x in (self.q, self.k, self.v, out, lse[..., None]))
            cpu.forward(self.sizes, self.dtype, *arrays, **self.arguments("forward"))
        return (out[0], lse[0]) if self.flat else (out, lse)

    def backward(
        self, dout: np.ndarray, out: np.ndarray, lse: np.ndarray, dlse: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The gradients of q, k and v, from the outputs and their gradients."""
        if self.flat:
            dout, out, lse = dout[None], out[None], lse[None]
            dlse = None if dlse is None else dlse[None]
        self._check_outputs(dout, out, lse, dlse)
        dq, dk, dv = (np.empty(x.shape, x.dtype) for x in (self.q, self.k, self.v))
        gradients = GradientArrays(dq, dk, dv, self.sums())
        self.backward_into(dout, out, lse, dlse, gradients)
        dq, dk, dv = (summed_to(x, shape) for x, shape in zip((dq, dk, dv), self.shapes, strict=True))
        return dq, dk, dv

    def backward_into(
        self, dout: np.ndarray, out: np.ndarray, lse: np.ndarray, dlse: np.ndarray | None, gradients: GradientArrays
    ) -> None:
        """Write the gradients of the expanded arrays q, k and v, and, if there is memory for it, of the bias."""
        dbias = gradients.dbias
        if not self.sizes.group:  # as in forward
            for x in (gradients.dk, gradients.dv, dbias):
                if x is not None:
                    x[...] = 0
            return
        lse = np.ascontiguousarray(lse, self.sum_dtype)
        if dbias is not None and self._bias_gradient_is_apart(lse):
            self.backward_into(dout, out, lse, dlse, gradients._replace(dbias=None))
            dq, dk, dv, delta = (np.empty_like(x) for x in gradients[:4])
            gradients = GradientArrays(dq, dk, dv, delta, dbias)
        arguments = self.arguments("backward", lse, dbias is not None)
        if dlse is not None:
            dlse = np.ascontiguousarray(dlse, self.sum_dtype)
            arguments["dlse"] = described(dlse[..., None])
        if dbias is not None:
            expanded = np.broadcast_to(dbias, self.options.bias.shape)
            if not expanded.size:  # no pair, so the kernel would write nothing
                dbias[...] = 0
            arguments["dbias"] = described(expanded)
        *results, delta, _ = gradients
        arrays = self.q, self.k, self.v, out, lse[..., None], dout, *results, delta[..., None]
        cpu.backward(self.sizes, self.dtype, *(described(x) for x in arrays), **arguments)

    def _bias_gradient_is_apart(self, lse: np.ndarray) -> bool:
        return bias_gradient_is_apart(self.options.mask, self.sizes, self.dtype, self.options.schedule, lse)

    def _check_outputs(self, dout: np.ndarray, out: np.ndarray, lse: np.ndarray, dlse: np.ndarray | None) -> None:
        """Raise RedblueError unless these have the shapes and types of the outputs and of their gradients."""
        shape = (*self.q.shape[:-1], self.sizes.d_v)
        for name, array in (("dout", dout), ("out", out)):
            if array.shape != shape or array.dtype != self.q.dtype:
                raise RedblueError(f"{name} must be {shape} of {self.dtype}, got {array.shape} of {array.dtype.name}")
        for name, array in (("lse", lse), ("dlse", dlse)):
            if array is not None and (array.shape != shape[:-1] or array.dtype.name not in SUM_DTYPES):
                wanted = f"{shape[:-1]} of {' or '.join(SUM_DTYPES)}"
                raise RedblueError(f"{name} must be {wanted}, got {array.shape} of {array.dtype.name}")


def _ungrouped(q: np.ndarray, x: np.ndarray) -> np.ndarray:
    """k or v with one head per query head."""
    heads = x.shape[-3]
    repeats = heads and q.shape[-3] > heads and q.shape[-3] % heads == 0
    return np.repeat(x, q.shape[-3] // heads, axis=-3) if repeats else x


def summed_to(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Sum a gradient over repeated heads and broadcast dimensions, down to the shape of the array that was expanded."""
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
