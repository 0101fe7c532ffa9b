"""The kernels as a function of JAX with a gradient. This module imports JAX."""

from __future__ import annotations

import atexit
import contextlib
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from redblue.base.dtypes import sum_dtype
from redblue.base.errors import RedblueError
from redblue.jax import abi, kernels
from redblue.jax.kernels import RANKS, Static
from redblue.kernels.options import WITHOUT_GRADIENT

FORWARD, BACKWARD = "redblue_attention", "redblue_attention_backward"
TESTED = "0.5.0 to 0.12.0"
COMPUTE = {FORWARD: kernels.forward, BACKWARD: kernels.backward}

Arrays = dict[str, jax.Array]


@partial(jax.jit, static_argnums=0)
def attention(static: Static, q: jax.Array, k: jax.Array, v: jax.Array, arrays: Arrays) -> tuple[jax.Array, jax.Array]:
    """The output (batch, n_q, heads, d_v) and the log-sum-exp of each row (batch, heads, n_q), with gradients.

    arrays: the options that are arrays, and lengths, with as many dimensions as kernels.RANKS says.
    """
    return _attention(static, q, k, v, arrays)


def varying_alike(*arrays: Any) -> Any:
    """Return the arrays, marked in shard_map as varying along all axes along which one of them varies."""
    axes = frozenset().union(*(_varying(x) for x in jax.tree.leaves(arrays)))
    if not axes:
        return arrays

    def varied(x: Any) -> Any:
        missing = tuple(axes - _varying(x))
        if not missing:
            return x
        if hasattr(jax.lax, "pcast"):
            return jax.lax.pcast(x, missing, to="varying")
        return jax.lax.pvary(x, missing)  # pyright: ignore[reportAttributeAccessIssue]

    return jax.tree.map(varied, arrays)


def _varying(x: Any) -> frozenset[Any]:
    """The axes of shard_map along which devices hold different values of an array."""
    aval = getattr(x, "aval", None)
    axes = getattr(aval, "mat", None)  # from JAX 0.10 on
    return frozenset() if aval is None else axes.varying if axes is not None else getattr(aval, "vma", frozenset())


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(static: Static, q: jax.Array, k: jax.Array, v: jax.Array, arrays: Arrays) -> Any:
    return _forward_call(static, q, k, v, arrays)


def _forward(static: Static, q: Any, k: Any, v: Any, arrays: Any) -> tuple[Any, Any]:
    """The outputs, and everything that the backward pass needs. The arguments know whether they are perturbed."""
    varies = {name: x.perturbed for name, x in arrays.items()}
    q, k, v, arrays = jax.tree.map(lambda x: x.value, (q, k, v, arrays), is_leaf=_is_primal)
    for name in WITHOUT_GRADIENT:
        if varies.get(name):
            raise RedblueError(f"{name} has no gradient: use jax.lax.stop_gradient on it, or give a bias")
    # Not `_forward_call`: JAX can differentiate `_attention` again, and so reaches the error about second derivatives
    outputs: Any = _attention(static, q, k, v, arrays)
    bias_varies = () if varies.get("bias") else None  # a tree, because JAX would convert a bool to an array
    return outputs, (q, k, v, *outputs, arrays, bias_varies)


def _is_primal(x: Any) -> bool:
    return isinstance(x, jax.custom_derivatives.CustomVJPPrimal)


def _backward(static: Static, saved: Any, cotangents: tuple[Any, Any]) -> tuple[Any, ...]:
    """The gradients of q, k, v and of the options."""
    q, k, v, out, lse, arrays, bias_varies = saved
    dout, dlse = cotangents
    if isinstance(dout, SymbolicZero):
        dout = jnp.zeros_like(out)
    if not isinstance(dlse, SymbolicZero):
        arrays = arrays | {"dlse": dlse}
    computed: Any = _gradients(static, bias_varies is not None, q, k, v, out, lse, dout, arrays)
    dq, dk, dv, delta, *dbias = computed
    gradients: dict[str, Any] = dict.fromkeys(name for name in arrays if name != "dlse")
    if dbias:
        gradients["bias"] = dbias[0].astype(arrays["bias"].dtype)
    if "sinks" in arrays:
        share = jnp.where(jnp.isneginf(lse), 0.0, jnp.exp(arrays["sinks"][:, None] - lse))
        gradients["sinks"] = -(share * delta).sum((0, 2))
    return dq, dk, dv, gradients


