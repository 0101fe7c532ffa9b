"""The counterpart of jax.nn.dot_product_attention."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from redblue.base.dtypes import COMPUTED, sum_dtype
from redblue.base.errors import RedblueError
from redblue.base.integers import LARGEST, whole_number
from redblue.jax.kernels import RANKS, Static
from redblue.jax.masks import name_of
from redblue.kernels.mask_planes import check_lead, per_head
from redblue.kernels.options import ARRAYS, JaxArguments, Options, check_array, checked
from redblue.kernels.sizes import Sizes
from redblue.masks import Mask
from redblue.masks.rules.stack import planes
from redblue.op.checks import check_dtypes, check_flag, check_shapes, check_widths_on_cpu
from redblue.op.signatures import documented, options_of

if TYPE_CHECKING:
    import jax
    from typing_extensions import Unpack


@documented(JaxArguments)
def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    is_causal: bool = False,
    query_seq_lengths: Any = None,
    key_value_seq_lengths: Any = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
    seed: Any = None,
    return_lse: bool = False,
    **options: Unpack[JaxArguments],
) -> Any:
    """Exact attention on CPUs, with the signature and the meaning of jax.nn.dot_product_attention.

    It works under jit, grad, vmap, scan, checkpoint and shard_map. No array of size n_q n_k is allocated, apart from a
    given bias or boolean mask.

    query (B, n_q, H, d) or (n_q, H, d); key (B, n_k, H_kv, d) or (n_k, H_kv, d); value: as key, or with another last
    dimension. All have one type: float32, bfloat16, float16 or, with jax_enable_x64, float64. H is a multiple of H_kv;
    nothing is repeated.
    bias: added to the scores, any shape that broadcasts to (B, H, n_q, n_k), with gradient.
    mask: a redblue.Mask, which costs only its pairs; or a boolean array that broadcasts to (B, H, n_q, n_k), True where
    a query attends a key.
    is_causal: query i attends keys 0..i.
    query_seq_lengths, key_value_seq_lengths: (B,) whole numbers. Padding beyond these lengths is not computed and
    changes no result, even if it is NaN.
    local_window_size: (left, right), or one number for both: query i attends keys i - left .. i + right. A negative
    size excludes the query's own position: (3, -1) is the three keys before it.
    implementation: None or "redblue".
    return_residual: also return the log-sum-exp of each row's scores (B, n_q, H), in the type of key, without gradient.

    jax.nn lacks seed, return_lse and all options below except scale. Sinks have a gradient. So has scale if it is an
    array that varies under a transformation of JAX.

    seed: a key of jax.random, or a whole number; needed by dropout.
    return_lse: like return_residual, but in the type of sums, float32 or float64, and differentiable.

    Rows that attend no key, such as padding, give 0, where jax.nn gives the mean of all values. Their log-sum-exp is
    the head's sink, or -inf without sinks. float64 is computed in float64, where jax.nn computes the softmax in
    float32.

    Returns out, of query's shape with the last dimension of value, or (out, lse), with lse (B, n_q, H). Without a
    batch, no result has the dimension B. Raises RedblueError, naming the argument, for an unsupported value.
    """
    jnp = _jax().numpy
    for name, flag in (("is_causal", is_causal), ("return_residual", return_residual), ("return_lse", return_lse)):
        check_flag(name, flag)
    if return_residual and return_lse:
        raise RedblueError("return_residual and return_lse are the same sums in two types: give only one of them")
    if implementation not in (None, "redblue"):
        raise RedblueError(
            f'implementation must be None or "redblue", got {implementation!r}: call jax.nn.dot_product_attention for '
            "JAX's own"
        )
    query = _array("query", query)
    shape = query.shape
    query, key, value = (_with_batch(name, x) for name, x in (("query", query), ("key", key), ("value", value)))
    sizes = _sizes(query, key, value)
    array_mask = None if mask is None or isinstance(mask, Mask) else _boolean_mask(mask, sizes)
    mask = _with_window(mask if isinstance(mask, Mask) else None, is_causal, local_window_size)
    record = options_of("dot_product_attention", options, JaxArguments)._replace(mask=mask)
    if _is_traced(record.scale):
        query, record = _scaled(query, record.scale), record._replace(scale=None)
    record = _checked(record)
    if mask is not None:
        _check_mask(mask, sizes)
    arrays = {
        **{name: _option(name, x, sizes, query.dtype.name) for name, _, x in record.present_arrays()},
        "bias": _bias(bias, array_mask, sizes, query.dtype.name),
        "seed": _seed(seed, record.dropout),
        "query_lengths": _lengths("query_seq_lengths", query_seq_lengths, query.shape[0]),
        "key_lengths": _lengths("key_value_seq_lengths", key_value_seq_lengths, query.shape[0]),
    }
    out, lse = _call(record, query, key, value, {name: x for name, x in arrays.items() if x is not None})
    out = out.reshape(*shape[:-1], value.shape[-1])
    if not (return_residual or return_lse):
        return out
    lse = lse.swapaxes(-1, -2).reshape(shape[:-1])
    return out, lse if return_lse else _jax().lax.stop_gradient(lse.astype(jnp.dtype(key.dtype)))


def register_kernels() -> None:
    """Register the kernels with JAX, for processes that run a function saved by jax.export.

    The first call of dot_product_attention registers them, too. Raises RedblueError if JAX is not installed, if it has
    no CPU backend, or if the installed jaxlib does not accept the kernels.
    """
    _jax()
    from redblue.jax import differentiable

    differentiable.register()


def _jax() -> Any:
    try:
        import jax
        import jax.numpy
    except ImportError as error:
        raise RedblueError("redblue.jax needs JAX: pip install 'redblue[jax]'") from error
    return jax


def _call(options: Options, q: jax.Array, k: jax.Array, v: jax.Array, arrays: dict[str, Any]) -> Any:
    """Call the kernels. arrays: the options that are arrays, and lengths."""
    from redblue.jax import differentiable

    name = "" if options.mask is None else name_of(options.mask)
    static = Static(Options(name, *options.others[1:]))
    return differentiable.attention(static, *differentiable.varying_alike(q, k, v, arrays))


# Arrays --------------------------------------------------------------------------------------------------------------


def _array(name: str, x: Any) -> jax.Array:
    """Convert to an array of JAX. Raises RedblueError if this is not possible."""
    try:
        return _jax().numpy.asarray(x)
    except (TypeError, ValueError) as error:
        raise RedblueError(f"{name} must be an array, got {type(x).__name__}: {error}") from error


def _with_batch(name: str, x: Any) -> jax.Array:
    """The array with a dimension for the batch. Raises RedblueError unless it has 3 or 4 dimensions."""
    x = _array(name, x)
    if x.ndim not in (3, 4):
        raise RedblueError(f"{name} must be (batch, rows, heads, features) or (rows, heads, features), got {x.shape}")
    return x[None] if x.ndim == 3 else x


def _sizes(query: jax.Array, key: jax.Array, value: jax.Array) -> Sizes:
    """The sizes of the call. Raises RedblueError, naming the argument, for arrays that do not fit together."""
    check_dtypes({"query": query.dtype.name, "key": key.dtype.name, "value": value.dtype.name})
    (batch, _, heads, d), (_, n_k, kv_heads, _) = query.shape, key.shape
    wanted = {"key": (batch, key.shape[1], kv_heads, d), "value": (batch, n_k, kv_heads, value.shape[3])}
    for name, x in (("key", key), ("value", value)):
        if x.shape != wanted[name]:
            raise RedblueError(
                f"{name} must be {wanted[name]} to fit query {query.shape} and key {key.shape}, got {x.shape}"
            )
    if not kv_heads or heads % kv_heads:
        raise RedblueError(f"heads of query ({heads}) must be a multiple of the heads of key and value ({kv_heads})")
    q, k, v = ((x.shape[0], x.shape[2], x.shape[1], x.shape[3]) for x in (query, key, value))
    sizes = check_shapes(q, k, v)
    check_widths_on_cpu(sizes)
    return sizes


def _broadcastable(name: str, x: jax.Array, sizes: Sizes) -> jax.Array:
    """The array with four dimensions. Raises RedblueError unless it broadcasts to the scores."""
    full = (*sizes.lead, sizes.heads, sizes.n_q, sizes.n_k)
    shape = (1,) * (4 - x.ndim) + x.shape
    if len(shape) != 4 or any(a not in (1, b) for a, b in zip(shape, full, strict=True)):
        raise RedblueError(f"{name} must broadcast to (batch, heads, queries, keys) = {full}, got shape {x.shape}")
    return x.reshape(shape)


def _boolean_mask(mask: Any, sizes: Sizes) -> jax.Array:
    mask = _array("mask", mask)
    if mask.dtype.name != "bool":
        raise RedblueError(
            f"mask must be a redblue.Mask or a boolean array, got one of {mask.dtype.name}: give numbers as bias"
        )
    return _broadcastable("mask", mask, sizes)


def _bias(bias: Any, mask: jax.Array | None, sizes: Sizes, dtype: str) -> jax.Array | None:
    """The bias for the kernels: the bias with -inf where a boolean mask is False; without a bias, the mask itself."""
    if bias is None:
        return mask
    bias = _array("bias", bias)
    if bias.dtype.name not in COMPUTED:
        advice = ": give it as mask" if bias.dtype.name == "bool" else ": use astype"
        raise RedblueError(f"bias must be of type {', '.join(COMPUTED)}, got {bias.dtype.name}{advice}")
    bias = _broadcastable("bias", bias, sizes)
    if bias.dtype.name == "float64" != dtype:
        bias = bias.astype(sum_dtype(dtype))
    return bias if mask is None else _jax().numpy.where(mask, bias, -float("inf"))


def _option(name: str, x: Any, sizes: Sizes, dtype: str) -> jax.Array:
    """The option with as many dimensions as kernels.RANKS says, in the type that kernels read."""
    x = _array(name, x)
    check_array(name, x.shape, x.dtype.name, sizes, dtype)
    x = x.reshape((1,) * (RANKS[name] - x.ndim) + x.shape)
    return x.astype(sum_dtype(dtype)) if ARRAYS[name].is_converted else x


def _lengths(name: str, lengths: Any, batch: int) -> jax.Array | None:
    if lengths is None:
        return None
    lengths = _array(name, lengths)
    if lengths.dtype.name not in ("int32", "int64", "uint32", "uint64") or lengths.shape != (batch,):
        raise RedblueError(
            f"{name} must be whole numbers (int32) of shape ({batch},), got {lengths.dtype.name} of {lengths.shape}"
        )
    return lengths


def _seed(seed: Any, dropout: float) -> jax.Array | None:
    """The high and the low 32 bits of the seed; None without dropout."""
    if seed is None:
        if dropout:
            raise RedblueError("dropout needs a seed: give a key of jax.random, or a whole number")
        return None
    words = _words(seed)
    return words if dropout else None


def _words(seed: Any) -> jax.Array:
    """The high and the low 32 bits of a seed."""
    jax = _jax()
    jnp = jax.numpy
    dtype = getattr(seed, "dtype", None)
    if dtype is not None and (jnp.issubdtype(dtype, jax.dtypes.prng_key) or (dtype == jnp.uint32 and seed.ndim == 1)):
        return jax.random.bits(seed, (2,), "uint32")
    if dtype is None or not isinstance(seed, jax.Array):
        advice = ": give a whole number or a key of jax.random"
        number = whole_number("seed", seed, -math.inf, math.inf, advice) % 2**64
        return jnp.asarray([number >> 32, number & 0xFFFFFFFF], jnp.uint32)
    if not jnp.issubdtype(dtype, jnp.integer) or seed.shape:
        raise RedblueError(f"seed must be a key of jax.random or a whole number, got {dtype} of shape {seed.shape}")
    # A seed of fewer bits is extended to 64 bits, as in two's complement
    high = seed >> 32 if dtype.itemsize == 8 else jnp.where(seed < 0, -1, 0)
    return jnp.stack([high.astype(jnp.uint32), seed.astype(jnp.uint32)])


# Masks and numbers ---------------------------------------------------------------------------------------------------


def _with_window(mask: Mask | None, is_causal: bool, window: Any) -> Mask | None:
    """The mask, a causal mask and a local window as one mask."""
    if window is not None:
        pair = window if isinstance(window, (tuple, list)) else (window, window)
        if len(pair) != 2:
            raise RedblueError(f"local_window_size must be a whole number or (left, right), got {window!r}")
        left, right = (whole_number("local_window_size", n, -LARGEST) for n in pair)
        if is_causal:
            right = min(right, 0)
        if left + right < 0:
            causal = " with is_causal" if is_causal else ""
            raise RedblueError(
                f"local_window_size={window!r}{causal} leaves no key to any query: query i attends keys i - left .. "
                "i + right. Here -1 does not mean that a side has no limit: give a size of at least the number of keys"
            )
        band = _band(left, right)
    elif is_causal:
        band = Mask.causal()
    else:
        return mask
    return band if mask is None or mask.is_full else mask & band


def _band(left: int, right: int) -> Mask:
    """Query i attends keys i - left .. i + right, one of which may be negative."""
    band = Mask.sliding_window(max(left, 0), max(right, 0))
    if left < 0:
        band &= ~Mask.sliding_window(None, -left - 1)
    if right < 0:
        band &= ~Mask.sliding_window(-right - 1, None)
    return band


def _check_mask(mask: Mask, sizes: Sizes) -> None:
    """Raise RedblueError unless the mask fits the sizes of the kernels' call."""
    if per_head(mask):
        sizes = sizes._replace(kv_heads=sizes.heads, group=1)
    check_lead(mask, sizes)
    for rule in planes(mask.rule)[0]:
        rule.on(sizes.n_q, sizes.n_k, 1)


def _is_traced(number: Any) -> bool:
    return isinstance(number, _jax().core.Tracer)


def _scaled(query: jax.Array, scale: Any) -> jax.Array:
    """The query multiplied so that the default scale gives the scores of `scale`, a traced number.

    The factor is near 1 for usual scales. So float16 neither overflows nor loses small numbers.
    """
    jnp = _jax().numpy
    if scale.shape or not any(jnp.issubdtype(scale.dtype, kind) for kind in (jnp.floating, jnp.integer)):
        raise RedblueError(f"scale must be a number, got an array of shape {scale.shape} and type {scale.dtype.name}")
    dtype = sum_dtype(query.dtype.name)
    return (query.astype(dtype) * (scale.astype(dtype) * query.shape[-1] ** 0.5)).astype(query.dtype)


def _checked(options: Options) -> Options:
    """The checked options. Raises RedblueError for a value that is not allowed, or for a number that varies."""
    for name, number in zip(Options._fields, options.others, strict=False):  # the options that are not arrays
        if _is_traced(number):
            raise RedblueError(
                f"{name} must be a number that is known when the function is compiled: mark it as a static argument"
            )
    return checked(options)