_attention.defvjp(_forward, _backward, symbolic_zeros=True)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _gradients(
    static: Static,
    with_bias: bool,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    out: jax.Array,
    lse: jax.Array,
    dout: jax.Array,
    arrays: Arrays,
) -> Any:
    """dq, dk, dv, delta and, `with_bias`, dbias."""
    results: dict[str, Any] = {"dq": q, "dk": k, "dv": v, "delta": lse}
    if with_bias:
        results["dbias"] = jax.ShapeDtypeStruct(arrays["bias"].shape, lse.dtype)
    inputs = {"q": q, "k": k, "v": v, "out": out, "lse": lse, "dout": dout} | arrays
    return _call(BACKWARD, static, inputs, results)


def _no_second_derivative(*arguments: Any) -> Any:
    raise RedblueError("second derivatives are not supported: redblue's attention has first derivatives only")


_gradients.defvjp(_no_second_derivative, _no_second_derivative)


def _forward_call(static: Static, q: jax.Array, k: jax.Array, v: jax.Array, arrays: Arrays) -> Any:
    batch, n_q, heads, _ = q.shape
    out = jax.ShapeDtypeStruct((batch, n_q, heads, v.shape[-1]), q.dtype)
    lse = jax.ShapeDtypeStruct((batch, heads, n_q), sum_dtype(q.dtype.name))
    return _call(FORWARD, static, {"q": q, "k": k, "v": v} | arrays, {"out": out, "lse": lse})


def _call(target: str, static: Static, arguments: Arrays, results: dict[str, Any]) -> Any:
    """Call the kernels. results: the shapes and types of the results, by name."""
    register()
    static = static._replace(arguments=tuple(arguments), results=tuple(results))
    assert all(x.ndim == RANKS[name] for name, x in arguments.items())
    q, *others = arguments.values()
    shapes = [_result(x, q) for x in results.values()]
    call = jax.ffi.ffi_call(target, shapes, vmap_method="expand_dims")
    return tuple(call(_on_cpu.bind(q), *others, call=static.text))


def _result(like: Any, q: jax.Array) -> jax.ShapeDtypeStruct:
    """The shape and type of a result. In shard_map, it varies along the axes along which q varies."""
    varying = _varying(q)
    axes: dict[str, Any] = {}
    if varying and hasattr(jax.sharding, "ManualAxisType"):  # from JAX 0.10 on
        mesh = jax.typeof(q).sharding.mesh  # pyright: ignore[reportAttributeAccessIssue]
        axes["manual_axis_type"] = jax.sharding.ManualAxisType(varying=varying)  # pyright: ignore
        axes["sharding"] = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    elif varying:
        axes["vma"] = varying
    return jax.ShapeDtypeStruct(like.shape, like.dtype, **axes)


@cache
def register() -> tuple[Any, ...]:
    """Register the kernels with XLA; the result must be kept. Raises RedblueError if XLA does not accept them."""
    try:
        # Start the backend now, because a handler that XLA refuses would prevent its start
        jax.local_devices(backend="cpu")
    except RuntimeError as error:
        raise RedblueError(f"redblue.jax computes on CPUs: add cpu to JAX_PLATFORMS ({error})") from error
    header = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    version = abi.version_in(header.read_text(encoding="utf-8"))
    handlers = {name: abi.handler(compute, version) for name, compute in COMPUTE.items()}
    try:
        for name, handler in handlers.items():
            jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(handler), platform="cpu")
    except Exception as error:
        raise RedblueError(
            f"the installed jaxlib does not accept redblue's kernels, which are tested with jaxlib {TESTED}: {error}"
        ) from error
    atexit.register(_finish)  # runs before the hook of JAX, which has been registered already
    return tuple(handlers.values())


def _finish() -> None:
    """Wait for functions whose results are still referenced, and end all others, before the interpreter ends."""
    for array in jax.live_arrays("cpu"):
        with contextlib.suppress(Exception):  # an array may have been deleted, or hold an error
            array.block_until_ready()
    abi.finish()


# The identity, lowered for CPUs only. On another device XLA would find no kernel, and its error would be less clear.
_on_cpu = Primitive("redblue_attention_on_cpu")
_on_cpu.def_impl(lambda x: x)
_on_cpu.def_abstract_eval(lambda x: x)
batching.primitive_batchers[_on_cpu] = lambda args, dims: (_on_cpu.bind(*args), dims[0])


def _refuse(context: Any, *arguments: Any) -> Any:
    platforms = ", ".join(context.module_context.platforms)
    raise RedblueError(
        f"redblue.jax computes on CPUs, and this function is compiled for {platforms}: use "
        "jax.nn.dot_product_attention there, or put the arrays on jax.devices('cpu')"
    )


mlir.register_lowering(_on_cpu, _refuse)
mlir.register_lowering(_on_cpu, lambda context, x: [x], platform="cpu")
